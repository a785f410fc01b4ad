"""Runs with planted faults: marked wherever their result is read."""

from __future__ import annotations

from typing import Any

import pytest
from matrix_builders import plan, record, request

from aorta.matrix import Matrix, aggregate, render_html, render_markdown, render_perf
from aorta.matrix.injected import planted_faults

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
