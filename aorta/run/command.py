"""What ``aorta run`` does with its flags: checks them, runs the trials, sums up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from aorta.dag.errors import bad_input_exits, refuse, say
from aorta.dag.lock import LockedError
from aorta.dag.sweep import warning_lines
from aorta.plan.folders import new_name
from aorta.plan.paths import safe_name
from aorta.recipe.errors import RecipeError, RecipeSchemaError
from aorta.recipe.flags import MATRIX_NAMES, SOURCE, read_config, read_variables, split_items
from aorta.run.trials import RunError, RunRequest, TrialResult, plan_request, run_plan
from aorta.text import plural

ALL_PASSED, NOT_ALL_PASSED = 0, 1

_NAMES: Mapping[str, str] = {
    **MATRIX_NAMES,
    "mitigations": "--mitigations",
    "environment": "--environment",
    "collect": "--collect",
}


def run_from_flags(given: Mapping[str, Any], working_directory: Path) -> int:
    """Runs what the flags ask for; bad input ends the process with exit code 2 before anything is written.

    Args:
        given: The command's parameters by name.
        working_directory: Where ``run_results`` is made unless an output folder was given.

    Returns:
        The exit code: 0 if every trial passed, else 1.
    """
    now = datetime.now().astimezone()
    output = Path(given["output"]) if given["output"] else new_name(working_directory / "run_results", now)
    with bad_input_exits():
        request = _request(given, output)
        plan = plan_request(request, now=now, names=_NAMES)
    for line in warning_lines(plan):
        say(line)
    # A SIGTERM would end this process alone, and leave the trial running.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        results = run_plan(plan, output)
    except RunError as error:
        say(str(error))
        results = error.results
    except LockedError as error:
        refuse(f"output: {error}")
    except OSError as error:
        refuse(f"output: cannot use {error.filename}: {error.strerror or error}")
    print(summary(results, request.trials, output / safe_name(plan.workload)), flush=True)
    return ALL_PASSED if len(results) == request.trials and all(result.passed for result in results) else NOT_ALL_PASSED


def summary(results: Sequence[TrialResult], trials: int, folder: Path) -> str:
    """Returns the closing line: how many trials passed, how the others ended, the mean step time, where the files lie.

    Args:
        results: The trials that ended.
        trials: How many were asked for.
        folder: Where their files lie.
    """
    verdicts = [result.verdict for result in results] + ["missing"] * (trials - len(results))
    counts = {"failed": "fail", "errored": "error", "missing": "missing"}
    others = [f"{verdicts.count(verdict)} {word}" for word, verdict in counts.items() if verdict in verdicts]
    times = [time for result in results if result.result is not None for time in result.result.step_times_ms]
    passed = f"{verdicts.count('pass')} of {plural(trials, 'trial')} passed"
    mean = [f"mean step {sum(times) / len(times):.4g} ms"] if times else []
    return f"{', '.join([passed, *others, *mean])}: {folder}"


def _request(given: Mapping[str, Any], output: Path) -> RunRequest:
    faults: list[RecipeError] = []
    variables = read_variables("--extra-env", given["extra_env"], faults)
    config = read_config("--workload-config", given["workload_config"], faults)
    mitigations = split_items("--mitigations", given["mitigations"], faults)
    collect = split_items("--collect", given["collect"], faults) if given["collect"] else []
    if faults:
        raise RecipeSchemaError(faults, SOURCE)
    optional = {"trial_isolation": given["trial_isolation"], "trial_timeout_sec": given["trial_timeout"]}
    return RunRequest(
        workload=given["workload"],
        trials=given["trials"],
        steps=given["steps"],
        output_dir=output,
        environment=given["environment"],
        mitigations=mitigations,
        extra_env=variables,
        config_overrides=config,
        collect={name: {} for name in collect},
        save_logs=given["save_logs"],
        sidecars=given["mitigations_files"],
        nproc_per_node=given["nproc_per_node"],
        **{name: value for name, value in optional.items() if value is not None},
    )
