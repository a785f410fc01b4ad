"""One share of a planned run's trials, run by a process of its own beside those of the other shares."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from aorta.dag.errors import bad_input_exits, say
from aorta.dag.launching import find_world
from aorta.dag.lock import RunLock
from aorta.dag.scheduling import keep_no_metadata
from aorta.dag.settings import Settings, SettingsError
from aorta.dag.sweep import Sweep, say_about
from aorta.plan.model import Plan, PlannedCell
from aorta.plan.order import in_share
from aorta.plan.rundir import RunChoice, read_plan
from aorta.run.claim import JOB_VARIABLES
from aorta.run.device import count_accelerators
from aorta.run.locks import FOLDER_VARIABLE
from aorta.run.slurmjob import SHARE_VARIABLE
from aorta.text import plural


class Share(Sweep):
    """What the rules need to know where only a share of the trials is run.

    The run directory is planned already and other shares use it at the same time, so nothing in it is written but the
    share's own trials, and the snapshots that no share has taken yet.
    """

    def __init__(self, choice: RunChoice, settings: Settings, problems: Sequence[str]) -> None:
        assert settings.shard is not None
        super().__init__(choice, settings, problems=problems)
        self._share = settings.shard
        self._name = "{}/{}".format(*settings.shard)
        self._trials_of = cache(self._own_trials)

    def targets(self) -> list[str]:
        """The share's trials; pages and resolved recipe are made when all shares have ended."""
        self._declare_records()
        return self.trial_files()

    def snapshots_before(self, cell: str) -> list[str]:
        """None: they are taken before the first trial starts, under a claim, since another share may do so as well."""
        return []

    def _trials(self, cell: PlannedCell) -> Sequence[int]:
        return self._trials_of(cell.name)

    def _own_trials(self, cell: str) -> Sequence[int]:
        trials = range(self._cells[cell].trials)
        return [trial for trial in trials if in_share(self.position(cell, str(trial)), self._share)]

    def start(self, workflow: Any) -> None:
        """Takes the share's lock and the missing snapshots, and corrects the scheduler."""
        if self.on_cluster:
            with bad_input_exits():
                raise SettingsError(
                    ["shard: a share runs its trials on its own host; leave the cluster profile (executor) out"]
                )
        super().start(workflow)
        # Its jobs have other inputs than those of a whole sweep, which would take its records for outdated.
        for notice in keep_no_metadata(workflow):
            say(notice)
        say(f"share {self._name}: {len(self.trial_files())} of {plural(self.plan.trial_count, 'trial')}")

    def _prepare(self) -> None:
        number, count = self._share
        path = self.layout.run_dir / ".aorta" / "shares" / f"{number}-of-{count}.lock"
        self._locks.append(RunLock(path, f"share {self._name} of {self.layout.run_dir}", notify=say))
        os.environ[SHARE_VARIABLE] = self._name
        if not count_accelerators() and any(os.environ.get(name) for name in JOB_VARIABLES):
            # The scheduler has given this job its processors; another job's trials on this host are no reason to wait.
            folder = tempfile.mkdtemp(prefix="aorta-locks-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.environ[FOLDER_VARIABLE] = folder
        self._take_snapshots()

    def _take_snapshots(self) -> None:
        cells = [cell for cell in self.plan.cells if self._trials(cell) and not cell.isolated]
        for environment in (None, *dict.fromkeys(cell.environment for cell in cells)):
            path = self.layout.host_env if environment is None else self.layout.environment(environment)
            command = [*shlex.split(self.snapshot_command(environment)), "--once"]
            if subprocess.run(command, check=False).returncode != 0:
                say(f"share {self._name}: {path} could not be made, so no trial was started")
                sys.exit(1)

    def show(self) -> None:
        """Says that the share is complete."""
        number = len(self.trial_files())
        say(f"share {self._name}: {'its one trial is' if number == 1 else f'all its {number} trials are'} recorded")

    def show_partial(self) -> None:
        """After a failure: says that trials of the share are missing."""
        say(f"share {self._name}: trials are missing; start it again to run them")


def open_share(settings: Settings) -> Share:
    """Opens a share of the run directory that the settings name.

    Args:
        settings: Settings with ``shard`` and ``run_dir``.

    Raises:
        aorta.plan.model.PlanFileError: The directory holds no plan, or a damaged one.
    """
    assert settings.run_dir is not None
    choice = RunChoice(run_dir=Path(settings.run_dir), state="continued", plan=read_plan(settings.run_dir))
    say_about(choice)
    problems = [*find_world(settings, os.environ).problems, *share_problems(choice.plan)]
    if find_world(settings, os.environ).rank is not None:
        problems.append("launcher: a share starts its trials' ranks itself; start it without torchrun (WORLD_SIZE)")
    return Share(choice, settings, problems)


def share_problems(plan: Plan) -> list[str]:
    """Says why a plan's trials cannot be shared out, a line each with the way out; empty where they can."""
    spread = [cell.name for cell in plan.cells if cell.launch["nnodes"] > 1]
    if not spread:
        return []
    named = f"{', '.join(spread[:5])}{' ...' if len(spread) > 5 else ''}"
    return [
        f"nodes: a share runs its trials on one node, and those of {named} are spread over several; ask for one, or "
        "run a job for each trial: aorta sweep run --profile slurm (docs/clusters.md)"
    ]
