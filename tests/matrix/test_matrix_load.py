"""Reading a run directory: which files count, and what is said of the others."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from matrix_builders import plan, put, record, request, result, write_run

from aorta.matrix import build_matrix, matrix_json
from aorta.matrix.records import Expected, RejectedError, read_record
from aorta.plan import RunLayout
from aorta.plan.model import PlanFileError

CELLS = [request("base"), request("other", mitigations=["tf32_off"])]


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A complete run of two cells, four trials each."""
    records = [record(cell, trial) for cell in CELLS for trial in range(4)]
    return write_run(tmp_path / "run", plan(CELLS), records)


def cell_of(matrix: dict[str, Any], name: str) -> dict[str, Any]:
    return next(cell for cell in matrix["cells"] if cell["name"] == name)


def codes(matrix: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in matrix["warnings"]]


def test_a_complete_run_has_every_trial_and_no_warning(run: RunLayout) -> None:
    """The good case."""
    matrix = build_matrix(run.run_dir)
    assert (matrix["complete"], matrix["trials_present"], matrix["warnings"]) == (True, 8, [])


def test_an_absent_file_is_missing_without_a_warning(run: RunLayout) -> None:
    """A trial that has not run yet is nothing to warn of."""
    run.trial("other", 2).unlink()
    matrix = build_matrix(run.run_dir)
    assert (matrix["complete"], cell_of(matrix, "other")["missing_trials"], matrix["warnings"]) == (False, [2], [])


def changed(**fields: Any) -> bytes:
    return json.dumps({**record(CELLS[1], 2), **fields}).encode()


BAD_FILES = {
    "empty": (b"", "trial_unreadable"),
    "truncated": (changed()[:200], "trial_unreadable"),
    "not UTF-8": (b'{"a": "\xff\xfe"}', "trial_unreadable"),
    "bare NaN": (changed().replace(b"2.0", b"NaN"), "trial_unreadable"),
    "endless number": (b'{"trial": ' + b"9" * 5000 + b"}", "trial_unreadable"),
    "bottomless": (b"[" * 100_000 + b"]" * 100_000, "trial_unreadable"),
    "an array": (b"[]", "trial_invalid"),
    "an empty object": (b"{}", "trial_invalid"),
    "another version": (changed(schema_version=2), "trial_invalid"),
    "another cell": (changed(cell="base"), "trial_invalid"),
    "another trial": (changed(trial=3), "trial_invalid"),
    "another workload": (changed(workload="race"), "trial_invalid"),
    "an unknown status": (changed(exit_status="fine"), "trial_invalid"),
    "a text for a time": (changed(wall_clock_sec="2.0"), "trial_invalid"),
    "a text among times": (changed(result=result(step_times_ms=[1.0, "2"])), "trial_invalid"),
    "a pass that failed": (changed(exit_status="timed_out"), "trial_invalid"),
    "a fail that never ran": (changed(verdict="fail", did_not_run=True), "trial_invalid"),
    "an error that passed": (changed(verdict="error"), "trial_invalid"),
    "a silent one that ran": (changed(did_not_run=True, verdict="error"), "trial_invalid"),
    "too deep": (b'{"a":' * 80 + b"1" + b"}" * 80, "trial_invalid"),
    "another fingerprint": (changed(fingerprint="f" * 64), "trial_stale"),
}


@pytest.mark.parametrize(("data", "code"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_does_not_count_is_missing_and_named(run: RunLayout, data: bytes, code: str) -> None:
    """The warning has the file's path and the reason; other trials are untouched."""
    run.trial("other", 2).write_bytes(data)
    matrix = build_matrix(run.run_dir)
    (warning,) = matrix["warnings"]
    assert (warning["cell"], warning["code"]) == ("other", code)
    assert warning["message"].startswith("cells/other/training/trial_d0_m0_t2.json: ")
    assert cell_of(matrix, "other")["missing_trials"] == [2]
    assert cell_of(matrix, "base")["trials_present"] == 4


def test_a_record_that_contradicts_itself_is_told_so(run: RunLayout) -> None:
    """In words, not in the schema's own."""
    run.trial("other", 2).write_bytes(changed(verdict="fail"))
    (warning,) = build_matrix(run.run_dir)["warnings"]
    assert "contradicts the rest of the record" in str(warning["message"])
    assert "should not be valid" not in str(warning["message"])


def test_a_named_pipe_is_not_waited_for(run: RunLayout) -> None:
    """Opening it would block for ever."""
    run.trial("other", 2).unlink()
    os.mkfifo(run.trial("other", 2))
    assert codes(build_matrix(run.run_dir)) == ["trial_unreadable"]


def test_a_folder_in_place_of_a_file_is_unreadable(run: RunLayout) -> None:
    """It is named, and the run goes on."""
    run.trial("other", 2).unlink()
    run.trial("other", 2).mkdir()
    assert codes(build_matrix(run.run_dir)) == ["trial_unreadable"]


def test_trials_beyond_the_plan_are_ignored(run: RunLayout) -> None:
    """A recipe with fewer trials than before keeps the old files and does not count them."""
    put(run.trial("other", 4), record(CELLS[1], 4, "fail"))
    matrix = build_matrix(run.run_dir)
    assert (matrix["trials_present"], matrix["warnings"]) == (8, [])
    assert run.trial("other", 4).exists()


def test_trial_files_are_known_by_their_whole_name(run: RunLayout) -> None:
    """Temporary and look-alike files are no trials."""
    for name in (".tmp-0", "trial_d0_m0_t01.json", "trial_d0_m0_t1.json.bak", "trial_d1_m0_t1.json"):
        (run.trial_folder("other") / name).write_text("{")
    assert build_matrix(run.run_dir)["warnings"] == []


@pytest.mark.parametrize("data", [None, b"{", b"[]", b"{}", json.dumps({**CELLS[1], "fingerprint": "0"}).encode()])
def test_a_cell_without_its_request_keeps_its_results(run: RunLayout, data: bytes | None) -> None:
    """Its settings are unknown, its counts are not."""
    run.cell("other").unlink() if data is None else run.cell("other").write_bytes(data)
    matrix = build_matrix(run.run_dir)
    cell = cell_of(matrix, "other")
    assert (cell["trials_present"], cell["mitigations"], cell["steps"]) == (4, None, 4)
    assert codes(matrix) == ["cell_request_unusable"]


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [(None, None), (b"{", None), (b'{"snapshot_captured": false}', False), (b'{"host": {}}', True)],
)
def test_snapshot_states(run: RunLayout, snapshot: bytes | None, expected: bool | None) -> None:
    """Missing or damaged, placeholder, real."""
    path = run.environment("local")
    path.parent.mkdir(parents=True)
    if snapshot is not None:
        path.write_bytes(snapshot)
    assert build_matrix(run.run_dir)["environments"]["local"]["snapshot_captured"] is expected


def test_a_damaged_plan_is_an_error_that_names_it(run: RunLayout) -> None:
    """Without a plan there is nothing to build."""
    run.plan.write_text("{")
    with pytest.raises(PlanFileError, match=r"plan\.json"):
        build_matrix(run.run_dir)


def test_the_plans_warnings_come_first(tmp_path: Path) -> None:
    """What was amiss before the run is still shown after it."""
    warning = {"cell": "base", "code": "unknown_config_key", "message": "workload_config.foo: ignored"}
    run = write_run(tmp_path, plan(CELLS, warnings=(warning,)), [])
    put(run.trial("base", 0), {})
    assert codes(build_matrix(tmp_path)) == ["unknown_config_key", "trial_invalid", "baseline_unusable"]


def test_the_trial_of_an_odd_workload_name_is_found(tmp_path: Path) -> None:
    """The folder's name is the encoded one, the record's is not."""
    cells = [request("base", workload="my/load")]
    write_run(tmp_path, plan(cells, workload="my/load"), [record(cells[0], trial) for trial in range(4)])
    assert build_matrix(tmp_path)["cells"][0]["trial_paths"][0] == "cells/base/my%2Fload/trial_d0_m0_t0.json"


def test_a_valid_file_is_returned_whole(run: RunLayout) -> None:
    """Nothing is dropped or converted on the way."""
    cell = CELLS[0]
    expected = Expected(cell="base", trial=1, workload="training", fingerprint=cell["fingerprint"])
    assert read_record(run.trial("base", 1), expected) == record(cell, 1)


def test_a_long_reason_is_cut(run: RunLayout) -> None:
    """A record's value may be a megabyte of text."""
    put(run.trial("base", 1), {**record(CELLS[0], 1), "exit_status": "x" * 5000})
    cell = CELLS[0]
    expected = Expected(cell="base", trial=1, workload="training", fingerprint=cell["fingerprint"])
    with pytest.raises(RejectedError) as caught:
        read_record(run.trial("base", 1), expected)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_byte_never_raises_and_never_touches_other_trials(run: RunLayout, seed: int) -> None:
    """Whatever the disk does to one file, the others' results stand and the matrix can be written."""
    dice = random.Random(seed)
    path = run.trial("other", 2)
    data = bytearray(path.read_bytes())
    for _ in range(dice.randint(1, 4)):
        action, place = dice.randrange(3), dice.randrange(len(data))
        if action == 0:
            data[place] = dice.randrange(256)
        elif action == 1:
            del data[place : place + dice.randint(1, 30)]
        else:
            data[place:place] = dice.choice([b"null", b"-1", b"1e999", b'"\\ud800"', b"[[", b"true", b"{}"])
    path.write_bytes(data)
    before = build_matrix(run.run_dir)
    json.loads(matrix_json(before), parse_constant=pytest.fail)
    assert cell_of(before, "base")["verdict_counts"] == {"pass": 4, "fail": 0, "error": 0}
    assert cell_of(before, "other")["trials_present"] in (3, 4)


SUBSTITUTES: list[Any] = [None, True, -1, 10**30, 1.5e308, "\ud800", "x" * 100, [], [None], {}, {"a": []}]
ODD_RESULTS: list[Any] = [*SUBSTITUTES, [1.0, 2, True], {"m": "\ud800"}, {"m": 10**400}, [{"hint": 3}], [{"hint": " "}]]


def survive(run_dir: Path, odd: dict[str, Any]) -> None:
    """Builds the matrix of one good trial and an odd one, and sees the good one counted."""
    layout = write_run(run_dir, plan(CELLS), [record(CELLS[0], 1)])
    put(layout.trial("other", 2), odd)
    matrix = build_matrix(run_dir)
    matrix_json(matrix)
    assert cell_of(matrix, "base")["trials_present"] == 1


@pytest.mark.parametrize("field", sorted(record(CELLS[1], 2)))
def test_any_value_in_any_field_is_survived(tmp_path: Path, field: str) -> None:
    """Every field of a record in turn takes every kind of wrong value."""
    for value in SUBSTITUTES:
        survive(tmp_path, {**record(CELLS[1], 2), field: value})


@pytest.mark.parametrize("field", sorted(result()))
def test_any_value_in_any_field_of_a_result_is_survived(tmp_path: Path, field: str) -> None:
    """The part of a record that a workload fills in."""
    for value in ODD_RESULTS:
        survive(tmp_path, record(CELLS[1], 2, result=result(**{field: value})))
