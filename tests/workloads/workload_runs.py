"""Helpers of the workload tests: sizes that take milliseconds, and runs in this or in fresh processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from aorta.workloads import Workload, WorkloadResult

_DRIVER = Path(__file__).with_name("rank_driver.py")
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

TINY_TRAINING: dict[str, Any] = {
    "steps": 2,
    "device": "cpu",
    "dtype": "float32",
    "seq_len": 8,
    "model": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "ffn_size": 32, "vocab_size": 64, "num_experts": 2},
}
TINY_INFERENCE: dict[str, Any] = {
    "steps": 3,
    "device": "cpu",
    "dtype": "float32",
    "request": {"batch_size": 2, "prompt_len": 6, "generate_tokens": 4, "num_requests": 6},
    "model": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "ffn_size": 32, "vocab_size": 64},
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns base with changes laid over it, block by block."""
    result = dict(base)
    for key, value in changes.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


def run_once(workload: Workload) -> WorkloadResult:
    """Takes a workload through its life cycle in this process."""
    try:
        workload.setup()
        return workload.run()
    finally:
        workload.cleanup()


def run_ranks(config: dict[str, Any], world_size: int = 1, poison_rank: int | None = None) -> list[dict[str, Any]]:
    """Runs ``training`` in fresh processes, one a rank, and returns each rank's result as a mapping."""
    return spawn_ranks(_DRIVER, {"config": config, "poison_rank": poison_rank}, world_size)


def free_ports(count: int) -> list[int]:
    """Returns that many different ports of this host that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def spawn_ranks(driver: Path, request: Any, world_size: int = 1) -> list[Any]:
    """Runs a script in fresh processes, one a rank, and returns what each printed last, read as JSON.

    Args:
        driver: The script; its one argument is the request as JSON.
        request: Anything that JSON holds.
        world_size: Number of ranks, on this host.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _LAUNCHER_VARIABLES}
    # Ranks that share a few cores wait for each other's threads.
    environment["OMP_NUM_THREADS"] = "1"
    if world_size > 1:
        (port,) = free_ports(1)
        environment |= {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(driver), json.dumps(request)],
            env=environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results
