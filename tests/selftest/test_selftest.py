"""``aorta selftest`` itself, on real trials."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SIZES: dict[str, Any] = {
    "dtype": "float32",
    "request": {"batch_size": 1, "prompt_len": 4, "generate_tokens": 2},
    "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ffn_size": 16, "vocab_size": 32},
}
BLIND = {"fail_on_nan_logits": False, "fail_on_nonfinite_output": False, "compare_logits_checksum": False}


def selftest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder, with locks of its own."""
    program = "from aorta.cli import main; main(prog_name='aorta')"
    return subprocess.run(
        [sys.executable, "-c", program, "selftest", *arguments],
        cwd=folder,
        env={**os.environ, "AORTA_LOCK_DIR": str(folder / "locks")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def write_recipe(path: Path, workload: str, cells: dict[str, dict[str, Any]]) -> str:
    """Writes a recipe with one trial a cell and returns its name."""
    content = {
        "schema_version": 1,
        "workload": workload,
        "trials": 1,
        "steps": 2,
        "confound": {"baseline_cell": next(iter(cells))},
        "cells": [
            {"name": name, "mitigations": ["none"], "environment": "local", "workload_config": config}
            for name, config in cells.items()
        ],
    }
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path.name


@pytest.mark.e2e
def test_quick_passes_here(tmp_path: Path) -> None:
    """Flipped bits and a dead rank are found on two ranks, and the clean trial passes."""
    done = selftest(tmp_path, "--quick", "--output", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-test passed: 3 of 3 planted faults found as planted, clean trials: 1" in done.stdout
    assert (tmp_path / "out" / "quick" / "matrix.json").is_file()


@pytest.mark.e2e
def test_a_blind_detector_fails_the_self_test(tmp_path: Path) -> None:
    """The same fault with the checks on is found, and with the checks off is a miss with its place and exit code 1."""
    fault = {"kind": "nan_logits", "buffer": "decode_logits", "step": 1}
    cells = {"seeing": {**SIZES, "inject": fault}, "blind": {**SIZES, "inject": fault, "checks": BLIND}}
    done = selftest(tmp_path, "--recipe", write_recipe(tmp_path / "mine.yaml", "inference", cells), "--output", "out")
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = {words[1]: words[-1] for line in done.stdout.splitlines()[1:3] if (words := line.split())}
    assert verdicts == {"seeing": "ok", "blind": "WRONG"}
    assert "mine, blind, trial 0: missed: inject[0], nan_logits in decode_logits on rank 0 at step 1" in done.stdout


def test_recipes_that_cannot_be_judged_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """An unknown workload, and a file that is no recipe."""
    smoke = write_recipe(tmp_path / "smoke.yaml", "gpu_smoke", {"only": {}})
    (tmp_path / "broken.yaml").write_text("cells: 3\n", "utf-8")
    for name, reason in ((smoke, "workload 'gpu_smoke' cannot be judged"), ("broken.yaml", "schema_version")):
        done = selftest(tmp_path, "--recipe", name, "--output", "out")
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_a_sweep_that_is_refused_ends_with_2(tmp_path: Path) -> None:
    """race needs two ranks; the reason is shown."""
    name = write_recipe(tmp_path / "mine.yaml", "race", {"only": {}})
    done = selftest(tmp_path, "--recipe", name, "--nproc-per-node", "1", "--output", "out")
    assert done.returncode == 2
    assert "selftest: cannot run: mine.yaml ended with 2" in done.stderr


def test_quick_contradicts_recipes(tmp_path: Path) -> None:
    """Both say what runs."""
    name = write_recipe(tmp_path / "mine.yaml", "race", {"only": {}})
    assert selftest(tmp_path, "--quick", "--recipe", name).returncode == 2
