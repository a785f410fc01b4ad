"""Measures what verification adds to an iteration of the race reproducer.

Starts two ranks on this host and runs, for each communication pattern with ``simulate_compute`` off, unverified
(warm-up) and verified iterations of the same buffers in alternating blocks, so that drift of the machine lands on both.
Prints the median of each in milliseconds, and the share that verification adds: as wall time, and as processor time of
the rank with all its threads, which other work on the machine disturbs less.

    python benchmarks/race_verify.py [--rounds 20] [--block 10] [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "default": {"mode": "default"},
    "ddp, bulk": {"mode": "ddp"},
    "ddp, bucketed": {"mode": "ddp", "ddp_bucketed": True, "gemm_layers": 8, "allreduce_tensor_size": 800_000},
    "fsdp, example-fsdp-smoke": {"mode": "fsdp", "fsdp_shard_size": 100_000},
    "fsdp, shards of 1,000,000": {"mode": "fsdp", "fsdp_shard_size": 1_000_000, "gemm_layers": 4},
}


def measure(config: dict[str, Any], rounds: int, block: int) -> list[float]:
    """Measures one case on this rank.

    Returns:
        Wall time of an unverified and of a verified iteration, then processor time of either: medians in milliseconds.
    """
    import torch

    from aorta.race.config import ReproducerConfig
    from aorta.race.session import RaceSession
    from aorta.workloads.config import load_config
    from aorta.workloads.process_group import RankInfo

    settings = load_config(ReproducerConfig, {"simulate_compute": False, "device": "cpu", **config}, "race")
    info = RankInfo.from_environment(os.environ)
    session = RaceSession(settings, info, torch.device("cpu"), os.environ)
    wall: dict[bool, list[float]] = {False: [], True: []}
    processor: dict[bool, list[float]] = {False: [], True: []}
    tick = 0
    for round_number in range(rounds + 1):
        for verified in (False, True):
            for _ in range(block):
                start, busy = time.perf_counter(), time.process_time()
                session.iterate(tick, tick if verified else -1)
                if round_number:  # the first round warms caches and connections up
                    wall[verified].append((time.perf_counter() - start) * 1000)
                    processor[verified].append((time.process_time() - busy) * 1000)
                tick += 1
    assert not session.corrupted
    return [statistics.median(times[verified]) for times in (wall, processor) for verified in (False, True)]


def rank_main(rounds: int, block: int, only: str) -> None:
    """Runs the cases on one rank; rank 0 prints them as JSON."""
    import torch

    from aorta.workloads.process_group import RankInfo, join_process_group, leave_process_group

    torch.set_num_threads(1)
    info = RankInfo.from_environment(os.environ)
    join_process_group(info, torch.device("cpu"))
    figures = {name: measure(config, rounds, block) for name, config in CASES.items() if only in name}
    leave_process_group()
    if info.rank == 0:
        print(json.dumps(figures))


def main() -> None:
    """Starts the ranks and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="pairs of blocks a case (default: %(default)s)")
    parser.add_argument("--block", type=int, default=10, help="iterations a block (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only patterns whose name has this in it")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options.rounds, options.block, options.only)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output, _ = ranks[0].communicate()
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a rank failed; its message is above")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    print(f"{'':28} {'wall time, ms':^28} {'processor time, ms':^28}")
    print(f"{'pattern':28}" + f" {'unverified':>10} {'verified':>9} {'adds':>7}" * 2)
    for name, figures in json.loads(output.splitlines()[-1]).items():
        print(f"{name:28}" + "".join(f" {a:10.2f} {b:9.2f} {b / a - 1:7.1%}" for a, b in (figures[:2], figures[2:])))


if __name__ == "__main__":
    main()
