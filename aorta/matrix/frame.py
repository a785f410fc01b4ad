"""A run's trials as a pandas table, for questions that the matrix does not ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aorta.matrix.load import load_run

if TYPE_CHECKING:
    import pandas as pd

_SCALAR = (str, int, float, bool)


def trials_frame(run_dir: Path | str) -> pd.DataFrame:
    """Returns one row a valid trial record, in the order of cells and trials; records that do not count are left out.

    Columns: ``cell``, ``trial``, ``exit_status``, ``verdict``, ``did_not_run``, ``failure_count``,
    ``first_failure_iteration``, ``mean_step_time_ms``, ``wall_clock_sec``, ``started_at`` (UTC), ``order``,
    ``attempt``, ``hostname``, ``device_kind``, ``device_index``, ``peak_rss_bytes``, ``error``, and
    ``metrics.<name>`` for each metric that is a single value. What a trial does not have is missing (NaN or None).

    Example:
        >>> frame = trials_frame("triage_results/EXAMPLE-001/training/2026-04-28T14-12-03")  # doctest: +SKIP
        >>> frame.groupby("hostname")["verdict"].value_counts()  # doctest: +SKIP

    Raises:
        PlanFileError: ``plan.json`` is missing or damaged.
    """
    # Half a second to import, and no other part of a sweep needs it.
    import pandas as pd

    run = load_run(Path(run_dir))
    frame = pd.DataFrame([_row(record) for record in run.records])
    if not frame.empty:
        frame["started_at"] = pd.to_datetime(frame["started_at"], utc=True, format="ISO8601")
    return frame


def _row(record: dict[str, Any]) -> dict[str, Any]:
    result = record["result"] or {}
    # A trial that was not needed ran on nothing.
    device = record["device"] or {}
    times = result.get("step_times_ms") or []
    metrics = {
        f"metrics.{name}": value for name, value in (result.get("metrics") or {}).items() if isinstance(value, _SCALAR)
    }
    return {
        "cell": record["cell"],
        "trial": record["trial"],
        "exit_status": record["exit_status"],
        "verdict": record["verdict"],
        "did_not_run": record["did_not_run"],
        "failure_count": result.get("failure_count"),
        "first_failure_iteration": result.get("first_failure_iteration"),
        "mean_step_time_ms": sum(times) / len(times) if times else None,
        "wall_clock_sec": record["wall_clock_sec"],
        "started_at": record["started_at"],
        "order": record["order"],
        "attempt": record["attempt"],
        "hostname": record["host"]["hostname"],
        "device_kind": device.get("kind"),
        "device_index": device.get("index"),
        "peak_rss_bytes": record["peak_rss_bytes"],
        "error": record["error"]["message"] if record["error"] else None,
        **metrics,
    }
