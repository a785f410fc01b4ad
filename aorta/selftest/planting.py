"""What should have been planted in a trial, and whether the record says that it was."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aorta.selftest.problem import Problem
from aorta.workloads.inject import RANK_KINDS, FaultConfig, parse_faults, strikes_trial


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One strike of a fault, as the workload reported it.

    Attributes:
        fault: Place of the fault in ``workload_config.inject``.
        kind: The fault's kind.
        rank: The struck rank.
        step: The struck step.
        buffer: The struck buffer; empty for a process.
        element: Index of the changed element, for the kinds that change one.
        before: Its bits before, in hexadecimal.
        after: Its bits after.
        first: The first element that was not written, for the kinds that withhold a write.
        changed: Number of elements that have other bits for it.
        seconds: Length of a delay.
    """

    fault: int
    kind: str
    rank: int
    step: int
    buffer: str = ""
    element: int | None = None
    before: str | None = None
    after: str | None = None
    first: int | None = None
    changed: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        where = f" in {self.buffer}" if self.buffer else ""
        return f"inject[{self.fault}], {self.kind}{where} on rank {self.rank} at step {self.step}"


def active_faults(workload_config: Mapping[str, Any], trial: int) -> dict[int, FaultConfig]:
    """Returns the faults that strike a trial, by their place in ``workload_config.inject``.

    Args:
        workload_config: The cell's merged ``workload_config``.
        trial: The trial's number within its cell.

    Raises:
        ValueError: ``inject`` has an unusable value.
    """
    faults = parse_faults(workload_config.get("inject"))
    return {index: fault for index, fault in enumerate(faults) if strikes_trial(fault, index, trial)}


def ends_the_trial(fault: FaultConfig) -> bool:
    """Tells whether a trial cannot end by itself once the fault has struck."""
    return fault.kind == "crash_rank" or (fault.kind == "hang_rank" and fault.seconds is None)


def planted_strikes(
    metrics: Mapping[str, Any], request: Mapping[str, Any], trial: int, world_size: int
) -> tuple[list[Strike], list[Problem]]:
    """Compares ``metrics.injected`` with the plan.

    Args:
        metrics: The trial's metrics.
        request: The cell's request.
        trial: The trial's number.
        world_size: Number of ranks.

    Returns:
        The strikes of the trial, and what is not as planned.
    """
    faults = parse_faults(request["workload_config"].get("inject"))
    active = active_faults(request["workload_config"], trial)
    reported = metrics.get("injected", {}).get("planned", [])
    strikes: list[Strike] = []
    problems: list[Problem] = []
    for index, fault in enumerate(faults):
        entry = reported[index] if index < len(reported) else None
        of_fault = [_strike(index, fault, raw) for raw in entry["strikes"]] if entry is not None else []
        strikes += of_fault
        for message in _deviations(fault, index in active, entry, of_fault, world_size):
            problems.append(
                Problem(code="not_planted", message=f"inject[{index}], {fault.kind}: {message}", fault=index)
            )
    return strikes, problems


def _strike(index: int, fault: FaultConfig, raw: Mapping[str, Any]) -> Strike:
    known = {name: raw[name] for name in Strike.__dataclass_fields__ if name in raw}
    return Strike(**{**known, "fault": index, "kind": fault.kind})


def _deviations(
    fault: FaultConfig, active: bool, entry: Mapping[str, Any] | None, strikes: Sequence[Strike], world_size: int
) -> Iterator[str]:
    """Yields in which ways a fault did not strike as planned."""
    if entry is None or entry["kind"] != fault.kind:
        yield "the record's metric 'injected' does not hold it"
        return
    if entry["active"] != active:
        yield f"its seed says that it {'strikes' if active else 'spares'} this trial, and the record says otherwise"
        return
    if not active:
        if strikes:
            yield "it struck a trial that its seed spares"
        return
    ranks = range(world_size) if fault.rank is None else [fault.rank]
    for rank in ranks:
        here = [strike for strike in strikes if strike.rank == rank]
        if not here:
            yield f"it never struck rank {rank}"
        elif fault.step is not None and len(here) != 1:
            yield f"it struck rank {rank} {len(here)} times, not once"
    for strike in strikes:
        if strike.rank not in ranks or (fault.step is not None and strike.step != fault.step):
            yield f"it struck rank {strike.rank} at step {strike.step}, which was not planned"
        if fault.kind not in RANK_KINDS and not fnmatch.fnmatchcase(strike.buffer, fault.pattern):
            yield f"it struck {strike.buffer}, not {fault.pattern}"
        if fault.element is not None and fault.element not in (strike.element, strike.first):
            yield f"it struck element {strike.element}, not {fault.element}"
        if strike.changed == 0 or (strike.before is not None and strike.before == strike.after):
            yield f"it changed no bit of {strike.buffer}"
