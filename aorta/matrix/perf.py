"""``perf.md``: step-time percentiles of each cell, and the figures that the workload reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aorta._jsonio import canonical_json
from aorta.matrix.aggregate import Matrix
from aorta.matrix.injected import LONGEST_NAME, cell_title
from aorta.matrix.text import decimals_for, escape_markdown, fixed, markdown_table, one_line

_LONGEST_VALUE = 60
_STATISTICS = ("mean", "std", "min", "p50", "p90", "p99", "max")


def render_perf(matrix: Matrix) -> str:
    """Returns the text of ``perf.md``, with a newline at its end."""
    name = matrix["workload"] if matrix["ticket"] is None else f"{matrix['ticket']}: {matrix['workload']}"
    lines = [f"# {escape_markdown(one_line(name, 120))}, performance", "", "## Step times (ms)", ""]
    lines += _step_times(matrix["cells"])
    lines += ["", "## Metrics", "", *_metrics(matrix["cells"])]
    return "\n".join(lines) + "\n"


def _step_times(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ("Cell", "Mean", "Std", "Min", "p50", "p90", "p99", "Max", "n", "Source")
    decimals = decimals_for(cell["min_step_time_ms"] for cell in cells)
    rows = [
        (
            cell_title(cell),
            *(fixed(cell[f"{statistic}_step_time_ms"], decimals) for statistic in _STATISTICS),
            str(len(cell["step_times_ms"])),
            cell["step_time_source"],
        )
        for cell in cells
    ]
    return markdown_table(header, rows, header[1:-1])


def _metrics(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One row for each metric and cell, so that a metric's cells stand below each other."""
    names = sorted({name for cell in cells for name in cell["metrics"]})
    if not names:
        return ["The workload reported none."]
    rows: list[tuple[str, ...]] = []
    for name in names:
        having = [cell for cell in cells if name in cell["metrics"]]
        shown = [_metric(cell["metrics"][name]) for cell in having]
        label = one_line(name, LONGEST_NAME)
        if len(having) == len(cells) > 1 and len(set(shown)) == 1 and not shown[0][1]:
            rows.append((label, "(all cells)", shown[0][0], "", str(sum(_trials(cell, name) for cell in having))))
            continue
        rows += [
            (label, cell_title(cell), *texts, str(_trials(cell, name)))
            for cell, texts in zip(having, shown, strict=True)
        ]
    return markdown_table(("Metric", "Cell", "Mean or value", "Min..max", "Trials"), rows, ("Trials",))


def _trials(cell: Mapping[str, Any], name: str) -> int:
    trials: int = cell["metrics"][name]["trials"]
    return trials


def _metric(metric: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a metric's value and range as text; the range is empty where there is none."""
    if metric["kind"] == "varies":
        return "varies", ""
    if metric["kind"] == "value":
        value = metric["value"]
        return one_line(value if isinstance(value, str) else canonical_json(value), _LONGEST_VALUE), ""
    low, high = metric["min"], metric["max"]
    if low == high:
        return _number(low), ""
    return _number(metric["mean"]), f"{_number(low)}..{_number(high)}"


def _number(value: float) -> str:
    """Whole numbers whole, others with five significant digits."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"
