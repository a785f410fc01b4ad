"""What becomes of a trial whose job SLURM ends, and of jobs whose sweep is ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chaos import parent_of
from tests.e2e.conftest import Workspace
from tests.slurm.conftest import Cluster, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.e2e]

TWO_NODES = ("--nodes", "2", "--nproc-per-node", "1")
SMALL = {"runtime": 5, "mem": "1G"}


class Sweep:
    """A sweep of the workload ``known`` that runs in the background; its trials wait for a file each cell names."""

    def __init__(
        self,
        workspace: Workspace,
        cluster: Cluster,
        cells: list[dict[str, Any]],
        *,
        site: str = "",
        workload: str = "known",
        words: Sequence[str] = (),
        **fields: Any,
    ) -> None:
        self.workload = workload
        self.words = words
        self.workspace = workspace
        self.cluster = cluster
        self.folder = workspace.folder
        for cell in cells:
            cell["workload_config"] = {
                "gate": str(self.folder / f"open-{cell['name']}"),
                **cell.get("workload_config", {}),
            }
        self.recipe = workspace.recipe(cells, workload=workload, **{"resources": SMALL, **fields})
        profile = self.folder / "site"
        profile.mkdir()
        profile.joinpath("config.yaml").write_text(
            f"executor: slurm\nslurm-init-seconds-before-status-checks: 1\n{site}"
        )
        self.environment = {**workspace.environment, "KNOWN_LOG": str(self.folder / "runs.log")}

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """Starts it in a session of its own; what it says goes to a file."""
        command = [sys.executable, "-c", "from aorta.cli import main; main()", "sweep", "run", "--profile", "site"]
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen(
                [*command, "--recipe", self.recipe, "--run-dir", "run", *self.words],
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def open(self, cell: str) -> None:
        """Lets a cell's trials end."""
        (self.folder / f"open-{cell}").touch()

    def job_of(self, cell: str, time: int = 1) -> str:
        """Waits until trial 0 of a cell is at work for the given time, and returns its job."""
        wait_until(lambda: [run["cell"] for run in self.runs()].count(cell) == time, f"a trial of {cell} to start")
        comment = f"rule_trial_wildcards_{cell}_0"
        jobs = self.cluster.jobs(self.folder, "RUNNING")
        return next(number for number, job in jobs.items() if job["comment"] == comment)

    def runs(self) -> list[dict[str, Any]]:
        """Every start of a trial's work so far."""
        log = self.folder / "runs.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def record(self, cell: str, trial: int = 0) -> dict[str, Any]:
        """A trial's record."""
        path = self.folder / "run" / "cells" / cell / self.workload / f"trial_d0_m0_t{trial}.json"
        return dict(json.loads(path.read_text("utf-8")))

    def said(self) -> str:
        """What the sweep has said."""
        return (self.folder / "said").read_text("utf-8", "replace")

    def failures(self) -> list[str]:
        """The lines about failed jobs; nothing else is said of them, and Snakemake's log has it all."""
        said = self.said()
        assert not [word for word in ("Error in rule", "Traceback", "sbatch --", "WorkflowError") if word in said], said
        (log,) = self.folder.glob(".snakemake/log/*.log")
        assert "Error in rule trial:" in log.read_text("utf-8") and f"more in Snakemake's log: {log}" in said
        return sorted(line for line in said.splitlines() if line.startswith("aorta: trial "))

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for its proper end."""
        assert process.wait(240) == 0, self.said()
        assert json.loads((self.folder / "run" / "matrix.json").read_text("utf-8"))["complete"] is True


def test_a_cancelled_job_is_an_error_with_its_reason(workspace: Workspace, cluster: Cluster) -> None:
    """Without retries it is the trial's record; with one, the trial runs again and the record keeps the first try.

    So does one whose job SLURM starts again itself, at a site that lets it.
    """
    cells = [{"name": "once"}, {"name": "again", "retry_errors": 1}, {"name": "requeued", "retry_errors": 1}]
    sweep = Sweep(workspace, cluster, cells, site="slurm-no-requeue: false\n", confound={"baseline_cell": "once"})
    with sweep.started() as process:
        lost = {cell: sweep.job_of(cell) for cell in ("once", "again", "requeued")}
        cluster.call("scancel", lost["once"], lost["again"])
        cluster.call("scontrol", "requeue", lost["requeued"])

        def stopped() -> bool:
            jobs = cluster.jobs(sweep.folder)
            return lost["again"] not in jobs and jobs[lost["requeued"]]["state"] == "PENDING"

        # Until then a trial may pass.
        wait_until(stopped, "the jobs to end")
        # SLURM lets a requeued job wait for two minutes.
        cluster.call("scontrol", "update", f"JobId={lost['requeued']}", "StartTime=now")
        sweep.open("again")
        sweep.open("requeued")
        sweep.finish(process)
    requeued = sweep.record("requeued")
    (first,) = requeued["attempts"]
    assert "ended before the trial did: REQUEUED: SLURM requeued it (restart 1)" in first["error"]["message"]
    assert (first["slurm"]["job"], requeued["slurm"]["job"]) == (lost["requeued"], lost["requeued"])
    assert (requeued["verdict"], requeued["attempt"], requeued["slurm"]["restarts"]) == ("pass", 2, 1)
    assert first["started_at"] < first["ended_at"] < requeued["started_at"]
    once, again = sweep.record("once"), sweep.record("again")
    nodes = {"once": once["slurm"]["nodes"][0], "again": again["attempts"][0]["slurm"]["nodes"][0]}
    assert sweep.failures() == [
        f"aorta: trial 0 of cell {cell}: its job {lost[cell]} on {nodes[cell]} ended early: CANCELLED: it was "
        f"cancelled (scancel); its log: .snakemake/slurm_logs/rule_trial/{cell}_0/{lost[cell]}.log"
        for cell in ("again", "once")
    ]
    assert (once["verdict"], once["exit_status"], once["attempt"]) == ("error", "infrastructure_failed", 1)
    assert (once["error"]["type"], once["slurm"]["job"]) == ("slurm", lost["once"])
    assert f"job {lost['once']} on {once['slurm']['nodes'][0]} ended" in once["error"]["message"]
    assert "CANCELLED" in once["error"]["message"]
    # Until the job ended, by SLURM's word, which is in whole seconds.
    shown = cluster.call("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "job", "--oneliner", lost["once"])
    began, ended = (datetime.fromisoformat(once[name]).timestamp() for name in ("started_at", "ended_at"))
    assert ended == max(began, float(shown.partition(" EndTime=")[2].split()[0]))
    assert once["wall_clock_sec"] == pytest.approx(ended - began, abs=1e-3)
    assert (again["verdict"], again["attempt"]) == ("pass", 2)
    (first,) = again["attempts"]
    assert (first["slurm"]["job"], first["exit_status"]) == (lost["again"], "infrastructure_failed")
    assert "CANCELLED" in first["error"]["message"] and again["slurm"]["job"] != lost["again"]
    assert [run["cell"] for run in sweep.runs() if run["cell"] == "once"] == ["once"]


def test_time_limits_and_preemption_are_told_apart(workspace: Workspace, cluster: Cluster) -> None:
    """Each end by SLURM's own word for it; no job tries again here, so the sweep itself asks at its end.

    But for the retries of errors: those have their jobs whatever the profile says, and the last is not forgotten.
    """
    low = {"partition": "low", "constraint": "f3", "gpus": 2}
    cells = [{"name": "baseline-slow"}, {"name": "preempted", "resources": low}, {"name": "twice", "retry_errors": 1}]
    sweep = Sweep(workspace, cluster, cells, site="retries: 0\n")
    with sweep.started() as process:
        slow, preempted = sweep.job_of("baseline-slow"), sweep.job_of("preempted")
        # A limit has whole minutes; the moment when it is reached can be given.
        cluster.call("scontrol", "update", f"JobId={slow}", "EndTime=now+1")
        options = ("--partition=main", "--nodelist=n3", "--gres=gpu:2", "--time=1", "--output=/dev/null")
        cancelled = [sweep.job_of("twice")]
        cluster.call("scancel", *cancelled)
        winner = cluster.call("sbatch", "--parsable", *options, f"--chdir={sweep.folder}", "--wrap=true")
        cancelled.append(sweep.job_of("twice", 2))
        cluster.call("scancel", cancelled[1])
        sweep.finish(process)
    assert (sweep.record("baseline-slow")["slurm"]["job"], sweep.record("preempted")["slurm"]["job"]) == (
        slow,
        preempted,
    )
    assert "TIMEOUT: its time limit of" in sweep.record("baseline-slow")["error"]["message"]
    assert "PREEMPTED: another job took its place" in sweep.record("preempted")["error"]["message"]
    assert sweep.record("preempted")["slurm"]["nodes"] == ["n3"]
    twice = sweep.record("twice")
    assert [entry["slurm"]["job"] for entry in (*twice["attempts"], twice)] == cancelled
    assert (twice["verdict"], twice["attempt"]) == ("error", 2) and "CANCELLED" in twice["error"]["message"]
    first, second, *_ = sweep.failures()
    assert f"baseline-slow: its job {slow} on n" in first and "TIMEOUT: its time limit of" in first
    assert f"preempted: its job {preempted} on n3 ended early: PREEMPTED: another job took its place" in second
    assert cluster.call("squeue", "-h", "--states=all", "-j", winner, "-o", "%T") == "COMPLETED"


def test_a_killed_agent_is_an_error_of_its_rank(workspace: Workspace, cluster: Cluster) -> None:
    """The job goes on: its supervisor says at once which rank was lost, and the job ends well."""
    workspace.folder.joinpath("ranks").mkdir()
    config = {"hang": str(workspace.folder / "ranks")}
    sweep = Sweep(workspace, cluster, [{"name": "a", "workload_config": config}], workload="ranked", words=TWO_NODES)
    with sweep.started() as process:
        wait_until(lambda: len(list((sweep.folder / "ranks").iterdir())) == 2, "both ranks to start")
        workers = [Path("/proc", path.name) for path in (sweep.folder / "ranks").iterdir()]
        (worker,) = [path for path in workers if b"\0RANK=1\0" in path.joinpath("environ").read_bytes()]
        agent = parent_of(int(worker.name))
        assert agent is not None
        os.kill(agent, signal.SIGKILL)
        sweep.finish(process)
    record = sweep.record("a")
    assert (record["verdict"], record["error"]["type"], record["error"]["rank"]) == ("error", "slurm", 1)
    assert "rank 1: its supervisor on host" in record["error"]["message"]
    assert (record["attempt"], len(record["slurm"]["nodes"])) == (1, 2)
    job = record["slurm"]["job"]
    wait_until(lambda: job not in cluster.jobs(sweep.folder), "the job to end")
    assert cluster.jobs(sweep.folder, "all")[job]["state"] == "COMPLETED"


def test_a_failed_node_is_named_and_stays_in_use(alone: Workspace, cluster: Cluster) -> None:
    """The node that went down is in the record, and later jobs may run there again: it is the finding.

    A job whose node is out of service waits for it, though SLURM's test says of it what it says of one that no node
    could ever run.
    """
    on_n2 = {"constraint": "f2"}
    sweep = Sweep(alone, cluster, [{"name": "a", "retry_errors": 1, "resources": on_n2}])
    cluster.call("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=repaired")
    with sweep.started() as process:
        wait_until(lambda: "PENDING" in str(cluster.jobs(sweep.folder)), "a job that waits")
        cluster.call("scontrol", "update", "NodeName=n2", "State=RESUME")
        lost = sweep.job_of("a")
        cluster.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=pulled")
        wait_until(lambda: lost not in cluster.jobs(sweep.folder), "the job to end")
        # It may have come back by itself already.
        cluster.call("scontrol", "update", "NodeName=n2", "State=RESUME", check=False)
        # Until SLURM has reached the node, the first try works on there, and could end well.
        sweep.job_of("a", 2)
        sweep.open("a")
        sweep.finish(process)
    record = sweep.record("a")
    (first,) = record["attempts"]
    assert (first["slurm"]["job"], first["slurm"]["nodes"]) == (lost, ["n2"])
    assert "NODE_FAIL: a node failed" in first["error"]["message"]
    assert (record["verdict"], record["slurm"]["nodes"]) == ("pass", ["n2"])
    (told,) = sweep.failures()
    assert f"trial 0 of cell a: its job {lost} on n2 ended early: NODE_FAIL: a node failed" in told


def test_jobs_that_slurm_would_not_take_are_refused_before_the_first(workspace: Workspace, cluster: Cluster) -> None:
    """Each by its place and with what SLURM says; nothing is left behind, and nothing has run."""
    wrong = {"partition": {"partition": "nowhere"}, "constraint": {"constraint": "zz"}, "gpus": {"gpus": 99}}
    cells = [{"name": "baseline-right"}, *({"name": name, "resources": asked} for name, asked in wrong.items())]
    sweep = Sweep(workspace, cluster, cells)
    # As after another test: what no node has is certain only while every node is there.
    wait_until(lambda: "*" not in cluster.call("sinfo", "-h", "-o", "%T"), "every node to answer")
    with sweep.started() as process:
        assert process.wait(240) == 2, sweep.said()
    why = "SLURM would not take such a job:"
    assert [line for line in sweep.said().splitlines() if "cells[" in line] == [
        f"cells[1].resources (partition: partition=nowhere runtime=5 mem=1000): {why} invalid partition specified: "
        "nowhere; allocation failure: Invalid partition name specified; there is main, urgent, low, closing",
        f"cells[2].resources (constraint: runtime=5 mem=1000 constraint=zz): {why} allocation failure: Invalid feature "
        "specification",
        f"cells[3].resources (gpus: gpus=99 runtime=5 mem=1000): {why} allocation failure: Requested node "
        "configuration is not available",
    ]
    assert "Traceback" not in sweep.said()
    assert not (sweep.folder / "run").exists() and not cluster.jobs(sweep.folder, "all")


def test_a_job_that_slurm_refuses_later_is_told_in_a_line(workspace: Workspace, cluster: Cluster) -> None:
    """As when its partition has been closed meanwhile; once, although it is tried again."""
    sweep = Sweep(workspace, cluster, [{"name": "a", "retry_errors": 2, "resources": {"partition": "closing"}}])
    try:
        with sweep.started() as process:
            lost = sweep.job_of("a")
            cluster.call("scontrol", "update", "PartitionName=closing", "State=INACTIVE")
            cluster.call("scancel", lost)
            assert process.wait(240) == 1, sweep.said()
    finally:
        cluster.call("scontrol", "update", "PartitionName=closing", "State=UP")
    refused, cancelled = sweep.failures()
    assert f"its job {lost} on " in cancelled
    assert refused == (
        "aorta: trial 0 of cell a: SLURM would not take its job: Batch job submission failed: Required partition not "
        "available (inactive or drain)"
    )
    assert "a: 1 missing of 1 trial" in sweep.said()


def test_jobs_of_a_killed_sweep_are_waited_for(workspace: Workspace, cluster: Cluster) -> None:
    """The next start runs no trial beside its orphan, nor again once that has recorded it.

    One whose orphan is cancelled meanwhile runs again, is told so, and counts no lost attempt.
    """
    sweep = Sweep(workspace, cluster, [{"name": "a"}, {"name": "b"}], confound={"baseline_cell": "a"})
    with sweep.started() as process:
        orphan, cancelled = sweep.job_of("a"), sweep.job_of("b")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert {orphan, cancelled} <= set(cluster.jobs(sweep.folder))
    with sweep.started() as process:
        wait_until(lambda: "of an earlier start to end" in sweep.said(), "the sweep to find its orphans")
        cluster.call("scancel", cancelled)
        wait_until(lambda: cancelled not in cluster.jobs(sweep.folder), "the job to end")
        sweep.open("a")
        sweep.open("b")
        sweep.finish(process)
    assert sweep.record("a")["slurm"]["job"] == orphan
    assert f"b trial 0: job {cancelled} of an earlier start was cancelled; the trial runs again" in sweep.said()
    assert (sweep.record("b")["attempt"], sweep.record("b")["attempts"]) == (1, [])
    assert sorted(run["cell"] for run in sweep.runs()) == ["a", "b", "b"]


def test_an_interrupt_leaves_no_job_and_counts_for_no_error(workspace: Workspace, cluster: Cluster) -> None:
    """Ctrl-C cancels what runs; those trials then run again as if nothing had been.

    A second start on the same run directory is refused before, and its end cancels nothing of the first one's.
    """
    sweep = Sweep(workspace, cluster, [{"name": "a"}])
    with sweep.started() as process:
        first = sweep.job_of("a")
        with sweep.started() as second:
            assert second.wait(120) == 2, sweep.said()
        assert cluster.jobs(sweep.folder)[first]["state"] == "RUNNING"
        # The whole group, as a terminal does, and the sweep passes it on: Snakemake gets it twice.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 1, sweep.said()
    assert "Traceback" not in sweep.said()
    assert "interrupted: stopping; finished trials are kept, and the same command continues" in sweep.said()
    wait_until(lambda: not cluster.jobs(sweep.folder), "every job to end", 60)
    assert not list(Path(sweep.folder, "run").glob("cells/a/known/trial_*.json"))
    sweep.open("a")
    with sweep.started() as process:
        sweep.finish(process)
    assert f"jobs ended before their trials did: a trial 0 (job {first});" in sweep.said()
    record = sweep.record("a")
    assert (record["verdict"], record["attempt"], record["attempts"]) == ("pass", 1, [])
    assert record["slurm"]["job"] != first


def test_a_job_that_a_crashed_controller_has_forgotten_runs_again(alone: Workspace, cluster: Cluster) -> None:
    """SLURM ends it when its node reports it; it counts as a lost attempt, and the sweep neither hangs nor doubles."""
    sweep = Sweep(alone, cluster, [{"name": "a", "retry_errors": 1}], site="latency-wait: 5\n")
    with contextlib.ExitStack() as stack:
        with cluster.crashing_controller():
            process = stack.enter_context(sweep.started())
            lost = sweep.job_of("a")
        wait_until(lambda: len(sweep.runs()) == 2 or process.poll() is not None, "the trial to run again", 180)
        sweep.open("a")
        sweep.finish(process)
    record = sweep.record("a")
    (first,) = record["attempts"]
    assert (first["slurm"]["job"], record["attempt"], record["verdict"]) == (lost, 2, "pass")
    assert first["error"]["message"].endswith("before the trial did: SLURM no longer knows it")
    assert not any(run["raced"] or run["recorded"] for run in sweep.runs())
