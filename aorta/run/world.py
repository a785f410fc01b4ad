"""What several ranks make of a trial: which of them ended it, and one result for all.

Standard library only: the supervisor imports this before every trial of a distributed workload.
"""

from __future__ import annotations

from aorta.run.output import TAIL_BYTES, TAIL_LINES
from aorta.run.record import error_entry, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from aorta.run.ranks import Rank

_WITNESS_SEC = 1.0
"""How much later than a peer's exception a death may be seen and still be its cause: peers notice at once when a
connection breaks, the supervisor when it is next scheduled."""

_TOLD = 8
"""Ranks that a message or a merged tail goes into."""


def judge_ranks(
    ranks: Sequence[Rank], limit_sec: float | None
) -> tuple[str, dict[str, Any] | None, dict[str, Any] | None]:
    """Returns the ``exit_status``, the ``error`` or None, and the ``result`` or None.

    The rank that failed first is the trial's error. Rank 0's result is the trial's, completed by what only other
    ranks found.

    Args:
        ranks: All ranks, ended.
        limit_sec: The time limit in seconds.
    """
    result = ranks[0].report().result
    failures = sorted((rank for rank in ranks if _failed_by_itself(rank)), key=_time_of_failure)
    if failures:
        return (*_failure(failures, len(ranks), limit_sec), result)
    cut = [rank for rank in ranks if rank.ending.cut in ("time_limit", "hang", "teardown")]
    if cut:
        return (*_cut(ranks, cut, limit_sec), result)
    merged = merged_result({rank.number: rank.report().result or {} for rank in ranks})
    return ("ok" if merged["passed"] else "workload_failed"), None, merged


def _failed_by_itself(rank: Rank) -> bool:
    report = rank.report()
    if report.error is not None:
        return True
    # Ended by the engine, or on its way out: how it then left says nothing.
    return rank.ending.cut is None and (rank.ending.exit_code != 0 or report.result is None)


def _time_of_failure(rank: Rank) -> float:
    raised = rank.report().error_at
    return raised if raised is not None else rank.ending.ended - _WITNESS_SEC


def _failure(failures: Sequence[Rank], world: int, limit_sec: float | None) -> tuple[str, dict[str, Any]]:
    first = failures[0]
    status, error = _judge_alone(first, limit_sec)
    alike, others = [first], []
    for rank in failures[1:]:
        found = _judge_alone(rank, limit_sec)[1]
        if all(found[name] == error[name] for name in ("phase", "type", "message")):
            alike.append(rank)
        else:
            others.append(f"rank {rank.number} ({_brief(found)})")
    error["rank"] = first.number
    error["message"] = f"{_subject(sorted(alike, key=lambda rank: rank.number))} of {world}: {error['message']}"
    error["stderr_tail"] = first.tail()
    if others:
        them = "it" if len(alike) == 1 else "them"
        then = f"after {them} failed {', '.join(others[:_TOLD])}{' and more' if len(others) > _TOLD else ''}"
        error["hint"] = f"{error['hint']}; {then}" if error["hint"] else then
    return status, error


def _judge_alone(rank: Rank, limit_sec: float | None) -> tuple[str, dict[str, Any]]:
    report = rank.report()
    if report.error is not None and rank.ending.cut is not None:
        # It raised, and was then ended while it cleaned up.
        rank.ending.cut, rank.ending.exit_code = None, 0
    status, error = judge(rank.ending, report, limit_sec)
    return status, error if error is not None else error_entry("process", "exit", "ended")


def _brief(error: Mapping[str, Any]) -> str:
    text = " ".join(str(error["message"]).split())
    told = text if error["phase"] == "process" else f"{error['type']}: {text}"
    return told if len(told) <= 100 else f"{told[:97]}..."


def _cut(ranks: Sequence[Rank], cut: Sequence[Rank], limit_sec: float | None) -> tuple[str, dict[str, Any]]:
    """Returns the status and the error of a trial that had to be ended though no rank had failed."""
    first = cut[0]
    status, error = judge(first.ending, first.report(), limit_sec)
    assert error is not None  # a cut is never "ok"
    error["message"] = f"{_subject(cut)} of {len(ranks)}: {error['message']}"
    from aorta.run.suspect import stands_out

    suspect, known = stands_out({rank.number: rank.account() for rank in cut})
    error["rank"] = first.number if len(cut) == 1 else suspect
    error["hint"] = "; ".join(filter(None, (known, error["hint"]))) or None
    error["stderr_tail"] = merged_tail(cut)
    return status, error


def _subject(ranks: Sequence[Rank]) -> str:
    numbers = ", ".join(str(rank.number) for rank in ranks[:_TOLD]) + (" ..." if len(ranks) > _TOLD else "")
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def merged_tail(ranks: Sequence[Rank]) -> list[str]:
    """Returns the last lines of standard error of several ranks, each marked with its rank."""
    if len(ranks) == 1:
        return ranks[0].tail()
    told = ranks[:_TOLD]
    lines: list[str] = []
    for rank in told:
        room = TAIL_BYTES // len(told)
        kept: list[str] = []
        for line in reversed(rank.tail()[-(TAIL_LINES // len(told)) :]):
            marked = f"[rank {rank.number}] {line}"
            room -= len(marked.encode("utf-8", "replace"))
            if room < 0:
                break
            kept.append(marked)
        lines += kept[::-1]
    return lines


def merged_result(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns rank 0's result, with the failures that only other ranks report.

    A workload whose ranks have told each other what they found reports the same failures everywhere; those are not
    counted twice.

    Args:
        results: Rank to the fields of its WorkloadResult.
    """
    merged = dict(results[0])
    details = list(merged["failure_details"])
    for rank, result in sorted(results.items()):
        if rank == 0 or result["passed"]:
            continue
        new = [entry for entry in result["failure_details"] or [{}] if not entry or entry not in details]
        if not new or (not result["failure_details"] and not merged["passed"]):
            continue
        details += [_attributed(entry, rank, result) for entry in new]
        merged["failure_count"] += max(1, result["failure_count"])
        steps = [merged["first_failure_iteration"], result["first_failure_iteration"]]
        merged["first_failure_iteration"] = min((step for step in steps if step is not None), default=None)
        merged["passed"] = False
    merged["failure_details"] = details
    return merged


def _attributed(entry: Mapping[str, Any], rank: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a failure detail that names its rank, and its step where the rank knows one."""
    step = entry.get("step", entry.get("iteration", result["first_failure_iteration"]))
    hint = entry.get("hint")
    if not isinstance(hint, str):
        hint = "a check failed that only this rank saw"
    where = f"rank {rank}" if step is None else f"rank {rank}, step {step}"
    told = hint if f"rank {rank}" in hint else f"{where}: {hint}"
    return {"rank": rank, **({} if step is None else {"step": step}), **entry, "hint": told}


def rank_table(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Returns the record's table of ranks."""
    return [
        {
            "rank": rank.number,
            "host": rank.host,
            "pid": rank.pid,
            "exit": rank.ending.exit_code,
            "ended_by": "itself" if rank.ending.cut is None else "engine",
            "peak_rss_bytes": rank.ending.peak_rss_bytes,
            "device": dict(rank.device),
            "logs": dict(rank.logs) if rank.logs else None,
        }
        for rank in ranks
    ]
