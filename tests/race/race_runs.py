"""Helpers of the race tests: sizes that take milliseconds, and two ranks in fresh processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_DRIVER = Path(__file__).with_name("race_driver.py")
WORLD_SIZE = 2

# Sizes are no multiples of anything, so that padding, rounding and tails are part of every test.
_COMMON: dict[str, Any] = {
    "device": "cpu",
    "warmup_iterations": 1,
    "verify_iterations": 4,
    "log_interval": 0,
    "gemm_size": 12,
    "gemm_layers": 3,
    "model_dim": 8,
    "num_layers": 3,
    "seq_len": 5,
}
_SIZES: dict[str, dict[str, Any]] = {
    "default": {"h2d_tensor_size": 77, "alltoall_tensor_size": 51, "allreduce_tensor_size": 61},
    "ddp": {"h2d_tensor_size": 77, "allreduce_tensor_size": 61},
    "fsdp": {"fsdp_shard_size": 37},
}


def tiny(mode: str, **changes: Any) -> dict[str, Any]:
    """Returns the configuration of a trial that takes milliseconds."""
    return {"mode": mode, **_COMMON, **_SIZES[mode], **changes}


def run_trials(configs: list[dict[str, Any]], *, timeout: float = 240.0) -> list[list[dict[str, Any]]]:
    """Runs trials one after the other on two ranks; returns for each trial both ranks' results as mappings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.pop("LOCAL_WORLD_SIZE", None)
    environment["OMP_NUM_THREADS"] = "1"
    request = json.dumps(configs)
    with ExitStack() as stack:
        # Files, not pipes: a rank whose pipe is full would stop, and the other one with it.
        files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)] for _ in range(WORLD_SIZE)]
        processes = []
        for rank, (stdin, stdout, stderr) in enumerate(files):
            stdin.write(request)
            stdin.seek(0)
            variables = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                [sys.executable, str(_DRIVER)], env=variables, stdin=stdin, stdout=stdout, stderr=stderr
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        of_rank = []
        for process, (_, stdout, stderr) in zip(processes, files, strict=True):
            process.wait(timeout=timeout)
            stderr.seek(0)
            assert process.returncode == 0, stderr.read()[-4000:]
            stdout.seek(0)
            of_rank.append(json.loads(stdout.read().splitlines()[-1]))
    return [list(trial) for trial in zip(*of_rank, strict=True)]
