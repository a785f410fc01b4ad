"""Cells that stop after some events: which trials count, whatever ran beside them, and what the page says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from matrix_builders import plan, put, record, request, write_run

from aorta._resources import load_schema
from aorta.matrix import Matrix, aggregate, build_matrix, matrix_json, render_markdown, write_matrix
from aorta.matrix.frame import trials_frame
from aorta.matrix.rates import Sample, fisher_p_value, sequential_p_value
from aorta.plan import Plan, RunLayout
from aorta.run.needed import event_trials

MATRIX = Draft202012Validator(load_schema("matrix"))
TRIAL = Draft202012Validator(load_schema("trial"))
OUTCOMES = {"p": "pass", "f": "fail", "c": "crash", "d": "did_not_run"}
VERDICTS = {"p": "pass", "f": "fail", "c": "error", "d": "error"}
RULE = {"events": 3, "event_verdict": "fail"}


def skipped(of: dict[str, Any], trial: int, rule: dict[str, Any], events: list[int]) -> dict[str, Any]:
    """The record of a trial that was not needed."""
    made = {
        **record(of, trial),
        "exit_status": "not_needed",
        "verdict": None,
        "result": None,
        "device": None,
        "pid": None,
        "wall_clock_sec": 0.0,
        "not_needed": {**rule, "event_trials": events},
    }
    assert [error.message for error in TRIAL.iter_errors(made)] == []
    return made


def records_of(of: dict[str, Any], text: str, rule: dict[str, Any] = RULE) -> list[dict[str, Any]]:
    """Records in order of trial: p, f, c, d, n (not needed) or a space for none."""
    made = []
    for trial, letter in enumerate(text):
        if letter == "n":
            events = [place for place, one in enumerate(text[:trial]) if VERDICTS.get(one) == rule["event_verdict"]]
            made.append(skipped(of, trial, rule, events[: rule["events"]]))
        elif letter != " ":
            made.append(record(of, trial, OUTCOMES[letter]))
    return made


def ruled_plan(cells: list[dict[str, Any]], *rules: dict[str, Any] | None) -> Plan:
    """A plan whose cells have these rules."""
    made = plan(cells)
    return replace(
        made, cells=tuple(replace(cell, stop_after=rule) for cell, rule in zip(made.cells, rules, strict=True))
    )


def build(texts: dict[str, str], rule: dict[str, Any] | None = RULE) -> Matrix:
    """The matrix of cells that went so."""
    cells = [request(name, trials=len(text)) for name, text in texts.items()]
    records = [one for cell in cells for one in records_of(cell, texts[cell["cell"]], rule or RULE)]
    matrix = aggregate(ruled_plan(cells, *[rule] * len(cells)), {cell["cell"]: cell for cell in cells}, records)
    MATRIX.validate(json.loads(matrix_json(matrix)))
    return matrix


def row(text: str, rule: dict[str, Any] | None = RULE) -> dict[str, Any]:
    cell: dict[str, Any] = build({"a": text}, rule)["cells"][0]
    return cell


@pytest.mark.parametrize(
    ("text", "reason", "counted", "excess", "not_needed"),
    [
        ("pfpffnnnn", "events_reached", 5, [], 4),
        ("pfpffpfnn", "events_reached", 5, [5, 6], 2),
        ("fffpppppp", "events_reached", 3, [3, 4, 5, 6, 7, 8], 0),
        ("pppppppff", "cap_reached", 9, [], 0),
        ("ppppppfff", "events_reached", 9, [], 0),
        ("pfpf     ", None, 4, [], 0),
        ("pf pffn  ", "events_reached", 5, [], 1),
        ("ppppppp p", None, 8, [], 0),
        ("cfcffcnnn", "events_reached", 5, [5], 3),
    ],
)
def test_trials_count_up_to_the_last_event(
    text: str, reason: str | None, counted: int, excess: list[int], not_needed: int
) -> None:
    """In the order of their numbers; later ones are named, and a cell without all its trials is open."""
    cell = row(text)
    assert (cell["stop_reason"], cell["trials_counted"], cell["excess_trials"], cell["trials_not_needed"]) == (
        reason,
        counted,
        excess,
        not_needed,
    )
    assert sum(cell["verdict_counts"].values()) == counted
    assert cell["trials_present"] == len(text.replace(" ", "")) == sum(cell["exit_status_counts"].values())
    assert cell["trials_present"] == len(cell["trial_paths"])


def test_a_stopped_cell_has_the_unbiased_rate_and_the_exact_interval() -> None:
    """3 fails in 5 trials: 2/4, and no excess trial in any rate."""
    cell = row("pfpffffnn")
    assert (cell["event_rate"], cell["event_rate_estimator"], cell["failure_rate"]) == (0.5, "inverse_sampling", 0.6)
    assert cell["event_rate_ci95"] == Sample(hits=3, misses=2, ended_by="hit").exact_interval()


def test_errors_are_passed_over_by_the_event_rate() -> None:
    """A cell that waits for fails estimates from passes and fails alone; the failure rate counts every trial."""
    cell = row("cfpcffnnn")
    assert (cell["event_rate"], cell["failure_rate"], cell["error_rate"]) == (2 / 3, 5 / 6, 2 / 6)


def test_a_capped_cell_has_the_proportion_and_an_exact_interval() -> None:
    """Two fails in nine trials, for want of a third."""
    cell = row("pppppppff")
    assert (cell["event_rate"], cell["event_rate_estimator"]) == (2 / 9, "proportion")
    assert cell["event_rate_ci95"] == Sample(hits=2, misses=7).exact_interval()


def test_a_cell_that_waits_for_passes_shows_its_fails() -> None:
    """Event rate is always how often trials fail."""
    cell = row("fpfppnn", {"events": 3, "event_verdict": "pass"})
    assert (cell["event_rate"], cell["event_rate_estimator"]) == (1 - 2 / 4, "inverse_sampling")
    assert cell["event_rate_ci95"] == Sample(hits=2, misses=3, ended_by="miss").exact_interval()


def test_a_cell_that_waits_for_errors_corrects_their_rate() -> None:
    """Two errors in four trials: (2 - 1)/(4 - 1); passes and fails are not what was waited for."""
    cell = row("cpfdnn", {"events": 2, "event_verdict": "error"})
    fixed = row("cpfd", None)
    assert cell["error_rate"] == pytest.approx(1 / 3)
    names = ("event_rate", "event_rate_estimator", "event_rate_ci95")
    assert [cell[name] for name in names] == [fixed[name] for name in names] == [0.5, "proportion", fixed[names[2]]]


@settings(max_examples=150, deadline=None)
@given(
    st.text("pfcd", min_size=1, max_size=14), st.integers(1, 4), st.sampled_from(["fail", "pass", "error"]), st.data()
)
def test_what_counts_is_the_same_however_many_run_side_by_side(
    outcomes: str, events: int, verdict: str, data: st.DataObject
) -> None:
    """Trials start in any order, see the records that are there, and end at any time: the figures never change."""
    rule = {"events": events, "event_verdict": verdict}

    def sweep(devices: int) -> str:
        waiting, running, there = list(range(len(outcomes))), [], {}
        while waiting or running:
            may_start = bool(waiting) and len(running) < devices
            if may_start and (not running or data.draw(st.booleans())):
                trial = waiting.pop(data.draw(st.integers(0, min(devices, len(waiting)) - 1)))
                seen = [one for one in range(trial) if VERDICTS.get(there.get(one, " ")) == verdict]
                if len(seen) >= events:
                    there[trial] = "n"
                else:
                    running.append(trial)
            else:
                trial = running.pop(data.draw(st.integers(0, len(running) - 1)))
                there[trial] = outcomes[trial]
        return "".join(there[trial] for trial in range(len(outcomes)))

    one_by_one, side_by_side = row(sweep(1), rule), row(sweep(data.draw(st.integers(2, 5))), rule)
    assert one_by_one["excess_trials"] == []
    for name in ("trials_counted", "stop_reason", "verdict_counts", "failure_rate", "event_rate", "event_rate_ci95"):
        assert side_by_side[name] == one_by_one[name], name
    assert side_by_side["error_rate"] == one_by_one["error_rate"]


def test_fast_failures_do_not_raise_the_rate() -> None:
    """Simulated: failures end ten times sooner than passes, eight run side by side, and the mean is still the rate."""
    probability, events, cap, devices, sweeps = 0.3, 3, 24, 8, 4000
    generator = np.random.default_rng(19460101)
    rates, naive = [], []
    for _ in range(sweeps):
        fails = generator.random(cap) < probability
        free = [0.0] * devices
        ends: dict[int, float] = {}
        for trial in range(cap):
            place = int(np.argmin(free))
            seen = sum(fails[one] and ends[one] <= free[place] for one in ends)
            if seen >= events:
                break
            free[place] += generator.exponential(0.1 if fails[trial] else 1.0)
            ends[trial] = free[place]
        ran = [fails[trial] for trial in sorted(ends)]
        hits = np.cumsum(ran)
        size = int(np.searchsorted(hits, events)) + 1 if hits[-1] >= events else len(ran)
        ended_by = "hit" if hits[-1] >= events else "size"
        rates.append(
            float(Sample(hits=int(hits[size - 1]), misses=size - int(hits[size - 1]), ended_by=ended_by).rate or 0)
        )
        first = sorted(ends, key=lambda trial: ends[trial])
        in_time = np.cumsum([fails[trial] for trial in first])
        stop = int(np.searchsorted(in_time, events)) + 1 if in_time[-1] >= events else len(first)
        naive.append(in_time[stop - 1] / stop)
    assert abs(np.mean(rates) - probability) < 4 * np.std(rates) / np.sqrt(sweeps)
    assert np.mean(naive) > 1.5 * probability


def test_the_rule_of_a_trial_and_of_the_matrix_agree(tmp_path: Path) -> None:
    """What the supervisor counts on disk is what the matrix counts in memory."""
    cell = request("a", trials=9)
    for text in ("pfpffnnnn", "cfcfpfnnn", "ppp pfffn"):
        layout = write_run(tmp_path / text.strip(), ruled_plan([cell], RULE), [])
        for one in records_of(cell, text):
            path = layout.trial("a", one["trial"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(one, indent=1) + "\n")
        found = event_trials(lambda trial, at=layout: at.trial("a", trial), 9, cell["fingerprint"], RULE)
        assert len(found) == 3
        counted = build_matrix(layout.run_dir)["cells"][0]
        assert counted["trials_counted"] == len(text[: found[-1] + 1].replace(" ", ""))


@pytest.fixture
def stopped(tmp_path: Path) -> RunLayout:
    """A run of one cell that stopped at its third fail, trial 4, and skipped four trials."""
    cell = request("a", trials=9)
    return write_run(tmp_path / "run", ruled_plan([cell], RULE), records_of(cell, "pfpffnnnn"))


def test_a_stopped_run_is_complete(stopped: RunLayout) -> None:
    """Every trial has its record, and none is amiss."""
    matrix = build_matrix(stopped.run_dir)
    assert (matrix["complete"], matrix["trials_present"], matrix["warnings"]) == (True, 9, [])


@pytest.mark.parametrize(
    "rule", [None, {"events": 4, "event_verdict": "fail"}, {"events": 3, "event_verdict": "error"}]
)
def test_a_skip_that_no_longer_holds_is_missing(stopped: RunLayout, rule: dict[str, Any] | None) -> None:
    """More events, another verdict or no rule: the skipped trials are needed, named, and set aside to run."""
    put(stopped.plan, ruled_plan([request("a", trials=9)], rule).to_json())
    matrix = write_matrix(stopped.run_dir, set_aside=True)
    assert matrix["cells"][0]["missing_trials"] == [5, 6, 7, 8]
    assert {warning["code"] for warning in matrix["warnings"]} == {"trial_stale"}
    assert len(list(stopped.trial_folder("a").glob("*.invalid"))) == 4


def test_a_lost_event_makes_its_skips_missing_too(stopped: RunLayout) -> None:
    """Without trial 3 there are two events, and trials 5 to 8 are needed after all."""
    stopped.trial("a", 3).unlink()
    assert build_matrix(stopped.run_dir)["cells"][0]["missing_trials"] == [3, 5, 6, 7, 8]


def test_a_skipped_trial_has_a_row_in_the_frame(stopped: RunLayout) -> None:
    """No verdict and no device, and the other trials' rows are whole."""
    frame = trials_frame(stopped.run_dir)
    skips = frame[frame["exit_status"] == "not_needed"]
    assert (len(frame), len(skips), skips["verdict"].notna().sum(), skips["device_kind"].notna().sum()) == (9, 4, 0, 0)


def test_stopped_cells_are_compared_by_a_test_that_knows_the_rule() -> None:
    """Exact tails combined, not Fisher's test, and the note says so."""
    matrix = build({"a": "fffnnnnnnnnn", "b": "pppppppppppp"})
    cell = matrix["cells"][1]
    expected = sequential_p_value(Sample(hits=0, misses=12), Sample(hits=3, misses=0, ended_by="hit"))
    assert (cell["p_value_test"], cell["p_value_vs_baseline"]) == ("combined_exact_tails", expected)
    assert cell["p_value_vs_baseline"] != fisher_p_value(0, 12, 3, 0)
    assert "exact tails of both" in render_markdown(matrix)


def test_rates_are_compared_as_they_are_shown() -> None:
    """A cell whose estimate is lower than the baseline's is not called worse because its raw share is higher."""
    cells = build({"base": "pfpffnnnnn", "capped": "ffpfppppnn"}, {"events": 3, "event_verdict": "fail"})["cells"]
    assert (cells[0]["event_rate"], cells[1]["event_rate"]) == (2 / 4, 2 / 3)
    assert cells[1]["confound"]["tag"] == "worse"


def test_the_page_says_how_each_cell_ended() -> None:
    """Rate with interval and the reason, beside the guide's failure rate; excess trials are named."""
    page = render_markdown(build({"base": "pfpffpfnn", "cap": "pppppppff", "last": "ppppppfff", "open": "pf       "}))
    table = {
        line.split("|")[1].strip(): [part.strip() for part in line.split("|")]
        for line in page.splitlines()
        if "|" in line
    }
    ends = {name: cells[table["Cell"].index("Stop")] for name, cells in table.items()}
    assert (ends["base"], ends["cap"], ends["last"], ends["open"]) == (
        "stopped early, 5/9",
        "cap reached, 9/9",
        "events reached, 9/9",
        "open, 2/9",
    )
    assert table["base"][table["Cell"].index("Event rate (95%)")] == "50% (14.7% to 93.2%)"
    assert "Stop: after 3 trials with verdict fail." in page
    assert "recorded and in no rate: base 2." in page


def test_a_matrix_without_rules_has_no_columns_for_them() -> None:
    """Nothing changes for recipes that do not ask for it."""
    page = render_markdown(build({"a": "pf"}, None))
    assert ("Stop" in page, "Event rate" in page) == (False, False)


def test_all_that_were_needed_passed() -> None:
    """A cell that stops at its passes has nothing open."""
    page = render_markdown(build({"a": "pppnn"}, {"events": 3, "event_verdict": "pass"}))
    assert "All 3 trials pass.**" in page


def test_a_first_event_gets_a_warning_about_its_rate() -> None:
    """events: 1 has no useful unbiased estimate, and the page does not hide it."""
    page = render_markdown(build({"a": "ppfnn"}, {"events": 1, "event_verdict": "fail"}))
    assert "gives no unbiased rate" in page


def test_retried_trials_are_counted_and_named() -> None:
    """The last attempt counts; the note says where others came before."""
    cell = request("a", trials=2)
    attempt = {
        name: record(cell, 0, "crash")[name] for name in ("exit_status", "error", "started_at", "ended_at", "device")
    }
    again = record(cell, 0, attempt=2, attempts=[{**attempt, "host": "node01"}])
    assert [error.message for error in TRIAL.iter_errors(again)] == []
    matrix = aggregate(plan([cell]), {"a": cell}, [again, record(cell, 1)])
    MATRIX.validate(json.loads(matrix_json(matrix)))
    assert (matrix["cells"][0]["retried"], matrix["cells"][0]["error_rate"]) == (1, 0.0)
    assert "Trials that ran again after an error, counted by how they ended at last: a 1." in render_markdown(matrix)
