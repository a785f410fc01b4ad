"""Where the shares of a run stand: which are still useful, and which are in SLURM's queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.dag.cluster import job_prefix
from aorta.plan.current import CellFiles
from aorta.plan.model import Plan
from aorta.plan.order import trial_order
from aorta.plan.paths import RunLayout
from aorta.run.slurmjob import SHARES_MARK, call


@dataclass(frozen=True, kw_only=True)
class Task:
    """One share in SLURM's queue.

    Attributes:
        job: Its id, such as ``4711_2``.
        state: Its state, in capitals.
        number: Number of the share, from 1.
        count: How many shares its array was submitted for.
    """

    job: str
    state: str
    number: int
    count: int


def queued_shares(run_dir: Path, run: Callable[[Sequence[str]], str | None] = call) -> list[Task] | None:
    """Returns the shares of a run directory that wait or run, by number; None if SLURM does not answer.

    Args:
        run_dir: The run directory.
        run: Runs a command; for tests.
    """
    text = run(["squeue", "-h", "-r", "-o", "%i|%T|%K|%j"])
    if text is None:
        return None
    named = re.compile(re.escape(f"{job_prefix(run_dir).removesuffix('-')}{SHARES_MARK}") + r"([0-9]+)-.*")
    tasks = []
    for line in text.splitlines():
        job, state, index, name = (*line.split("|", 3), "", "", "")[:4]
        match = named.fullmatch(name)
        if match is not None and index.isdigit():
            tasks.append(Task(job=job, state=state, number=int(index), count=int(match[1])))
    return sorted(tasks, key=lambda task: task.number)


def missing_by_share(plan: Plan, run_dir: Path, count: int) -> dict[int, int]:
    """Returns how many trials each share lacks a current record of; a share that lacks none is left out.

    Args:
        plan: The plan of the run.
        run_dir: The run directory.
        count: How many shares there are.
    """
    layout = RunLayout(run_dir, plan.workload)
    files = {cell.name: CellFiles(layout, cell) for cell in plan.cells}
    missing: dict[int, int] = {}
    order = trial_order([(cell.name, cell.trials) for cell in plan.cells], plan.order_seed)
    for place, (cell, trial) in enumerate(order):
        if not files[cell].is_current(trial):
            number = place % count + 1
            missing[number] = missing.get(number, 0) + 1
    return dict(sorted(missing.items()))
