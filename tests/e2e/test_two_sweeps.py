"""Two whole sweeps on one host whose ``/sys`` or ``/proc`` shows stand-in accelerators."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Workspace
from tests.run.test_device import fake_amd, fake_nvidia

pytestmark = pytest.mark.e2e

MAIN = "from aorta.cli import main; main(prog_name='aorta')"


def overlaid(folder: Path, root: Path) -> list[str]:
    """The beginning of a command in whose mount namespace the stand-in's folders lie over the host's; may skip."""
    source, target = next(
        pair
        for pair in ((root / "sys/class/kfd", "/sys/class"), (root / "proc/driver/nvidia", "/proc/driver"))
        if pair[0].exists()
    )
    script = folder / "overlaid.sh"
    # sysfs takes no new folders, so a file system of its own lies over the parent; the rest of it is not looked at.
    copy = f"mount -t tmpfs tmpfs {target} && cp -r {shlex.quote(str(source))} {target}/"
    script.write_text(f'#!/bin/sh\n{copy} && exec "$@"\n')
    command = ["unshare", "--mount", "--propagation", "private", "sh", str(script)]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        pytest.skip("there is no unshare program")
    if tried.returncode != 0:
        pytest.skip(f"this user may not lay a file system over {target}: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("kind", ["rocm", "cuda"])
def test_two_sweeps_share_a_hosts_accelerators(workspace: Workspace, tmp_path: Path, kind: str) -> None:
    """Each runs as many trials at once as there are accelerators; no two trials of either hold one at the same time."""
    root = tmp_path / "host"
    if kind == "rocm":
        fake_amd(root, 1, 2, 3)
        # Without a render device's number a node needs no device file.
        for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
            path.write_text("".join(line for line in path.read_text().splitlines(True) if "drm_render" not in line))
    else:
        fake_nvidia(root, "GPU-aa", "GPU-bb", "GPU-cc")
    command = overlaid(tmp_path, root)
    hidden = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    environment = {name: value for name, value in workspace.environment.items() if name not in hidden}
    workspace.recipe([{"name": "a"}, {"name": "b"}], workload="known", trials=5, steps=1)
    sweeps = []
    for name in ("first", "second"):
        words = ["sweep", "run", "--recipe", "recipe.yaml", "--run-dir", name, "--jobs", "4"]
        sweeps.append(
            subprocess.Popen(
                [*command, sys.executable, "-c", MAIN, *words],
                cwd=workspace.folder,
                env={**environment, "KNOWN_SECONDS": "0.1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [sweep.communicate(timeout=240)[0] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], said
    records: list[dict[str, Any]] = [
        json.loads(path.read_text("utf-8")) for path in workspace.folder.glob("*/cells/*/*/trial_*.json")
    ]
    assert len(records) == 20
    assert {(record["verdict"], record["device"]["kind"]) for record in records} == {("pass", kind)}
    assert {record["device"]["index"] for record in records} == {0, 1, 2}
    shared = [
        (one["device"]["index"], one["started_at"], other["started_at"])
        for one, other in combinations(sorted(records, key=lambda record: record["started_at"]), 2)
        if one["device"] == other["device"] and other["started_at"] < one["ended_at"]
    ]
    assert shared == []
    assert os.listdir(workspace.environment["AORTA_LOCK_DIR"]) != []
