"""The sweep behind a Snakefile: opened once when the Snakefile is parsed, in the main process and in every job.

Light for jobs: only the main process compiles a recipe. A job that parses the Snakefile again, as under a cluster's
executor, gets the run directory on its command line: the main process adds it to the settings that it hands on.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from aorta._jsonio import json_digest, read_regular
from aorta.dag.cluster import (
    allow_retries,
    cancel_jobs,
    correct_executor,
    is_slurm_executor,
)
from aorta.dag.errors import bad_input_exits, say
from aorta.dag.inventory import declare, whole_files
from aorta.dag.launching import REFUSED_HERE, find_world, launch_problems, path_problems
from aorta.dag.leftovers import clear_leftovers
from aorta.dag.lock import RunLock, lock_plan
from aorta.dag.orphans import outlive_orphans, settle_orphans
from aorta.dag.products import closing_lines, occupied
from aorta.dag.progress import tell_trials
from aorta.dag.quiet import show_errors
from aorta.dag.refused import refused_jobs
from aorta.dag.requests import Request, requests, snapshots_request, trial_request
from aorta.dag.scheduling import disarm_timers, end_on_sigterm, free_devices, hand_on, keep_order, limit_devices
from aorta.dag.settings import Settings, SettingsError, read_settings
from aorta.plan.aside import set_irregular_aside
from aorta.plan.current import CellFiles
from aorta.plan.model import Plan, PlanFileError, PlannedCell
from aorta.plan.order import positions, trial_order
from aorta.plan.paths import RunLayout
from aorta.plan.rundir import RunChoice, choose_run, materialise, read_plan
from aorta.run.launch import world_size
from aorta.run.start import HUB_VARIABLE

SUPERVISOR = Path(__file__).resolve().parent.parent / "run" / "supervise.py"
"""The trial's program."""

JOB_RUN_DIR = "aorta_job_run_dir"
"""The setting by which a job that parses the Snakefile again is told its run directory."""

# A job's command line goes through a shell and through Snakemake's guess at each value's type.
_PATH_MARK = "path:"

_SET_BY_SNAKEMAKE = (
    *("OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "TMPDIR", "TMP", "TEMPDIR", "TEMP"),
)

TRIAL_LIMIT = 1_000_000
"""Most trials that one run may have; Snakemake holds every job in memory."""


class Sweep:
    """What the rules need to know.

    Attributes:
        plan: The plan that runs.
        layout: The run directory's paths.
    """

    def __init__(
        self,
        choice: RunChoice,
        settings: Settings | None,
        sidecars: Sequence[Path] = (),
        problems: Sequence[str] = (),
        problems_on_cluster: Sequence[str] = (),
    ) -> None:
        self.plan = choice.plan
        self.layout = RunLayout(choice.run_dir, choice.plan.workload)
        self._choice = choice
        self._settings = settings
        self._sidecars = sidecars
        self._problems = list(problems)
        self._problems_on_cluster = list(problems_on_cluster)
        self._cells = {cell.name: cell for cell in choice.plan.cells}
        self._positions: dict[tuple[str, int], int] = {}
        self._locks: list[RunLock] = []
        self._workflow: Any = None
        # Whether Snakemake has been told which records count.
        self._declared = False
        self.devices = 1
        # How many of them one trial takes.
        self.devices_per_trial = 1
        # Under torchrun the other ranks' processes are there already and are called to each trial.
        self._under_torchrun = HUB_VARIABLE in os.environ

    # What the rules name.

    @property
    def cell_names(self) -> list[str]:
        """Names of the cells, in the recipe's order."""
        return list(self._cells)

    def environment_names(self, *, isolated: bool) -> list[str]:
        """Names of the environments whose snapshot is taken on the host, or inside a container or venv."""
        return sorted({cell.environment for cell in self.plan.cells if cell.isolated is isolated})

    def trial_files(self, *, environment: str | None = None) -> list[str]:
        """All trial files, or those whose cell has the given environment."""
        return [
            str(self.layout.trial(cell.name, trial))
            for cell in self.plan.cells
            if environment is None or cell.environment == environment
            for trial in self._trials(cell)
        ]

    def _trials(self, cell: PlannedCell) -> Sequence[int]:
        """The trials of a cell that this process is to run."""
        return range(cell.trials)

    def targets(self) -> list[str]:
        """All that a sweep makes; the trials too, so that a deleted one is made again although the matrix is there."""
        self._declare_records()
        pages = (self.layout.matrix_json, self.layout.matrix_md, self.layout.matrix_html, self.layout.perf_md)
        return [*map(str, pages), str(self.layout.recipe), *self.snapshots(), *self.trial_files()]

    def snapshots(self) -> list[str]:
        """All snapshots: the host's and each environment's."""
        environments = [self.layout.environment(name) for name in self.plan.environments]
        return [str(path) for path in (self.layout.host_env, *environments)]

    def snapshots_before(self, cell: str) -> list[str]:
        """Snapshots that are taken before a trial of this cell: the host's, and its environment's unless isolated."""
        self._declare_records()
        planned = self._cells[cell]
        own = [] if planned.isolated else [self.layout.environment(planned.environment)]
        return [str(path) for path in (self.layout.host_env, *own)]

    def trial_param(self, cell: str) -> str:
        """What makes a trial's record current."""
        return self._cells[cell].fingerprint

    def position(self, cell: str, trial: str) -> int:
        """A trial's place in the planned order, from 1."""
        if not self._positions:
            order = trial_order([(cell.name, cell.trials) for cell in self.plan.cells], self.plan.order_seed)
            self._positions = positions(order)
        return self._positions[cell, int(trial)]

    @property
    def on_cluster(self) -> bool:
        """Whether jobs are sent elsewhere: seen from the process that sends them, or from one of them."""
        return self._settings is None or not getattr(self._workflow, "local_exec", True)

    @property
    def _on_slurm(self) -> bool:
        return is_slurm_executor(self._workflow)

    def trial_requests(self) -> dict[str, Request]:
        """What the trials ask a cluster for, as resources of their rule."""
        return self._requests(lambda wildcards: trial_request(self._cells[wildcards.cell]))

    def snapshot_requests(self) -> dict[str, Request]:
        """What snapshots ask a cluster for, by the cells of that environment, or by all."""

        def asked(wildcards: Any) -> Mapping[str, int | str]:
            name = getattr(wildcards, "environment", None)
            cells = [cell for cell in self.plan.cells if name is None or cell.environment == name]
            return snapshots_request(cells)

        return self._requests(asked)

    def _requests(self, asked_by: Callable[[Any], Mapping[str, int | str]]) -> dict[str, Request]:
        def defaults() -> Any:
            return getattr(getattr(self._workflow, "resource_settings", None), "_parsed_default_resources", None)

        return requests(lambda wildcards: asked_by(wildcards) if self.on_cluster else {}, defaults)

    def recipe_param(self) -> str:
        """What changes the resolved recipe."""
        return json_digest(self.plan.to_json()["recipe"])

    def matrix_param(self) -> str:
        """What changes the matrix beside the trials: the rows, the baseline, the threshold, the warnings."""
        summary = self.plan.to_json()
        return json_digest({name: summary[name] for name in ("cells", "confound", "ticket", "warnings", "history")})

    def trial_command(self, cell: str, trial: str) -> str:
        """The shell command of one trial: the supervisor, run by path with -I -S, which halves its start-up time."""
        planned = self._cells[cell]
        return shlex.join(
            [
                *self._restored_environment(),
                *(_python(), "-I", "-S", os.fspath(SUPERVISOR), "--run-dir", str(self.layout.run_dir)),
                *("--cell", cell, "--trial", trial, "--fingerprint", planned.fingerprint),
                *("--order", str(self.position(cell, trial)), "--of", str(self.plan.trial_count)),
                *self._where(planned),
            ]
        )

    @staticmethod
    def _restored_environment() -> list[str]:
        """Returns the beginning of a command that undoes what Snakemake sets for a job's shell.

        It gives every job its own number of threads and its own temporary folder. A trial must run as it does without
        aorta, and the snapshot must show what it saw.
        """
        kept = [f"{name}={os.environ[name]}" for name in _SET_BY_SNAKEMAKE if name in os.environ]
        dropped = [word for name in _SET_BY_SNAKEMAKE if name not in os.environ for word in ("-u", name)]
        return ["env", *dropped, *kept]

    def _where(self, cell: PlannedCell) -> list[str]:
        """The supervisor's options that say on what a trial runs, and who starts its ranks."""
        if self._under_torchrun:
            return ["--devices", str(self.devices), "--launcher", "torchrun"]
        in_job = self.on_cluster and "SLURM_JOB_ID" in os.environ
        spread = world_size(cell.launch) > 1 if in_job else cell.launch["nnodes"] > 1
        if spread or self.on_cluster:
            # The cluster has given the job its devices, and no other job has them.
            return ["--no-device-lock", *(["--launcher", "slurm"] if spread else [])]
        return ["--devices", str(self.devices)]

    def snapshot_command(self, environment: str | None) -> str:
        """The shell command of one snapshot: of an environment, or of the host."""
        which = ["--host"] if environment is None else ["--environment", environment]
        module = ["-m", "aorta.instrumentation.snapshot", "--run-dir", str(self.layout.run_dir), *which]
        return shlex.join([*self._restored_environment(), _python(), *module])

    def recipe_command(self) -> str:
        """The shell command that writes the resolved recipe."""
        return self._module_command("aorta.dag.resolved", "--run-dir", str(self.layout.run_dir))

    def matrix_command(self) -> str:
        """The shell command that writes the matrix."""
        return self._module_command("aorta.matrix", str(self.layout.run_dir), "--quiet", "--final")

    @staticmethod
    def _module_command(module: str, *arguments: str) -> str:
        return shlex.join([_python(), "-m", module, *arguments])

    @staticmethod
    def alternatives(names: list[str]) -> str:
        """Returns a regular expression that matches exactly these names."""
        return "|".join(re.escape(name) for name in sorted(names))

    # What the handlers do.

    def start(self, workflow: Any) -> None:
        """Prepares a real run: takes the lock, writes the plan, corrects the scheduler."""
        if self._settings is None:
            return
        run_dir = self.layout.run_dir
        with bad_input_exits():
            # Not when the Snakefile was read: what would be refused can still be looked at, with --dry-run.
            problems = [*(self._problems_on_cluster if self.on_cluster else self._problems), *occupied(self.layout)]
            if self._on_slurm and not problems:
                problems = refused_jobs(workflow, self.plan)
            if problems:
                raise SettingsError(problems)
            self._prepare()
        parallel = workflow.cores if workflow.local_exec else workflow.nodes
        window = 2 * max(int(parallel or 1), self.devices) + 8
        if self.on_cluster:
            free_devices(workflow)
        if self._on_slurm:
            allow_retries(workflow, "trial", self.plan)
        corrections = [*disarm_timers(workflow), *keep_order(workflow, window), *correct_executor(workflow, run_dir)]
        for notice in (*corrections, *tell_trials(workflow, self.layout, self.plan)):
            say(notice)
        say(f"run directory: {run_dir}")

    def set_up(self, workflow: Any) -> None:
        """Tells jobs their run directory, limits how many trials run at once on this host, keeps errors visible."""
        self._workflow = workflow
        notices = end_on_sigterm()
        if self._settings is None:
            return
        for notice in notices:
            say(notice)
        show_errors(workflow)
        hand_on(workflow, JOB_RUN_DIR, _PATH_MARK + quote(str(self.layout.run_dir)))
        from aorta.run.device import count_accelerators

        accelerators = count_accelerators()
        self.devices = self._settings.devices or max(1, accelerators)
        spread = any(cell.launch["nnodes"] > 1 for cell in self.plan.cells)
        if self._under_torchrun or spread or (self.plan.command is not None and accelerators):
            # The other ranks' processes, or the allocation's nodes, serve one trial at a time; a command gets every
            # accelerator.
            self.devices_per_trial = self.devices
        elif accelerators:
            # Each rank takes one; where there are fewer, the trial still gets all there are and says what it misses.
            self.devices_per_trial = min(self.plan.launch["nproc_per_node"], self.devices)
        limit_devices(workflow, self.devices)

    def show(self) -> None:
        """Prints the matrix and where it lies; a job process says nothing."""
        if self._settings is None:
            return
        try:
            page = read_regular(self.layout.matrix_md).decode("utf-8")
        except (OSError, ValueError) as error:
            say(f"the matrix cannot be read: {self.layout.matrix_md}: {error}")
            return
        self._show(page)

    def _show(self, page: str) -> None:
        # Only where the run is this process's own: what another is at work on stays.
        for notice in clear_leftovers(self.layout.run_dir) if self._locks else ():
            say(notice)
        print(f"{page}\nmatrix: {self.layout.matrix_md}", flush=True)
        if self.plan.sidecars:
            from aorta.dag.sidecars import rerun_command

            print(f"run it again:\n{rerun_command(self.layout, self.plan)}", flush=True)

    def show_partial(self) -> None:
        """After a failure: writes the reports from what exists, names what is missing, prints the matrix.

        The reports are then no rule's output, so the next run still sees which trials are missing.
        """
        from aorta.matrix import make_reports, render_markdown

        if self._settings is None or not self.layout.plan.is_file():
            return
        if self._on_slurm and self._locks:
            # Such as one that was being submitted when the sweep was interrupted.
            cancel_jobs(self.layout.run_dir, say)
        try:
            if self._on_slurm:
                settle_orphans(self.layout, self.plan, self._workflow, self.trial_command)
            matrix, errors = make_reports(self.layout.run_dir)
        except (OSError, PlanFileError) as error:
            say(f"no matrix could be written: {error}")
            return
        except KeyboardInterrupt:
            say("interrupted before the matrix was written; finished trials are kept")
            return
        self._show(render_markdown(matrix))
        for line in closing_lines(matrix, errors, self.layout, self.plan):
            say(line)

    def _declare_records(self) -> None:
        """Tells Snakemake once, when it starts to build the DAG, which records count and which files are whole."""
        if self._declared or self._settings is None or self._workflow is None:
            return
        self._declared, workflow = True, self._workflow
        present: dict[Path, list[str]] = {}
        for cell in self.plan.cells:
            files = CellFiles(self.layout, cell)
            current = [str(self.layout.trial(cell.name, n)) for n in self._trials(cell) if files.is_current(n)]
            present[self.layout.trial_folder(cell.name)] = current
        for folder in (self.layout.run_dir, *(self.layout.environment(name).parent for name in self.plan.environments)):
            present[folder] = whole_files(folder)
        if self._choice.recovered:
            # A run of which nothing is missing but its plan would not be begun, and so not get it back.
            own = present[self.layout.run_dir]
            present[self.layout.run_dir] = [path for path in own if path != str(self.layout.matrix_json)]
        for folder, paths in present.items():
            for notice in declare(workflow, str(folder), paths):
                say(notice)
                return

    def _prepare(self) -> None:
        """Makes the run directory this process's own, and clears away what others left in it."""
        self.claim()
        if self._on_slurm:
            outlive_orphans(self.layout, self.plan)
        for notice in (*clear_leftovers(self.layout.run_dir), *set_irregular_aside(self.layout, self.plan)):
            say(notice)

    def claim(self) -> None:
        """Locks the run directory and writes the plan into it.

        A new run locks its plan first, so that two starts at the same instant cannot make two runs of one plan.
        """
        run_dir = self.layout.run_dir
        own_name = self._settings is not None and self._settings.run_dir is None and self._choice.state == "new"
        if own_name:
            self._locks.append(lock_plan(self.plan, run_dir.parent, notify=say))
            materialise(self._choice, exclusive=True)
        self._locks.append(RunLock(run_dir / ".aorta" / "lock", str(run_dir), notify=say))
        if not own_name:
            materialise(self._choice, exclusive=False)
        from aorta.dag.sidecars import keep_inline_environments, keep_sidecars

        keep_sidecars(self.layout, self._sidecars)
        keep_inline_environments(self.layout, self.plan)


def open_sweep(config: Mapping[str, Any], *, main_process: bool) -> Sweep:
    """Opens the sweep that a Snakefile's configuration asks for.

    Bad input ends the process with exit code 2 and one line an error on standard error; nothing is written.

    Args:
        config: Snakemake's merged ``config``.
        main_process: Whether this is the process that schedules, rather than one of its jobs.
    """
    if not main_process:
        if JOB_RUN_DIR not in config:
            # A later Snakemake that builds its jobs' command lines otherwise.
            with bad_input_exits():
                raise SettingsError([f"{JOB_RUN_DIR}: this job was not told its run directory by its main process"])
        run_dir = Path(unquote(config[JOB_RUN_DIR].removeprefix(_PATH_MARK)))
        return Sweep(RunChoice(run_dir=run_dir, state="continued", plan=read_plan(run_dir)), None)
    from aorta.dag.planning import plan_recipe

    with bad_input_exits():
        settings = read_settings(config)
        if settings.shard is not None:
            from aorta.dag.share import open_share

            return open_share(settings)
        now = datetime.now().astimezone()
        plan = plan_recipe(settings, now=now)
        check_size(plan)
        choice = choose_run(
            plan,
            settings.output,
            run_dir=settings.run_dir,
            fresh=settings.fresh,
            refresh=settings.refresh,
            now=now,
        )
    say_about(choice)
    world = find_world(settings, os.environ)
    problems = launch_problems(plan, world, workflow=True)
    on_cluster = launch_problems(plan, world, workflow=True, cluster=True)
    for problem in on_cluster:
        # Which executor runs the jobs is not known yet; the other problems are told when they start.
        say(f"warning: {REFUSED_HERE}: {problem}")
    # Where a continued run's older values stay, so do the copies of the files that they came from.
    sidecars = settings.mitigations_files if choice.plan.key == plan.key else ()
    on_cluster += path_problems(Path.cwd(), choice.run_dir)
    return Sweep(choice, settings, sidecars, problems, on_cluster)


def say_about(choice: RunChoice) -> None:
    """Tells a person what the plan warns about, and which run was chosen for what reason."""
    for line in warning_lines(choice.plan):
        say(line)
    for notice in choice.notices:
        say(notice)
    if choice.state == "finished":
        say(f"this plan has a finished run: {choice.run_dir / 'matrix.md'} (fresh=true starts a new one)")


def warning_lines(plan: Plan) -> list[str]:
    """Returns a plan's warnings, a line each; what several cells share is said once."""
    cells: dict[str, list[str]] = {}
    for warning in plan.warnings:
        cells.setdefault(warning["message"], []).extend([warning["cell"]] if warning["cell"] else [])
    return [f"warning: {', '.join(names) + ': ' if names else ''}{message}" for message, names in cells.items()]


def check_size(plan: Plan) -> None:
    """Refuses a plan with more trials than a DAG can hold.

    Raises:
        SettingsError: The plan is too large.
    """
    if plan.trial_count > TRIAL_LIMIT:
        raise SettingsError([f"trials: the recipe has {plan.trial_count}; one run holds {TRIAL_LIMIT}, so split it"])


def _python() -> str:
    return sys.executable or "python3"
