"""A plan, in memory and as JSON. Standard library only: a job's start reads this and nothing heavier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aorta._jsonio import canonical_json, json_digest

SCHEMA_VERSION = 1
ONE_RANK = {"nnodes": 1, "nproc_per_node": 1}
"""The world of a trial that is not distributed, or whose ranks nobody asked for."""


RUN_AGAIN = "run the same command again (with run_dir, if it was named): it writes the file anew and keeps the trials"
"""What helps a run whose ``plan.json`` or ``cell.json`` is damaged."""


class PlanFileError(Exception):
    """A plan.json or cell.json that cannot be used; the message names the file and the remedy."""


class OtherVersionError(PlanFileError):
    """A whole plan of another version; it is not damaged, and nobody may replace it."""


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One cell of a plan.

    Attributes:
        name: The cell's name.
        trials: How many trials it has; with a rule to stop, at most.
        fingerprint: Digest of all that can change a trial's result.
        environment: Name of its environment.
        isolated: Whether that environment is a container or a virtual environment.
        stop_after: ``events`` and ``event_verdict`` of the rule that ends the cell early, or None.
        launch: ``nnodes`` and ``nproc_per_node`` of its trials.
        resources: What its trials ask a cluster for, in plain form.
        request: The whole frozen request, as ``cell.json`` holds it; None when the plan was read back from its
            summary, where trials read their own cell's file.
    """

    name: str
    trials: int
    fingerprint: str
    environment: str
    isolated: bool
    stop_after: Mapping[str, Any] | None = None
    launch: Mapping[str, int] = field(default_factory=lambda: dict(ONE_RANK))
    resources: Mapping[str, int | str] = field(default_factory=dict)
    request: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep will run, frozen.

    Attributes:
        workload: The workload's name.
        ticket: The ticket, or None.
        cells: The cells in the recipe's order.
        environments: Environment descriptors by name, each with ``isolated``.
        confound: ``threshold`` and ``baseline_cell``.
        recipe: The resolved recipe.
        recipe_source: Where the recipe came from.
        sidecars: Sidecar files that the registry was extended with.
        trial_isolation: The recipe's ``trial_isolation``.
        order_seed: Seed of the trials' order.
        strict: Whether warnings were to be errors.
        launch: ``nnodes`` and ``nproc_per_node`` of each trial.
        command: ``argv`` and ``cwd`` of the command that a probe recipe wraps; None for a matrix of a workload.
        warnings: Mappings with ``cell`` (name or None), ``code`` and ``message``.
        history: Earlier plans of the same run directory, oldest first: ``created_at``, ``plan_key``,
            ``aorta_version`` and ``trials``.
        created_at: When the run was planned, ISO 8601 in UTC.
        aorta_version: The version that planned it.
    """

    workload: str
    ticket: str | None
    cells: tuple[PlannedCell, ...]
    environments: Mapping[str, Mapping[str, Any]]
    confound: Mapping[str, Any]
    recipe: Mapping[str, Any]
    recipe_source: str
    sidecars: tuple[str, ...] = ()
    trial_isolation: str = "auto"
    order_seed: int = 0
    strict: bool = False
    launch: Mapping[str, int] = field(default_factory=lambda: dict(ONE_RANK))
    command: Mapping[str, Any] | None = None
    warnings: tuple[Mapping[str, Any], ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()
    created_at: str
    aorta_version: str

    @property
    def key(self) -> str:
        """Digest of the set of (cell, trial, fingerprint): two plans with one key are the same plan."""
        return json_digest(sorted([cell.name, cell.trials, cell.fingerprint] for cell in self.cells))

    @property
    def recipe_key(self) -> str:
        """Digest of what the recipe asks for by name, whatever the registry holds under those names."""
        asked = _asked(self.recipe)
        if "cells" in asked:
            asked["cells"] = [_asked(cell) for cell in asked["cells"]]
        if self.launch != ONE_RANK:
            # Not the recipe's, but asked for like it: a run with two ranks does not continue one with one.
            asked["launch"] = dict(self.launch)
        if self.command is not None:
            asked["command"] = dict(self.command)
        return json_digest(asked)

    @property
    def trial_count(self) -> int:
        """How many trials the plan has."""
        return sum(cell.trials for cell in self.cells)

    def to_json(self) -> dict[str, Any]:
        """Returns the summary that ``plan.json`` holds."""
        command = {} if self.command is None else {"command": dict(self.command)}
        return {
            "schema_version": SCHEMA_VERSION,
            "plan_key": self.key,
            "recipe_key": self.recipe_key,
            "aorta_version": self.aorta_version,
            "created_at": self.created_at,
            "ticket": self.ticket,
            "workload": self.workload,
            "trial_isolation": self.trial_isolation,
            "order_seed": self.order_seed,
            "strict": self.strict,
            "launch": dict(self.launch),
            **command,
            "confound": dict(self.confound),
            "recipe": dict(self.recipe),
            "recipe_source": self.recipe_source,
            "sidecars": list(self.sidecars),
            "warnings": [dict(warning) for warning in self.warnings],
            "history": [dict(entry) for entry in self.history],
            "environments": {name: dict(descriptor) for name, descriptor in self.environments.items()},
            "cells": [
                {
                    "name": cell.name,
                    "trials": cell.trials,
                    "fingerprint": cell.fingerprint,
                    "environment": cell.environment,
                    "isolated": cell.isolated,
                    "stop_after": None if cell.stop_after is None else dict(cell.stop_after),
                    "launch": dict(cell.launch),
                    "resources": dict(cell.resources),
                }
                for cell in self.cells
            ],
        }

    @classmethod
    def from_json(cls, value: Any, *, source: str) -> Plan:
        """Reads back a summary.

        Args:
            value: The parsed JSON.
            source: The file's path, for messages.

        Raises:
            OtherVersionError: The value is a plan of another version.
            PlanFileError: The value is no plan, or a damaged one.
        """
        version = value.get("schema_version") if isinstance(value, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise PlanFileError(f"{source}: damaged plan (it has no schema_version); {RUN_AGAIN}")
        if version != SCHEMA_VERSION:
            raise OtherVersionError(
                f"{source}: not a plan of version {SCHEMA_VERSION} (found {version!r}); "
                "start a new run, or use the aorta version that wrote it"
            )
        try:
            plan = cls(
                workload=_text(value["workload"]),
                ticket=None if value["ticket"] is None else _text(value["ticket"]),
                cells=tuple(
                    PlannedCell(
                        name=_text(cell["name"]),
                        trials=_count(cell["trials"]),
                        fingerprint=_text(cell["fingerprint"]),
                        environment=_text(cell["environment"]),
                        isolated=bool(cell["isolated"]),
                        # Plans of older versions have no such key.
                        stop_after=_stop_after(cell.get("stop_after")),
                        launch=_launch(cell.get("launch", value.get("launch", ONE_RANK))),
                        resources=_resources(cell.get("resources", {})),
                    )
                    for cell in value["cells"]
                ),
                environments={_folder(name): _environment(entry) for name, entry in value["environments"].items()},
                confound=_confound(value["confound"]),
                recipe=dict(value["recipe"]),
                recipe_source=_text(value["recipe_source"]),
                sidecars=tuple(_text(path) for path in value["sidecars"]),
                trial_isolation=_text(value["trial_isolation"]),
                order_seed=int(value["order_seed"]),
                strict=bool(value["strict"]),
                # Plans of older versions have no such key.
                launch={name: _count(count) for name, count in value.get("launch", ONE_RANK).items()},
                command=_command(value.get("command")),
                warnings=tuple(_warning(warning) for warning in value["warnings"]),
                history=tuple(dict(entry) for entry in value["history"]),
                created_at=_text(value["created_at"]),
                aorta_version=_text(value["aorta_version"]),
            )
            canonical_json(value)  # refuses an infinity, which no file may hold and 1e999 reads as
            if plan.key != value["plan_key"]:
                raise ValueError("plan_key does not match its cells")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise PlanFileError(f"{source}: damaged plan ({type(error).__name__}: {error}); {RUN_AGAIN}") from error
        return plan


def of_consequence(probe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a request's ``probe`` that can change how a run of the command ends or is judged."""
    settings = {key: value for key, value in probe["settings"].items() if key not in ("timeout_per_trial", "retain")}
    return {**{key: value for key, value in probe.items() if key != "redaction"}, "settings": settings}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value


def _command(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not value["argv"]:
        raise ValueError("the command is empty")
    return {"argv": [_text(word) for word in value["argv"]], "cwd": _text(value["cwd"])}


def _folder(name: Any) -> str:
    if "/" in _text(name) or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a folder")
    name.encode("utf-8")
    return str(name)


def _environment(value: Any) -> dict[str, Any]:
    if not isinstance(value["isolated"], bool):
        raise TypeError(f"expected true or false for isolated, found {value['isolated']!r}")
    return dict(value)


def _confound(value: Any) -> dict[str, Any]:
    threshold = value["threshold"]
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or threshold <= 0:
        raise TypeError(f"expected a positive threshold, found {threshold!r}")
    return {**value, "baseline_cell": _text(value["baseline_cell"])}


def _warning(value: Any) -> dict[str, Any]:
    cell = value["cell"]
    return {"cell": None if cell is None else _text(cell), **{name: _text(value[name]) for name in ("code", "message")}}


def _stop_after(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if value["event_verdict"] not in ("fail", "pass", "error"):
        raise ValueError(f"stop_after counts the verdict {value['event_verdict']!r}, which there is not")
    return {"events": _count(value["events"]), "event_verdict": _text(value["event_verdict"])}


def _asked(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a recipe, or a cell of it, asks for that can change a result."""
    aside = {"ticket", "confound", "save_logs", "retry_errors", "resources", "timeout_per_trial", "retain", "redaction"}
    asked = {name: value for name, value in scope.items() if name not in aside}
    nodes = (scope.get("resources") or {}).get("nodes")
    return asked if nodes is None else {**asked, "nodes": nodes}


def _launch(value: Any) -> dict[str, int]:
    return {name: _count(value[name]) for name in ONE_RANK}


def _resources(value: Any) -> dict[str, int | str]:
    for name, item in value.items():
        if not isinstance(item, int | str):
            raise TypeError(f"expected a number or a string for {name}, found {item!r}")
    return dict(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError(f"expected a positive integer, found {value!r}")
    return value
