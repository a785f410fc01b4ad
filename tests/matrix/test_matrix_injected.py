"""Runs with planted faults: marked wherever their result is read."""

from __future__ import annotations

from typing import Any

import pytest
from matrix_builders import plan, record, request

from aorta.matrix import Matrix, aggregate, render_html, render_markdown, render_perf
from aorta.matrix.injected import planted_faults
from aorta.workloads.inject import strikes_trial

NAN = {"kind": "nan_grad", "rank": 1}


def matrix_of(**configs: dict[str, Any]) -> Matrix:
    cells = [request(name, trials=1, workload_config=config) for name, config in configs.items()]
    records = [record(cell, 0, "fail" if cell["workload_config"] else "pass") for cell in cells]
    return aggregate(plan(cells), {cell["cell"]: cell for cell in cells}, records)


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({}, None),
        ({"inject": None}, None),
        ({"inject": []}, None),
        ({"inject": NAN}, ["nan_grad"]),
        ({"inject": [NAN, {"kind": "bitflip"}, NAN]}, ["bitflip", "nan_grad"]),
        ({"inject": "nonsense"}, []),
        ({"inject": [3, {"buffer": "x"}]}, []),
    ],
)
def test_what_counts_as_planted(config: dict[str, Any], kinds: list[str] | None) -> None:
    """Anything in ``inject`` makes the cell no plain one, also what no workload would accept."""
    assert planted_faults(config) == kinds


def test_a_cell_with_planted_faults_gets_a_warning() -> None:
    """The machine-readable matrix names the cell and the kinds; clean cells have none."""
    matrix = matrix_of(clean={}, struck={"inject": NAN})
    (warning,) = matrix["warnings"]
    assert (warning["cell"], warning["code"]) == ("struck", "injected_faults")
    assert "(nan_grad)" in warning["message"]


def test_the_warning_counts_planted_and_found() -> None:
    """A trial that its seed spares is no trial in which the fault was missed."""
    fault = {**NAN, "probability": 0.5, "seed": 7}
    drawn = [strikes_trial(fault, 0, trial) for trial in range(8)]
    cell = request("struck", trials=8, workload_config={"inject": fault})
    found = [trial for trial in range(8) if drawn[trial]][1:]  # the first one is missed
    records = [record(cell, trial, "fail" if trial in found else "pass") for trial in range(8)]
    (warning,) = aggregate(plan([cell]), {"struck": cell}, records)["warnings"]
    assert 2 <= sum(drawn) < 8
    assert warning["message"].endswith(f"; planted in {sum(drawn)} of 8 trials, found in {sum(drawn) - 1}")


def test_a_crash_counts_as_found_and_a_failed_setup_does_not() -> None:
    """What ends a process ends its trial in an error; other errors find nothing."""
    for fault, found in (({"kind": "crash_rank"}, 1), (NAN, 0)):
        cell = request("struck", trials=1, workload_config={"inject": fault})
        matrix = aggregate(plan([cell]), {"struck": cell}, [record(cell, 0, "crash")])
        (warning,) = [w for w in matrix["warnings"] if w["code"] == "injected_faults"]
        assert warning["message"].endswith(f"planted in 1 of 1 trial, found in {found}")


def test_a_fault_that_changed_nothing_is_flagged() -> None:
    """It struck and left every bit as it was: the matrix names it and the trials, not one that changed something."""
    cell = request("struck", trials=2, workload_config={"inject": {"kind": "partial_write", "buffer": "logits"}})
    records = [record(cell, trial, "pass") for trial in range(2)]
    for entry, unchanged in zip(records, (1, 0), strict=True):
        planned = {"kind": "partial_write", "buffer": "logits", "strike_count": 1, "unchanged_count": unchanged}
        entry["result"]["metrics"]["injected"] = {"planned": [planned]}
    matrix = aggregate(plan([cell]), {"struck": cell}, records)
    (flagged,) = [w["message"] for w in matrix["warnings"] if w["code"] == "injected_unchanged"]
    assert flagged.startswith("planted, changed nothing: inject[0], partial_write of logits, left every bit")
    assert "in trial 0;" in flagged
    assert "planted, changed nothing" in render_markdown(matrix)


@pytest.mark.parametrize("render", [render_markdown, render_html, render_perf])
def test_every_page_marks_the_row(render: Any) -> None:
    """Whoever reads only the table sees it; the clean row is not marked."""
    page = render(matrix_of(clean={}, struck={"inject": NAN}))
    assert "struck (planted faults)" in page
    assert "clean (planted faults)" not in page


def test_the_verdict_sentence_says_it() -> None:
    """Whoever reads only the first sentence sees it."""
    page = render_markdown(matrix_of(clean={}, struck={"inject": NAN}))
    assert "Faults were planted on purpose in 1 of 2 cells." in page
    assert "planted" not in render_markdown(matrix_of(clean={}))
