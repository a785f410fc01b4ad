"""Kills a sweep at many random moments, in every way, resumes it each time, and compares every matrix.

The long form of ``tests/e2e/test_chaos.py``: sweeps of 4 cells x 6 trials with known verdicts are killed until so many
kills are done; each finished run's matrix must equal that of an undisturbed run. Ends with 1 at the first difference.

    python benchmarks/chaos.py --kills 300
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.chaos import Chaos


def main() -> int:
    """Runs the benchmark, prints what it did, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="kills in all")
    parser.add_argument("--seed", type=int, default=1, help="decides every kill and every moment")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long each trial takes")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        chaos = Chaos(Path(name), options.seed, options.seconds)
        chaos.finish()
        chaos.check_end()
        undisturbed = chaos.outcome()
        wrong = 0
        check = chaos.check_end

        def check_and_compare() -> None:
            nonlocal wrong
            check()
            same = chaos.outcome() == undisturbed
            wrong += not same
            kills = sum(chaos.tally.kills.values())
            word = "the same" if same else "ANOTHER"
            print(
                f"round {chaos.tally.rounds}: {word} matrix after {kills} kills, {chaos.tally.starts} starts",
                flush=True,
            )

        chaos.check_end = check_and_compare  # type: ignore[method-assign]
        chaos.new_round()
        chaos.disturb(options.kills)
        for way, number in sorted(chaos.tally.kills.items()):
            print(f"{number:5} {way}")
        heard = {
            "claims taken over": "taking over from",
            "orphans waited for": "waiting for this trial",
            "dead locks cleared": "cleared the lock",
        }
        for what, words in heard.items():
            print(f"{chaos.heard(words):5} {what}")
        seconds = time.monotonic() - begin
        print(
            f"{chaos.tally.rounds} runs, {len(chaos.runs())} trials started, {wrong} matrices differ, {seconds:.0f} s"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
