"""Hand-made requests and records: one right trial for each workload, to be bent by the tests."""

from __future__ import annotations

from typing import Any

FLIP: dict[str, Any] = {"kind": "bitflip", "buffer": "layer1.all_gather", "rank": 1, "step": 2, "element": 7, "bit": 8}


def request(workload: str, *faults: dict[str, Any], ranks: int = 2, **config: Any) -> dict[str, Any]:
    """A cell's request that plants faults."""
    return {
        "cell": "struck" if faults else "control",
        "workload": workload,
        "workload_config": {**config, **({"inject": list(faults)} if faults else {})},
        "launch": {"mode": "distributed" if ranks > 1 else "single_process", "nnodes": 1, "nproc_per_node": ranks},
    }


def planted(fault: dict[str, Any], *strikes: dict[str, Any], active: bool = True) -> dict[str, Any]:
    """A fault as ``metrics.injected`` reports it; ``strikes`` have ``rank`` and ``step`` of the fault by default."""
    where = {name: fault[name] for name in ("rank", "step") if fault.get(name) is not None}
    full = [{**where, **strike} for strike in strikes]
    return {**fault, "active": active, "strike_count": len(full), "strikes": full}


def record(*entries: dict[str, Any], details: list[dict[str, Any]] = [], times: int = 4) -> dict[str, Any]:  # noqa: B006
    """A trial that ran to its end; it failed if there are details."""
    metrics = {"injected": {"planned": list(entries)}} if entries else {}
    return {
        "exit_status": "workload_failed" if details else "ok",
        "verdict": "fail" if details else "pass",
        "error": None,
        "result": {"failure_details": details, "metrics": metrics, "step_times_ms": [10.0] * times},
    }


def ended(status: str, *tail: str, **error: Any) -> dict[str, Any]:
    """A trial that ended in an error."""
    full = {"type": None, "signal": None, "exit_code": None, "rank": None, "message": "", "stderr_tail": list(tail)}
    return {"exit_status": status, "verdict": "error", "error": full | error, "result": None}


def corruption(**changes: Any) -> dict[str, Any]:
    """What race records of the strike of FLIP."""
    return {
        "step": 2,
        "iteration": 2,
        "rank": 1,
        "buffer": "layer1.all_gather",
        "count": 1,
        "first_position": 7,
        "expected": {"bits": "0x3cd8"},
        "found": {"bits": "0x3dd8"},
        **changes,
    }


def flipped(**changes: Any) -> dict[str, Any]:
    """What race reports of having planted FLIP."""
    strike = {"buffer": "layer1.all_gather", "element": 7, "bit": 8, "before": "0x3cd8", "after": "0x3dd8"}
    return planted(FLIP, strike | changes)


def divergence(**changes: Any) -> dict[str, Any]:
    """What llm_determinism records of a difference."""
    entry = {"step": 1, "phase": "timed", "check": "replays_agree", "rank": 0, "direction": "forward"}
    return entry | {"tensor": "blocks.1.input", "hint": "the two replays part"} | changes


def nonfinite(**changes: Any) -> dict[str, Any]:
    """What training records of a value that is not finite."""
    entry = {"step": 1, "phase": "timed", "check": "fail_on_nan_grad", "rank": 1, "tensor": "w.grad"}
    return entry | {"tensor_count": 1, "nan_count": 1, "inf_count": 0} | changes
