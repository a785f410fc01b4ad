"""A run's trials as a pandas table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matrix_builders import plan, record, request, result, write_run

from aorta.matrix.frame import trials_frame

CELLS = [request("base"), request("other")]


def test_one_row_a_valid_record_in_the_order_of_cells_and_trials(tmp_path: Path) -> None:
    """Fails and errors have rows; a missing or damaged record has none."""
    records = [record(CELLS[0], 1, "fail"), record(CELLS[0], 0), record(CELLS[1], 0, "crash")]
    layout = write_run(tmp_path, plan(CELLS), records)
    layout.trial("other", 1).write_text("{")
    frame = trials_frame(tmp_path)
    assert frame[["cell", "trial", "verdict"]].values.tolist() == [
        ["base", 0, "pass"],
        ["base", 1, "fail"],
        ["other", 0, "error"],
    ]
    assert frame["mean_step_time_ms"].tolist()[:2] == [11.5, 11.5]
    assert frame["error"].tolist()[2] == "crash for a reason"


def test_times_and_metrics_have_their_types(tmp_path: Path) -> None:
    """Start times compare as times; metrics that are one value are columns."""
    metrics = {"final_loss": 2.5, "device": "cpu", "nested": {"a": 1}}
    write_run(tmp_path, plan(CELLS[:1]), [record(CELLS[0], 0, result=result(metrics=metrics))])
    frame = trials_frame(tmp_path)
    assert frame["started_at"][0] == pd.Timestamp("2026-04-28T14:12:04Z")
    assert (frame["metrics.final_loss"][0], frame["metrics.device"][0]) == (2.5, "cpu")
    assert "metrics.nested" not in frame


def test_a_run_without_records_is_an_empty_table(tmp_path: Path) -> None:
    """Right after the start there is nothing to show, and nothing fails."""
    write_run(tmp_path, plan(CELLS), [])
    assert trials_frame(tmp_path).empty
