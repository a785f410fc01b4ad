"""Compares a trial's record with what was planted in it. Pure: records in, problems out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aorta.run.record import NOT_NEEDED
from aorta.selftest.findings import READERS, Finding, Reader
from aorta.selftest.planting import Strike, active_faults, ends_the_trial, planted_strikes
from aorta.selftest.problem import Code, Problem
from aorta.workloads.inject import RANK_KINDS, FaultConfig

_SIGNALS = {"sigkill": "SIGKILL", "sigsegv": "SIGSEGV"}
_ONE_ELEMENT = ("bitflip", "nan_grad", "nan_logits", "perturb_input")
_LOSSY_TIMER = 0.95
"""Part of a planted delay that must show in the step time: clocks differ a little."""


def judge(record: Mapping[str, Any] | None, request: Mapping[str, Any], trial: int) -> list[Problem]:
    """Compares one trial's record with what its cell's request plants in it.

    Which faults strike, and where, is worked out anew from the request; what the workload says that it planted is
    held against that first, and what it found against both.

    Args:
        record: The record (``schemas/trial.schema.json``), or None if there is none.
        request: The cell's request (``cell.json``): ``workload``, ``workload_config``, ``launch``.
        trial: The trial's number within its cell.

    Returns:
        Every difference; empty if each planted fault was found where it was planted, and nothing else.

    Raises:
        ValueError: ``inject`` has an unusable value, or the workload is one whose records cannot be compared.
    """
    reader = READERS.get(request["workload"])
    if reader is None:
        raise ValueError(f"workload {request['workload']!r} is none of those that can be judged: {', '.join(READERS)}")
    if record is None:
        return [Problem(code="missing_trial", message="there is no record of this trial")]
    if record["exit_status"] == NOT_NEEDED:
        return []
    active = active_faults(request["workload_config"], trial)
    fatal = next(((index, fault) for index, fault in active.items() if ends_the_trial(fault)), None)
    if fatal is not None:
        return list(_ending_problems(record, *fatal, world_size(request)))
    if record["verdict"] == "error":
        reason = (record["error"] or {}).get("message", "the main work did not start")
        return [Problem(code="error", message=f"{record['exit_status']}: {reason}")]
    result = record["result"]
    strikes, problems = planted_strikes(result["metrics"], request, trial, world_size(request))
    in_process = [strike for strike in strikes if strike.kind in RANK_KINDS]
    in_buffers = [strike for strike in strikes if strike.kind not in RANK_KINDS]
    problems += _delay_problems(in_process, result["step_times_ms"])
    problems += _finding_problems(reader, in_buffers, reader.findings(result["failure_details"]))
    if not problems and (record["verdict"] == "fail") != bool(in_buffers):
        code: Code = "missed" if in_buffers else "false_alarm"
        problems.append(Problem(code=code, message=f"the trial's verdict is {record['verdict']}"))
    return problems


def judge_speed(matrix_cell: Mapping[str, Any], request: Mapping[str, Any]) -> list[Problem]:
    """Checks that a cell whose every step is delayed, in every trial, is flagged for its speed in the matrix.

    Args:
        matrix_cell: The cell's entry of ``matrix.json``.
        request: The cell's request.
    """
    found = []
    for index, fault in active_faults(request["workload_config"], 0).items():
        delays_all = fault.kind == "slow_rank" and fault.step is None and fault.probability == 1
        tag = matrix_cell["confound"]["tag"]
        if delays_all and not tag.startswith("speed"):
            message = f"inject[{index}], slow_rank: the matrix flags the cell as {tag!r}, not for its speed"
            found.append(Problem(code="not_slow", message=message, fault=index))
    return found


def world_size(request: Mapping[str, Any]) -> int:
    """Returns the number of ranks of a cell's trials."""
    launch = request["launch"]
    return int(launch["nnodes"] * launch["nproc_per_node"]) if launch["mode"] == "distributed" else 1


def _finding_problems(reader: Reader, strikes: Sequence[Strike], findings: Sequence[Finding]) -> Iterator[Problem]:
    """Assigns findings to strikes: exact ones first, then what follows from those, then the nearest of the rest."""
    left = list(findings)
    unfound: list[Strike] = []
    for strike in strikes:
        match = next((finding for finding in left if finding.leads and _is_at(reader, finding, strike)), None)
        if match is None:
            unfound.append(strike)
            continue
        left.remove(match)
        yield from _content_problems(strike, match)
    left = [finding for finding in left if not any(reader.follows(finding, strike) for strike in strikes)]
    for strike in unfound:
        near = next(_nearest(reader, left, strike), None)
        if near is None:
            yield Problem(code="missed", message=f"{strike}: it struck and was not found", fault=strike.fault)
            continue
        code, finding = near
        left.remove(finding)
        yield Problem(code=code, message=f"{strike}: the record names {finding}", fault=strike.fault)
    for finding in left:
        yield Problem(code="false_alarm", message=f"nothing was planted that explains {finding}")


def _is_at(reader: Reader, finding: Finding, strike: Strike) -> bool:
    place = (strike.rank, strike.step, reader.shows_in(strike))
    return (finding.rank, finding.step, finding.buffer) == place


def _nearest(reader: Reader, findings: Sequence[Finding], strike: Strike) -> Iterator[tuple[Code, Finding]]:
    """Yields findings that are right but for one thing."""
    buffer = reader.shows_in(strike)
    for finding in findings:
        right = (finding.rank == strike.rank, finding.step == strike.step, finding.buffer == buffer)
        if right == (False, True, True):
            yield "wrong_rank", finding
        elif right == (True, False, True):
            yield "wrong_step", finding
        elif right == (True, True, False):
            yield "wrong_buffer", finding


def _content_problems(strike: Strike, finding: Finding) -> Iterator[Problem]:
    """Compares position, count and values, as far as the workload tells them."""

    def problem(code: Code, what: str, planted: object, found: object) -> Problem:
        message = f"{strike}: {what} is {planted}, and the record says {found}"
        return Problem(code=code, message=message, fault=strike.fault)

    if finding.position is not None:
        first = strike.element if strike.element is not None else strike.first
        # Of what was not written, the first elements may have been right by chance.
        early = strike.element is None and first is not None and finding.position > first
        if finding.position != first and not early:
            yield problem("wrong_position", "the first wrong element", first, finding.position)
    counts_elements = strike.buffer == finding.buffer
    count = strike.changed if strike.changed is not None else 1
    if counts_elements and finding.count is not None and finding.count != count:
        yield problem("wrong_position", "the number of wrong elements", count, finding.count)
    if finding.expected is not None and strike.kind in _ONE_ELEMENT:
        for what, planted, found in (
            ("the right value", strike.before, finding.expected),
            ("the wrong value", strike.after, finding.found),
        ):
            if planted != found:
                yield problem("wrong_value", what, planted, found)


def _delay_problems(strikes: Sequence[Strike], step_times_ms: Sequence[float]) -> Iterator[Problem]:
    """Checks that the steps of planted delays took as long; a rank that waits for a slow one is as slow."""
    for strike in strikes:
        seconds = strike.seconds or 0.0
        took = step_times_ms[strike.step] / 1000 if strike.step < len(step_times_ms) else 0.0
        if took < _LOSSY_TIMER * seconds:
            message = f"{strike}: the step took {took:.3f} s, less than the planted {seconds:g} s"
            yield Problem(code="not_slow", message=message, fault=strike.fault)


def _ending_problems(record: Mapping[str, Any], index: int, fault: FaultConfig, ranks: int) -> Iterator[Problem]:
    """Compares how a trial ended with how it had to, and which rank the record blames."""
    error = record["error"] or {}
    status = record["exit_status"]
    told = f"inject[{index}], {fault.kind}"
    if not _said(error.get("stderr_tail", []), fault):
        where = f"rank {fault.rank} at step {fault.step}"
        message = f"{told}: standard error does not say that it struck {where} (the trial: {status})"
        yield Problem(code="not_planted", message=message, fault=index)
        return
    if fault.kind == "hang_rank":
        right = status == "timed_out" and error.get("type") == "timeout" and "during run()" in error["message"]
        planned = "to be ended by its time limit during run()"
    else:
        how = fault.how or "sigkill"
        kinds = {"exit": ("exit", None, 1), "exception": ("RuntimeError", None, None)}
        planned_error = kinds.get(how, ("signal", _SIGNALS.get(how), None))
        found = (error.get("type"), error.get("signal"), error.get("exit_code"))
        right = status == "infrastructure_failed" and found == planned_error
        planned = f"to end by {how}"
    if not right:
        message = f"{told}: the trial had {planned}, and the record says {status}: {error.get('message')}"
        yield Problem(code="wrong_ending", message=message, fault=index)
    # With a time limit all ranks are ended, and none is blamed but by what it was doing (checked above).
    if fault.kind == "crash_rank" and ranks > 1 and fault.rank is not None and error.get("rank") != fault.rank:
        message = f"{told}: it struck rank {fault.rank}, and the record blames rank {error.get('rank')}"
        yield Problem(code="wrong_rank", message=message, fault=index)


def _said(stderr_tail: Sequence[str], fault: FaultConfig) -> bool:
    """Whether standard error has the strike's line, with the rank and the step that it had to strike.

    A trial without metrics leaves no other trace. Where several ranks are quoted, each line starts with its rank.
    """
    planned = [f"{name} {at}," for name, at in (("rank", fault.rank), ("step", fault.step)) if at is not None]
    for line in stderr_tail:
        quoted_from = None if fault.rank is None or not line.startswith("[rank ") else f"[rank {fault.rank}]"
        if quoted_from is not None and not line.startswith(quoted_from):
            continue
        if f"planted fault: {fault.kind} (" in line and all(part in line for part in planned):
            return True
    return False
