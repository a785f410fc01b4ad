"""What ``aorta sweep submit`` does, with a stand-in for SLURM's commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chaos import wait_until
from tests.e2e.conftest import AORTA, Workspace

pytestmark = pytest.mark.e2e

STANDIN = Path(__file__).resolve().parent / "slurm_standin.py"


class Submitting:
    """A folder with a recipe of six trials, whose cell ``held`` waits for a gate, and the stand-in on PATH."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.folder = workspace.folder
        self.bin = self.folder.parent / f"{self.folder.name}-bin"
        self.bin.mkdir()
        for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"):
            (self.bin / name).write_text(f"#!{sys.executable}\n{STANDIN.read_text('utf-8')}")
            (self.bin / name).chmod(0o755)
        workspace.environment["PATH"] = f"{self.bin}:{os.environ['PATH']}"
        workspace.environment["KNOWN_LOG"] = str(self.folder / "runs.log")
        self.write()

    def write(self, **fields: Any) -> None:
        """Writes the recipe."""
        cells = [{"name": "a"}, {"name": "held", "workload_config": {"gate": str(self.folder / "gate")}}]
        for cell in cells:
            cell.update(fields.get(str(cell["name"]), {}))
        own = {name: value for name, value in fields.items() if name not in ("a", "held")}
        self.workspace.recipe(cells, **{"workload": "known", "trials": 3, "steps": 1, **own})

    def words(self, *options: str) -> tuple[str, ...]:
        return ("sweep", "submit", "--recipe", "recipe.yaml", "--run-dir", "run", "--shards", "2", *options)

    def started(self, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return self.workspace.started(*AORTA, *self.words(*options))

    def submissions(self) -> list[list[str]]:
        """The words of every call of sbatch that submitted."""
        return [json.loads(path.read_text()) for path in sorted(self.bin.glob("queue/*.words"))]

    def queue(self) -> list[str]:
        return [line.partition("|")[0] for line in self.call("squeue").splitlines()]

    def call(self, *command: str) -> str:
        environment = self.workspace.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def both_held(self) -> bool:
        """Whether no share can go on without the gate: both wait in a trial."""
        log = self.folder / "runs.log"
        runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return sum(run["cell"] == "held" for run in runs) >= 2

    def complete(self) -> bool:
        return bool(json.loads((self.folder / "run" / "matrix.json").read_text("utf-8"))["complete"])


@pytest.fixture
def submitting(workspace: Workspace) -> Iterator[Submitting]:
    made = Submitting(workspace)
    yield made
    jobs = {path.name.partition("_")[0] for path in made.bin.glob("queue/*_*.json")}
    if jobs:
        made.call("scancel", *jobs)


def test_a_submission_is_followed_to_the_matrix(submitting: Submitting) -> None:
    """What was asked for reaches sbatch, from the options and from what the cells agree on; the script is kept."""
    asked = {"gpus": 2, "account": "sdc", "extra": "--reservation=r"}
    submitting.write(resources=asked, a={"resources": {"mem": "2G"}}, held={"resources": {"mem": "3G", "runtime": 7}})
    (submitting.folder / "gate").touch()
    ended = submitting.workspace.aorta(*submitting.words("--time", "1:00:00", "--cpus", "3", "--sbatch-arg=--nice=5"))
    assert ended.code == 0, ended.stderr
    assert "all 6 trials passed" in ended.stdout and "shares 1, 2: 6 of 6 trials to run" in ended.stderr
    assert submitting.complete()
    ((*options, script),) = submitting.submissions()
    wanted = {"--array=1-2", "--time=1:00:00", "--gres=gpu:2", "--account=sdc", "--mem=3000M", "--cpus-per-task=3"}
    assert wanted | {"--nice=5", "--reservation=r", "--no-requeue", "--nodes=1"} <= set(options)
    assert script == "run/.aorta/shares/share.sh" and (submitting.folder / script).is_file()


def test_a_detached_submission_is_taken_up_by_the_same_command(submitting: Submitting) -> None:
    """It ends at once and says how to follow; later, the shares are adopted and not submitted again."""
    ended = submitting.workspace.aorta(*submitting.words("--detach"))
    assert ended.code == 0 and "aorta sweep status run" in ended.stderr
    wait_until(submitting.both_held, "both shares to wait")
    with submitting.started() as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "of an earlier start" in line)
        (submitting.folder / "gate").touch()
        said = "".join(lines)
        assert process.wait(timeout=120) == 0, said
    assert len(submitting.submissions()) == 1 and submitting.complete()


def test_other_options_than_the_earlier_starts_are_told(submitting: Submitting) -> None:
    """They apply to what is submitted from now on; the same options again are no news."""
    first = ("--detach", "--mem", "2G", "--cpus", "2", "--devices", "1")
    assert submitting.workspace.aorta(*submitting.words(*first)).code == 0
    wait_until(submitting.both_held, "both shares to wait")
    again = submitting.workspace.aorta(*submitting.words(*first))
    assert again.code == 0 and "job 100 was submitted" not in again.stderr
    other = ("--detach", "--mem", "3G", "--cpus", "2", "--devices", "2", "--sbatch-arg=--nice=5")
    ended = submitting.workspace.aorta(*submitting.words(*other))
    assert ended.code == 0
    assert (
        "aorta: job 100 was submitted with --mem=2G --devices=1 and without --mem=3G --nice=5 --devices=2; what this "
        "command asks for applies to shares that are submitted from now on (scancel 100 ends the others)\n"
    ) in ended.stderr
    assert len(submitting.submissions()) == 1


def test_only_shares_that_lack_trials_are_submitted_again(submitting: Submitting) -> None:
    """One was ended; the other one's trials are all there."""
    with submitting.started() as process:
        wait_until(submitting.both_held, "both shares to wait")
        first, second = submitting.queue()
        submitting.call("scancel", second)
        wait_until(lambda: submitting.queue() == [first], "the second share to end")
        (submitting.folder / "gate").touch()
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 1 and f"share 2 (job {second}) has ended and lacks" in said
    assert submitting.workspace.aorta(*submitting.words()).code == 0
    assert [words[1] for words in submitting.submissions()] == ["--array=1-2", "--array=2"]
    assert submitting.complete()


def test_nothing_is_concluded_while_slurm_does_not_answer(submitting: Submitting) -> None:
    """The shares go on and are still followed; only that all trials are recorded ends it."""
    silent = submitting.bin / "queue" / "silent"
    with submitting.started() as process:
        wait_until(submitting.both_held, "both shares to wait")
        silent.touch()
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "SLURM does not answer" in line)
        (submitting.folder / "gate").touch()
        said = "".join(lines)
        assert process.wait(timeout=120) == 0, said
    assert submitting.complete()
    silent.unlink()


@pytest.mark.parametrize(("signum", "left"), [(signal.SIGINT, 0), (signal.SIGTERM, 2)])
def test_ctrl_c_cancels_and_sigterm_does_not(submitting: Submitting, signum: signal.Signals, left: int) -> None:
    """Either way the exit code is 1 and the same command continues."""
    with submitting.started() as process:
        wait_until(submitting.both_held, "both shares to wait")
        process.send_signal(signum)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 1 and "the same command" in said
    assert len(submitting.queue()) == left
    (submitting.folder / "gate").touch()
    assert submitting.workspace.aorta(*submitting.words()).code == 0
    assert len(submitting.submissions()) == (2 if left == 0 else 1)


def test_the_plan_is_not_changed_under_running_shares(submitting: Submitting) -> None:
    """Another recipe for the same run directory is refused with the job to end."""
    assert submitting.workspace.aorta(*submitting.words("--detach")).code == 0
    plan = (submitting.folder / "run" / "plan.json").read_bytes()
    submitting.write(trials=5)
    ended = submitting.workspace.aorta(*submitting.words())
    assert ended.code == 2 and "scancel 100" in ended.stderr and "Traceback" not in ended.stderr
    assert (submitting.folder / "run" / "plan.json").read_bytes() == plan


@pytest.mark.parametrize(
    ("options", "fields", "said"),
    [
        (("--shards", "7"), {}, "shards: 7 is more than there are trials (6)"),
        (("--partition", "nowhere"), {}, "SLURM would not take --partition=nowhere: invalid partition"),
        (("--sbatch-arg=--array=1-9",), {}, "aorta sets --array itself"),
        (("--sbatch-arg=-N2",), {}, "aorta sets --nodes itself"),
        ((), {"a": {"resources": {"partition": "x"}}}, "ask for different values (nothing, x)"),
        ((), {"workload": "ranked", "resources": {"nodes": 2}}, "those of a, held are spread over several"),
    ],
)
def test_bad_input_writes_nothing(
    submitting: Submitting, options: tuple[str, ...], fields: dict[str, Any], said: str
) -> None:
    """Exit code 2, one error that says what would be right, and no run directory."""
    submitting.write(**fields)
    before = submitting.workspace.files()
    ended = submitting.workspace.aorta(*submitting.words(*options))
    assert ended.code == 2 and said in ended.stderr and "Traceback" not in ended.stderr
    assert submitting.workspace.files() == before and submitting.submissions() == []


def test_all_faults_are_told_at_once(submitting: Submitting) -> None:
    """Those of the options' form, of the cells, of the number of shares, and each of SLURM's, a line each."""
    submitting.write(a={"resources": {"gpus": 2}}, held={"resources": {"constraint": "x"}})
    before = submitting.workspace.files()
    wrong = ["--time", "2h", "--partition", "nowhere", "--mem", "9T", "--shards", "7", "--sbatch-arg=--array=1-9"]
    ended = submitting.workspace.aorta(*submitting.words(*wrong))
    assert ended.code == 2
    lines = [line.partition(": ")[::2] for line in ended.stderr.splitlines()]
    assert [(place, told.partition(",")[0]) for place, told in lines] == [
        ("--time", "must be minutes such as 90"),
        ("--sbatch-arg", "'--array=1-9': aorta sets --array itself; leave it out"),
        ("resources.gpus", "the cells ask for different values (2"),
        ("resources.constraint", "the cells ask for different values (nothing"),
        ("shards", "7 is more than there are trials (6); give fewer"),
        ("sbatch", "SLURM would not take --partition=nowhere: invalid partition specified: nowhere; there is main"),
        ("sbatch", "SLURM would not take --mem=9T: Requested node configuration is not available"),
    ]
    assert submitting.workspace.files() == before and submitting.submissions() == []


def test_a_host_without_slurm_is_told_the_ways_out(submitting: Submitting, tmp_path: Path) -> None:
    """Before anything is written."""
    before = submitting.workspace.files()
    (tmp_path / "python").symlink_to(shutil.which("true") or "/bin/true")
    ended = submitting.workspace.run(*AORTA, *submitting.words(), PATH=str(tmp_path))
    assert ended.code == 2 and "sbatch: not found" in ended.stderr and "docs/shards.md" in ended.stderr
    assert submitting.workspace.files() == before


def test_a_dry_run_says_what_would_be_asked_for(submitting: Submitting) -> None:
    """And neither writes nor submits."""
    before = submitting.workspace.files()
    submitting.write(a={"resources": {"mem": "2G"}})
    ended = submitting.workspace.aorta(*submitting.words("--dry-run", "--time", "9"))
    assert ended.code == 0 and "an array of 2 shares: --time=9 --mem=2000M" in ended.stdout
    ended = submitting.workspace.aorta(*submitting.words("--dry-run", "--time", "9h", "--mem", "lots"))
    assert ended.code == 2 and "--time: must be" in ended.stderr and "--mem: must be" in ended.stderr
    assert submitting.workspace.files() == before and submitting.submissions() == []
