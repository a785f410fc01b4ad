"""What a registry holds: mitigations (bundles of environment variables) and environments (where a trial runs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mitigation:
    """A named bundle of environment variables.

    Attributes:
        name: The registered name, as recipes write it.
        env: Variable names to values; empty for the explicit baseline ``none``.
        source_package: The distribution or file that the mitigation came from.
    """

    name: str
    env: Mapping[str, str]
    source_package: str


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a trial runs. A workload acts on the fields it knows; the engine itself starts no container.

    Attributes:
        name: The registered name, or ``_inline_<hash>`` for an image named in the recipe itself.
        docker: Image reference, or None.
        venv: Path of a virtual environment, or None.
        buck_target: Buck target, or None.
        emulator: Name of a GPU emulator, or None.
        mirage_profile: Profile of the mirage emulator, or None.
        env: Baseline environment variables: the lowest layer of a cell's overlay.
        source_package: The distribution or file that the environment came from.
    """

    name: str
    docker: str | None = None
    venv: str | None = None
    buck_target: str | None = None
    emulator: str | None = None
    mirage_profile: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    source_package: str = "recipe"

    @property
    def isolated(self) -> bool:
        """Whether the trial would run in another Python than the engine's (a container or a virtual environment)."""
        return self.docker is not None or self.venv is not None

    def descriptor(self) -> dict[str, Any]:
        """Returns the environment as a JSON object."""
        return {
            "name": self.name,
            "docker": self.docker,
            "venv": self.venv,
            "buck_target": self.buck_target,
            "emulator": self.emulator,
            "mirage_profile": self.mirage_profile,
            "env": dict(self.env),
            "source_package": self.source_package,
        }
