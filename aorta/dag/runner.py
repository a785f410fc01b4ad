"""Runs a sweep by driving Snakemake in a process of its own, and sums up what came out."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from aorta._jsonio import NotRegularError, read_json, read_regular, told, write_json_atomic, write_text_atomic
from aorta._resources import resource_path
from aorta.dag.errors import bad_input_exits, say
from aorta.dag.launching import REFUSED_HERE, find_world, launch_problems, path_problems
from aorta.dag.leftovers import clear_leftovers, put_back, read_prepared, withdraw
from aorta.dag.lock import LockedError, RunLock, lock_plan
from aorta.dag.planning import plan_recipe
from aorta.dag.products import closing_lines
from aorta.dag.profiles import Profile, find_profile
from aorta.dag.settings import Settings, SettingsError, read_settings
from aorta.dag.sweep import check_size, warning_lines
from aorta.dag.torchrun import Hub, end_with_parent, follow
from aorta.plan.folders import runs_folder
from aorta.plan.model import Plan, PlanFileError
from aorta.plan.overlay import overlay_values
from aorta.plan.paths import RunLayout
from aorta.plan.rundir import RunChoice, RunDirError, choose_run, materialise
from aorta.recipe.flags import SOURCE, MatrixFlags
from aorta.text import columns, plural, shortened

COMPLETE, INCOMPLETE, BAD_INPUT = 0, 1, 2


def run_sweep(
    config: Mapping[str, Any],
    *,
    jobs: int | None,
    verbose: bool,
    working_directory: Path,
    flags: MatrixFlags | None = None,
    profile: str | None = None,
) -> int:
    """Runs a recipe to its matrix.

    Args:
        config: The workflow's settings, as ``--config`` would give them.
        jobs: Most jobs at once, or None for one per core.
        verbose: Whether Snakemake's own log is shown.
        working_directory: Where Snakemake keeps its records.
        flags: Flags that stand for a recipe; ``recipe`` of the settings is then not looked at.
        profile: A profile of the project's by name, or the folder of another; None for the workstation's.

    Returns:
        The exit code: 0 complete, 1 incomplete (with ``strict`` also when a cell errored or never ran), 2 bad input.
    """
    with bad_input_exits():
        settings = settings_of(config, flags)
        world = find_world(settings, os.environ)
        if world.rank:
            return follow(world, os.environ, working_directory)
        check_working_directory(working_directory)
        found = find_profile(profile)
        if found.cluster and (problems := path_problems(working_directory, settings.run_dir or settings.output)):
            raise SettingsError(problems)
        choice = choose(config, flags, lambda plan: launch_problems(plan, world, cluster=found.cluster))
        # Named by the user, it is not made yet.
        was_there = settings.run_dir is not None and choice.run_dir.exists()
        is_new = choice.state == "new" or not (choice.run_dir / "plan.json").exists()
        earlier = read_prepared(choice.run_dir)
        try:
            if flags is not None:
                config = {**config, "recipe": str(write_recipe(choice.run_dir, flags))}
            # The directory is chosen already; the workflow must not look again.
            config = {name: value for name, value in config.items() if name != "fresh"}
            config |= {"run_dir": str(choice.run_dir)}
            command = snakemake_command(_write_config(choice.run_dir, config), jobs, verbose, found)
        except OSError as error:
            if choice.state != "finished":
                raise
            # A copy on a read-only or full disk is still worth reading.
            say(f"{told(error, choice.run_dir)} (nothing needs to run: this is the matrix as it is)")
            return _sum_up(COMPLETE, choice, config)
    if world.rank is None:

        def clear_up(code: int) -> None:
            if code == BAD_INPUT and is_new:
                withdraw(choice.run_dir, keep_folder=was_there)
            elif code == BAD_INPUT:
                put_back(earlier)
            if code not in (COMPLETE, BAD_INPUT) and found.executor == "slurm":
                # Interrupted twice, or killed, Snakemake leaves its jobs; nobody would take up their results.
                _cancel_jobs(choice.run_dir)

        return _sum_up(_run_interruptible(command, working_directory, clear_up=clear_up), choice, config)
    with Hub(world, os.environ, working_directory) as hub:
        code = _run_interruptible(command, working_directory, hub)
        hub.exit_code = _sum_up(code, choice, config)
    return hub.exit_code


def _cancel_jobs(run_dir: Path) -> None:
    """Cancels what Snakemake has left in the queue; an interrupt meanwhile stops neither that nor SLURM's commands.

    Only where no other sweep has the run directory: its jobs have the same names, and it will take up their results.
    """
    from aorta.dag.cluster import cancel_jobs

    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lock = RunLock(run_dir / ".aorta" / "lock", str(run_dir))
        try:
            cancel_jobs(run_dir, say)
        finally:
            lock.release()
    except (LockedError, NotRegularError, OSError):
        return
    finally:
        signal.signal(signal.SIGINT, previous)


def _sum_up(code: int, choice: RunChoice, config: Mapping[str, Any]) -> int:
    """Writes what Snakemake could not, tells a person how the sweep ended, and returns its exit code."""
    for notice in clear_leftovers(choice.run_dir):
        say(notice)
    if code == BAD_INPUT:
        return BAD_INPUT
    layout = RunLayout(choice.run_dir, choice.plan.workload)
    lacking: list[str] = []
    try:
        if code != COMPLETE:
            # Snakemake may have been killed before it could write what there is.
            from aorta.matrix import make_reports

            matrix, errors = make_reports(choice.run_dir)
            lacking = closing_lines(matrix, errors, layout, choice.plan)
            for line in lacking if code < 0 else ():
                say(line)
        else:
            if choice.state == "finished":
                # There was nothing to do, so Snakemake has shown nothing.
                print(f"{read_regular(layout.matrix_md).decode('utf-8')}\nmatrix: {layout.matrix_md}")
            matrix = read_json(layout.matrix_json)
        print("\n".join(summary(matrix)), flush=True)
    except PlanFileError:
        say("the run was ended before it began; run the same command again")
        return INCOMPLETE
    except (OSError, ValueError, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        if isinstance(error, OSError):
            reason = told(error, choice.run_dir)
        say(f"no matrix ({reason}); finished trials are kept: aorta sweep report {shlex.quote(str(choice.run_dir))}")
        return INCOMPLETE
    return INCOMPLETE if lacking else exit_code(matrix, strict=bool(config.get("strict")))


def exit_code(matrix: Mapping[str, Any], *, strict: bool) -> int:
    """Returns what a sweep's matrix means as an exit code."""
    if not matrix["complete"]:
        return INCOMPLETE
    if strict and any(cell["verdict_counts"]["error"] for cell in matrix["cells"]):
        return INCOMPLETE
    return COMPLETE


def summary(matrix: Mapping[str, Any]) -> list[str]:
    """Returns the closing lines of a sweep: which cells fail, errored or are incomplete, and why."""
    from aorta.matrix.notes import suspicion
    from aorta.matrix.text import capped

    lines = []
    for cell in matrix["cells"]:
        counts = cell["verdict_counts"]
        found = {"failed": counts["fail"], "errored": counts["error"], "missing": len(cell["missing_trials"])}
        if not any(found.values()):
            continue
        told = ", ".join(f"{number} {word}" for word, number in found.items() if number)
        lines.append(f"{cell['name']}: {told} of {plural(cell['trials'], 'trial')}{_stopped(cell)}")
        reasons = [
            f"{entry['message']} ({entry['hint']})" if entry["hint"] else entry["message"]
            for entry in cell["error_summary"]
        ]
        reasons += [entry["hint"] for entry in cell["failure_hints"]]
        lines += [f"  {shortened(reason, 200)}" for reason in capped(reasons, 3)]
    if matrix["complete"] and not lines:
        passed = sum(cell["trials_counted"] for cell in matrix["cells"])
        lines.append("the trial passed" if passed == 1 else f"all {passed} trials passed")
    lines += [suspicion(node, matrix["nodes"]) for node in matrix["nodes"] if node["suspect"]]
    if not matrix["complete"]:
        missing = matrix["trials_expected"] - matrix["trials_present"]
        lines.append(
            f"INCOMPLETE: {missing} of {plural(matrix['trials_expected'], 'trial')} missing; run the same command again"
        )
    return lines


def _stopped(cell: Mapping[str, Any]) -> str:
    if cell["stop_reason"] is None:
        return ""
    how = "cap reached" if cell["stop_reason"] == "cap_reached" else f"stopped after {cell['trials_counted']}"
    return f" ({how})"


def dry_run_text(
    config: Mapping[str, Any],
    flags: MatrixFlags | None = None,
    profile: str | None = None,
    find_problems: Callable[[Plan], Sequence[str]] | None = None,
) -> str:
    """Returns what a sweep would run; reads only, and ends the process with 2 on bad input.

    Args:
        config: The workflow's settings.
        flags: Flags that stand for a recipe.
        profile: As for :func:`run_sweep`.
        find_problems: Says why a plan cannot be run as it was asked for, a line each; for another command than that.
    """
    with bad_input_exits():
        cluster = find_profile(profile).cluster
        settings = settings_of(config, flags)
        world = find_world(settings, os.environ)
        if world.rank:
            return ""
        now = datetime.now().astimezone()
        plan = plan_recipe(settings, now=now, load=flags.load if flags else None)
        choice = choose_run(
            plan,
            settings.output,
            run_dir=settings.run_dir,
            fresh=settings.fresh,
            refresh=settings.refresh,
            reuse_finished=settings.run_dir is not None,
            now=now,
        )
    problems = find_problems(plan) if find_problems is not None else launch_problems(plan, world, cluster=cluster)
    refusals = [f"warning: {REFUSED_HERE}: {text}" for text in problems]
    return "\n".join(
        [*_dry_run_lines(plan, choice), *refusals, "", "dry run: the recipe is valid; nothing was written"]
    )


def check_working_directory(folder: Path) -> None:
    """Refuses a folder in which Snakemake cannot keep its records, before anything is made.

    Raises:
        RunDirError: The folder cannot be written.
    """
    records = folder / ".snakemake"
    if not os.access(records if records.exists() else folder, os.W_OK | os.X_OK):
        raise RunDirError(f"working directory: {folder} cannot be written, and Snakemake keeps its records there")


def settings_of(config: Mapping[str, Any], flags: MatrixFlags | None) -> Settings:
    """Returns valid settings; with flags, the recipe that they stand for needs no file."""
    return read_settings(config if flags is None else {**config, "recipe": SOURCE})


def write_recipe(run_dir: Path, flags: MatrixFlags) -> Path:
    """Writes the recipe that the flags stand for into the run directory, where the workflow reads it."""
    path = run_dir / ".aorta" / "recipe.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, flags.text())
    return path


def choose(
    config: Mapping[str, Any], flags: MatrixFlags | None, find_problems: Callable[[Plan], Sequence[str]]
) -> RunChoice:
    """Chooses the run directory, and makes it when it is new.

    Args:
        config: The workflow's settings.
        flags: Flags that stand for a recipe.
        find_problems: Says why a plan cannot be run as it was asked for, a line each.

    Raises:
        SettingsError: There are such problems, or the plan is too large; nothing was written.
    """
    settings = settings_of(config, flags)
    now = datetime.now().astimezone()
    plan = plan_recipe(settings, now=now, load=flags.load if flags else None)
    check_size(plan)
    problems = find_problems(plan)
    if problems:
        raise SettingsError(list(problems))
    if settings.run_dir is not None:
        return choose_run(
            plan, settings.output, run_dir=settings.run_dir, fresh=settings.fresh, refresh=settings.refresh, now=now
        )
    lock = lock_plan(plan, runs_folder(plan, settings.output), notify=say)
    try:
        choice = choose_run(
            plan, settings.output, fresh=settings.fresh, refresh=settings.refresh, reuse_finished=False, now=now
        )
        if choice.state == "new":
            materialise(choice, exclusive=True)
        else:
            say("continuing an unfinished run of the same plan (--fresh starts a new one)")
        return choice
    finally:
        lock.release()


def _dry_run_lines(plan: Plan, choice: RunChoice) -> list[str]:
    requests = [cell.request or {} for cell in plan.cells]
    reference = requests[0]["workload_ref"]
    workload = [
        ["workload", f"{plan.workload} ({'registered: ' + reference if reference else 'NOT REGISTERED here'})"],
        ["isolation", requests[0]["isolation"]],
    ]
    if plan.command is not None:
        workload = [["command", shlex.join(plan.command["argv"])], ["run in", plan.command["cwd"]]]
    heading = [
        ["recipe", plan.recipe_source],
        ["ticket", plan.ticket or "none"],
        *workload,
        ["baseline", f"{plan.confound['baseline_cell']} (threshold {plan.confound['threshold']:g})"],
        ["run", f"{choice.run_dir} ({choice.state})"],
        ["trials", f"{plan.trial_count} in {plural(len(plan.cells), 'cell')}"],
    ]
    table = [["cell", "mitigations", "environment", "trials", "steps", "variables"]]
    for request in requests:
        variables = " ".join(f"{name}={value}" for name, value in overlay_values(request["env"]).items())
        table.append(
            [
                request["cell"],
                "+".join(request["mitigations"]),
                request["environment"]["name"],
                f"{'' if request['stop_after'] is None else 'up to '}{request['trials']}",
                str(request["steps"]),
                shortened(variables, 80) or "-",
            ]
        )
    warnings = warning_lines(plan)
    notices = list(choice.notices)
    return [*columns(heading), "", *columns(table), *([""] if warnings or notices else []), *warnings, *notices]


def snakemake_command(config_file: Path, jobs: int | None, verbose: bool, profile: Profile) -> list[str]:
    """Returns the command that runs the workflow with the settings of a file."""
    command = [sys.executable, "-m", "aorta.dag.interruptible", "--snakefile", str(resource_path("Snakefile"))]
    command += profile.options()
    if not profile.cluster:
        command += ["--cores", "all" if jobs is None else str(jobs)]
    elif jobs is not None:
        command += ["--jobs", str(jobs)]
    if not verbose:
        command += ["--quiet", "all"]
    return [*command, "--configfile", str(config_file.absolute())]


def _write_config(run_dir: Path, config: Mapping[str, Any]) -> Path:
    """Writes the settings into the run directory: on a command line Snakemake would guess their types again."""
    path = run_dir / ".aorta" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, dict(config))
    return path


def _run_interruptible(
    command: list[str],
    working_directory: Path,
    hub: Hub | None = None,
    clear_up: Callable[[int], None] = lambda code: None,
) -> int:
    """Runs Snakemake and waits for it through signals, so that what it leaves is always cleared up and summed up.

    Every signal is passed on. Ctrl-C in a terminal has then reached Snakemake twice, which takes it for one. A
    SIGKILL takes Snakemake along, which would hold the run directory otherwise; its trials run on, and the next start
    waits for them. With other ranks to lead, Snakemake also ends when one of the ranks has gone.
    """
    env = None if hub is None else {**os.environ, **hub.variables}
    signum = signal.SIGKILL if hub is None else signal.SIGTERM
    previous: dict[signal.Signals, Any] = {}
    # Until both processes have their handlers; Snakemake's program unblocks its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, cwd=working_directory, env=env, preexec_fn=lambda: end_with_parent(signum))
        if hub is not None:
            hub.watch(process)
        interrupts = 0

        def interrupt(number: int, frame: object) -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts == 1:
                say("interrupted: stopping; finished trials are kept, and the same command continues")
            else:
                say("interrupted again: not waiting any longer for what runs")
            process.send_signal(number)

        previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        # A shell script's background job ignores Ctrl-C, and so does Snakemake in it: nothing would stop.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            previous[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        code = process.wait()
        clear_up(code)
        return code
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
