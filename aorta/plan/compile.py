"""Compiles a recipe to a plan: a pure function of the recipe, the workload's traits and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aorta import __version__
from aorta._jsonio import json_digest
from aorta.plan.findings import (
    RegisteredWorkload,
    launch_findings,
    process_variables,
    recipe_findings,
    surroundings_findings,
)
from aorta.plan.model import SCHEMA_VERSION, Plan, PlannedCell, of_consequence
from aorta.plan.overlay import Overlay, merge_layers, overlay_values
from aorta.recipe.model import Cell, Collectors, Probe, Recipe, StopAfter
from aorta.recipe.resources import plain_resources

FINGERPRINT_VERSION = 1
"""Raised when the meaning of a trial's request changes, so that older results count as stale."""


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """Settings of a run that are no part of the recipe.

    Attributes:
        trial_timeout_sec: A trial's time limit in seconds, or None for no limit.
        order_seed: Seed of the trials' order.
        strict: Whether a warning about the recipe is an error.
        sidecars: Sidecar files in use, for the record.
        nnodes: Hosts that a trial of a distributed workload is spread over, unless its cell's resources say otherwise.
        nproc_per_node: Its ranks on each; 0 to look at a recipe of which nobody has said yet how it will be started.
        rank_logs: Whether every rank's output is kept.
        command: ``argv`` and ``cwd`` of what a probe recipe runs; None for other recipes, and to look at one.
    """

    trial_timeout_sec: float | None = None
    order_seed: int = 0
    strict: bool = False
    sidecars: tuple[str, ...] = ()
    nnodes: int = 1
    nproc_per_node: int = 1
    rank_logs: bool = False
    command: Mapping[str, Any] | None = None


def compile_plan(
    recipe: Recipe,
    workload: RegisteredWorkload,
    *,
    resolved: Mapping[str, Any],
    ambient: Mapping[str, str],
    settings: CompileSettings,
    created_at: str,
) -> Plan:
    """Resolves and freezes every cell of a recipe.

    Args:
        recipe: A loaded recipe.
        workload: The workload, as the registry found it.
        resolved: The resolved recipe, as it will be written for replay.
        ambient: The environment that trials will inherit, to warn of variables that cells control.
        settings: Settings of the run.
        created_at: The time of planning, ISO 8601 in UTC.
    """
    requests = [cell_request(recipe, cell, index, workload, settings) for index, cell in enumerate(recipe.cells)]
    cells = [
        PlannedCell(
            name=cell.name,
            trials=request["trials"],
            fingerprint=request["fingerprint"],
            environment=cell.environment.name,
            isolated=cell.environment.isolated,
            stop_after=request["stop_after"],
            launch={name: request["launch"][name] for name in ("nnodes", "nproc_per_node")},
            resources=request["resources"],
            request=request,
        )
        for cell, request in zip(recipe.cells, requests, strict=True)
    ]
    environments = {
        cell.environment.name: {**cell.environment.descriptor(), "isolated": cell.environment.isolated}
        for cell in recipe.cells
    }
    found = [
        *recipe_findings(recipe, requests, workload),
        *surroundings_findings(requests, ambient),
        *launch_findings(recipe.workload, workload, settings.nnodes, settings.nproc_per_node),
    ]
    return Plan(
        workload=recipe.workload,
        ticket=recipe.ticket,
        cells=tuple(cells),
        environments=environments,
        confound={"threshold": recipe.confound.threshold, "baseline_cell": recipe.confound.baseline_cell},
        recipe=resolved,
        recipe_source=recipe.source,
        sidecars=settings.sidecars,
        trial_isolation=recipe.trial_isolation,
        order_seed=settings.order_seed,
        strict=settings.strict,
        launch=_world(workload, settings),
        command=settings.command,
        warnings=tuple(finding.warning() for finding in found),
        created_at=created_at,
        aorta_version=__version__,
    )


def cell_request(
    recipe: Recipe, cell: Cell, index: int, workload: RegisteredWorkload, settings: CompileSettings
) -> dict[str, Any]:
    """Returns one cell's whole request, as ``cell.json`` holds it and its trials read it."""
    traits = workload.traits
    resources = plain_resources(recipe.resources, cell.resources)
    isolation = traits.isolation_default if recipe.trial_isolation == "auto" else recipe.trial_isolation
    collectors: Collectors = recipe.collect if cell.collect is None else cell.collect
    request: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "cell": cell.name,
        "cell_index": index,
        "workload": recipe.workload,
        "workload_ref": workload.reference,
        "steps": recipe.steps if cell.steps is None else cell.steps,
        "trials": recipe.trial_count(cell),
        "stop_after": _stop_after(recipe.stop_rule(cell)),
        "retry_errors": recipe.retry_errors if cell.retry_errors is None else cell.retry_errors,
        "mitigations": [mitigation.name for mitigation in cell.mitigations],
        "environment": cell.environment.descriptor(),
        "env": _overlay(recipe, cell, workload),
        "extra_env": dict(cell.extra_env),
        "workload_config": _workload_config(recipe, cell),
        "collect": {name: dict(options) for name, options in collectors.items()},
        "isolation": isolation,
        "launch": {
            "mode": traits.launch_mode,
            **_world(workload, settings, resources.get("nodes")),
            "min_world_size": traits.min_world_size,
        },
        "resources": resources,
        "acts_on": sorted(traits.acts_on),
        "save_logs": recipe.save_logs,
        "rank_logs": settings.rank_logs,
        "trial_timeout_sec": settings.trial_timeout_sec,
    }
    if recipe.probe is not None:
        request["probe"] = _probe(recipe.probe, settings)
        request["trial_timeout_sec"] = recipe.probe.settings["timeout_per_trial"]
    request["fingerprint"] = fingerprint(request)
    return request


def fingerprint(request: Mapping[str, Any]) -> str:
    """Digest of everything in a request that can change a trial's result, and of nothing else.

    Names (of the cell, its mitigations and its environment), the number of trials, when to stop, retries, log keeping,
    the time limit and what a cluster is asked for are left out: they do not change what a trial that finishes would
    find. On how many nodes its ranks are does, and stands in the launch.
    """
    environment = {
        name: value for name, value in request["environment"].items() if name not in {"name", "env", "source_package"}
    }
    launch = {name: request["launch"][name] for name in ("mode", "nnodes", "nproc_per_node")}
    command = {} if "probe" not in request else {"probe": of_consequence(request["probe"])}
    return json_digest(
        {
            **command,
            "version": FINGERPRINT_VERSION,
            "workload": request["workload"],
            "steps": request["steps"],
            "env": overlay_values(request["env"]),
            "environment": environment,
            "workload_config": request["workload_config"],
            "collect": request["collect"],
            "isolation": request["isolation"],
            "launch": launch,
        }
    )


def _probe(probe: Probe, settings: CompileSettings) -> dict[str, Any]:
    """Returns the part of a cell's request that only the run of a command has."""
    return {
        **(settings.command or {"argv": [], "cwd": ""}),
        "env_passthrough_mode": probe.env_passthrough_mode,
        "collect_paths": list(probe.collect_paths),
        "settings": dict(probe.settings),
        "redaction": dict(probe.redaction),
    }


def _stop_after(rule: StopAfter) -> dict[str, Any] | None:
    if rule.events is None:
        return None
    return {"events": rule.events, "event_verdict": rule.event_verdict}


def _workload_config(recipe: Recipe, cell: Cell) -> dict[str, Any]:
    return {**recipe.workload_config, **cell.workload_config}


def _overlay(recipe: Recipe, cell: Cell, workload: RegisteredWorkload) -> Overlay:
    wanted, _ = process_variables(workload, _workload_config(recipe, cell))
    # A workload is handed its collectors' options; a command can only be given variables.
    options = recipe.collect.items() if recipe.probe is not None else ()
    return merge_layers(
        [
            *((f"collect:{name}", variables) for name, variables in options),
            (f"workload:{recipe.workload}", wanted),
            (f"environment:{cell.environment.name}", cell.environment.env),
            *((f"mitigation:{mitigation.name}", mitigation.env) for mitigation in cell.mitigations),
            ("recipe.extra_env", recipe.extra_env),
            ("cell.extra_env", cell.extra_env),
        ]
    )


def _world(workload: RegisteredWorkload, settings: CompileSettings, nodes: int | str | None = None) -> dict[str, int]:
    """Returns ``nnodes`` and ``nproc_per_node`` of a trial; a single_process workload has one process in any case."""
    if workload.traits.launch_mode != "distributed":
        return {"nnodes": 1, "nproc_per_node": 1}
    return {
        "nnodes": settings.nnodes if nodes is None else int(nodes),
        "nproc_per_node": settings.nproc_per_node,
    }
