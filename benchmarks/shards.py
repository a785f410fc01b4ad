"""What a trial costs on SLURM: many of them through a few shares, then a few of them as a job each.

Trials that do nothing run on the loopback SLURM of ``tests/slurm/cluster.sh`` (root, Debian's packages), which is
started if none is. The wall time is that of the whole command, its start, the submission and the matrix included.

    python benchmarks/shards.py --trials 400 --shards 3 --per-job 24
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.trial_overhead import write_inputs
from tests.slurm.conftest import user

AIM_MS = 250
SITE = """\
executor: slurm
jobs: 3
slurm-init-seconds-before-status-checks: 1
default-resources: [runtime=10, mem_mb=500]
"""


def main() -> int:
    """Runs both, prints the figures, and returns 1 if a trial in a share took longer than the aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400, help="trials through shares")
    parser.add_argument("--shards", type=int, default=3, help="how many shares")
    parser.add_argument("--per-job", type=int, default=24, help="trials as a job each, three at once; 0 for none")
    options = parser.parse_args()
    with user(), tempfile.TemporaryDirectory() as name:
        submit = ["submit", "--shards", str(options.shards), "--mem", "500M", "--time", "60"]
        wall = _run(Path(name, "shares"), options.trials, submit)
        each = 1000 * wall / options.trials
        shares = f"{options.shards} shares, {os.cpu_count()} cores"
        print(f"{options.trials} trials in {shares}: {_told(wall, options.trials)}")
        if options.per_job:
            wall = _run(Path(name, "jobs"), options.per_job, ["run", "--profile", "site"])
            print(f"{options.per_job} trials as a job each, 3 at once: {_told(wall, options.per_job)}")
    print(f"aim: at most {AIM_MS} ms of wall time a trial in a share: {'met' if each <= AIM_MS else 'NOT met'}")
    return 0 if each <= AIM_MS else 1


def _told(wall: float, trials: int) -> str:
    return f"{wall:.1f} s, {1000 * wall / trials:.0f} ms each"


def _run(folder: Path, trials: int, words: list[str]) -> float:
    """Runs a sweep of trials that do nothing, checks its records, and returns its wall time in seconds."""
    folder.mkdir()
    write_inputs(folder, trials, 0.0)
    (folder / "site").mkdir()
    (folder / "site" / "config.yaml").write_text(SITE)
    command = [sys.executable, "-c", "from aorta.cli import main; main()", "sweep", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder), "AORTA_LOCK_DIR": str(folder / "locks")}
    begin = time.perf_counter()
    with (folder / "said").open("w") as said:
        code = subprocess.run(
            [*command, "--recipe", "recipe.yaml", "--output", "out"],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=said,
            check=False,
        ).returncode
    wall = time.perf_counter() - begin
    verdicts = Counter(
        json.loads(path.read_text())["verdict"] for path in folder.glob("out/*/*/*/cells/*/*/trial_*.json")
    )
    if code != 0 or verdicts != {"pass": trials}:
        sys.exit(f"{' '.join(words)}: ended with {code}, {dict(verdicts)}:\n{(folder / 'said').read_text()[-3000:]}")
    return wall


if __name__ == "__main__":
    sys.exit(main())
