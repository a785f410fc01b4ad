"""Stands for SLURM's commands: an array's tasks are processes of this host. Called by a command's name.

Its state is a folder ``queue`` beside the commands: the words of each submission, and a file a task.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

QUEUE = Path(sys.argv[0]).parent / "queue"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _tasks() -> Iterator[tuple[str, dict[str, str]]]:
    for path in sorted(QUEUE.glob("*_*.json")):
        task = json.loads(path.read_text())
        if _alive(int(task["pid"])):
            yield path.stem, task


def _numbers(text: str) -> list[int]:
    spans = [list(map(int, part.split("-"))) for part in text.split(",")]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


def sbatch(words: list[str]) -> int:
    """Starts the tasks, unless they are only to be tested."""
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    wrong = {
        "--partition": ("nowhere", "invalid partition specified: nowhere"),
        "--constraint": ("odd", "Invalid feature specification"),
        "--mem": ("9T", "Requested node configuration is not available"),
    }
    for name, (value, said) in wrong.items():
        if options.get(name) == value:
            print(f"sbatch: error: {said}", file=sys.stderr)
            return 1
    if "--test-only" in options:
        return 0
    job = next(number for number in itertools.count(100) if not (QUEUE / f"{number}.words").exists())
    (QUEUE / f"{job}.words").write_text(json.dumps(words))
    for number in _numbers(options["--array"]):
        output = options["--output"].replace("%A", str(job)).replace("%a", str(number)).replace("%%", "%")
        variables = {"SLURM_JOB_ID": str(1000 * job + number), "SLURM_ARRAY_TASK_ID": str(number)}
        variables |= {"SLURM_JOB_NAME": options["--job-name"], "SLURM_JOB_NODELIST": "here"}
        with open(output, "w", encoding="utf-8") as file:
            process = subprocess.Popen(
                ["bash", words[-1]],
                cwd=options["--chdir"],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        task = {"pid": str(process.pid), "number": str(number), "name": options["--job-name"]}
        (QUEUE / f"{job}_{number}.json").write_text(json.dumps(task))
    print(job)
    return 0


def squeue(_words: list[str]) -> int:
    """Lists the living tasks."""
    for identifier, task in _tasks():
        print(f"{identifier}|RUNNING|{task['number']}|{task['name']}")
    return 0


def scancel(words: list[str]) -> int:
    """Ends tasks, or all of a job's."""
    for identifier, task in _tasks():
        if identifier in words or identifier.partition("_")[0] in words:
            os.killpg(int(task["pid"]), signal.SIGKILL)
    return 0


def scontrol(_words: list[str]) -> int:
    """Says that it has forgotten the job that it is asked for."""
    print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
    return 1


def sinfo(words: list[str]) -> int:
    """Names the only partition, or says that every node serves."""
    print("main" if "%R" in words else "idle")
    return 0


if __name__ == "__main__":
    QUEUE.mkdir(exist_ok=True)
    # sacct knows nothing.
    commands = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol, "sinfo": sinfo}
    command = commands.get(Path(sys.argv[0]).name, lambda words: 1)
    # A controller that does not answer.
    sys.exit(1 if (QUEUE / "silent").exists() else command(sys.argv[1:]))
