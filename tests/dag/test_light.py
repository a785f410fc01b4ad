"""What a job process that re-parses the Snakefile must not import: it pays for it once a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "torch",
    "pandas",
    "numpy",
    "scipy",
    "jsonschema",
    "yaml",
    "click",
    "jinja2",
    "aorta.recipe",
    "aorta.registry.registry",
}

PROGRAM = """
import sys
from aorta.dag import open_sweep
sweep = open_sweep({"recipe": "r.yaml", "aorta_job_run_dir": "path:run"}, main_process=False)
print(sweep.trial_command("baseline-local", "1"))
print(*sorted(sys.modules))
"""


def test_a_job_reads_the_frozen_plan_and_nothing_heavy(tmp_path: Path) -> None:
    """No recipe is compiled and no heavy library is imported in a job."""
    golden = Path(__file__).parents[1] / "plan" / "golden" / "plan.json"
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(json.dumps(json.loads(golden.read_text("utf-8"))["plan"]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    command, modules = done.stdout.splitlines()
    assert "--run-dir run --cell baseline-local --trial 1" in command
    assert HEAVY & set(modules.split()) == set()
