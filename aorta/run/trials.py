"""Trials of one request from Python: ``run_trials(RunRequest(...))``, on the supervisor that sweeps use."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from aorta._jsonio import read_json, write_json_atomic
from aorta.dag.launching import find_world, launch_problems
from aorta.dag.lock import RunLock
from aorta.dag.planning import plan_recipe
from aorta.dag.settings import Settings, SettingsError
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout, safe_name
from aorta.recipe.flags import SOURCE, environment_value, load_data
from aorta.registry import Registry
from aorta.text import plural
from aorta.workloads.base import WorkloadResult

CELL = "run"
"""Name of the one cell that a request makes."""

_SUPERVISOR = Path(__file__).resolve().with_name("supervise.py")

_NAMES: Mapping[str, str] = {"workload_config": "config_overrides"}
"""Key of a recipe to the field of a request, where they differ."""


class RunError(Exception):
    """A trial that left no record, because its supervisor died.

    Attributes:
        results: The trials that had ended before.
    """

    def __init__(self, message: str, results: Sequence[TrialResult] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Trials of one workload under one set of variables.

    Attributes:
        workload: Name in the ``aorta.workloads`` entry-point group.
        trials: How many trials to run, one after the other, each in a fresh process.
        steps: Steps of a trial.
        output_dir: Where results go: ``<output_dir>/<workload>/trial_d0_m0_t<N>.json``. Must not hold results yet.
        environment: A registered environment, ``image:REF``, or a mapping of ``docker`` and ``env`` as in a recipe.
        mitigations: Registered mitigations, stacked in this order.
        extra_env: Variables above all others.
        config_overrides: Settings of the workload.
        collect: Collectors by name, each with its options.
        trial_isolation: ``auto``, ``process`` or ``in_process``.
        save_logs: Whether each trial's output is kept beside its result.
        trial_timeout_sec: Time limit of a trial in seconds; 0 for none.
        sidecars: JSON files of further mitigations and environments.
        nproc_per_node: Ranks of each trial of a distributed workload, all on this host.
    """

    workload: str
    steps: int
    output_dir: str | os.PathLike[str]
    trials: int = 1
    environment: str | Mapping[str, Any] = "local"
    mitigations: Sequence[str] = ("none",)
    extra_env: Mapping[str, str] = field(default_factory=dict)
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    collect: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    trial_isolation: str = "auto"
    save_logs: bool = False
    trial_timeout_sec: float = 86400
    sidecars: Sequence[str | os.PathLike[str]] = ()
    nproc_per_node: int = 1

    def data(self) -> dict[str, Any]:
        """Returns the request as the data of a recipe with one cell."""
        named = self.environment
        environment = environment_value(named) if isinstance(named, str) else dict(named)
        cell = {"name": CELL, "mitigations": list(self.mitigations), "environment": environment}
        return {
            "schema_version": 1,
            "workload": self.workload,
            "trials": self.trials,
            "steps": self.steps,
            "trial_isolation": self.trial_isolation,
            "save_logs": self.save_logs,
            "extra_env": dict(self.extra_env),
            "workload_config": dict(self.config_overrides),
            "collect": {name: dict(options) for name, options in self.collect.items()},
            "cells": [cell],
        }


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How one trial ended.

    Attributes:
        trial: Its number, from 0.
        workload: The workload's name.
        exit_status: ``ok``, ``workload_failed``, ``workload_setup_failed``, ``infrastructure_failed`` or ``timed_out``.
        verdict: ``pass``, ``fail`` or ``error``.
        did_not_run: Whether the main work never started.
        result: What the workload reported, or None if it did not get that far; figures that are not finite are the
            strings ``NaN``, ``Infinity`` and ``-Infinity``.
        error: What ended the trial otherwise (``phase``, ``type``, ``message`` and more), or None.
        wall_clock_sec: From the start of the worker to its end, in seconds.
        resolved_env_vars: The controlled variables as applied.
        environment: The environment's descriptor.
        workload_config: The workload's settings.
        path: The trial's file.
        record: The whole file, as ``schemas/trial.schema.json`` describes it.
    """

    trial: int
    workload: str
    exit_status: str
    verdict: str
    did_not_run: bool
    result: WorkloadResult | None
    error: Mapping[str, Any] | None
    wall_clock_sec: float
    resolved_env_vars: Mapping[str, str]
    environment: Mapping[str, Any]
    workload_config: Mapping[str, Any]
    path: Path
    record: Mapping[str, Any] = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether the trial ran and every check held."""
        return self.verdict == "pass"

    @classmethod
    def from_record(cls, record: Mapping[str, Any], path: Path) -> TrialResult:
        """Reads a trial's file.

        Args:
            record: Its content.
            path: Where it lies.
        """
        result = record["result"]
        names = {entry.name for entry in fields(WorkloadResult)}
        return cls(
            **{
                entry.name: record[entry.name]
                for entry in fields(cls)
                if entry.name in record and entry.name != "result"
            },
            result=None if result is None else WorkloadResult(**{k: v for k, v in result.items() if k in names}),
            path=path,
            record=record,
        )


def plan_request(
    request: RunRequest,
    *,
    now: datetime,
    names: Mapping[str, str] = _NAMES,
    ambient: Mapping[str, str] = os.environ,
) -> Plan:
    """Checks a request as a recipe is checked, and compiles it.

    Args:
        request: The request.
        now: The time of planning, with its time zone.
        names: What a reader calls the fields in messages.
        ambient: The environment that trials will inherit.

    Raises:
        RecipeSchemaError: The request is not valid; it holds every fault.
        RegistryError: A sidecar is not valid, or two sources register one name.
        SettingsError: The workload needs more ranks than the request gives it, or a launcher started this process as
            one of several.
    """
    settings = Settings(
        recipe=SOURCE,
        trial_timeout=request.trial_timeout_sec,
        mitigations_files=tuple(Path(path) for path in request.sidecars),
        nproc_per_node=request.nproc_per_node,
    )
    world = find_world(settings, ambient)
    if world.rank is not None:
        raise SettingsError(
            [
                f"launcher: WORLD_SIZE is {world.size}, and each of these processes would run the same trials; leave "
                f"torchrun out and ask for {plural(world.size, 'rank')} here (nproc_per_node), or have it start aorta "
                "sweep run"
            ]
        )

    def load(registry: Registry) -> Any:
        return load_data(request.data(), registry, names=names)

    plan = plan_recipe(settings, now=now, ambient=ambient, load=load)
    problems = launch_problems(plan, world)
    if problems:
        raise SettingsError(problems)
    return plan


def run_trials(request: RunRequest, *, on_result: Callable[[TrialResult], None] | None = None) -> list[TrialResult]:
    """Runs trials one after the other, each under its own supervisor.

    Whatever a trial does (a crash, a hang, a wrong answer) is its result, not an exception here. Each supervisor tells
    on standard error how its trial ended.

    Args:
        request: What to run.
        on_result: Called with each trial's result as it comes.

    Returns:
        The results in the order of the trials.

    Raises:
        RecipeSchemaError: The request is not valid; it holds every fault. Nothing was written.
        RegistryError: A sidecar is not valid, or two sources register one name. Nothing was written.
        SettingsError: The ranks do not suit the workload. Nothing was written.
        RunError: A supervisor died without a record.
        LockedError: Another process runs trials into the output folder.
        OSError: The output folder cannot be written, or (``FileExistsError``) holds trials already.
    """
    plan = plan_request(request, now=datetime.now().astimezone())
    return run_plan(plan, Path(request.output_dir), on_result=on_result)


def run_plan(
    plan: Plan, output_dir: Path, *, on_result: Callable[[TrialResult], None] | None = None
) -> list[TrialResult]:
    """Runs the one cell of a plan that ``plan_request`` made; see ``run_trials``."""
    (cell,) = plan.cells
    folder = output_dir / safe_name(plan.workload)
    lock = RunLock(output_dir / ".aorta" / "lock", str(output_dir))
    try:
        if any(folder.glob("trial_*.json")):
            message = "holds trials already; name another folder, or move them away"
            raise FileExistsError(errno.EEXIST, message, str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        if cell.isolated:
            # Where the workload leaves a snapshot from inside; a container runtime would make it as root.
            RunLayout(output_dir, plan.workload).environment(cell.environment).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(output_dir / "cell.json", dict(cell.request or {}))
        results: list[TrialResult] = []
        for trial in range(cell.trials):
            code = _supervise(output_dir, trial, cell.trials, cell.fingerprint)
            path = folder / f"trial_d0_m0_t{trial}.json"
            if code != 0 or not path.is_file():
                raise RunError(f"trial {trial} left no record: its supervisor ended with status {code}", results)
            results.append(TrialResult.from_record(read_json(path), path))
            if on_result is not None:
                on_result(results[-1])
        return results
    finally:
        lock.release()


def _supervise(output_dir: Path, trial: int, trials: int, fingerprint: str) -> int:
    # By path with -I -S, as the workflow does: half the start-up time.
    command = [sys.executable, "-I", "-S", os.fspath(_SUPERVISOR)]
    command += ["--run-dir", os.fspath(output_dir), "--cell-dir", os.fspath(output_dir), "--cell", CELL]
    command += ["--trial", str(trial), "--fingerprint", fingerprint, "--order", str(trial + 1), "--of", str(trials)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        # The supervisor takes its worker along.
        process.terminate()
        process.wait()
        raise
