"""What the supervisor and the worker may import: their start-up time is paid once per trial."""

from __future__ import annotations

import json
import subprocess
import sys

from .conftest import REPOSITORY, Runner

FORBIDDEN = {
    "argparse", "asyncio", "click", "dataclasses", "importlib.metadata", "inspect", "jsonschema", "logging",
    "multiprocessing", "numpy", "pandas", "pathlib", "platform", "scipy", "shutil", "snakemake", "socket", "subprocess",
    "tempfile", "threading", "torch", "traceback", "urllib", "uuid", "yaml",
}  # fmt: skip


def imported(*modules: str) -> set[str]:
    """The modules in memory after an import in a bare interpreter."""
    program = f"import sys; sys.path.append({str(REPOSITORY)!r}); import {', '.join(modules)}; import json; "
    command = [sys.executable, "-I", "-S", "-c", program + "print(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def test_the_supervisor_imports_nothing_heavy() -> None:
    """The supervisor starts with a few light modules of the standard library."""
    assert imported("aorta.run.trial") & FORBIDDEN == set()


def test_the_supervisor_of_a_command_imports_nothing_heavy() -> None:
    """What watches and judges a command is light too, and no other trial pays for it."""
    assert imported("aorta.run.opaque") & FORBIDDEN == set()
    assert "aorta.run.opaque" not in imported("aorta.run.trial")


def test_a_trial_imports_nothing_to_ask_slurm_with(trial: Runner) -> None:
    """From its start to its record: on a workstation there is nobody to ask."""
    trial.plan("Noop")
    interpreter, *rest = trial.command()
    told = trial.finish(trial.start_command([interpreter, "-X", "importtime", *rest]))
    assert trial.record()["verdict"] == "pass"
    named = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    assert "aorta.run.trial" in named and named & {"aorta.run.slurmjob", "aorta.run.lost"} == set()


def test_the_worker_imports_nothing_heavy() -> None:
    """The worker adds nothing to what the workload imports itself."""
    assert imported("aorta.run.worker") & FORBIDDEN == set()


def test_the_supervisor_needs_only_the_standard_library() -> None:
    """Everything in memory is the standard library's or this package's."""
    outside = {name for name in imported("aorta.run.trial") if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in outside} - {"__main__"} == {"aorta"}


def test_the_package_itself_imports_nothing() -> None:
    """``import aorta.run`` is free."""
    assert {name for name in imported("aorta.run") if name.startswith("aorta")} == {"aorta", "aorta.run"}
