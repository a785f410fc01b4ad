"""Cells of the matrix, against an independent recomputation and one by one."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from matrix_builders import descriptor, failure, plan, record, request, result

from aorta._resources import load_schema
from aorta.matrix import Matrix, aggregate, matrix_json, render_markdown, render_perf

SCHEMA = Draft202012Validator(load_schema("matrix"))
OUTCOMES = ("pass", "fail", "crash", "timeout", "did_not_run")


def build(requests: list[dict[str, Any]], records: list[dict[str, Any]], **fields: Any) -> Matrix:
    """Aggregates and holds the outcome against the schema."""
    the_plan = plan(requests, **fields)
    matrix = aggregate(the_plan, {one["cell"]: one for one in requests}, records)
    SCHEMA.validate(json.loads(matrix_json(matrix)))
    return matrix


def one_cell(*records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    cell: dict[str, Any] = build([request("a", **fields)], list(records))["cells"][0]
    return cell


A = request("a")

durations = st.lists(st.floats(0.01, 1e4), max_size=6)
results = st.builds(
    lambda times, elapsed, total, ran: result(
        step_times_ms=times, elapsed_sec=elapsed, total_iterations=total, executed_iterations=ran
    ),
    durations,
    st.none() | st.floats(0.0, 100.0),
    st.integers(0, 5),
    st.none() | st.integers(0, 5),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Up to three cells whose trials end in any way, or are missing."""
    requests = [request(name, trials=draw(st.integers(1, 6))) for name in "abc"[: draw(st.integers(1, 3))]]
    records = []
    for cell in requests:
        for trial in range(cell["trials"]):
            outcome = draw(st.sampled_from((*OUTCOMES, "missing")))
            if outcome == "missing":
                continue
            one = record(cell, trial, outcome, wall_clock_sec=draw(st.floats(0.0, 1e3)))
            if one["result"] is not None:
                one["result"] = {
                    **draw(results),
                    "passed": outcome == "pass",
                    "main_work_started": outcome != "did_not_run",
                }
            records.append(one)
    return requests, records


def recomputed(cell: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """The guide's figures from the raw records, in plain Python that shares nothing with the code under test."""
    mine = sorted((r for r in records if r["cell"] == cell["cell"]), key=lambda r: r["trial"])
    ran = [r for r in mine if r["result"] and r["result"]["main_work_started"]]
    fails = [r for r in ran if not r["result"]["passed"]]
    passes = [r for r in ran if r["result"]["passed"]]
    bad = [r for r in mine if r["exit_status"] != "ok" or (r["result"] and not r["result"]["passed"])]
    timed = [r for r in ran if r["result"]["executed_iterations"] != 0]
    if timed and all(r["result"]["step_times_ms"] for r in timed):
        source, times = "per_step", [t for r in timed for t in r["result"]["step_times_ms"]]
    elif timed and all(r["result"]["elapsed_sec"] and r["result"]["total_iterations"] for r in timed):
        source = "elapsed_per_iter"
        times = [r["result"]["elapsed_sec"] / r["result"]["total_iterations"] * 1000 for r in timed]
    elif timed and all(r["wall_clock_sec"] for r in timed):
        source, times = "wall_clock_total", [r["wall_clock_sec"] / 4 * 1000 for r in timed]
    else:
        source, times = "missing", []
    return {
        "failure_rate": len(bad) / len(mine) if mine else None,
        "event_rate": len(fails) / len(fails + passes) if fails + passes else None,
        "error_rate": (len(mine) - len(fails) - len(passes)) / len(mine) if mine else None,
        "present": len(mine),
        "source": source,
        "times": times,
        "mean": sum(times) / len(times) if times else None,
        "max": max(times, default=None),
    }


@settings(max_examples=50, deadline=None)
@given(runs())
def test_rates_and_times_agree_with_a_recomputation(run: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Every figure that a decision hangs on, worked out a second way."""
    requests, records = run
    matrix = build(requests, records)
    for cell, found in zip(requests, matrix["cells"], strict=True):
        expected = recomputed(cell, records)
        for name in ("failure_rate", "event_rate", "error_rate"):
            assert found[name] == pytest.approx(expected[name]), name
        assert found["trials_present"] == expected["present"] == sum(found["exit_status_counts"].values())
        assert found["step_time_source"] == expected["source"]
        assert found["step_times_ms"] == pytest.approx(expected["times"])
        assert found["mean_step_time_ms"] == pytest.approx(expected["mean"])
        assert found["max_step_time_ms"] == pytest.approx(expected["max"])
        assert len(found["missing_trials"]) == cell["trials"] - expected["present"]


@settings(max_examples=25, deadline=None)
@given(runs(), st.randoms())
def test_the_order_of_records_leaves_no_trace(
    run: tuple[list[dict[str, Any]], list[dict[str, Any]]], shuffler: random.Random
) -> None:
    """Trials end in any order; the files are the same byte for byte."""
    requests, records = run
    shuffled = copy.deepcopy(records)
    shuffler.shuffle(shuffled)
    first, second = build(requests, records), build(requests, shuffled)
    assert matrix_json(first) == matrix_json(second)
    assert render_markdown(first) == render_markdown(second)
    assert render_perf(first) == render_perf(second)


def test_a_passed_trial_that_says_failed_counts_as_a_failure() -> None:
    """The guide: exit_status != ok OR passed == False."""
    odd = record(A, 0, "pass", verdict="fail", result=result(passed=False))
    assert one_cell(odd)["failure_rate"] == 1.0


def test_errors_are_failures_but_no_events() -> None:
    """A broken launch must not look like a reproduced bug."""
    cell = one_cell(record(A, 0, "crash"), record(A, 1, "timeout"), record(A, 2), record(A, 3))
    assert (cell["failure_rate"], cell["event_rate"], cell["error_rate"]) == (0.5, 0.0, 0.5)


def test_a_cell_without_trials_has_no_rates() -> None:
    """Null, not zero."""
    cell = one_cell()
    assert (cell["failure_rate"], cell["event_rate"], cell["event_rate_ci95"], cell["error_rate"]) == (None,) * 4


def test_iterations_are_summed_over_the_trials_that_report_them() -> None:
    """A null adds nothing, and a crash has none."""
    cell = one_cell(
        record(A, 0),
        record(A, 1, result=result(executed_iterations=None, configured_iterations=None)),
        record(A, 2, result=result(executed_iterations=2)),
        record(A, 3, "crash"),
    )
    assert cell["iterations"] == {"executed": 6, "configured": 8, "trials": 2}


def test_executed_iterations_are_set_against_those_of_the_same_trials() -> None:
    """What one trial was to do says nothing about what another one did."""
    cell = one_cell(
        record(A, 0, result=result(executed_iterations=3, configured_iterations=None)),
        record(A, 1, result=result(executed_iterations=None, configured_iterations=4)),
    )
    assert cell["iterations"] == {"executed": 3, "configured": None, "trials": 1}


def test_trial_paths_are_in_order_of_index() -> None:
    """Trial 2 comes before trial 10."""
    cell = one_cell(*(record(A, trial) for trial in (10, 2, 1)), trials=11)
    names = [path.rsplit("_", 1)[1] for path in cell["trial_paths"]]
    assert names == ["t1.json", "t2.json", "t10.json"]


def test_equal_errors_are_one_line() -> None:
    """Grouped by message and exit status, with the trials that ended so and the engine's advice."""
    killed = failure(type="signal", message="killed by SIGSEGV", signal="SIGSEGV")
    cell = one_cell(
        record(A, 2, "crash", error={**killed, "hint": " stderr_tail has the Python stack"}),
        record(A, 0, "crash", error=killed),
        record(A, 1, "crash", error=failure(type="ValueError", message="no device")),
    )
    assert cell["error_summary"] == [
        {
            "message": "killed by SIGSEGV",
            "exit_status": "infrastructure_failed",
            "did_not_run": False,
            "hint": "stderr_tail has the Python stack",
            "count": 2,
            "trials": [0, 2],
        },
        {
            "message": "ValueError: no device",
            "exit_status": "infrastructure_failed",
            "did_not_run": False,
            "hint": None,
            "count": 1,
            "trials": [1],
        },
    ]


def test_main_work_that_never_started_is_an_error_with_words() -> None:
    """Such a trial may have ended ok and without an error of its own."""
    silent = record(A, 0, verdict="error", did_not_run=True, result=result(main_work_started=False))
    cell = one_cell(silent)
    assert cell["error_summary"][0]["message"] == "the workload ended without starting its main work"


def test_metrics_are_numbers_values_or_varying() -> None:
    """Numbers are averaged, agreement is kept, the rest is said to vary."""
    metrics = [{"loss": 1.0, "device": "cpu", "note": "x", "ok": True}, {"loss": 3, "device": "cpu", "note": "NaN"}]
    cell = one_cell(*(record(A, trial, result=result(metrics=m)) for trial, m in enumerate(metrics)))
    assert cell["metrics"] == {
        "device": {"kind": "value", "trials": 2, "value": "cpu"},
        "loss": {"kind": "number", "trials": 2, "mean": 2.0, "min": 1.0, "max": 3.0},
        "note": {"kind": "varies", "trials": 2},
        "ok": {"kind": "value", "trials": 1, "value": True},
    }


def test_hosts_and_devices_are_named_once() -> None:
    """Where a cell ran is part of what it means."""
    gpu = {"kind": "rocm", "index": 1, "identity": "GPU-17"}
    cell = one_cell(record(A, 0, device=gpu), record(A, 1, device=gpu), record(A, 2))
    assert cell["hosts"] == ["node01"]
    assert cell["devices"] == [{"kind": "cpu", "index": None, "identity": None}, gpu]


def test_variables_are_shown_with_their_layers() -> None:
    """Value and origin of each one."""
    cell = one_cell(env={"HSA_XNACK": {"value": "1", "layer": "mitigation:xnack"}})
    assert cell["resolved_env_vars"] == {"HSA_XNACK": "1"}
    assert cell["resolved_env_layers"] == {"HSA_XNACK": "mitigation:xnack"}


def test_fields_that_the_workload_ignores_are_named() -> None:
    """An image that nobody starts."""
    place = descriptor("img", docker="acme/box:2", emulator="rocjitsu")
    cell = one_cell(environment=place, acts_on=["emulator"])
    assert cell["environment_fields_ignored"] == ["docker"]


def compared(base: str, other: str, **fields: Any) -> Matrix:
    """Two cells from a letter a trial: p(ass), f(ail), c(rash), d(id not run)."""
    letters = {outcome[0]: outcome for outcome in OUTCOMES}
    cells = [request("base"), request("other")]
    records = [
        record(cell, trial, letters[letter])
        for cell, text in zip(cells, (base, other), strict=True)
        for trial, letter in enumerate(text)
    ]
    return build(cells, records, **fields)


@pytest.mark.parametrize(
    ("base", "other", "tag"),
    [
        ("ppff", "pppp", "-"),
        ("ppff", "pfff", "worse"),
        ("ppff", "ppff", "no effect"),
        ("ppff", "cccc", "error"),
        ("ppff", "dddd", "did_not_run"),
        ("ppff", "", "n/a"),
        ("dddd", "pppf", "n/a"),
        ("cccc", "pppf", "n/a"),
        ("", "pppf", "n/a"),
    ],
)
def test_comparison_with_the_baseline(base: str, other: str, tag: str) -> None:
    """From records to tags."""
    rows = compared(base, other)["cells"]
    assert [row["confound"]["tag"] for row in rows] == ["(baseline)", tag]


def test_a_silent_baseline_is_warned_of_and_rates_stay_visible() -> None:
    """Other rows are n/a but keep their own figures."""
    matrix = compared("dddd", "pppf")
    assert [(w["cell"], w["code"]) for w in matrix["warnings"]] == [("base", "baseline_unusable")]
    assert matrix["cells"][1]["event_rate"] == 0.25
    assert matrix["cells"][1]["p_value_vs_baseline"] is None


def test_a_baseline_that_the_plan_lacks_compares_nothing() -> None:
    """Every row says so."""
    matrix = compared("pppp", "pppp", confound={"threshold": 1.15, "baseline_cell": "gone"})
    assert [row["confound"]["tag"] for row in matrix["cells"]] == ["n/a", "n/a"]
    assert [w["code"] for w in matrix["warnings"]] == ["baseline_unusable"]


def test_p_value_is_against_the_baseline() -> None:
    """4 of 4 against 0 of 4 has one chance in 35."""
    rows = compared("ffff", "pppp")["cells"]
    assert (rows[0]["p_value_vs_baseline"], rows[1]["p_value_vs_baseline"]) == (None, pytest.approx(2 / 70))


def test_history_is_carried_over() -> None:
    """A run directory that was continued with another recipe says so."""
    entry = {"created_at": "2026-04-27T10:00:00Z", "plan_key": "0" * 64, "aorta_version": "0.1.0", "trials": {"a": 2}}
    assert build([A], [], history=(entry,))["history"] == [entry]


def test_no_figure_is_nan_or_infinite() -> None:
    """Extreme but legal records still make JSON."""
    extreme = [
        record(A, 0, result=result(step_times_ms=[5e-324, 1e15], metrics={"x": 1.7e308})),
        record(A, 1, result=result(step_times_ms=[1e15], metrics={"x": 1.7e308}), wall_clock_sec=1.7e308),
        record(A, 2, wall_clock_sec=1.7e308),
    ]
    cell = one_cell(*extreme)
    assert math.isfinite(cell["metrics"]["x"]["mean"]) and math.isfinite(cell["mean_wall_clock_sec"])


def test_every_field_of_the_schema_is_described() -> None:
    """The schema is the reference that users read."""

    def undescribed(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        found = [
            f"{path}.{name}"
            for name, entry in node.get("properties", {}).items()
            if "description" not in entry and "const" not in entry
        ]
        return found + [name for key, entry in node.items() for name in undescribed(entry, f"{path}.{key}")]

    assert undescribed(load_schema("matrix"), "") == []
