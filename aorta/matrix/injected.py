"""Cells in which faults were planted on purpose, so that no such run is taken for a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aorta.matrix.text import joined, one_line
from aorta.text import plural
from aorta.workloads.config import parse_config
from aorta.workloads.inject import InjectBlock, strikes_trial

WARNING_CODE = "injected_faults"
UNCHANGED_CODE = "injected_unchanged"
LONGEST_NAME = 48
"""Characters of a cell's name in a table."""

_ENDING_KINDS = frozenset({"crash_rank", "hang_rank"})
_MARK = "(planted faults)"


def planted_faults(workload_config: Mapping[str, Any]) -> list[str] | None:
    """Returns the kinds that a cell's ``workload_config.inject`` names, sorted, or None if it plants nothing.

    The workload may not know the key, or refuse its content; the cell is no plain one all the same.
    """
    inject = workload_config.get("inject")
    if not inject:
        return None
    entries = inject if isinstance(inject, list) else [inject]
    return sorted({str(entry["kind"]) for entry in entries if isinstance(entry, dict) and "kind" in entry})


def cell_title(cell: Mapping[str, Any]) -> str:
    """Returns a cell's name as tables show it: cut to one short line, and marked if faults were planted."""
    name = one_line(cell["name"], LONGEST_NAME)
    return name if planted_faults(cell["workload_config"]) is None else f"{name} {_MARK}"


def injected_warnings(
    rows: Sequence[Mapping[str, Any]], by_cell: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Returns the warnings of each row of the matrix whose cell plants faults.

    Args:
        rows: The rows.
        by_cell: Cell name to the records of its trials.
    """
    warnings = []
    for row in rows:
        kinds = planted_faults(row["workload_config"])
        if kinds is None:
            continue
        records = [record for record in by_cell.get(row["name"], ()) if record["verdict"] is not None]
        what = f" ({', '.join(kinds)})" if kinds else ""
        message = f"workload_config.inject plants faults{what} on purpose: what fails here is no finding"
        told = f"{message}{_found(row['workload_config'], records)}"
        warnings.append({"cell": row["name"], "code": WARNING_CODE, "message": told})
        warnings += [{"cell": row["name"], "code": UNCHANGED_CODE, "message": line} for line in _unchanged(records)]
    return warnings


def _found(workload_config: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Returns in how many trials a fault was planted, and how many of these ended as if it had been found."""
    parsed = parse_config(InjectBlock, {"inject": workload_config["inject"]}).value
    if parsed is None or not records:
        return ""
    planted = found = 0
    for record in records:
        struck = [fault for i, fault in enumerate(parsed.inject) if strikes_trial(fault, i, record["trial"])]
        ends = any(fault.kind in _ENDING_KINDS for fault in struck)
        planted += bool(struck)
        found += bool(struck) and (
            record["verdict"] == "fail" or (ends and record["exit_status"] in ("infrastructure_failed", "timed_out"))
        )
    return f"; planted in {planted} of {plural(len(records), 'trial')}, found in {found}"


def _unchanged(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Says which faults struck and left every bit as it was, so that no detector could have found them."""
    trials: dict[str, list[int]] = {}
    for record in records:
        injected = ((record["result"] or {}).get("metrics") or {}).get("injected")
        planned = injected.get("planned") if isinstance(injected, dict) else None
        # A workload of somebody else's may report anything under that name.
        for index, entry in enumerate(planned if isinstance(planned, list) else []):
            if (
                isinstance(entry, dict)
                and entry.get("strike_count")
                and entry["strike_count"] == entry.get("unchanged_count")
            ):
                what = one_line(f"inject[{index}], {entry.get('kind')} of {entry.get('buffer')}", 2 * LONGEST_NAME)
                trials.setdefault(what, []).append(record["trial"])
    for what, numbers in trials.items():
        where = f"trial{'' if len(numbers) == 1 else 's'} {joined([str(number) for number in numbers])}"
        yield f"planted, changed nothing: {what}, left every bit as it was in {where}; nothing could be found there"
