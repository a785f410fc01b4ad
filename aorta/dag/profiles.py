"""Snakemake profiles for a sweep: the project's own, and a site's on top of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import yaml

from aorta._resources import checkout, resource_path
from aorta.dag.settings import SettingsError

OWN = ("default", "slurm")
"""Names of the profiles that come with the project."""

_FILE_NAMES = ("config.v9+.yaml", "config.v8+.yaml", "config.yaml")
"""What Snakemake calls a profile's file, in the order in which it looks; versions may be others."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where a sweep's jobs run, and with which settings of Snakemake.

    Attributes:
        own: The profile of the project's that gives the settings.
        site: The folder of a profile whose settings come before those, or None.
        executor: Name of Snakemake's executor.
    """

    own: str = "default"
    site: Path | None = None
    executor: str = "local"

    @property
    def cluster(self) -> bool:
        """Whether jobs run elsewhere than on this host."""
        return self.executor != "local"

    def options(self) -> list[str]:
        """Returns Snakemake's options; of its two profiles, the workflow's wins key by key."""
        own = str(resource_path("profiles", self.own))
        if self.site is None:
            return ["--workflow-profile", own]
        return ["--workflow-profile", str(self.site.absolute()), "--profile", own]


def find_profile(given: str | None) -> Profile:
    """Returns the profile that a user asked for.

    Args:
        given: A name of :data:`OWN`, the folder of a profile, or None for the workstation's.

    Raises:
        SettingsError: There is no such profile, its file is no mapping, or its executor is not installed.
    """
    if given is None:
        return Profile()
    site = None if given in OWN else Path(given)
    if site is None:
        executor = "slurm" if given == "slurm" else "local"
    else:
        executor = str(_read(site).get("executor") or "local")
    module = f"snakemake_executor_plugin_{executor.replace('-', '_')}"
    if executor != "local" and importlib.util.find_spec(module) is None:
        remedy = _installation(module.replace("_", "-"), executor == "slurm")
        raise SettingsError([f"profile: {given} uses the executor {executor!r}, which is not installed; {remedy}"])
    # What a cluster needs of the workflow's own settings does not depend on who runs its jobs, but for the options
    # that begin with --slurm: they are unknown where that plugin is not the executor.
    return Profile(own="slurm" if executor == "slurm" else "default", site=site, executor=executor)


def _installation(package: str, is_own: bool) -> str:
    """Says how to install an executor; those that the project has chosen come with a version that it is tested with."""
    if not is_own:
        return f"pip install {package}"
    folder = checkout()
    return "pip install 'aorta[slurm]'" if folder is None else f"pip install -e '.[slurm]' in {folder}"


def _read(folder: Path) -> dict[str, object]:
    paths = [folder / name for name in _FILE_NAMES if (folder / name).is_file()]
    paths += sorted(folder.glob("config.v*.yaml"), reverse=True)
    if not paths:
        raise SettingsError([f"profile: {folder} is neither one of {', '.join(OWN)} nor a folder with a config.yaml"])
    try:
        content = yaml.safe_load(paths[0].read_text("utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError([f"profile: {paths[0]} cannot be read: {' '.join(str(error).split())}"]) from None
    if not isinstance(content, dict):
        raise SettingsError([f"profile: {paths[0]} must be a mapping of Snakemake's options to values"])
    return content
