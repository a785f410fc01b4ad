"""Compiles a recipe to a plan: a pure function of the recipe, the workload's traits and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aorta import __version__
from aorta._jsonio import json_digest
from aorta.plan.model import SCHEMA_VERSION, Plan, PlannedCell
from aorta.plan.overlay import Overlay, merge_layers, overlay_values
from aorta.recipe.model import Cell, Collectors, Recipe, StopAfter
from aorta.registry.model import Environment
from aorta.workloads.base import ConfigProblem

FINGERPRINT_VERSION = 1
"""Raised when the meaning of a trial's request changes, so that older results count as stale."""

HONOURED_FIELDS = ("docker", "venv", "buck_target", "emulator")
"""Fields of an environment that only a workload can act on."""


class WorkloadTraits(Protocol):
    """What the compiler needs to know of a workload's class."""

    @property
    def launch_mode(self) -> str: ...
    @property
    def min_world_size(self) -> int: ...
    @property
    def isolation_default(self) -> str: ...
    @property
    def acts_on(self) -> frozenset[str]: ...


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """Settings of a run that are no part of the recipe.

    Attributes:
        trial_timeout_sec: A trial's time limit in seconds, or None for no limit.
        order_seed: Seed of the trials' order.
        strict: Whether a warning about the recipe is an error.
        sidecars: Sidecar files in use, for the record.
        nnodes: Hosts that a trial of a distributed workload is spread over.
        nproc_per_node: Its ranks on each.
        rank_logs: Whether every rank's output is kept.
    """

    trial_timeout_sec: float | None = None
    order_seed: int = 0
    strict: bool = False
    sidecars: tuple[str, ...] = ()
    nnodes: int = 1
    nproc_per_node: int = 1
    rank_logs: bool = False


@dataclass(frozen=True, kw_only=True)
class RegisteredWorkload:
    """A workload as the registry found it.

    Attributes:
        traits: The class's attributes.
        reference: ``module:Class``, or None when the name is not registered here.
        check_config: The class's own look at a merged ``workload_config``.
        problem: Why the workload cannot be used here (not registered, or its import failed), or None.
    """

    traits: WorkloadTraits
    reference: str | None
    check_config: Callable[[Mapping[str, Any]], list[ConfigProblem]]
    problem: str | None = None


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
    cells: list[PlannedCell] = []
    environments: dict[str, dict[str, Any]] = {}
    warnings: list[dict[str, Any]] = []
    if workload.problem is not None:
        warnings.append(
            {
                "cell": None,
                "code": "workload_unavailable",
                "message": f"{workload.problem}; every trial would end as workload_setup_failed",
            }
        )
    for index, cell in enumerate(recipe.cells):
        request = cell_request(recipe, cell, index, workload, settings)
        environments[cell.environment.name] = {
            **cell.environment.descriptor(),
            "isolated": cell.environment.isolated,
        }
        cells.append(
            PlannedCell(
                name=cell.name,
                trials=request["trials"],
                fingerprint=request["fingerprint"],
                environment=cell.environment.name,
                isolated=cell.environment.isolated,
                stop_after=request["stop_after"],
                request=request,
            )
        )
        warnings += _config_warnings(cell.name, workload, request["workload_config"])
        warnings += _host_warnings(recipe.workload, cell.name, cell.environment, workload)
    warnings += _ambient_warnings(cells, ambient)
    warnings += _launch_warnings(recipe.workload, workload, settings)
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
        warnings=tuple(warnings),
        created_at=created_at,
        aorta_version=__version__,
    )


def cell_request(
    recipe: Recipe, cell: Cell, index: int, workload: RegisteredWorkload, settings: CompileSettings
) -> dict[str, Any]:
    """Returns one cell's whole request, as ``cell.json`` holds it and its trials read it."""
    traits = workload.traits
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
        "env": _overlay(recipe, cell),
        "extra_env": dict(cell.extra_env),
        "workload_config": {**recipe.workload_config, **cell.workload_config},
        "collect": {name: dict(options) for name, options in collectors.items()},
        "isolation": isolation,
        "launch": {
            "mode": traits.launch_mode,
            **_world(workload, settings),
            "min_world_size": traits.min_world_size,
        },
        "acts_on": sorted(traits.acts_on),
        "save_logs": recipe.save_logs,
        "rank_logs": settings.rank_logs,
        "trial_timeout_sec": settings.trial_timeout_sec,
    }
    request["fingerprint"] = fingerprint(request)
    return request


def fingerprint(request: Mapping[str, Any]) -> str:
    """Digest of everything in a request that can change a trial's result, and of nothing else.

    Names (of the cell, its mitigations and its environment), the number of trials, when to stop, retries, log keeping
    and the time limit are left out: they do not change what a trial that finishes would find.
    """
    environment = {
        name: value for name, value in request["environment"].items() if name not in {"name", "env", "source_package"}
    }
    launch = {name: request["launch"][name] for name in ("mode", "nnodes", "nproc_per_node")}
    return json_digest(
        {
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


def _stop_after(rule: StopAfter) -> dict[str, Any] | None:
    if rule.events is None:
        return None
    return {"events": rule.events, "event_verdict": rule.event_verdict}


def _overlay(recipe: Recipe, cell: Cell) -> Overlay:
    return merge_layers(
        [
            (f"environment:{cell.environment.name}", cell.environment.env),
            *((f"mitigation:{mitigation.name}", mitigation.env) for mitigation in cell.mitigations),
            ("recipe.extra_env", recipe.extra_env),
            ("cell.extra_env", cell.extra_env),
        ]
    )


def _config_warnings(cell: str, workload: RegisteredWorkload, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"cell": cell, "code": problem.code, "message": f"workload_config.{problem.key}: {problem.message}"}
        for problem in workload.check_config(config)
    ]


def _host_warnings(
    name: str, cell: str, environment: Environment, workload: RegisteredWorkload
) -> list[dict[str, Any]]:
    """Says which named places a trial will not run in; without this a host run would pass for a container run."""
    if workload.reference is None:
        return []
    ignored = [
        f"{field} {getattr(environment, field)!r}"
        for field in HONOURED_FIELDS
        if getattr(environment, field) is not None and field not in workload.traits.acts_on
    ]
    if not ignored:
        return []
    return [
        {
            "cell": cell,
            "code": "ran_on_host",
            "message": (
                f"environment {environment.name!r} names {' and '.join(ignored)}, but workload {name!r} does not "
                "act on that: the trials run on the host"
            ),
        }
    ]


def _world(workload: RegisteredWorkload, settings: CompileSettings) -> dict[str, int]:
    """Returns ``nnodes`` and ``nproc_per_node`` of a trial; a single_process workload has one process in any case."""
    if workload.traits.launch_mode != "distributed":
        return {"nnodes": 1, "nproc_per_node": 1}
    return {"nnodes": settings.nnodes, "nproc_per_node": settings.nproc_per_node}


def _launch_warnings(name: str, workload: RegisteredWorkload, settings: CompileSettings) -> list[dict[str, Any]]:
    if workload.traits.launch_mode == "distributed" or settings.nproc_per_node == 1:
        return []
    message = (
        f"nproc_per_node is {settings.nproc_per_node}, but workload {name!r} is single_process: "
        "each of its trials runs one process"
    )
    return [{"cell": None, "code": "nproc_per_node_ignored", "message": message}]


def _ambient_warnings(cells: list[PlannedCell], ambient: Mapping[str, str]) -> list[dict[str, Any]]:
    """Names variables that some cells control while others would inherit a value from the launching environment."""
    overlays = {cell.name: overlay_values((cell.request or {}).get("env", {})) for cell in cells}
    controlled = sorted({name for overlay in overlays.values() for name in overlay})
    warnings: list[dict[str, Any]] = []
    for name in controlled:
        heirs = [cell for cell, overlay in overlays.items() if name not in overlay]
        if name in ambient and heirs:
            warnings.append(
                {
                    "cell": None,
                    "code": "ambient_variable",
                    "message": (
                        f"{name} is set to {ambient[name]!r} where the sweep was started, so cells that do not set it "
                        f"inherit that value: {', '.join(heirs)}; unset it, or set it in the recipe"
                    ),
                }
            )
    return warnings
