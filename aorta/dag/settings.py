"""The workflow's settings. Light: a cluster job that re-parses the Snakefile reads this without any validation."""

from __future__ import annotations

import difflib
import math
import shlex
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
    nodes: int = 1
    nproc_per_node: int = 1
    rank_logs: bool = False
    mitigations_files: tuple[Path, ...] = ()
    collect: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Validates the workflow's configuration.

    Args:
        config: Snakemake's merged ``config``.

    Raises:
        SettingsError: A key is unknown or a value is of the wrong kind; names every fault.
    """
    from jsonschema import Draft202012Validator

    from aorta._resources import load_schema
    from aorta.registry.names import short

    schema = load_schema("config")
    known: dict[str, dict[str, Any]] = schema["properties"]
    problems = [f"{key}: unknown setting{_nearest(str(key), list(known))}" for key in config if key not in known]
    config = {key: _read(value, known[key]) for key, value in config.items() if key in known}
    for error in Draft202012Validator(schema).iter_errors(config):
        key = str(error.path[0])
        # Whatever it is instead of NUMBER/COUNT, it is told the same way.
        if key != "shard":
            found = "empty" if error.instance is None else short(error.instance)
            problems.append(f"{key}: must be {_expected(known[key])}, not {found}. {known[key]['description']}")
    problems += [f"{key}: {value!r} is not UTF-8 text" for key, value in config.items() if not _is_text(value)]
    if isinstance(config.get("trial_timeout"), float) and not math.isfinite(config["trial_timeout"]):
        # NaN passes every bound.
        problems.append(f"trial_timeout: must be a finite number of seconds, not {config['trial_timeout']}")
    words, problem = _command(config.get("command"))
    problems += [problem] if problem and not problems else []
    shard, problem = _shard(config)
    problems += [problem] if problem else []
    if not problems and config.get("recipe") is None and shard is None:
        problems.append("recipe: not given; for example: snakemake --config recipe=recipes/smoke/gpu-smoke.yaml")
    if problems:
        raise SettingsError(sorted(problems))
    devices = config.get("devices", "auto")
    run_dir = config.get("run_dir")
    return Settings(
        # A share runs the plan that is in its run directory.
        recipe=config.get("recipe") or "",
        output=Path(config.get("output", "triage_results")),
        run_dir=None if run_dir is None else Path(run_dir),
        fresh=config.get("fresh", False),
        refresh=config.get("refresh", False),
        strict=config.get("strict", False),
        trial_timeout=config.get("trial_timeout", 86400),
        devices=None if devices == "auto" else devices,
        order_seed=config.get("order_seed", 0),
        nodes=config.get("nodes", 1),
        nproc_per_node=config.get("nproc_per_node", 1),
        rank_logs=config.get("rank_logs", False),
        mitigations_files=tuple(Path(path) for path in _listed(config.get("mitigations_file"))),
        collect=None if config.get("collect") is None else tuple(_names(config["collect"])),
        command=words,
        shard=shard,
    )


def _shard(config: Mapping[str, Any]) -> tuple[tuple[int, int] | None, str]:
    """Returns which share of how many the settings ask for, and what is wrong with that."""
    value = config.get("shard")
    if value is None:
        return None, ""
    words = str(value).split("/")
    number, count = (
        int(word) if word.isascii() and word.isdigit() and len(word) < 7 else 0 for word in (*words, "")[:2]
    )
    if len(words) != 2 or not 1 <= number <= count:
        return None, f"shard: must be NUMBER/COUNT with 1 <= NUMBER <= COUNT, such as 2/3, not {value!r}"
    if config.get("run_dir") is None:
        return None, "shard: needs run_dir, the planned run directory whose trials are shared out (docs/shards.md)"
    for name in ("fresh", "refresh"):
        if config.get(name):
            return None, f"{name}: contradicts shard, which runs the plan that is in the run directory"
    return (number, count), ""


def _command(value: Any) -> tuple[tuple[str, ...], str]:
    """Returns a command's words and what is wrong with it; a string is split as a shell would."""
    try:
        words = shlex.split(value) if isinstance(value, str) else list(value or ())
    except (ValueError, TypeError) as error:
        # Snakemake takes quotes off both ends of a value, so that the last word's would be missing.
        return (), f"""command: {value!r} cannot be read: {error}; give a list: command='["bash", "-c", "a; b"]'"""
    if value is not None and not (words and words[0]):
        return (), f"command: {value!r} names no program; give it and its arguments"
    if any("\0" in str(word) for word in words):
        return (), "command: holds a NUL character, which no program can be given"
    if not all(map(_is_text, words)):
        return (), f"command: {value!r} is not UTF-8 text; put what is not into a script"
    return tuple(words), ""


def _is_text(value: Any) -> bool:
    """Whether a value can be written down; a path of undecodable bytes cannot."""
    try:
        str(value).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _listed(value: str | list[str] | None) -> list[str]:
    """One path, or several."""
    return [value] if isinstance(value, str) else value or []


def _names(value: str | list[str]) -> list[str]:
    """Names as a list, or as one string with commas; an empty string names nothing."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _read(value: Any, schema: Mapping[str, Any]) -> Any:
    """Reads the spellings of yes and no that Snakemake's command line leaves as strings or numbers."""
    if schema.get("type") == "boolean" and not isinstance(value, bool):
        return _SPELLINGS.get(str(value).lower(), value)
    if isinstance(value, float) and value.is_integer() and "integer" in (schema.get("type"), *_kinds(schema)):
        # A schema counts 2.0 as a whole number.
        return int(value)
    return value


def _kinds(schema: Mapping[str, Any]) -> list[Any]:
    return [part.get("type") for part in schema.get("anyOf", [])]


_SPELLINGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _expected(schema: Mapping[str, Any]) -> str:
    """Says in words what a setting may be."""
    if "anyOf" in schema:
        return " or ".join(repr(part["const"]) if "const" in part else _expected(part) for part in schema["anyOf"])
    kinds = {
        "boolean": "true or false",
        "string": "a non-empty string",
        "integer": "a whole number",
        "number": "a number",
        "array": "a list of strings",
        "null": "null",
    }
    kind = schema["type"]
    text = kinds[kind if isinstance(kind, str) else kind[0]]
    if "minimum" in schema:
        text += f" from {schema['minimum']} to {schema['maximum']}"
    return text


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known settings: {', '.join(known)}"
