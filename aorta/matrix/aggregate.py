"""From trial records to the matrix: a pure function, the same bytes for the same inputs in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aorta.matrix import confound
from aorta.matrix.failures import failure_hints, first_failures
from aorta.matrix.findings import devices, error_summary, hosts, summarize_metrics
from aorta.matrix.injected import injected_warnings
from aorta.matrix.nodes import node_table
from aorta.matrix.numbers import count, finite_number, mean, summarize
from aorta.matrix.rates import Sample, fisher_p_value, rate, sequential_p_value, wilson_interval
from aorta.matrix.stopping import Counted, counted, errors_ended_by, failures_ended_by, is_sequential
from aorta.matrix.timing import step_times
from aorta.plan import Plan, PlannedCell, RunLayout
from aorta.plan.findings import HONOURED_FIELDS

Matrix = dict[str, Any]
"""The content of ``matrix.json``; its shape is ``schemas/matrix.schema.json``."""

SCHEMA_VERSION = 1
VERDICTS = ("pass", "fail", "error")


def aggregate(
    plan: Plan,
    cells: Mapping[str, Mapping[str, Any]],
    records: Iterable[Mapping[str, Any]],
    *,
    snapshots: Mapping[str, bool | None] | None = None,
    warnings: Sequence[Mapping[str, Any]] = (),
) -> Matrix:
    """Builds the matrix.

    Args:
        plan: The plan.
        cells: Cell name to its frozen request; a cell without one keeps its results and loses its settings.
        records: Valid trial records of the plan's cells, in any order, at most one for a (cell, trial).
        snapshots: Environment name to whether its snapshot was captured, None where that is unknown.
        warnings: Warnings from reading the run directory, to follow the plan's.

    Returns:
        The matrix, ready for JSON.
    """
    snapshots = snapshots or {}
    by_cell: dict[str, list[Mapping[str, Any]]] = {cell.name: [] for cell in plan.cells}
    for record in records:
        by_cell[record["cell"]].append(record)
    rows = []
    for cell in plan.cells:
        of_cell = sorted(by_cell[cell.name], key=lambda record: record["trial"])
        rows.append(_row(plan, cell, cells.get(cell.name), of_cell))
    trouble = [*injected_warnings(rows, by_cell), *_compare_with_baseline(rows, plan.confound)]
    expected, present = plan.trial_count, sum(row["trials_present"] for row in rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "aorta_version": plan.aorta_version,
        "ticket": plan.ticket,
        "workload": plan.workload,
        **({} if plan.command is None else {"command": dict(plan.command)}),
        "plan_key": plan.key,
        "complete": present == expected,
        "trials_expected": expected,
        "trials_present": present,
        "confound": {"threshold": plan.confound["threshold"], "baseline_cell": plan.confound["baseline_cell"]},
        "environments": {
            name: {
                "descriptor": {key: value for key, value in entry.items() if key != "isolated"},
                "isolated": entry["isolated"],
                "snapshot_captured": snapshots.get(name),
            }
            for name, entry in plan.environments.items()
        },
        "nodes": node_table(record for of_cell in by_cell.values() for record in of_cell),
        "history": [dict(entry) for entry in plan.history],
        "warnings": [_warning(warning) for warning in (*plan.warnings, *warnings, *trouble)],
        "cells": rows,
    }


def _warning(warning: Mapping[str, Any]) -> dict[str, Any]:
    return {"cell": warning["cell"], "code": warning["code"], "message": warning["message"]}


def _row(
    plan: Plan,
    cell: PlannedCell,
    request: Mapping[str, Any] | None,
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns one cell's part of the matrix; the comparison with the baseline is filled in later."""
    layout = RunLayout(".", plan.workload)
    present = [record["trial"] for record in records]
    statuses = Counter(record["exit_status"] for record in records)
    parted = counted(records, cell.stop_after, cell.trials)
    records = parted.records
    verdicts = Counter(record["verdict"] for record in records)
    source, series = step_times(records)
    times = summarize(series)
    wall_clocks = [finite_number(record["wall_clock_sec"]) for record in records]
    return {
        "name": cell.name,
        **_settings(plan, cell, request, records),
        "trials": cell.trials,
        "trials_present": len(present),
        "missing_trials": sorted(set(range(cell.trials)) - set(present)),
        "stop_after": None if cell.stop_after is None else dict(cell.stop_after),
        "stop_reason": parted.reason,
        "trials_counted": len(records),
        "trials_not_needed": parted.skipped,
        "excess_trials": parted.excess,
        "retried": sum(bool(record["attempts"]) for record in records),
        "failure_rate": rate(sum(_is_failure(record) for record in records), len(records)),
        "exit_status_counts": dict(sorted(statuses.items())),
        "verdict_counts": {verdict: verdicts[verdict] for verdict in VERDICTS},
        **_rates(cell, verdicts, parted),
        "did_not_run": sum(record["did_not_run"] for record in records),
        "p_value_vs_baseline": None,
        "p_value_test": None,
        "confound": None,
        "iterations": _iterations(records),
        "step_time_source": source,
        "mean_step_time_ms": times.mean,
        "std_step_time_ms": times.std,
        "min_step_time_ms": times.min,
        "max_step_time_ms": times.max,
        "p50_step_time_ms": times.p50,
        "p90_step_time_ms": times.p90,
        "p99_step_time_ms": times.p99,
        "mean_wall_clock_sec": mean([seconds for seconds in wall_clocks if seconds is not None]),
        "first_failures": first_failures(records),
        "failure_hints": failure_hints(records),
        "error_summary": error_summary(records),
        "metrics": summarize_metrics(records),
        "hosts": hosts(records),
        "devices": devices(records),
        "trial_paths": [layout.trial(cell.name, trial).as_posix() for trial in present],
        "step_times_ms": series,
    }


def _rates(cell: PlannedCell, verdicts: Mapping[str, int], parted: Counted) -> dict[str, Any]:
    """Returns how often the failure under test occurs, how sure that is, and how often a trial is an error."""
    passed, failed, errors = (verdicts[verdict] for verdict in VERDICTS)
    failures = Sample(hits=failed, misses=passed, ended_by=failures_ended_by(cell.stop_after, parted.reason))
    broken = Sample(hits=errors, misses=passed + failed, ended_by=errors_ended_by(cell.stop_after, parted.reason))
    exact = is_sequential(cell.stop_after)
    return {
        "event_rate": _number(failures),
        "event_rate_estimator": failures.estimator,
        "event_rate_ci95": failures.exact_interval() if exact else wilson_interval(failed, passed + failed),
        "error_rate": _number(broken),
    }


def _number(sample: Sample) -> float | None:
    return None if sample.rate is None else float(sample.rate)


def _settings(
    plan: Plan,
    cell: PlannedCell,
    request: Mapping[str, Any] | None,
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns what the cell was asked to do; without its request, as much as the plan and its first trial know."""
    if request is None:
        first: Mapping[str, Any] = records[0] if records else {}
        planned = plan.environments.get(cell.environment)
        environment = (
            None if planned is None else {name: value for name, value in planned.items() if name != "isolated"}
        )
        return {
            "mitigations": None,
            "environment": cell.environment,
            "environment_fields_ignored": None,
            "steps": first.get("steps"),
            "resolved_env_vars": first.get("resolved_env_vars"),
            "resolved_env_layers": None,
            "extra_env": None,
            "resolved_environment": environment,
            "workload_config": first.get("workload_config", {}),
            "collect": None,
            "isolation": first.get("isolation"),
            "fingerprint": cell.fingerprint,
        }
    environment = request["environment"]
    return {
        "mitigations": list(request["mitigations"]),
        "environment": cell.environment,
        "environment_fields_ignored": [
            name for name in HONOURED_FIELDS if environment.get(name) is not None and name not in request["acts_on"]
        ],
        "steps": request["steps"],
        "resolved_env_vars": {name: entry["value"] for name, entry in request["env"].items()},
        "resolved_env_layers": {name: entry["layer"] for name, entry in request["env"].items()},
        "extra_env": dict(request["extra_env"]),
        "resolved_environment": dict(environment),
        "workload_config": dict(request["workload_config"]),
        "collect": dict(request["collect"]),
        "isolation": request["isolation"],
        "fingerprint": cell.fingerprint,
    }


def _is_failure(record: Mapping[str, Any]) -> bool:
    """The guide's words: ``exit_status != ok OR WorkloadResult.passed == False``."""
    result = record["result"]
    return record["exit_status"] != "ok" or (result is not None and result["passed"] is False)


def _iterations(records: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Sums the iterations over the trials that report how many they executed; both sums are over the same trials."""
    results = [record["result"] for record in records if record["result"] is not None]
    pairs = [
        (count(result.get("executed_iterations")), count(result.get("configured_iterations"))) for result in results
    ]
    executed = [done for done, _ in pairs if done is not None]
    configured = [asked for done, asked in pairs if done is not None and asked is not None]
    return {
        "executed": sum(executed) if executed else None,
        # One trial that does not say what it was to do leaves nothing to set the sum against.
        "configured": sum(configured) if executed and len(configured) == len(executed) else None,
        "trials": len(executed),
    }


def _standing(row: Mapping[str, Any]) -> confound.Standing:
    return confound.Standing(
        name=row["name"],
        present=row["trials_counted"],
        did_not_run=row["did_not_run"],
        passed=row["verdict_counts"]["pass"],
        failed=row["verdict_counts"]["fail"],
        ended_by=failures_ended_by(row["stop_after"], row["stop_reason"]),
        mean_step_time_ms=row["mean_step_time_ms"],
        step_time_source=row["step_time_source"],
    )


def _compare_with_baseline(rows: Sequence[dict[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fills in each row's comparison; returns warnings about the baseline itself."""
    name = settings["baseline_cell"]
    by_name = {row["name"]: row for row in rows}
    standings = {row["name"]: _standing(row) for row in rows}
    if name not in standings:
        for row in rows:
            row["confound"] = {
                "tag": confound.NOT_AVAILABLE,
                "ratio": None,
                "baseline_cell": name,
                "reason": f"the plan has no baseline cell {name!r}",
            }
        return [{"cell": None, "code": "baseline_unusable", "message": f"the plan has no baseline cell {name!r}"}]
    baseline = standings[name]
    for row in rows:
        standing = standings[row["name"]]
        comparison = confound.compare(standing, baseline, settings["threshold"])
        row["confound"] = {
            "tag": comparison.tag,
            "ratio": comparison.ratio,
            "baseline_cell": name,
            "reason": comparison.reason,
        }
        if row["name"] != name:
            either = is_sequential(row["stop_after"]) or is_sequential(by_name[name]["stop_after"])
            row |= _test(standing.failures, baseline.failures, exact_tails=either)
    if baseline.silence is None:
        return []
    message = f"the baseline cannot be compared with: {baseline.silence[1]}"
    return [{"cell": name, "code": "baseline_unusable", "message": message}]


def _test(cell: Sample, baseline: Sample, *, exact_tails: bool) -> dict[str, Any]:
    """Compares a cell's failures with the baseline's by the test that holds for how both were sampled."""
    if exact_tails:
        name, value = "combined_exact_tails", sequential_p_value(cell, baseline)
    else:
        name, value = "fisher_exact", fisher_p_value(cell.hits, cell.misses, baseline.hits, baseline.misses)
    return {"p_value_vs_baseline": value, "p_value_test": None if value is None else name}
