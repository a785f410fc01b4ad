"""What a trial costs beyond its workload, and what the main process costs beside the trials.

Runs a recipe of trials that do nothing (or sleep) through the whole engine, and prints the wall time a trial and the
main process's CPU time, threads and share of a core.

    python benchmarks/trial_overhead.py --trials 200
    python benchmarks/trial_overhead.py --trials 300 --sleep 1.0 --devices 2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGIN = """
import time
from aorta.workloads import Workload, WorkloadResult

class Sleep(Workload):
    def run(self):
        time.sleep(self.config["seconds"])
        return WorkloadResult(passed=True, total_iterations=1, main_work_started=True)
"""


def main() -> None:
    """Runs the benchmark and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="trials in all, over four cells")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds that each trial's run() sleeps")
    parser.add_argument("--devices", type=int, default=1, help="trials at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, options.trials, options.sleep)
        started = time.perf_counter()
        sweep = _start(folder, options.devices)
        main_process = _watch(sweep)
        wall = time.perf_counter() - started
        if sweep.returncode != 0:
            sys.exit(f"the sweep ended with {sweep.returncode}")
        records = [json.loads(path.read_text()) for path in folder.glob("out/*/*/*/cells/*/*/trial_*.json")]
    assert len(records) == options.trials and all(record["verdict"] == "pass" for record in records)
    in_run = statistics.fmean(record["phases_sec"]["run"] for record in records)
    worker = statistics.fmean(record["wall_clock_sec"] for record in records)
    each = wall * options.devices / options.trials
    print(f"{options.trials} trials, {options.devices} at once, {os.cpu_count()} cores: {wall:.2f} s in all")
    print(f"  wall time a trial, the sweep's start and end included   {1000 * each:7.1f} ms")
    print(f"  of it inside run()                                      {1000 * in_run:7.1f} ms")
    print(f"  of it in the worker process, from start to end          {1000 * worker:7.1f} ms")
    print(f"  above run(), so the engine's whole cost                 {1000 * (each - in_run):7.1f} ms")
    print(f"main process: {main_process}")


def write_inputs(folder: Path, trials: int, seconds: float) -> None:
    """Writes a plugin whose trials sleep and a recipe of four cells of them into a folder."""
    (folder / "bench_plugin.py").write_text(PLUGIN)
    info = folder / "bench_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[aorta.workloads]\nbench_sleep = bench_plugin:Sleep\n")
    counts = [trials // 4 + (1 if index < trials % 4 else 0) for index in range(4)]
    cells = [
        {"name": f"cell-{index}", "mitigations": ["none"], "environment": "local", "trials": count}
        for index, count in enumerate(counts)
    ]
    recipe = {
        "schema_version": 1,
        "workload": "bench_sleep",
        "trials": 1,
        "steps": 1,
        "workload_config": {"seconds": seconds},
        "cells": cells,
    }
    # JSON is YAML.
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def _start(folder: Path, devices: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from aorta.cli import main; main()", "sweep", "run", "--recipe", "recipe.yaml"]
    command += ["--output", "out", "--devices", str(devices)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "AORTA_LOCK_DIR": str(folder / "locks")}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _watch(sweep: subprocess.Popen[bytes]) -> str:
    """Samples the Snakemake process until the sweep ends."""
    ticks = os.sysconf("SC_CLK_TCK")
    samples: list[tuple[float, float, int]] = []
    while sweep.poll() is None:
        child = _snakemake_child(sweep.pid)
        if child is not None:
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # utime and stime of the process itself, without its children, and its thread count.
            samples.append((time.perf_counter(), (int(fields[11]) + int(fields[12])) / ticks, int(fields[17])))
        time.sleep(0.2)
    if len(samples) < 2:
        return "too short to sample"
    # Start-up (imports, DAG) is paid once; the share of a core is that of the time after it.
    after = [sample for sample in samples if sample[0] - samples[0][0] > 5] or samples
    span = after[-1][0] - after[0][0]
    share = (after[-1][1] - after[0][1]) / span if span > 0 else 0.0
    threads = max(sample[2] for sample in samples)
    return f"{samples[-1][1]:.2f} s CPU in all, at most {threads} threads, {100 * share:.1f}% of a core after its start"


def _snakemake_child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


if __name__ == "__main__":
    main()
