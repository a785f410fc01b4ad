"""Measures what verification adds to an iteration of the race reproducer.

Starts two ranks on this host and runs, for each communication pattern with ``simulate_compute`` off, unverified
(warm-up) and verified iterations of the same buffers. A round is a block of either, one right after the other, in an
order that changes from round to round: whatever else the machine does, it does to both. A round gives one ratio; what
is printed is the median ratio of all rounds and the 95% confidence interval of that median, which assumes nothing about
how the noise is distributed. Wall time is rank 0's; processor time is that of both ranks with all their threads, which
other work on the machine disturbs less.

    python benchmarks/race_verify.py [--rounds 100] [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A communication pattern: how many iterations make a block of some 20 ms, and its ``workload_config``."""

    block: int
    config: dict[str, Any]


CASES = {
    "default": Case(10, {"mode": "default"}),
    "ddp, bulk": Case(10, {"mode": "ddp"}),
    "ddp, bucketed": Case(4, {"mode": "ddp", "ddp_bucketed": True, "gemm_layers": 8, "allreduce_tensor_size": 800_000}),
    "fsdp, example-fsdp-smoke": Case(1, {"mode": "fsdp", "fsdp_shard_size": 100_000}),
    "fsdp, shards of 1,000,000": Case(1, {"mode": "fsdp", "fsdp_shard_size": 1_000_000, "gemm_layers": 4}),
}
_WARM_UP_ROUNDS = 3


class Block(NamedTuple):
    """An iteration's time in milliseconds, on average over a block."""

    wall: float
    processor: float


def measure(case: Case, rounds: int) -> dict[str, list[Block]]:
    """Measures one case on this rank; returns the blocks of each round, unverified and verified."""
    import torch

    from aorta.race.config import ReproducerConfig
    from aorta.race.session import RaceSession
    from aorta.workloads.config import load_config
    from aorta.workloads.process_group import RankInfo, gather_objects

    config = {"simulate_compute": False, "device": "cpu", **case.config}
    info = RankInfo.from_environment(os.environ)
    session = RaceSession(load_config(ReproducerConfig, config, "race"), info, torch.device("cpu"), os.environ)
    blocks: dict[str, list[Block]] = {"unverified": [], "verified": []}
    tick = 0
    for number in range(-_WARM_UP_ROUNDS, rounds):
        for kind in sorted(blocks, reverse=bool(number % 2)):
            start, busy = time.perf_counter(), time.process_time()
            for _ in range(case.block):
                session.iterate(tick, tick if kind == "verified" else -1)
                tick += 1
            wall, processor = time.perf_counter() - start, time.process_time() - busy
            if number >= 0:
                blocks[kind].append(Block(wall * 1000 / case.block, processor * 1000 / case.block))
    assert not session.corrupted
    of_ranks = gather_objects(blocks, info.world_size)
    return {
        kind: [
            Block(block.wall, statistics.mean(of_rank[kind][i].processor for of_rank in of_ranks))
            for i, block in enumerate(blocks[kind])
        ]
        for kind in blocks
    }


def rank_main(rounds: int, only: str) -> None:
    """Runs the cases on one rank; rank 0 prints them as JSON."""
    import torch

    from aorta.workloads.process_group import RankInfo, join_process_group, leave_process_group

    torch.set_num_threads(1)
    info = RankInfo.from_environment(os.environ)
    join_process_group(info, torch.device("cpu"))
    figures = {name: measure(case, rounds) for name, case in CASES.items() if only in name}
    leave_process_group()
    if info.rank == 0:
        print(json.dumps(figures))


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """Returns the median and the order statistics that enclose the true one with at least 95% probability."""
    ordered, n = sorted(values), len(values)
    # The number of values below the true median is binomial(n, 1/2); `out` values at either end may be left out.
    out, tail = 0, 0.5**n
    while tail + math.comb(n, out + 1) * 0.5**n <= 0.025:
        out += 1
        tail += math.comb(n, out) * 0.5**n
    return statistics.median(ordered), ordered[out], ordered[n - 1 - out]


def row(blocks: dict[str, list[list[float]]], column: int) -> str:
    """Formats one measure of one case: both times, what verification adds, and between what."""
    unverified, verified = ([block[column] for block in blocks[kind]] for kind in ("unverified", "verified"))
    adds = median_with_interval([b / a - 1 for a, b in zip(unverified, verified, strict=True)])
    share, low, high = (f"{100 * value:.1f}" for value in adds)
    times = f"{statistics.median(unverified):10.2f} {statistics.median(verified):9.2f}"
    return f" {times} {share:>6}% {f'({low} to {high})':>16}"


def main() -> None:
    """Starts the ranks and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="pairs of blocks a case (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only patterns whose name has this in it")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options.rounds, options.only)
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
    print(f"{'':26} {'wall time, ms':^45} {'processor time, ms':^45}")
    print(f"{'pattern':26}" + f" {'unverified':>10} {'verified':>9} {'adds':>7} {'95% of median':>16}" * 2)
    for name, blocks in json.loads(output.splitlines()[-1]).items():
        print(f"{name:26}{row(blocks, 0)}{row(blocks, 1)}")


if __name__ == "__main__":
    main()
