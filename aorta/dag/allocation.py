"""What the shares of a sweep ask SLURM for, and how one array of them is submitted."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aorta._jsonio import read_json, write_json_atomic, write_text_atomic
from aorta.dag.cluster import job_prefix
from aorta.dag.errors import say
from aorta.dag.profiles import Profile
from aorta.dag.runner import snakemake_command
from aorta.dag.sbatch import Examiner, partitions, run_sbatch
from aorta.dag.settings import SettingsError
from aorta.dag.shares import Task
from aorta.plan.model import Plan
from aorta.recipe.resources import PRINTING
from aorta.registry.names import short
from aorta.run.slurmjob import SHARES_MARK
from aorta.text import plural

_OWN_OPTIONS = {
    "--array": "-a",
    "--chdir": "-D",
    "--error": "-e",
    "--job-name": "-J",
    "--nodes": "-N",
    "--ntasks": "-n",
    "--output": "-o",
    "--parsable": None,
    "--requeue": None,
    "--test-only": None,
    "--wait": "-W",
    "--wrap": None,
}
"""Options of sbatch that are not a user's to give, since the engine does."""

_FORMS = {
    "partition": (re.compile(r"[^\s'\"]+"), "the name of a partition, or several with commas"),
    "account": (re.compile(r"[^\s'\"]+"), "the name of an account"),
    "time": (
        re.compile(r"[0-9]{1,9}(:[0-9]{1,9}){0,2}|[0-9]{1,9}-[0-9]{1,9}(:[0-9]{1,9}){0,2}|unlimited", re.IGNORECASE),
        "minutes such as 90, HH:MM:SS such as 2:00:00, D-HH:MM:SS such as 1-12:00:00, or unlimited",
    ),
    "gpus": (
        re.compile(r"[0-9]{1,4}|[A-Za-z0-9_.-]+:[1-9][0-9]{0,3}"),
        "a whole number such as 8, or MODEL:NUMBER such as mi300:8",
    ),
    "mem": (re.compile(r"[0-9]{1,12}([KMGT]B?)?", re.IGNORECASE), "megabytes such as 64000, or 500M, 64G or 2T"),
    "constraint": (re.compile(r"[^\s'\"]+"), "features of nodes without blanks, such as ib or 'ib&nvme'"),
}
"""Forms that some cluster would take, and how to say so."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What each share asks for; None leaves it to the cluster.

    Attributes:
        partition: Partitions, with commas.
        account: The account.
        time: Time limit, as sbatch takes it.
        gpus: GPUs on the node: a number or ``MODEL:NUMBER``.
        cpus: Processors.
        mem: Memory, as sbatch takes it.
        constraint: Features that the node must have.
        sbatch_args: Further options of sbatch.
    """

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gpus: str | None = None
    cpus: int | None = None
    mem: str | None = None
    constraint: str | None = None
    sbatch_args: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """Returns the options of sbatch."""
        named = {
            "--partition": self.partition,
            "--account": self.account,
            "--time": self.time,
            "--gres": None if self.gpus in (None, "0") else f"gpu:{self.gpus}",
            "--cpus-per-task": self.cpus,
            "--mem": self.mem,
            "--constraint": self.constraint,
        }
        return [*(f"{name}={value}" for name, value in named.items() if value is not None), *self.sbatch_args]

    def problems(self) -> dict[str, list[str]]:
        """Says which values no cluster would take, and which further options are not a user's to give.

        Returns:
            Lines by the name of the field.
        """
        found: dict[str, list[str]] = {}
        for name, (form, wanted) in _FORMS.items():
            value = getattr(self, name)
            if value is not None and not form.fullmatch(value):
                found[name] = [f"--{name}: must be {wanted}, not {short(value)}"]
        lines = [line for place in range(len(self.sbatch_args)) if (line := self._misplaced(place)) is not None]
        return found | ({"sbatch_args": lines} if lines else {})

    def _misplaced(self, place: int) -> str | None:
        """Says why one of the further options cannot be given, or None."""
        word = self.sbatch_args[place]
        if not word.startswith("-"):
            # After a whole option sbatch would take it for its script.
            before = self.sbatch_args[place - 1] if place else "="
            whole = not before.startswith("-") or "=" in before
            return f"--sbatch-arg: must be an option, such as --nice=5, not {short(word)}" if whole else None
        name = word.partition("=")[0]
        if any(option.startswith(name) for option in PRINTING if len(name) > 3 or name == option):
            return f"--sbatch-arg: {short(word)}: sbatch would print something and submit nothing; leave it out"
        for long, letter in _OWN_OPTIONS.items():
            # sbatch takes the beginning of an option for the whole.
            begins = len(name) > 2 and long.startswith(name)
            if begins or (letter is not None and word.startswith(letter)):
                return f"--sbatch-arg: {short(word)}: aorta sets {long} itself; leave it out"
        return None


def completed(asked: Allocation, plan: Plan) -> tuple[Allocation, list[str]]:
    """Adds to what the user asked for what the recipe's ``resources`` say.

    A share runs trials of all cells, so a value counts where all cells agree; of ``mem`` the largest does. ``runtime``
    is a single trial's, and says nothing of a share.

    Returns:
        What is asked for, and a line for each thing of which the cells want different ones and the user has not said
        which; of partitions all are then asked for, of accounts the first, of the others none.
    """
    cells = [cell.resources for cell in plan.cells]
    found: dict[str, Any] = {}
    problems = []
    for name in ("partition", "account", "gpus", "constraint"):
        values = {str(cell[name]) if name in cell else None for cell in cells}
        if getattr(asked, name) is not None or values == {None}:
            continue
        if len(values) > 1:
            told = ", ".join(sorted(value if value is not None else "nothing" for value in values))
            problems.append(
                f"resources.{name}: the cells ask for different values ({told}), and a share runs trials of all of "
                f"them; give --{name}"
            )
            given = list(dict.fromkeys(str(cell[name]) for cell in cells if name in cell))
            found |= {"partition": {name: ",".join(given)}, "account": {name: given[0]}}.get(name, {})
        else:
            found[name] = str(values.pop())
    memory = [int(cell["mem"]) for cell in cells if "mem" in cell]
    if asked.mem is None and memory:
        found["mem"] = f"{max(memory)}M"
    extra = " ".join(dict.fromkeys(str(cell["extra"]) for cell in cells if "extra" in cell)).split()
    return replace(asked, **found, sbatch_args=(*extra, *asked.sbatch_args)), problems


class Array:
    """One submission of shares of a run.

    Args:
        run_dir: The run directory.
        count: How many shares there are.
        allocation: What each asks for.
        devices: Trials at once in a share, or None for one per accelerator.
        folder: Where the shares run: the working directory of the submission.
    """

    def __init__(self, run_dir: Path, count: int, allocation: Allocation, *, devices: int | None, folder: Path) -> None:
        self._run_dir = run_dir
        self._own = run_dir / ".aorta" / "shares"
        self._count = count
        self._allocation = allocation
        self._devices = devices
        self._folder = folder
        self.script = self._own / "share.sh"

    def command(self, numbers: Sequence[int], options: Sequence[str] | None = None) -> list[str]:
        """Returns the command that submits some of the shares, without its script.

        Args:
            numbers: Which shares.
            options: What each asks for; the allocation's, unless given.
        """
        # A name of its own: an array that is over does not share its ends with the next.
        name = f"{job_prefix(self._run_dir).removesuffix('-')}{SHARES_MARK}{self._count}-{uuid.uuid4().hex[:8]}"
        output = str((self._own / "%A_%a.out").absolute())
        own = str(self._own.absolute())
        return [
            *("sbatch", "--parsable", f"--array={ranges(numbers)}", f"--job-name={name}", "--nodes=1", "--ntasks=1"),
            # In the pattern of a file name a percent sign is special to SLURM.
            *("--no-requeue", f"--chdir={self._folder}", f"--output={output.replace(own, own.replace('%', '%%'))}"),
            *(self._allocation.options() if options is None else options),
        ]

    def text(self) -> str:
        """Returns the script of a share."""
        share = f'shard="$SLURM_ARRAY_TASK_ID/{self._count}"'
        # Not in the settings' file: SLURM has its own copy of the script, so that a later array changes nothing here.
        share += "" if self._devices is None else f" devices={self._devices}"
        snakemake = snakemake_command(self._own / "settings.json", None, False, Profile())
        return (
            "#!/bin/bash\n"
            f"# Share $SLURM_ARRAY_TASK_ID of {self._count} of the run {str(self._run_dir)!r}; by aorta sweep submit.\n"
            f"exec {shlex.join(snakemake)} --config {share}\n"
        )

    def refusals(self, numbers: Sequence[int], *, pause: Callable[[float], None] = time.sleep) -> list[str]:
        """Asks SLURM whether it would take the shares; submits nothing.

        Args:
            numbers: Which shares.
            pause: Waits for the given seconds; for tests.

        Returns:
            What it says against them, a line for each option that it would not take.
        """

        def asking(options: Sequence[str]) -> list[str]:
            return [word for word in self.command(numbers, options) if word != "--parsable"]

        examiner = Examiner(asking(()), self.text(), pause=pause)
        whole, plain = examiner.refusals(asking(self._allocation.options()))
        if whole is None:
            return []
        found = {}
        # SLURM stops at the first fault, and says that of the plainest job where the fault lies elsewhere.
        if plain is None:
            named = [[option] for option in replace(self._allocation, sbatch_args=()).options()]
            where: list[str] = []
            for options in (*named, list(self._allocation.sbatch_args)):
                said = examiner.refusal(asking([*where, *options])) if options else None
                is_partition = options[:1] == [f"--partition={self._allocation.partition}"]
                if said is not None:
                    found[shlex.join(options)] = said
                if is_partition:
                    # What nodes there are depends on it; any will do where it is wrong.
                    known = ",".join(partitions())
                    where = options if said is None else [f"--partition={known}"] if known else []
        refused = found or {"such a job": whole}
        return [f"sbatch: SLURM would not take {what}: {said}" for what, said in refused.items()]

    def _asked(self) -> list[str]:
        devices = [] if self._devices is None else [f"--devices={self._devices}"]
        return [*self._allocation.options(), *devices]

    def difference(self, job: str) -> str | None:
        """Says what an earlier array was asked for otherwise than this one; None where that is nothing, or not known.

        Args:
            job: The earlier array's id.
        """
        try:
            earlier = read_json(self._own / f"{job}.json")["asked"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        now = self._asked()
        before, after = ([word for word in a if word not in b] for a, b in ((earlier, now), (now, earlier)))
        if not before and not after:
            return None
        told = [f"with {shlex.join(before)}"] if before else []
        told += [f"without {shlex.join(after)}"] if after else []
        return (
            f"job {job} was submitted {' and '.join(told)}; what this command asks for applies to shares that are "
            f"submitted from now on (scancel {job} ends the others)"
        )

    def submit(self, numbers: Sequence[int]) -> list[Task]:
        """Writes the script, submits the shares and returns them.

        Raises:
            SettingsError: SLURM has refused; what it said is in the message.
            OSError: The script cannot be written.
        """
        self._own.mkdir(parents=True, exist_ok=True)
        write_json_atomic(self._own / "settings.json", {"run_dir": str(self._run_dir)})
        write_text_atomic(self.script, self.text())
        command = self.command(numbers)
        code, printed, said = run_sbatch([*command, str(self.script)])
        # A federation's answer is JOB;CLUSTER.
        job = printed.strip().partition(";")[0]
        if code != 0 or not job.isdigit():
            raise SettingsError([f"sbatch: {said or printed.strip() or f'ended with {code}'}"])
        with contextlib.suppress(OSError):
            # The array is in the queue, with or without a note of what it was asked for.
            write_json_atomic(self._own / f"{job}.json", {"asked": self._asked()})
        shown = shlex.join([word for word in command if word != "--parsable"])
        say(f"submitted job {job}, an array of {len(numbers)} of {plural(self._count, 'share')}: {shown} {self.script}")
        return [Task(job=f"{job}_{number}", state="PENDING", number=number, count=self._count) for number in numbers]


def ranges(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as sbatch takes them: ``1-3,7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
