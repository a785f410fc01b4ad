"""One sentence for each thing in the table that a reader could misread, and only for what occurs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from aorta.matrix import confound
from aorta.matrix.aggregate import Matrix
from aorta.matrix.environments import with_images
from aorta.matrix.text import cells_named, joined, p_value
from aorta.text import plural

_TESTS = {
    "combined_exact_tails": "exact tails of both, which hold for cells that stop after some events",
    "fisher_exact": "Fisher's exact test",
}

# Means are shown with three digits or more, so that the ratio of two of them may be off by this share.
_ROUNDING = 0.01

Cells = Sequence[Mapping[str, Any]]


def notes(matrix: Matrix) -> list[str]:
    """Returns the notes of a matrix, a line each, as plain text."""
    cells = matrix["cells"]
    return [
        *_tags(cells, matrix["confound"]["threshold"]),
        *_near_threshold(cells, matrix["confound"]["threshold"]),
        *_differences(cells, matrix["confound"]["baseline_cell"]),
        *_suspects(matrix["nodes"]),
        *_errors(cells),
        *_stops(cells),
        *_retries(cells),
        *_sources(cells),
        *_snapshots(matrix["environments"]),
    ]


def _tags(cells: Cells, threshold: float) -> list[str]:
    """Explains each tag that is present."""
    reasons: dict[str, dict[str | None, list[str]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        tag = cell["confound"]["tag"].split(" (")[0]
        reasons[tag][cell["confound"]["reason"]].append(cell["name"])
    meanings = {
        confound.BASELINE: "the cell that the others are compared with.",
        confound.SPEED: (
            f"the mean step takes more than {threshold:.12g} times the baseline's, so a change in failures may come "
            "from the timing alone."
        ),
        confound.WORSE: "fails more often than the baseline, at comparable speed.",
        confound.NO_EFFECT: "fails exactly as often as the baseline, at comparable speed.",
        confound.UNREMARKABLE: "comparable speed, and no more failures than the baseline.",
        confound.ERROR: "every trial ended in an error, which says nothing about the failure under test.",
        confound.DID_NOT_RUN: "no trial started its main work.",
    }
    # A lone dash at the start of a line would be lost.
    shown = {confound.SPEED: "speed (+N%)", confound.UNREMARKABLE: '"-"'}
    lines = [f"{shown.get(tag, tag)}: {meaning}" for tag, meaning in meanings.items() if tag in reasons]
    for reason, names in reasons.get(confound.NOT_AVAILABLE, {}).items():
        lines.append(f"{confound.NOT_AVAILABLE}: not compared, {reason}: {cells_named(names, len(cells))}.")
    return lines


def _near_threshold(cells: Cells, threshold: float) -> list[str]:
    """Gives the ratios that the rounded means of the table do not tell from the threshold."""
    near = []
    for cell in cells:
        ratio, tag = cell["confound"]["ratio"], cell["confound"]["tag"]
        if ratio is None or not math.isclose(ratio, threshold, rel_tol=_ROUNDING):
            continue
        side = "above" if tag.startswith(confound.SPEED) else "below" if ratio < threshold else "not above"
        near.append(f"{cell['name']} {_told_apart(ratio, threshold)} ({side})")
    return (
        [f"Step time over the baseline's, close to the threshold of {threshold:.12g}: {joined(near)}."] if near else []
    )


def _told_apart(ratio: float, threshold: float) -> str:
    """Returns a ratio with as many decimals as it takes to tell it from the threshold, at least three."""
    for decimals in range(3, 13):
        if f"{ratio:.{decimals}f}" != f"{threshold:.{decimals}f}":
            return f"{ratio:.{decimals}f}"
    return f"{ratio:.12g}"


def _differences(cells: Cells, baseline_name: str) -> list[str]:
    """Names the cells that fail more or less often than the baseline, with how likely that is chance."""
    baseline = next((cell for cell in cells if cell["name"] == baseline_name), None)
    if baseline is None or baseline["event_rate"] is None:
        return []
    comparable = [cell for cell in cells if cell["confound"]["tag"] in (confound.UNREMARKABLE, confound.WORSE)]
    lines = []
    for word, side in (("More", 1), ("Fewer", -1)):
        differing = [cell for cell in comparable if (cell["event_rate"] - baseline["event_rate"]) * side > 0]
        if differing:
            which = joined(
                [f"{cell['name']} {_judged(cell)} ({p_value(cell['p_value_vs_baseline'])})" for cell in differing]
            )
            lines.append(f"{word} failures than the baseline's {_judged(baseline)}: {which}.")
    if lines:
        tests = {cell["p_value_test"] for cell in comparable} - {None}
        which = " and ".join(_TESTS[test] for test in sorted(tests))
        lines.append(f"p: how likely a difference of that size is if both cells fail equally often ({which}).")
    return lines


def _judged(cell: Mapping[str, Any]) -> str:
    counts = cell["verdict_counts"]
    return f"{counts['fail']}/{counts['pass'] + counts['fail']}"


def _suspects(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the nodes with more than their share of what went wrong."""
    return [suspicion(node, nodes) for node in nodes if node["suspect"]]


def suspicion(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Returns a sentence about a suspect.

    Args:
        node: The suspect, as the matrix has it.
        nodes: All nodes of the matrix.
    """
    others = [other for other in nodes if other["name"] != node["name"]]
    bad, tries = _went_wrong([node])
    elsewhere, rest = _went_wrong(others)
    return (
        f"Suspect node: {node['name']}, where {bad} of {tries} tries failed or ended in an "
        f"error, against {elsewhere} of {rest} on {plural(len(others), 'other node')} ({p_value(node['p_value'])}, "
        "exact test within each cell, corrected for the number of nodes)."
    )


def _went_wrong(nodes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    bad = sum(node["failed"] + node["errors"] for node in nodes)
    return bad, bad + sum(node["passed"] for node in nodes)


def _errors(cells: Cells) -> list[str]:
    if not any(cell["verdict_counts"]["error"] for cell in cells):
        return []
    lines = [
        "Failure rate counts trials with another exit status than ok, or whose workload reported a failure; Failures "
        "counts only those that ran and whose workload found something wrong."
    ]
    if any(entry["did_not_run"] and entry["exit_status"] == "ok" for cell in cells for entry in cell["error_summary"]):
        lines.append(
            "A trial that ended ok without starting its main work (did_not_run) is an error, and not in Failure rate."
        )
    partly = [
        f"{cell['name']} {cell['did_not_run']}/{cell['trials_counted']}"
        for cell in cells
        if cell["did_not_run"] and cell["confound"]["tag"] != confound.DID_NOT_RUN
    ]
    if partly:
        lines.append(f"Trials that never started their main work: {joined(partly)}.")
    return lines


def _stops(cells: Cells) -> list[str]:
    """Explains the columns that a rule to stop brings, and what is left out of the rates."""
    ruled = [cell for cell in cells if cell["stop_after"] is not None]
    if not ruled:
        return []
    rules: dict[str, list[str]] = defaultdict(list)
    for cell in ruled:
        rules[
            f"{plural(cell['stop_after']['events'], 'trial')} with verdict {cell['stop_after']['event_verdict']}"
        ].append(cell["name"])
    one_rule = len(rules) == 1 and len(ruled) == len(cells)
    lines = [
        f"Stop: after {rule}{'' if one_rule else f': {cells_named(names, len(cells))}'}."
        for rule, names in rules.items()
    ]
    if any(cell["event_rate_estimator"] == "inverse_sampling" for cell in ruled):
        lines.append(
            "Event rate of a cell whose k events were reached in n trials: (k - 1)/(n - 1), without the bias that "
            "stopping at an event gives to k/n; the interval is exact (docs/statistics.md)."
        )
    single = [
        cell["name"] for cell in ruled if cell["stop_after"]["events"] == 1 and cell["stop_reason"] == "events_reached"
    ]
    if single:
        lines.append(
            "A cell that stops at its first event gives no unbiased rate, 1/n is too high on average; its interval "
            f"holds: {cells_named(single, len(cells))}."
        )
    excess = [f"{cell['name']} {len(cell['excess_trials'])}" for cell in ruled if cell["excess_trials"]]
    if excess:
        lines.append(f"Trials that ran beyond the stopping point, recorded and in no rate: {joined(excess)}.")
    return lines


def _retries(cells: Cells) -> list[str]:
    retried = [f"{cell['name']} {cell['retried']}" for cell in cells if cell["retried"]]
    if not retried:
        return []
    return [f"Trials that ran again after an error, counted by how they ended at last: {joined(retried)}."]


def _sources(cells: Cells) -> list[str]:
    """Says which mean step times are not measured step by step."""
    meanings = {
        "elapsed_per_iter": "Mean step is elapsed time over iterations, not timed step by step",
        "wall_clock_total": "Mean step is the trial's whole wall clock over its steps, set-up included",
    }
    lines = []
    for source, meaning in meanings.items():
        names = [cell["name"] for cell in cells if cell["step_time_source"] == source]
        if names:
            lines.append(f"{meaning}: {cells_named(names, len(cells))}.")
    return lines


def _snapshots(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = [name for name, entry in environments.items() if entry["snapshot_captured"] is False]
    if not names:
        return []
    which = joined([with_images(name, environments) for name in names])
    return [f"No snapshot was captured inside {plural(len(names), 'environment')}: {which}."]
