"""Looks for false alarms: runs clean trials of the detectors and counts those that fail.

``race``: small trials of every mode on two ranks, over the configurations of ``tests/race/test_race_bitflips.py`` in
turn, a hundred in one pair of processes. ``llm_determinism``: small models of several kinds on one rank and on two, one
step replayed again and again from the same snapshot. Ends with 1 if anything failed that nobody struck.

    python benchmarks/clean_trials.py [--race 500] [--replays 200]
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "race"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "workloads"))

from race_runs import run_trials
from test_race_bitflips import CONFIGURATIONS
from workload_runs import free_ports, spawn_ranks

_LLM_DRIVER = Path(__file__).resolve().parents[1] / "tests" / "llm_determinism" / "llm_rank_driver.py"
_RACE_ITERATIONS = 10
_REPLAYS_PER_TRIAL = 10
_LLM: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_size": 32,
    "num_heads": 2,
    "vocab_size": 64,
    "seq_len": 8,
    "device": "cpu",
    "steps": _REPLAYS_PER_TRIAL,
}
_LLM_KINDS: tuple[dict[str, Any], ...] = ({}, {"num_experts": 3}, {"dtype": "fp32"}, {"checksum_mode": "global"})


def race(trials: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the configuration's name and rank 0's result of each trial."""
    kinds = itertools.islice(itertools.cycle(CONFIGURATIONS), trials)
    while batch := list(itertools.islice(kinds, 100)):
        configs = [CONFIGURATIONS[name] | {"verify_iterations": _RACE_ITERATIONS} for name in batch]
        of_ranks = run_trials(configs, timeout=1800)
        yield from ((name, results[0]) for name, results in zip(batch, of_ranks, strict=True))


def llm_determinism(replays: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a description and rank 0's result of each trial, half of them on two ranks."""
    trials = -(-replays // _REPLAYS_PER_TRIAL)
    for world_size, count in ((1, trials - trials // 2), (2, trials // 2)):
        configs = [{**_LLM, **kind} for kind in itertools.islice(itertools.cycle(_LLM_KINDS), count)]
        if configs:
            request = list(zip(free_ports(count), configs, strict=True))
            results = spawn_ranks(_LLM_DRIVER, request, world_size)[0]
            yield from ((f"{world_size} ranks", result) for result in results)


def main() -> int:
    """Runs the trials, prints what failed and the totals, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--race", type=int, default=500, help="race trials (default: %(default)s)")
    parser.add_argument("--replays", type=int, default=200, help="replays of a step (default: %(default)s)")
    options = parser.parse_args()
    wrong = 0
    for workload, outcomes in (("race", race(options.race)), ("llm_determinism", llm_determinism(options.replays))):
        trials = failed = iterations = 0
        for name, result in outcomes:
            trials += 1
            iterations += result["executed_iterations"]
            if not result["passed"]:
                failed += 1
                hints = sorted({str(detail.get("hint")) for detail in result["failure_details"]})
                print(f"{workload}, trial {trials} ({name}) failed: {'; '.join(hints) or result['metrics']}")
        print(f"{workload}: {trials} clean trials, {iterations} iterations, {failed} failed", flush=True)
        wrong += failed
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
