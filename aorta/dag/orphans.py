"""Trials that a SLURM job has begun and not recorded: those of an earlier start, and those at the end of a sweep."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from aorta.dag.cluster import outlive_jobs, own_jobs, tell_cancelled
from aorta.dag.errors import say
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout

_NAMED = 8


def unfinished_trials(layout: RunLayout, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yields the trials that have begun and have no record: cell, trial, and their files' path without extension."""
    from aorta.run.lost import unfinished

    for cell in plan.cells:
        for stem in unfinished(os.fspath(layout.trial_folder(cell.name))):
            trial = stem.rpartition("_t")[2]
            if trial.isdigit() and int(trial) < cell.trials:
                yield cell.name, trial, stem


def outlive_orphans(layout: RunLayout, plan: Plan) -> None:
    """Waits for the jobs of an earlier start, and says which trials have lost theirs."""
    from aorta.run.lost import job_of

    waited = outlive_jobs(layout.run_dir, say)
    left = [(f"{cell} trial {trial}", job_of(stem)) for cell, trial, stem in unfinished_trials(layout, plan)]
    tell_cancelled([(trial, job) for trial, job in left if job in waited], say)
    gone = [f"{trial} (job {job})" for trial, job in left if job is not None and job not in waited]
    if gone:
        named = f"{', '.join(gone[:_NAMED])}{' ...' if len(gone) > _NAMED else ''}"
        say(
            f"of an earlier start, jobs ended before their trials did: {named}; one that was cancelled counts for "
            "nothing, and its trial runs again"
        )


def settle_orphans(layout: RunLayout, plan: Plan, workflow: Any, command: Callable[[str, str], str]) -> None:
    """Records the trials whose last attempt was ended with its job, and that no job will try again.

    Args:
        layout: The run's files.
        plan: Its plan.
        workflow: Snakemake's workflow, at its end.
        command: Gives the shell command of a trial.
    """
    name = own_jobs(workflow)
    options = ["--settle"] if name is None else ["--settle", "--sweep", name]
    for cell, trial, _ in unfinished_trials(layout, plan):
        subprocess.run([*shlex.split(command(cell, trial)), *options], check=False)
