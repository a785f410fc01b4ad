"""What shares ask SLURM for, and how they are seen in its queue."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aorta.dag.allocation import Allocation, Array, completed, ranges
from aorta.dag.cluster import live_jobs
from aorta.dag.shares import Task, missing_by_share, queued_shares
from aorta.plan.model import Plan

GOLDEN = Path(__file__).parents[1] / "plan" / "golden" / "plan.json"


def plan(*resources: dict[str, Any]) -> Plan:
    """The golden plan, with a cell for each of the resources."""
    found = Plan.from_json(json.loads(GOLDEN.read_text("utf-8"))["plan"], source="golden")
    cells = [replace(found.cells[0], name=f"cell-{n}", resources=asked) for n, asked in enumerate(resources)]
    return replace(found, cells=tuple(cells)) if cells else found


@pytest.mark.parametrize(
    ("numbers", "text"), [([1], "1"), ([1, 2, 3], "1-3"), ([2, 4, 5], "2,4-5"), ([1, 3, 5], "1,3,5")]
)
def test_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    """As sbatch takes them."""
    assert ranges(numbers) == text


def test_what_all_cells_agree_on_is_asked_for() -> None:
    """The largest memory, every cell's extra words, no time limit; what the user says comes first."""
    planned = plan(
        {"partition": "p", "gpus": 8, "mem": 500, "runtime": 7, "extra": "--nice=1"},
        {"partition": "p", "gpus": 8, "mem": 900, "extra": "--nice=1"},
    )
    found, problems = completed(Allocation(partition="q", sbatch_args=("--exclusive",)), planned)
    assert problems == []
    assert found.options() == ["--partition=q", "--gres=gpu:8", "--mem=900M", "--nice=1", "--exclusive"]


@pytest.mark.parametrize("other", [{"gpus": 2}, {}])
def test_cells_that_disagree_need_an_option(other: dict[str, Any]) -> None:
    """A share runs trials of both."""
    (problem,) = completed(Allocation(), plan({"gpus": 1}, other))[1]
    assert problem.startswith("resources.gpus: ") and problem.endswith("give --gpus")
    found, problems = completed(Allocation(gpus="4"), plan({"gpus": 1}, other))
    assert (found.options(), problems) == (["--gres=gpu:4"], [])


def test_all_that_cells_disagree_on_is_said() -> None:
    """SLURM is asked about any of the partitions and the first account meanwhile."""
    first = {"gpus": 1, "partition": "p", "account": "a", "constraint": "x"}
    found, problems = completed(Allocation(), plan(first, {"partition": "q", "account": "b"}))
    assert [problem.partition(":")[0] for problem in problems] == [
        *("resources.partition", "resources.account", "resources.gpus", "resources.constraint")
    ]
    assert found.options() == ["--partition=p,q", "--account=a"]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "time",
            ["90", "90:00", "2:00:00", "1-12", "1-12:30", "1-12:00:00", "UNLIMITED"],
            ["2h", "", "-5", "1.5", "1:2:3:4", "1-", " 5", "1-1:1:1:1", "\u0665", "5\n"],
        ),
        ("mem", ["0", "64000", "500M", "64g", "64GB", "2T"], ["64 G", "1.5G", "lots", "-1", "", "64GiB", "1e3"]),
        ("gpus", ["0", "8", "mi300:8"], ["-1", "1.5", "mi300", "mi300:0", "gpu:mi300:8", "all", "", "8,8", "mi300:x"]),
        ("partition", ["p", "p,q"], ["", "p q", "'p'"]),
        ("account", ["a"], ["", "a b"]),
        ("constraint", ["ib&nvme", "[a|b]"], ["", "a b", '"a"']),
    ],
)
def test_forms_that_no_cluster_takes_are_refused(name: str, good: list[str], bad: list[str]) -> None:
    """Without asking SLURM, and with what would be right."""
    assert [value for value in good if Allocation(**{name: value}).problems()] == []
    for value in bad:
        ((line,),) = Allocation(**{name: value}).problems().values()
        assert line.startswith(f"--{name}: must be ") and line.endswith(f", not {value!r}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nice=5", "-w", "n1", "--exclude", "n2"), []),
        (("exclusive",), ["must be an option, such as --nice=5, not 'exclusive'"]),
        (("--nice=5", "n1"), ["must be an option, such as --nice=5, not 'n1'"]),
        (
            ("--arr=1-9", "-N2", "--test"),
            ["aorta sets --array itself", "sets --nodes itself", "sets --test-only itself"],
        ),
        (("--help", "--vers", "-V", "--use-min-nodes"), ["submit nothing"] * 3),
    ],
)
def test_further_options_that_are_not_a_users_to_give(words: tuple[str, ...], said: list[str]) -> None:
    """Each is named, also where only its beginning is written."""
    lines = Allocation(sbatch_args=words).problems().get("sbatch_args", [])
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines, strict=True))


def test_no_gpu_can_be_asked_for() -> None:
    """0 is none, not a request for gpu:0."""
    assert Allocation(gpus="0").options() == []


def test_a_controller_without_its_nodes_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Just started, it refuses whatever is asked, which says nothing of the shares; what a ready one refuses does."""
    ready = tmp_path / "ready"
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        f"#!/bin/sh\n[ -e '{ready}' ] && case \"$*\" in *--mem=9T*) ;; *) exit 0 ;; esac\n"
        "echo sbatch: error: allocation failure: Requested node configuration is not available >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            ready.touch()

    def refusals(mem: str) -> list[str]:
        array = Array(tmp_path / "run", 3, Allocation(mem=mem), devices=None, folder=tmp_path)
        return array.refusals([1, 2, 3], pause=pause)

    assert refusals("1G") == []
    assert len(pauses) == 2 and capsys.readouterr().err.count("asked again") == 1
    (line,) = refusals("9T")
    assert "would not take --mem=9T" in line and len(pauses) == 2


def queue(*rows: str) -> Any:
    def run(command: Sequence[str]) -> str:
        return "".join(f"{row}\n" for row in rows)

    return run


def test_the_shares_of_a_run_are_found_by_name(tmp_path: Path) -> None:
    """Those of other runs, and a sweep's other jobs, are not its; the name also holds for the sweep's own look."""
    array = Array(tmp_path / "run", 3, Allocation(), devices=None, folder=tmp_path)
    (name,) = [word.partition("=")[2] for word in array.command([1, 3]) if word.startswith("--job-name=")]
    other = name.replace("aorta-", "aorta-0")
    rows = (f"7_3|PENDING|3|{name}", f"7_1|RUNNING|1|{name}", f"8_1|RUNNING|1|{other}", "9|RUNNING|N/A|x", "odd")
    assert queued_shares(tmp_path / "run", queue(*rows)) == [
        Task(job="7_1", state="RUNNING", number=1, count=3),
        Task(job="7_3", state="PENDING", number=3, count=3),
    ]
    assert queued_shares(tmp_path / "run", lambda command: None) is None
    assert live_jobs(tmp_path / "run", queue(f"7_1|RUNNING|{name}")) == {"7_1": "RUNNING"}


def test_two_arrays_of_a_run_have_two_names(tmp_path: Path) -> None:
    """So that the ends of the first say nothing of the second's trials."""
    array = Array(tmp_path, 3, Allocation(), devices=None, folder=tmp_path)
    assert array.command([1]) != array.command([1])


def test_devices_are_the_arrays_own(tmp_path: Path) -> None:
    """In the script, of which SLURM keeps a copy: a later array with another number changes no share that waits."""
    texts = [Array(tmp_path, 2, Allocation(), devices=n, folder=tmp_path).text().splitlines()[-1] for n in (None, 3)]
    assert texts[1] == f"{texts[0]} devices=3"


def test_a_percent_sign_in_the_folder_is_no_pattern(tmp_path: Path) -> None:
    """SLURM would put something in its place."""
    command = Array(tmp_path / "50%A", 3, Allocation(), devices=None, folder=tmp_path).command([1])
    (output,) = [word for word in command if word.startswith("--output=")]
    assert re.search(r"/50%%A/.aorta/shares/%A_%a\.out$", output)


def test_a_share_without_a_record_is_useful(tmp_path: Path) -> None:
    """Where nothing has run, every share lacks its part, and together they lack all."""
    planned = plan()
    missing = missing_by_share(planned, tmp_path, 2)
    assert list(missing) == [1, 2] and sum(missing.values()) == planned.trial_count
    assert abs(missing[1] - missing[2]) <= 1
