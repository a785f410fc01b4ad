"""The contract between the engine and a workload.

Light on purpose: the engine reads a workload's class attributes before any trial starts, so a workload's
module should import its heavy libraries in ``setup()``, not at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(kw_only=True)
class WorkloadResult:
    """What ``run()`` found.

    Attributes:
        passed: Whether every check held.
        failure_count: Number of failed checks.
        first_failure_iteration: Step of the first failed check, counted from 0, or None.
        failure_details: One mapping a failure; a ``hint`` string in it is shown to the reader of the matrix.
        total_iterations: Steps that count, for ``elapsed_sec / total_iterations``.
        step_times_ms: Wall time of each timed step in milliseconds.
        elapsed_sec: Wall time of the timed part in seconds, or None.
        metrics: Any JSON-able figures, by name.
        main_work_started: Whether the work that the trial is about began; None if the workload does not say.
        executed_iterations: Steps that ran, or None.
        configured_iterations: Steps that were asked for, or None.
    """

    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    failure_details: list[dict[str, Any]] = field(default_factory=list)
    total_iterations: int = 0
    step_times_ms: list[float] = field(default_factory=list)
    elapsed_sec: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConfigProblem:
    """Something in ``workload_config`` that the workload would ignore or refuse.

    Attributes:
        key: Dotted path inside ``workload_config``, such as ``model.hidden_size``.
        message: What is wrong and what would be right.
        code: ``unknown_config_key`` (ignored at run time), ``bad_config_value`` (the trial would fail), or
            ``topology_mismatch`` (made for another number of ranks).
    """

    key: str
    message: str
    code: Literal["unknown_config_key", "bad_config_value", "topology_mismatch"] = "unknown_config_key"


@dataclass(frozen=True, kw_only=True)
class TrialShape:
    """What is known of a trial, besides its configuration, before it runs.

    Attributes:
        steps: The engine's number of steps.
        world_size: Number of ranks, or None where it is not known yet.
        local_world_size: Ranks on each host, or None.
    """

    steps: int
    world_size: int | None = None
    local_world_size: int | None = None


class Workload:
    """Base class of workloads; a class with the same methods works too.

    The engine calls ``__init__(config)``, ``setup()``, ``run()`` and ``cleanup()`` once each, in a process
    that runs one trial. ``cleanup()`` is called even when ``setup()`` or ``run()`` raised.

    Attributes:
        launch_mode: ``single_process``, or ``distributed`` for a class whose trial is a process group.
        min_world_size: Smallest number of ranks that the workload can run with.
        isolation_supported: The values of ``trial_isolation`` that the workload can run under.
        isolation_default: What ``trial_isolation: auto`` means for the workload.
        isolation_required: Whether only ``process`` will do.
        acts_on: Fields of an environment that the workload itself honours (``docker``, ``venv``,
            ``buck_target``, ``emulator``). A cell that names another of them runs on the host, and is
            reported so.
        config: The merged ``workload_config``, ``steps``, and the reserved ``_aorta_*`` keys.
    """

    launch_mode: ClassVar[Literal["single_process", "distributed"]] = "single_process"
    min_world_size: ClassVar[int] = 1
    isolation_supported: ClassVar[frozenset[str]] = frozenset({"process", "in_process"})
    isolation_default: ClassVar[Literal["process", "in_process"]] = "process"
    isolation_required: ClassVar[bool] = False
    acts_on: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        """Looks at a merged ``workload_config`` before anything runs; must not import heavy libraries."""
        return []

    @classmethod
    def check_trial(cls, config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
        """Looks at what a merged ``workload_config`` means in a trial of that shape; as light as ``check_config()``."""
        return []

    @classmethod
    def process_env(cls, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns variables that the trial's processes start with, unless the environment or the cell sets them.

        For what a library reads once, when it is loaded, and ``setup()`` could only set too late.

        Args:
            config: The merged ``workload_config``, which may hold anything; must not import heavy libraries.
        """
        return {}

    def setup(self) -> None:
        """Prepares the trial; raising here ends it as ``workload_setup_failed``."""

    def run(self) -> WorkloadResult:
        """Does the trial's work and reports what was found."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def cleanup(self) -> None:
        """Releases what ``setup()`` and ``run()`` took."""
