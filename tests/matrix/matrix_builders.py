"""Run directories and trial records made by hand, as the engine would leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aorta.plan import Plan, PlannedCell, RunLayout

WORKLOAD = "training"


def descriptor(name: str = "local", **fields: Any) -> dict[str, Any]:
    """An environment's descriptor."""
    return {
        "name": name,
        "docker": None,
        "venv": None,
        "buck_target": None,
        "emulator": None,
        "mirage_profile": None,
        "env": {},
        "source_package": "aorta",
        **fields,
    }


def request(name: str, **fields: Any) -> dict[str, Any]:
    """A cell's frozen request; its fingerprint is any 64 digits, since aggregation only compares it."""
    return {
        "schema_version": 1,
        "cell": name,
        "cell_index": 0,
        "workload": WORKLOAD,
        "workload_ref": "aorta.workloads.training:TrainingWorkload",
        "steps": 4,
        "trials": 4,
        "mitigations": ["none"],
        "environment": descriptor(),
        "env": {},
        "extra_env": {},
        "workload_config": {},
        "collect": {},
        "isolation": "process",
        "launch": {"mode": "single_process", "nnodes": 1, "nproc_per_node": 1, "min_world_size": 1},
        "acts_on": [],
        "save_logs": False,
        "trial_timeout_sec": None,
        "fingerprint": name.encode().hex()[:8].ljust(64, "0"),
        **fields,
    }


def plan(requests: list[dict[str, Any]], **fields: Any) -> Plan:
    """The plan of some cells; the first one is the baseline unless told otherwise."""
    settings: dict[str, Any] = {
        "workload": WORKLOAD,
        "ticket": "EXAMPLE-001",
        "confound": {"threshold": 1.15, "baseline_cell": requests[0]["cell"]},
        "recipe": {},
        "recipe_source": "recipes/example.yaml",
        "created_at": "2026-04-28T14:12:03Z",
        "aorta_version": "0.1.0",
        **fields,
    }
    cells = []
    environments = {}
    for one in requests:
        place = one["environment"]
        isolated = place["docker"] is not None or place["venv"] is not None
        environments[place["name"]] = {**place, "isolated": isolated}
        cells.append(
            PlannedCell(
                name=one["cell"],
                trials=one["trials"],
                fingerprint=one["fingerprint"],
                environment=place["name"],
                isolated=isolated,
                request=one,
            )
        )
    return Plan(cells=tuple(cells), environments=environments, **settings)


def result(**fields: Any) -> dict[str, Any]:
    """What a workload returned."""
    return {
        "passed": True,
        "failure_count": 0,
        "first_failure_iteration": None,
        "failure_details": [],
        "total_iterations": 4,
        "step_times_ms": [10.0, 11.0, 12.0, 13.0],
        "elapsed_sec": 0.05,
        "metrics": {},
        "main_work_started": True,
        "executed_iterations": 4,
        "configured_iterations": 4,
        **fields,
    }


def record(of: dict[str, Any], trial: int = 0, outcome: str = "pass", **fields: Any) -> dict[str, Any]:
    """One trial's record: ``outcome`` is ``pass``, ``fail``, ``crash``, ``timeout`` or ``did_not_run``."""
    status, verdict = {
        "pass": ("ok", "pass"),
        "fail": ("workload_failed", "fail"),
        "crash": ("infrastructure_failed", "error"),
        "timeout": ("timed_out", "error"),
        "did_not_run": ("workload_failed", "error"),
    }[outcome]
    returned = outcome in ("pass", "fail", "did_not_run")
    started = outcome != "did_not_run"
    returns = result(
        passed=outcome == "pass",
        failure_count=int(outcome == "fail"),
        main_work_started=started,
        step_times_ms=[10.0, 11.0, 12.0, 13.0] if started else [],
        executed_iterations=4 if started else 0,
    )
    return {
        "schema_version": 1,
        "aorta_version": "0.1.0",
        "cell": of["cell"],
        "trial": trial,
        "workload": of["workload"],
        "fingerprint": of["fingerprint"],
        "exit_status": status,
        "verdict": verdict,
        "did_not_run": outcome == "did_not_run",
        "error": None if returned else failure(message=f"{outcome} for a reason"),
        "result": returns if returned else None,
        "cleanup_error": None,
        "wall_clock_sec": 2.0,
        "phases_sec": {"start": 0.1, "import": 0.2, "construct": 0.0, "setup": 0.3, "run": 1.3, "cleanup": 0.1},
        "started_at": "2026-04-28T14:12:04.000Z",
        "ended_at": "2026-04-28T14:12:06.000Z",
        "order": None,
        "attempt": 1,
        "attempts": [],
        "not_needed": None,
        "steps": of["steps"],
        "resolved_env_vars": {name: entry["value"] for name, entry in of["env"].items()},
        "environment": of["environment"],
        "workload_config": of["workload_config"],
        "isolation": of["isolation"],
        "host": {"hostname": "node01", "machine": "x86_64", "kernel": "6.1", "cpu_count": 2},
        "device": {"kind": "cpu", "index": None, "identity": None},
        "pid": 4243,
        "supervisor_pid": 4242,
        "peak_rss_bytes": 1048576,
        "peak_device_memory_bytes": None,
        "environment_probe": None,
        "logs": None,
        "ranks": None,
        **fields,
    }


def failure(**fields: Any) -> dict[str, Any]:
    """A record's ``error``."""
    return {
        "phase": "run",
        "type": "RuntimeError",
        "message": "boom",
        "hint": None,
        "exit_code": None,
        "signal": None,
        "rank": None,
        "traceback": None,
        "stderr_tail": [],
        **fields,
    }


def write_run(run_dir: Path, the_plan: Plan, records: list[dict[str, Any]]) -> RunLayout:
    """Writes a run directory and returns its paths."""
    layout = RunLayout(run_dir, the_plan.workload)
    put(layout.plan, the_plan.to_json())
    for cell in the_plan.cells:
        put(layout.cell(cell.name), cell.request)
    for one in records:
        put(layout.trial(one["cell"], one["trial"]), one)
    return layout


def put(path: Path, value: Any) -> None:
    """Writes one JSON file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def example_run(run_dir: Path) -> RunLayout:
    """A run with something of everything: the golden files show what becomes of it."""
    inline = descriptor("_inline_acb97e4a", docker="acme/box:2")
    model = {"num_layers": 2, "kind": "mlp"}
    cells = [
        request("baseline-local", trials=8, workload_config={"model": model, "lr": 0.1}),
        request(
            "tf32_off-local",
            trials=8,
            mitigations=["tf32_off"],
            env={"DISABLE_TF32": {"value": "1", "layer": "mitigation:tf32_off"}},
            workload_config={"model": {**model, "kind": "transformer"}, "lr": 0.1},
        ),
        request("stack-inline", trials=8, mitigations=["tf32_off", "xnack"], environment=inline),
        request("slow", trials=8, mitigations=["hip_launch_blocking"]),
        request("broken", trials=8),
        request("silent", trials=8),
        request("partial", trials=8),
    ]
    ignored = "workload_config.foo: no such key, ignored"
    the_plan = plan(
        cells,
        warnings=tuple({"cell": name, "code": "unknown_config_key", "message": ignored} for name in ("slow", "broken")),
    )
    letters = {"p": "pass", "f": "fail", "c": "crash", "t": "timeout", "d": "did_not_run"}
    outcomes = ("pfpfpfpf", "pppppppp", "pppffffc", "pppppppp", "cccccctt", "dddddddd", "pf")
    records = [
        record(cell, trial, letters[letter])
        for cell, text in zip(cells, outcomes, strict=True)
        for trial, letter in enumerate(text)
    ]
    for one in records:
        if one["verdict"] == "fail":
            one["result"]["failure_details"] = [
                {
                    "step": step,
                    "rank": 0,
                    "tensor": tensor,
                    "check": "finite",
                    "hint": f"NaN in `{tensor}` | found\non rank 0 (step {step})",
                }
                for step in range(one["trial"] % 2, 4)
                for tensor in ("logits", "loss")
            ]
        if one["cell"] == "slow":
            one["result"]["step_times_ms"] = [20.0, 21.5, 22.0, 24.0]
            one["result"]["metrics"] = {"loss": 1.5 + one["trial"], "device": "cpu", "seed_state": str(one["trial"])}
    layout = write_run(run_dir, the_plan, records)
    layout.trial("partial", 3).write_text("{", encoding="utf-8")
    put(layout.trial("partial", 4), record(cells[6], 4, fingerprint="f" * 64))
    put(layout.trial("partial", 5), record(cells[6], 5, cell="slow"))
    put(layout.environment("_inline_acb97e4a"), {"snapshot_captured": False})
    put(layout.environment("local"), {"schema_version": 1})
    return layout
