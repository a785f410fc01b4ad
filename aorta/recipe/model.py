"""A loaded recipe: every rule of the schema holds, names are resolved, nothing is left to guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aorta.registry.model import Environment, Mitigation

Collectors = Mapping[str, Mapping[str, str]]
"""Collector name to its options; an empty mapping attaches no collector."""


@dataclass(frozen=True, kw_only=True)
class Confound:
    """How a cell's speed is compared with the baseline's.

    Attributes:
        threshold: A cell whose mean step takes more than this many times the baseline's is flagged.
        baseline_cell: Name of the baseline cell, always resolved.
    """

    threshold: float = 1.15
    baseline_cell: str


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """When a cell has seen enough, so that its later trials are not needed.

    Attributes:
        events: The cell ends with this many events, or None where it runs all its trials.
        max_trials: Trials at most, in the place of ``trials``; None leaves that number.
        event_verdict: The verdict that counts as an event: ``fail``, ``pass`` or ``error``.
    """

    events: int | None = None
    max_trials: int | None = None
    event_verdict: str = "fail"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of the matrix.

    Attributes:
        name: Unique name; also the cell's folder.
        mitigations: Mitigations in the order of the recipe, resolved through the registry.
        environment: The environment, resolved through the registry or made from an inline image.
        trials: The cell's own number of trials, or None for the recipe's.
        steps: The cell's own number of steps, or None for the recipe's.
        extra_env: The cell's own environment variables: the highest layer.
        workload_config: The cell's own workload settings, merged over the recipe's key by key.
        collect: The cell's own collectors, or None to inherit the recipe's.
        stop_after: The cell's own rule, or None to inherit the recipe's.
        retry_errors: The cell's own number of retries, or None for the recipe's.
        resources: What the cell's trials ask a cluster for, merged over the recipe's key by key.
    """

    name: str
    mitigations: tuple[Mitigation, ...]
    environment: Environment
    trials: int | None = None
    steps: int | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)
    workload_config: Mapping[str, Any] = field(default_factory=dict)
    collect: Collectors | None = None
    stop_after: StopAfter | None = None
    retry_errors: int | None = None
    resources: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a recipe says that wraps a command (``mode: probe``), beside what all recipes say.

    Attributes:
        mitigation_axis: Names of mitigations: the first part of the cells' names.
        diagnostic_axis: Names of mitigations: the second part.
        env_passthrough_mode: ``inherit`` or ``file``: how the command gets a cell's variables.
        collect_paths: Glob patterns of what is copied from where the command ran.
        settings: How the command is watched and judged, as ``aorta.probe.settings.ProbeSettings.to_json`` gives it.
        redaction: What is scrubbed: ``scrub_env_keys``, ``scrub_paths`` and ``scrub_ip_addresses``, where given.
    """

    mitigation_axis: tuple[str, ...]
    diagnostic_axis: tuple[str, ...]
    env_passthrough_mode: str = "inherit"
    collect_paths: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    redaction: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A valid recipe.

    Attributes:
        ticket: The ticket that groups the output, or None.
        workload: Name in the ``aorta.workloads`` entry-point group; need not be registered here.
        trials: Trials of a cell that does not say otherwise.
        steps: Steps of a trial in a cell that does not say otherwise.
        trial_isolation: ``auto``, ``in_process`` or ``process``.
        save_logs: Whether each trial's output is kept beside its result.
        extra_env: Environment variables of every cell, above mitigations.
        collect: Collectors of every cell that does not replace them.
        workload_config: Workload settings of every cell.
        stop_after: The rule of every cell that has none of its own.
        retry_errors: How many more times a trial runs that ended in an error, unless its cell says otherwise.
        resources: What every cell's trials ask a cluster for: any of ``gpus``, ``nodes``, ``partition``, ``runtime``
            (minutes), ``mem`` (MB), ``constraint``, ``account`` and ``extra``; as the recipe's text has them.
        confound: Baseline and speed threshold.
        cells: The cells in the recipe's order.
        probe: What a recipe has that wraps a command; None for a matrix of a workload.
        source: Where the recipe came from, for messages.
    """

    schema_version: int = 1
    ticket: str | None = None
    workload: str
    trials: int
    steps: int
    trial_isolation: str = "auto"
    save_logs: bool = False
    extra_env: Mapping[str, str] = field(default_factory=dict)
    collect: Collectors = field(default_factory=dict)
    workload_config: Mapping[str, Any] = field(default_factory=dict)
    stop_after: StopAfter = StopAfter()
    retry_errors: int = 0
    resources: Mapping[str, int | str] = field(default_factory=dict)
    confound: Confound
    cells: tuple[Cell, ...]
    probe: Probe | None = None
    source: str = "recipe"

    def stop_rule(self, cell: Cell) -> StopAfter:
        """Returns the rule that holds for one of the cells."""
        return self.stop_after if cell.stop_after is None else cell.stop_after

    def trial_count(self, cell: Cell) -> int:
        """Returns how many trials one of the cells has at most; what stands nearest to the cell decides."""
        own = cell.stop_after.max_trials if cell.stop_after is not None else None
        return own or cell.trials or self.stop_rule(cell).max_trials or self.trials
