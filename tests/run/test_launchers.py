"""The launchers, behind their one interface."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aorta.run.launch import LAUNCH_VARIABLES, LAUNCHERS, LaunchError, Place, find_launcher, launched_world_size
from aorta.run.launch.slurm import expand_hosts, tasks_per_node

Environments = Callable[[int, int], list[dict[str, str]]]


def local(nodes: int, each: int) -> list[dict[str, str]]:
    """One supervisor starts everything."""
    return [{}]


def torchrun(nodes: int, each: int) -> list[dict[str, str]]:
    """What torchrun sets, rank by rank."""
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % each),
            "WORLD_SIZE": str(nodes * each),
            "LOCAL_WORLD_SIZE": str(each),
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500",
        }
        for rank in range(nodes * each)
    ]


def slurm(nodes: int, each: int) -> list[dict[str, str]]:
    """What srun sets, task by task."""
    return [
        {
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % each),
            "SLURM_NODEID": str(rank // each),
            "SLURM_NTASKS": str(nodes * each),
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{nodes})",
            "SLURM_STEP_NODELIST": f"node[0-{nodes - 1}]",
        }
        for rank in range(nodes * each)
    ]


CASES = [("local", local, 1, 3), ("torchrun", torchrun, 1, 2), ("torchrun", torchrun, 2, 2), ("slurm", slurm, 2, 3)]


def launch(nodes: int, each: int) -> dict[str, int]:
    return {"nnodes": nodes, "nproc_per_node": each}


def all_places(name: str, environments: Environments, nodes: int, each: int) -> list[Place]:
    launcher = find_launcher(name)
    return [place for env in environments(nodes, each) for place in launcher.places(launch(nodes, each), env)]


def test_every_launcher_is_tested() -> None:
    """A new launcher needs a case below."""
    assert {name for name, *_rest in CASES} == set(LAUNCHERS)


@pytest.mark.parametrize(("name", "environments", "nodes", "each"), CASES)
def test_every_rank_is_somebodys(name: str, environments: Environments, nodes: int, each: int) -> None:
    """The supervisors and agents of one launch start each rank exactly once, numbered host by host."""
    places = all_places(name, environments, nodes, each)
    found = [(p.rank, p.local_rank, p.world_size, p.local_world_size, p.node) for p in places]
    assert found == [(rank, rank % each, nodes * each, each, rank // each) for rank in range(nodes * each)]


@pytest.mark.parametrize(("name", "environments", "nodes", "each"), CASES)
def test_a_rank_is_told_everything(name: str, environments: Environments, nodes: int, each: int) -> None:
    """Each rank gets all launcher variables, with one rendezvous for all."""
    variables = all_places(name, environments, nodes, each)[-1].variables("node0", 23000)
    assert list(variables) == list(LAUNCH_VARIABLES)
    assert (variables["RANK"], variables["MASTER_ADDR"], variables["MASTER_PORT"]) == (
        str(nodes * each - 1),
        "node0",
        "23000",
    )


@pytest.mark.parametrize(("name", "environments", "nodes", "each"), CASES)
def test_the_address_is_rank_0s_host(name: str, environments: Environments, nodes: int, each: int) -> None:
    """Ranks on one host meet on the loopback, which needs no name service; others where the launcher says."""
    address = find_launcher(name).address(launch(nodes, each), environments(nodes, each)[0])
    assert address == ("127.0.0.1" if nodes == 1 else "node0")


@pytest.mark.parametrize(("name", "environments", "nodes", "each"), CASES[1:])
def test_another_world_than_planned_is_refused(name: str, environments: Environments, nodes: int, each: int) -> None:
    """A launcher that started another number of ranks than the trial was planned for names both."""
    with pytest.raises(LaunchError, match=rf"{nodes * each + each} ranks and \w+ started {nodes * each}"):
        find_launcher(name).places(launch(nodes + 1, each), environments(nodes, each)[0])


@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_a_missing_variable_is_named(name: str) -> None:
    """An environment that is not the launcher's says what it lacks."""
    with pytest.raises(LaunchError, match="is not set; it is set by"):
        find_launcher(name).places(launch(1, 2), {"SLURM_STEP_ID": "0"})


def test_the_local_launcher_starts_no_ranks_on_other_hosts() -> None:
    """A plan for two hosts is not run on one of them."""
    with pytest.raises(LaunchError, match="2 hosts"):
        find_launcher("local").places(launch(2, 1), {})


def test_an_unknown_launcher_is_refused() -> None:
    """The message names those there are."""
    with pytest.raises(LaunchError, match="local, torchrun, slurm"):
        find_launcher("mpirun")


def test_srun_starts_one_agent_a_rank() -> None:
    """The command asks for hosts, ranks on each, and block order, and ends with the agent's own command."""
    command = find_launcher("slurm").agent_command(launch(2, 4), ["python", "agent.py"])
    assert command is not None and command[0] == "srun" and command[-3:] == ["--", "python", "agent.py"]
    assert {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--distribution=block"} <= set(command)


def test_a_batch_script_itself_has_no_rank() -> None:
    """Inside the allocation but outside any step, nothing was started yet."""
    assert find_launcher("slurm").places(launch(1, 2), {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}) == []


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("n[9-10].site", ["n9.site", "n10.site"]),
        ("", []),
    ],
)
def test_node_lists(text: str, hosts: list[str]) -> None:
    """SLURM's host lists, with leading zeros, several brackets and suffixes."""
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["gpu[1-", "gpu[a-b]", "gpu[1-2"])
def test_a_spoilt_node_list_is_refused(text: str) -> None:
    """A list that is cut or holds no numbers is not guessed at."""
    with pytest.raises(LaunchError, match="node list"):
        expand_hosts(text)


def test_tasks_per_node() -> None:
    """SLURM's run-length list of tasks."""
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(LaunchError):
        tasks_per_node("two")


@pytest.mark.parametrize(("text", "size"), [(None, 1), ("", 1), ("2", 2), ("0", 1), ("-1", 1), ("x", 1)])
def test_a_world_size_that_is_none_counts_as_no_launcher(text: str | None, size: int) -> None:
    """WORLD_SIZE may be anything in a user's shell."""
    assert launched_world_size(text) == size


def test_numbers_that_contradict_each_other_are_refused() -> None:
    """A rank outside its world is a launcher's mistake."""
    with pytest.raises(LaunchError, match="rank 2 of 2"):
        Place(2, 2, 0, 1, 0)
