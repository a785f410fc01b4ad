"""Cells in which faults were planted on purpose, so that no such run is taken for a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aorta.matrix.text import one_line

WARNING_CODE = "injected_faults"
LONGEST_NAME = 48
"""Characters of a cell's name in a table."""

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


def injected_warnings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a warning for each row of the matrix whose cell plants faults."""
    warnings = []
    for row in rows:
        kinds = planted_faults(row["workload_config"])
        if kinds is not None:
            what = f" ({', '.join(kinds)})" if kinds else ""
            message = f"workload_config.inject plants faults{what} on purpose: what fails here is no finding"
            warnings.append({"cell": row["name"], "code": WARNING_CODE, "message": message})
    return warnings
