"""Which profile a sweep runs with."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from aorta._resources import checkout, resource_path
from aorta.dag.profiles import find_profile
from aorta.dag.settings import SettingsError

OWN_KEYS = {"cores", "executor", "jobs", "local-cores", "default-resources", "latency-wait"}


def site(folder: Path, text: str) -> str:
    folder.joinpath("config.yaml").write_text(text)
    return str(folder)


def test_without_one_the_workstations_is_used() -> None:
    """Jobs run on this host."""
    profile = find_profile(None)
    assert not profile.cluster and profile.options() == [
        "--workflow-profile",
        str(resource_path("profiles", "default")),
    ]


def test_slurm_is_one_of_ours() -> None:
    """By its name."""
    profile = find_profile("slurm")
    assert profile.cluster and profile.options() == ["--workflow-profile", str(resource_path("profiles", "slurm"))]


@pytest.mark.parametrize(
    ("text", "own", "cluster"),
    [("executor: slurm\n", "slurm", True), ("jobs: 3\n", "default", False)],
)
def test_a_sites_own_comes_before_ours(tmp_path: Path, text: str, own: str, cluster: bool) -> None:
    """Of Snakemake's two profiles the workflow's wins, so the site's takes that place."""
    profile = find_profile(site(tmp_path, text))
    assert profile.cluster is cluster
    assert profile.options() == ["--workflow-profile", str(tmp_path), "--profile", str(resource_path("profiles", own))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- executor\n", "must be a mapping"),
        ("executor: [\n", "cannot be read"),
        (
            "executor: moonphase\n",
            "'moonphase', which is not installed; pip install snakemake-executor-plugin-moonphase",
        ),
    ],
)
def test_a_spoilt_profile_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """Before anything is made, with the remedy."""
    with pytest.raises(SettingsError, match=expected):
        find_profile(site(tmp_path, text))


@pytest.mark.parametrize(
    ("folder", "remedy"),
    [(Path("/src/aorta"), r"pip install -e '\.\[slurm\]' in /src/aorta$"), (None, r"pip install 'aorta\[slurm\]'$")],
)
def test_slurms_executor_is_installed_as_aorta_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path | None, remedy: str
) -> None:
    """From the checkout, or from the package; whoever asks for it."""
    monkeypatch.setattr("aorta.dag.profiles.checkout", lambda: folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for given in ("slurm", site(tmp_path, "executor: slurm\n")):
        with pytest.raises(SettingsError, match=f"'slurm', which is not installed; {remedy}"):
            find_profile(given)


def test_this_is_a_checkout() -> None:
    """Where the files that a wheel carries in the package lie beside it."""
    folder = checkout()
    assert folder is not None and (folder / "pyproject.toml").is_file()


def test_a_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    """Neither a name of ours nor a folder with a profile."""
    with pytest.raises(SettingsError, match="neither one of default, slurm nor a folder"):
        find_profile(str(tmp_path))


def test_slurms_profile_repeats_the_workstations() -> None:
    """It takes that one's place, so whatever holds for the workflow stands in both."""
    default, slurm = (
        yaml.safe_load(resource_path("profiles", name, "config.yaml").read_text("utf-8"))
        for name in ("default", "slurm")
    )
    shared = {name: value for name, value in slurm.items() if name not in OWN_KEYS and not name.startswith("slurm-")}
    assert shared == {name: value for name, value in default.items() if name not in OWN_KEYS}
