"""Whatever lies in a run directory: never a traceback for the user, never a wrong count."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_builders import plan, put, record, request, write_run

from aorta.cli import main
from aorta.dag.status import status_lines, sweep_status
from aorta.matrix import build_matrix, matrix_json, render_html, render_markdown, render_perf
from aorta.plan import RunLayout
from aorta.plan.model import PlanFileError
from aorta.plan.rundir import is_finished, read_plan

CELLS = [request("base"), request("other")]
OUTCOMES = ["pass", "fail", "crash", "timeout", "did_not_run"]
SLOW = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("pass") | st.just("ok"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def edits(draw: st.DrawFn, value: Any) -> Any:
    """The value with one place in it, at any depth, replaced, removed, or joined by a stranger."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 3)) == 0:
        return draw(JSON)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(edits(value[place])), *value[place + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    action = draw(st.sampled_from(["edit", "edit", "edit", "remove", "add"]))
    if action == "remove":
        return {name: inner for name, inner in value.items() if name != key}
    if action == "add":
        return {**value, draw(st.text(max_size=6)): draw(JSON)}
    return {**value, key: draw(edits(value[key]))}


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes cut short, with a stretch overwritten, or with something in between."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    return draw(
        st.sampled_from([data[:start], data[:start] + data[end:], data[:start] + bytes(end - start) + data[end:]])
        | st.binary(max_size=12).map(lambda junk: data[:start] + junk + data[end:])
    )


@contextmanager
def a_run(outcomes: list[str]) -> Iterator[RunLayout]:
    """A run of two cells with four trials each; ``outcomes`` are those of the first cell."""
    with tempfile.TemporaryDirectory() as name:
        records = [record(CELLS[0], trial, outcome) for trial, outcome in enumerate(outcomes)]
        records += [record(CELLS[1], trial) for trial in range(4)]
        yield write_run(Path(name), plan(CELLS), records)


def check_counts(layout: RunLayout) -> dict[str, dict[str, Any]]:
    """Every reader and renderer takes the run, and every trial is counted once; returns the cells."""
    matrix = build_matrix(layout.run_dir)
    json.loads(matrix_json(matrix), parse_constant=pytest.fail)
    for render in (render_markdown, render_html, render_perf):
        assert render(matrix)
    status = sweep_status(layout.run_dir)
    assert status_lines(status)
    assert status["trials_done"] == matrix["trials_present"]
    for cell in matrix["cells"]:
        present = [Path(path).stem.rpartition("_t")[2] for path in cell["trial_paths"]]
        assert len(present) == len(set(present)) == cell["trials_present"] == sum(cell["exit_status_counts"].values())
        assert sorted([*map(int, present), *cell["missing_trials"]]) == list(range(cell["trials"]))
        assert sum(cell["verdict_counts"].values()) <= cell["trials_present"]
    return {cell["name"]: cell for cell in matrix["cells"]}


def check_only_the_first_changed(layout: RunLayout, outcomes: list[str]) -> None:
    cells = check_counts(layout)
    assert cells["other"]["verdict_counts"] == {"pass": 4, "fail": 0, "error": 0}
    # The odd one counts as what its file says or not at all; the three beside it stand.
    whole = [{"pass": "pass", "fail": "fail"}.get(outcome, "error") for outcome in outcomes[1:]]
    extra = cells["base"]["trials_present"] - 3
    assert extra in (0, 1)
    counts = cells["base"]["verdict_counts"]
    beside = {verdict: counts[verdict] - whole.count(verdict) for verdict in counts}
    assert all(number >= 0 for number in beside.values()) and sum(beside.values()) <= extra


@SLOW
@given(st.lists(st.sampled_from(OUTCOMES), min_size=4, max_size=4), st.data())
def test_an_edited_trial_file(outcomes: list[str], data: st.DataObject) -> None:
    """Any value anywhere in a record: it counts as what it says, or is named and missing; others are untouched."""
    with a_run(outcomes) as layout:
        put(layout.trial("base", 0), data.draw(edits(record(CELLS[0], 0, outcomes[0]))))
        check_only_the_first_changed(layout, outcomes)


@SLOW
@given(st.lists(st.sampled_from(OUTCOMES), min_size=4, max_size=4), st.data())
def test_a_damaged_trial_file(outcomes: list[str], data: st.DataObject) -> None:
    """Any damage to a record's bytes."""
    with a_run(outcomes) as layout:
        path = layout.trial("base", 0)
        path.write_bytes(data.draw(damage(path.read_bytes())))
        check_only_the_first_changed(layout, outcomes)


@SLOW
@given(st.data())
def test_an_edited_or_damaged_cell_file(data: st.DataObject) -> None:
    """A cell's request may be anything: its results stand."""
    with a_run(["pass", "fail", "crash", "timeout"]) as layout:
        path = layout.cell("base")
        if data.draw(st.booleans()):
            put(path, data.draw(edits(CELLS[0])))
        else:
            path.write_bytes(data.draw(damage(path.read_bytes())))
        assert check_counts(layout)["base"]["verdict_counts"] == {"pass": 1, "fail": 1, "error": 2}


@SLOW
@given(st.data())
def test_an_edited_or_damaged_plan(data: st.DataObject) -> None:
    """A plan is sound or refused with its name; the commands end with 2 and no traceback."""
    with a_run(["pass", "fail", "crash", "timeout"]) as layout:
        if data.draw(st.booleans()):
            put(layout.plan, data.draw(edits(plan(CELLS).to_json())))
        else:
            layout.plan.write_bytes(data.draw(damage(layout.plan.read_bytes())))
        try:
            found = read_plan(layout.run_dir)
        except PlanFileError as error:
            assert str(layout.plan) in str(error)
            for command in ("status", "report"):
                shown = CliRunner().invoke(main, ["sweep", command, str(layout.run_dir)])
                assert (shown.exit_code, "plan.json" in shown.output) == (2, True)
            return
        check_counts(RunLayout(layout.run_dir, found.workload))


@SLOW
@given(st.data())
def test_an_edited_or_damaged_matrix(data: st.DataObject) -> None:
    """A matrix ends a run only if it is this plan's, whole at both ends, and complete."""
    with a_run(["pass", "fail", "crash", "timeout"]) as layout:
        the_plan = plan(CELLS)
        matrix = build_matrix(layout.run_dir)
        layout.matrix_json.write_text(matrix_json(matrix))
        good = layout.matrix_json.read_bytes()
        layout.matrix_json.write_bytes(data.draw(damage(good)))
        finished = is_finished(layout.run_dir, the_plan)
        if finished:
            text = layout.matrix_json.read_bytes()
            assert f'"plan_key": "{the_plan.key}"'.encode() in text and b'"complete": true' in text
            assert text.endswith(b"}\n")
        # Made again from the trials, whatever was there.
        assert CliRunner().invoke(main, ["sweep", "report", str(layout.run_dir)]).exit_code == 0
        assert layout.matrix_json.read_bytes() == good
