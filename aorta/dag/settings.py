"""The workflow's settings. Light: a cluster job that re-parses the Snakefile reads this without any validation."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class SettingsError(Exception):
    """Settings that cannot be used.

    Attributes:
        problems: One line each, ``key: what is wrong; what would be right``.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Valid settings; ``config/README.md`` explains each."""

    recipe: str
    output: Path = Path("triage_results")
    run_dir: Path | None = None
    fresh: bool = False
    refresh: bool = False
    strict: bool = False
    trial_timeout: float = 86400
    devices: int | None = None
    order_seed: int = 0


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Validates the workflow's configuration.

    Args:
        config: Snakemake's merged ``config``.

    Raises:
        SettingsError: A key is unknown or a value is of the wrong kind; names every fault.
    """
    from jsonschema import Draft202012Validator

    from aorta._resources import load_schema

    schema = load_schema("config")
    known = list(schema["properties"])
    problems = [f"{key}: unknown setting{_nearest(str(key), known)}" for key in config if key not in known]
    for error in Draft202012Validator(schema).iter_errors({key: config[key] for key in config if key in known}):
        key = str(error.path[0])
        expected = schema["properties"][key]["description"]
        problems.append(f"{key}: {error.instance!r} cannot be used. {expected}")
    if not problems and config.get("recipe") is None:
        problems.append("recipe: not given; for example: snakemake --config recipe=recipes/smoke/gpu-smoke.yaml")
    if problems:
        raise SettingsError(sorted(problems))
    devices = config.get("devices", "auto")
    run_dir = config.get("run_dir")
    return Settings(
        recipe=config["recipe"],
        output=Path(config.get("output", "triage_results")),
        run_dir=None if run_dir is None else Path(run_dir),
        fresh=config.get("fresh", False),
        refresh=config.get("refresh", False),
        strict=config.get("strict", False),
        trial_timeout=config.get("trial_timeout", 86400),
        devices=None if devices == "auto" else devices,
        order_seed=config.get("order_seed", 0),
    )


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known settings: {', '.join(known)}"
