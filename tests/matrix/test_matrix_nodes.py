"""Failures by node, and which node is a suspect."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

import pytest
from matrix_builders import plan, record, request

from aorta.matrix.aggregate import aggregate
from aorta.matrix.nodes import more_than_its_share, node_table
from aorta.matrix.notes import notes

CELLS = [request("baseline-local", trials=30), request("other", trials=30)]


def job(*nodes: str) -> dict[str, Any]:
    return {"job": "1", "name": None, "partition": None, "nodes": list(nodes), "restarts": 0}


def on(node: str, outcomes: str, cell: int = 0, first: int = 0) -> list[dict[str, Any]]:
    letters = {"p": "pass", "f": "fail", "c": "crash"}
    return [
        record(CELLS[cell], first + index, letters[letter], slurm=job(node)) for index, letter in enumerate(outcomes)
    ]


def suspects(records: list[dict[str, Any]]) -> list[str]:
    return [node["name"] for node in node_table(records) if node["suspect"]]


def test_one_cell_is_fishers_test() -> None:
    """The upper tail of the hypergeometric distribution."""
    expected = sum(Fraction(comb(5, x) * comb(7, 4 - x), comb(12, 4)) for x in (3, 4))
    assert more_than_its_share([(12, 5, 4, 3)]) == pytest.approx(float(expected), rel=1e-12)


def test_cells_are_added_up_not_thrown_together() -> None:
    """Two tables by hand; cells without a difference in outcome say nothing."""
    one = {x: Fraction(comb(2, x) * comb(2, 2 - x), comb(4, 2)) for x in (0, 1, 2)}
    expected = one[2] * one[2] + 2 * one[2] * one[1]
    tallies = [(4, 2, 2, 2), (4, 2, 2, 1)]
    assert more_than_its_share(tallies) == pytest.approx(float(expected), rel=1e-12)
    assert more_than_its_share([*tallies, (9, 9, 3, 3), (9, 0, 3, 0)]) == pytest.approx(float(expected), rel=1e-12)


def test_a_node_that_always_fails_is_the_suspect() -> None:
    """And the others are not, whatever the failures are called."""
    records = [*on("n1", "ppppppp"), *on("n2", "fcfcfcf", first=7), *on("n3", "ppppppp", first=14)]
    table = node_table(records)
    assert [(node["name"], node["passed"], node["failed"], node["errors"]) for node in table] == [
        ("n1", 7, 0, 0),
        ("n2", 0, 4, 3),
        ("n3", 7, 0, 0),
    ]
    assert suspects(records) == ["n2"]
    assert table[1]["p_value"] == pytest.approx(3 / comb(21, 7), rel=1e-9)


def test_a_cell_that_always_fails_makes_no_suspect() -> None:
    """Although all its trials were on one node."""
    assert suspects([*on("n1", "pppppppp"), *on("n2", "ffffffff", cell=1)]) == []


def test_few_tries_make_no_suspect() -> None:
    """Three against three is chance one time in twenty."""
    records = [*on("n1", "ppp"), *on("n2", "fff", first=3)]
    assert suspects(records) == []
    assert node_table(records)[1]["p_value"] == pytest.approx(0.1)


def test_attempts_that_ran_again_count_where_they_ran() -> None:
    """A lost job's node is its own, not that of the try after it."""
    lost = {"exit_status": "infrastructure_failed", "error": None, "host": "vm", "device": {}, "slurm": job("n9")}
    (kept,) = on("n1", "p")
    kept["attempts"] = [lost, {**lost, "slurm": None}]
    assert [(node["name"], node["passed"], node["errors"]) for node in node_table([kept])] == [
        ("n1", 1, 0),
        ("n9", 0, 1),
        ("vm", 0, 1),
    ]


def test_one_node_is_compared_with_nothing() -> None:
    """As on a workstation, whose records name no SLURM."""
    assert node_table([record(CELLS[0], 0, "pass"), record(CELLS[0], 1, "fail")]) == []


def test_the_notes_name_the_suspect() -> None:
    """With the counts on both sides."""
    records = [*on("n1", "ppppppp"), *on("n2", "fffffff", first=7), *on("n3", "ppppppp", first=14)]
    matrix = aggregate(plan(CELLS), {cell["cell"]: cell for cell in CELLS}, records)
    (line,) = [line for line in notes(matrix) if line.startswith("Suspect node")]
    assert line.startswith(
        "Suspect node: n2, where 7 of 7 tries failed or ended in an error, against 0 of 14 on 2 other"
    )
