"""The loopback SLURM that the other tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.run.launch import NoAnswer
from aorta.run.slurmjob import find_job
from tests.e2e.conftest import Workspace
from tests.slurm.conftest import Cluster, wait_until

pytestmark = pytest.mark.slurm


def test_steps_run_on_the_virtual_nodes(cluster: Cluster) -> None:
    """Two tasks run on two nodes, each with the GPUs that it asked for."""
    command = "echo $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    said = cluster.call("srun", "--nodes=2", "--ntasks=2", "--gres=gpu:2", "--time=1", "bash", "-c", command)
    lines = sorted(line.split() for line in said.splitlines())
    assert [line[1:] for line in lines] in ([["0", "0,1"], ["1", "0,1"]], [["1", "0,1"], ["0", "0,1"]])
    assert len({line[0] for line in lines}) == 2


def test_a_job_outlives_its_controller(cluster: Cluster, tmp_path: Path) -> None:
    """A restart of slurmctld loses no running job."""
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; touch {tmp_path}/done"
    job = cluster.call("sbatch", "--parsable", "--time=2", "-o", "/dev/null", "--wrap", script)
    wait_until(lambda: cluster.call("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING", "the job to run")
    cluster.restart_controller()
    wait_until(lambda: cluster.call("squeue", "-h", "-j", job, "-o", "%T", check=False) == "RUNNING", "the controller")
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists, "the job's end")


def test_a_controller_that_is_down_is_told_from_one_that_does_not_know_a_job(
    alone: Workspace, cluster: Cluster
) -> None:
    """Of the same job, which never was: nothing is known while nobody answers."""
    assert find_job("999999").end_text() == "SLURM no longer knows it"
    cluster.kill_controller()
    try:
        with pytest.raises(NoAnswer):
            find_job("999999")
    finally:
        cluster.start_controller()
    assert find_job("999999").end_text() == "SLURM no longer knows it"
