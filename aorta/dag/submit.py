"""Runs a sweep as shares on SLURM: one array of jobs, each of which runs its share of the trials on its node."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from aorta._jsonio import read_json
from aorta.dag.allocation import Allocation, Array, completed
from aorta.dag.errors import bad_input_exits, say
from aorta.dag.launching import find_world, launch_problems
from aorta.dag.leftovers import clear_leftovers
from aorta.dag.runner import (
    COMPLETE,
    INCOMPLETE,
    check_working_directory,
    choose,
    dry_run_text,
    exit_code,
    settings_of,
    summary,
    write_recipe,
)
from aorta.dag.settings import SettingsError
from aorta.dag.share import share_problems
from aorta.dag.shares import Task, missing_by_share, queued_shares
from aorta.dag.status import sweep_status
from aorta.dag.sweep import Sweep, open_sweep
from aorta.matrix import write_matrix
from aorta.plan.model import Plan
from aorta.plan.rundir import RunChoice, RunDirError, read_plan
from aorta.recipe.flags import MatrixFlags
from aorta.run.launch import NoAnswer
from aorta.run.slurmjob import call, find_job
from aorta.text import plural

_SHORTEST_SEC, _LONGEST_SEC = 1.0, 10.0
"""Bounds of the time between two looks at the queue."""

_TELL_SEC = 10.0
"""A line of progress is said at most so often."""

_CANCEL_SEC = 60.0
_GONE_AFTER = 2
"""Looks at the queue in a row that must show no share before all have ended."""


def submit_sweep(
    config: Mapping[str, Any],
    *,
    count: int,
    asked: Allocation,
    detach: bool,
    working_directory: Path,
    flags: MatrixFlags | None = None,
) -> int:
    """Submits the shares of a sweep that are still useful, follows them, and makes the matrix when they have ended.

    Shares of an earlier start that wait or run are followed and not submitted again, whatever became of that start.

    Args:
        config: The workflow's settings, as ``--config`` would give them.
        count: How many shares the trials are split into.
        asked: What the user asks for, for each share.
        detach: Whether to end as soon as the shares are submitted.
        working_directory: Where the shares run; they and this process must see it under the same path.
        flags: Flags that stand for a recipe.

    Returns:
        The exit code: 0 complete, or submitted with ``detach``; 1 incomplete (with ``strict`` also when a cell errored
        or never ran). Ends the process with 2 on bad input.
    """
    with bad_input_exits():
        check_working_directory(working_directory)
        sweep = _planned(config, flags, lambda plan: _problems(plan, config, flags, count, asked, working_directory))
        run_dir = sweep.layout.run_dir
        settings = settings_of(config, flags)
        allocation, _ = completed(asked, sweep.plan)
        array = Array(run_dir, count, allocation, devices=settings.devices, folder=working_directory)
    # From here on an interrupt has jobs to end.
    with _stopping_signals() as wait:
        with bad_input_exits():
            tasks = _submit(sweep, array, count)
        if detach:
            _tell_how_to_follow(run_dir)
            return COMPLETE
        ended = Follower(sweep, count, tasks, wait=wait).follow()
    if not ended:
        return INCOMPLETE
    return _finish(sweep, strict=settings.strict)


def plan_sweep(config: Mapping[str, Any], *, flags: MatrixFlags | None = None) -> Path:
    """Makes a run directory and writes the plan into it, or chooses the one that would be continued; runs nothing.

    Args:
        config: The workflow's settings, as ``--config`` would give them.
        flags: Flags that stand for a recipe.

    Returns:
        The run directory, in which shares can be started. Ends the process with 2 on bad input.
    """

    def find_problems(plan: Plan) -> list[str]:
        world = find_world(settings_of(config, flags), os.environ)
        return share_problems(plan) or launch_problems(plan, world, cluster=True)

    with bad_input_exits():
        return _planned(config, flags, find_problems).layout.run_dir


def _planned(
    config: Mapping[str, Any], flags: MatrixFlags | None, find_problems: Callable[[Plan], Sequence[str]]
) -> Sweep:
    """Chooses the run directory, locks it and writes the plan into it."""
    choice = choose(config, flags, find_problems)
    if flags is not None:
        config = {**config, "recipe": str(write_recipe(choice.run_dir, flags))}
    _refuse_other_plan(choice)
    # The directory is chosen already.
    config = {name: value for name, value in config.items() if name != "fresh"} | {"run_dir": str(choice.run_dir)}
    sweep = open_sweep(config, main_process=True)
    sweep.claim()
    return sweep


def dry_submit_text(
    config: Mapping[str, Any], *, count: int, asked: Allocation, working_directory: Path, flags: MatrixFlags | None
) -> str:
    """Returns what :func:`submit_sweep` would run; reads only, asks SLURM nothing, and ends with 2 on bad input."""
    malformed = list(chain(*asked.problems().values()))
    with bad_input_exits():
        if malformed:
            raise SettingsError(malformed)
    asked_for = [asked]

    def find_problems(plan: Plan) -> list[str]:
        asked_for.append(completed(asked, plan)[0])
        return _plan_problems(plan, config, flags, count, asked)

    told = dry_run_text(config, flags, find_problems=find_problems)
    options = shlex.join(asked_for[-1].options()) or "no options"
    return f"{told}\nit would be submitted as an array of {plural(count, 'share')}: {options}"


def _problems(
    plan: Plan, config: Mapping[str, Any], flags: MatrixFlags | None, count: int, asked: Allocation, folder: Path
) -> list[str]:
    """Says why a plan cannot be run as shares on SLURM, a line each, all at once; nothing is written yet."""
    malformed = asked.problems()
    problems = [*chain(*malformed.values()), *_plan_problems(plan, config, flags, count, asked)]
    if shutil.which("sbatch") is None:
        return [
            "sbatch: not found: this is no host that submits jobs to SLURM; run the sweep here by aorta sweep run, "
            "or start the shares by another batch system (docs/shards.md)",
            *problems,
        ]
    # SLURM is asked about the rest.
    nothing: dict[str, Any] = {name: () if name == "sbatch_args" else None for name in malformed}
    rest = replace(asked, **nothing)
    number = min(count, plan.trial_count)
    array = Array(Path("run"), number, completed(rest, plan)[0], devices=None, folder=folder)
    return [*problems, *array.refusals(range(1, number + 1))]


def _plan_problems(
    plan: Plan, config: Mapping[str, Any], flags: MatrixFlags | None, count: int, asked: Allocation
) -> list[str]:
    """Says why a plan cannot be run as that many shares, on whatever cluster."""
    world = find_world(settings_of(config, flags), os.environ)
    if world.rank is not None:
        return ["launcher: a launcher has started several processes (WORLD_SIZE); start aorta sweep submit without it"]
    problems = [*share_problems(plan), *completed(asked, plan)[1]]
    if count > plan.trial_count:
        problems.append(f"shards: {count} is more than there are trials ({plan.trial_count}); give fewer")
    return [*problems, *launch_problems(plan, world, cluster=True)]


def _refuse_other_plan(choice: RunChoice) -> None:
    """Refuses to change the plan under shares that run the earlier one.

    Raises:
        RunDirError: There are such shares.
    """
    if choice.state == "new" or not (choice.run_dir / "plan.json").is_file():
        return
    tasks = queued_shares(choice.run_dir)
    if tasks and read_plan(choice.run_dir).key != choice.plan.key:
        jobs = sorted({task.job.partition("_")[0] for task in tasks})
        raise RunDirError(
            f"run_dir: {choice.run_dir} has shares in the queue that run its plan as it was; wait for them, or end "
            f"them first: scancel {' '.join(jobs)}"
        )


def _submit(sweep: Sweep, array: Array, count: int) -> list[Task]:
    """Submits the shares that lack trials and are not in the queue; returns all that are in the queue then."""
    run_dir = sweep.layout.run_dir
    tasks = queued_shares(run_dir)
    if tasks is None:
        raise SettingsError(["squeue: SLURM does not answer, so that shares of an earlier start could not be seen"])
    if not tasks:
        for notice in clear_leftovers(run_dir):
            say(notice)
    missing = missing_by_share(sweep.plan, run_dir, count)
    wanted = [number for number in missing if number not in {task.number for task in tasks}]
    if tasks:
        jobs = sorted({task.job.partition("_")[0] for task in tasks})
        say(f"following {_shares([task.number for task in tasks])} of an earlier start (job {', '.join(jobs)})")
        for difference in filter(None, map(array.difference, jobs)):
            say(difference)
        others = {task.count for task in tasks} - {count}
        if others and wanted:
            say(f"that start was split into {plural(min(others), 'share')}; nothing is submitted until they have ended")
            wanted = []
    if wanted:
        tasks = [*tasks, *array.submit(wanted)]
        left = sum(missing[number] for number in wanted)
        say(f"{_shares(wanted)}: {left} of {plural(sweep.plan.trial_count, 'trial')} to run")
    return tasks


def _shares(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"share{'s' if len(numbers) > 1 else ''} {shown}{' ...' if len(numbers) > 8 else ''}"


def _tell_how_to_follow(run_dir: Path) -> None:
    say(
        f"not followed; look with: aorta sweep status {shlex.quote(str(run_dir))}\n"
        "aorta: the same command without --detach follows the shares and makes the matrix when they have ended"
    )


@contextmanager
def _stopping_signals() -> Iterator[Callable[[float], int | None]]:
    """Catches the signals that ask this process to end; gives a function that waits for one, or for some seconds."""
    reader, writer = os.pipe()

    def note(number: int, _frame: object) -> None:
        os.write(writer, bytes([number]))

    def wait(seconds: float) -> int | None:
        readable, _, _ = select.select([reader], [], [], seconds)
        return os.read(reader, 1)[0] if readable else None

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wait
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


class Follower:
    """Looks at the shares of a run until all have ended.

    Args:
        sweep: The sweep.
        count: How many shares there are.
        tasks: Those in the queue.
        wait: Waits for the given seconds, or for a signal, whose number it returns.
        run: Runs one of SLURM's commands; for tests.
    """

    def __init__(
        self,
        sweep: Sweep,
        count: int,
        tasks: Sequence[Task],
        *,
        wait: Callable[[float], int | None],
        run: Callable[[Sequence[str]], str | None] = call,
    ) -> None:
        self._sweep = sweep
        self._run_dir = sweep.layout.run_dir
        self._count = count
        self._run = run
        self._wait = wait
        # The last that was seen of each share.
        self._seen = {task.number: task for task in tasks}
        self._told = ""
        self._told_at = float("-inf")
        self._silent = False

    def follow(self) -> bool:
        """Waits until no share is left, and says from time to time how it stands.

        Returns:
            Whether the shares have ended; False when this process was told to leave them alone.
        """
        absent = 0
        while True:
            tasks = queued_shares(self._run_dir, self._run)
            began = time.monotonic()
            status = sweep_status(self._run_dir)
            self._seen |= {task.number: task for task in tasks or ()}
            absent = absent + 1 if tasks == [] else 0
            if absent >= _GONE_AFTER or status["state"] == "complete":
                self._tell_ends()
                return True
            self._tell(status, tasks)
            left = status["seconds_left"]
            pause = _LONGEST_SEC if left is None else min(_LONGEST_SEC, max(_SHORTEST_SEC, left / 4))
            # Reading the records of a large run takes time of its own; it must not become this host's main work.
            pause = max(pause, 20 * (time.monotonic() - began)) if tasks else _SHORTEST_SEC
            signum = self._wait(pause)
            if signum == signal.SIGINT:
                self._cancel()
                return True
            if signum is not None:
                say("stopped following; the shares go on, and the same command follows them again")
                return False

    def _tell(self, status: Mapping[str, Any], tasks: list[Task] | None) -> None:
        if tasks is None:
            if not self._silent:
                say("SLURM does not answer; the shares go on, and are looked for again")
            self._silent = True
            return
        self._silent = False
        states = Counter("waiting" if task.state == "PENDING" else "running" for task in tasks)
        shares = ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "all have ended"
        missing = sum(map(len, status["missing"].values()))
        waiting = f"{len(status['waiting'])} waiting, " if status["waiting"] else ""
        text = (
            f"{status['trials_done']} of {plural(status['trials_expected'], 'trial')} done, "
            f"{len(status['running'])} running, {waiting}{missing} missing; shares: {shares}"
        )
        now = time.monotonic()
        if text != self._told and now - self._told_at >= _TELL_SEC:
            say(text)
            self._told, self._told_at = text, now

    def _cancel(self) -> None:
        """Cancels the shares and waits until they have left the queue; a second interrupt ends the wait."""
        tasks = queued_shares(self._run_dir, self._run) or list(self._seen.values())
        if tasks:
            self._run(["scancel", *sorted({task.job.partition("_")[0] for task in tasks})])
        say("stopping: the shares are cancelled, finished trials are kept; the same command continues")
        deadline = time.monotonic() + _CANCEL_SEC
        while queued_shares(self._run_dir, self._run) != [] and time.monotonic() < deadline:
            if self._wait(_SHORTEST_SEC) == signal.SIGINT:
                return

    def _tell_ends(self) -> None:
        """Says of each share that has ended without all its trials how that came."""
        missing = missing_by_share(self._sweep.plan, self._run_dir, self._count)
        for number, task in sorted(self._seen.items()):
            if task.count != self._count or number not in missing:
                continue
            try:
                job = find_job(task.job, self._run)
                how = "; ".join(filter(None, (job.end_text(), job.hint(of_share=True))))
            except NoAnswer as silence:
                how = str(silence)
            log = self._run_dir / ".aorta" / "shares" / f"{task.job}.out"
            lacks = f"lacks {plural(missing[number], 'trial')}"
            say(f"share {number} (job {task.job}) has ended and {lacks}: {how}; it said: {log}")


def _finish(sweep: Sweep, *, strict: bool) -> int:
    """Makes what no share makes: snapshots from inside containers, the resolved recipe, the matrix and its pages."""
    layout = sweep.layout
    commands = [sweep.snapshot_command(name) for name in sweep.environment_names(isolated=True)]
    try:
        for command in (*commands, sweep.recipe_command()):
            # In a group of its own, where Ctrl-C does not reach it while it imports.
            subprocess.run(shlex.split(command), check=False, process_group=0)
        # Last, so that it is newer than all that it is made from.
        write_matrix(layout.run_dir, set_aside=True)
        sweep.show()
        matrix = read_json(layout.matrix_json)
    except (OSError, ValueError, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        run_dir = shlex.quote(str(layout.run_dir))
        say(f"no matrix ({reason}); finished trials are kept: aorta sweep report {run_dir}")
        return INCOMPLETE
    print("\n".join(summary(matrix)), flush=True)
    return exit_code(matrix, strict=strict)
