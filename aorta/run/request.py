"""One trial's request: the command line, the cell's frozen file, and what the worker is given of both.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import os
import re

from aorta._jsonio import read_json
from aorta.run.launch import LAUNCH_VARIABLES, LAUNCHERS, world_size
from aorta.run.needed import is_rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

OVERLAY_KEYS_VARIABLE = "AORTA_OVERLAY_KEYS"
"""Names of what a trial put on, separated by commas, so that a trial inside it can take it off again."""

_ORDINARY_NAME = re.compile(r"[A-Za-z0-9_\-~ @+,=#][A-Za-z0-9_.\-~ @+,=#]{0,199}")
_CELL_KEYS: dict[str, type | tuple[type, ...]] = {
    "cell": str,
    "workload": str,
    "workload_ref": (str, type(None)),
    "steps": int,
    "environment": dict,
    "env": dict,
    "workload_config": dict,
    "collect": dict,
    "isolation": str,
    "launch": dict,
    "save_logs": bool,
    "trial_timeout_sec": (int, float, type(None)),
    "fingerprint": str,
}


class RequestError(Exception):
    """The command line, or the cell's file, asks for something that cannot be a trial."""


class Arguments:
    """The supervisor's command line.

    Attributes:
        run_dir: The run directory, absolute.
        cell: Name of the cell.
        cell_dir: Folder of the cell's files, absolute; by default ``cells/<cell>`` of the run directory.
        trial: Number of the trial within its cell, from 0.
        fingerprint: What the cell's file must carry.
        order: Place of this trial in the run, from 1, or None.
        of: Number of trials in the run, or None.
        attempt: Which try of this trial it is, from 1.
        devices: Trials that may run side by side on a host without accelerators.
        device_lock: Whether to lock what the trial runs on.
        settle: Whether only to record what the end of a job has taken along, and to run nothing.
        argv: The command line itself, for the agents of the trial.
        launcher: Who starts the ranks of a distributed trial.
        sweep: Name of the jobs of the sweep that settles, however those ended, or None.
        join: Address of the supervisor that this one joins as an agent, as ``host:port``, or None.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Reads the command line by hand: argparse costs more than everything else here.

        Raises:
            RequestError: An option is unknown, missing, or has a value that makes no sense.
        """
        values: dict[str, str] = {}
        self.argv = list(argv)
        self.device_lock = True
        self.settle = False
        rest = list(argv)
        while rest:
            name, equals, value = rest.pop(0).partition("=")
            if name == "--no-device-lock" and not equals:
                self.device_lock = False
                continue
            if name == "--settle" and not equals:
                self.settle = True
                continue
            if name not in _OPTIONS:
                known = ", ".join((*_OPTIONS, "--no-device-lock", "--settle"))
                raise RequestError(f"unknown option '{name}'; known are: {known}")
            if not equals and not rest:
                raise RequestError(f"{name}: a value is missing")
            values[name] = value if equals else rest.pop(0)
        for name in ("--run-dir", "--cell", "--trial", "--fingerprint"):
            if not values.get(name):
                raise RequestError(f"{name} is required")
        self.run_dir = os.path.abspath(values["--run-dir"])
        self.cell = values["--cell"]
        if "/" in self.cell or self.cell in (".", ".."):
            raise RequestError(f"--cell: '{self.cell}' is not the name of a cell")
        self.cell_dir = os.path.abspath(values.get("--cell-dir") or os.path.join(self.run_dir, "cells", self.cell))
        self.fingerprint = values["--fingerprint"]
        self.trial = _whole("--trial", values["--trial"], 0)
        self.order = _whole("--order", values["--order"], 0) if "--order" in values else None
        self.of = _whole("--of", values["--of"], 0) if "--of" in values else None
        self.attempt = _whole("--attempt", values.get("--attempt", "1"), 1)
        self.devices = _whole("--devices", values.get("--devices", "1"), 1)
        self.launcher = values.get("--launcher", "local")
        if self.launcher not in LAUNCHERS:
            raise RequestError(f"--launcher: '{self.launcher}' is not one of {', '.join(LAUNCHERS)}")
        self.join = values.get("--join")
        self.sweep = values.get("--sweep")


_OPTIONS = (
    *("--run-dir", "--cell", "--cell-dir", "--trial", "--fingerprint"),
    *("--order", "--of", "--attempt", "--devices", "--launcher", "--join", "--sweep"),
)


def _whole(name: str, value: str, least: int) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise RequestError(f"{name}: '{value}' is not a whole number from {least}")
    return int(value)


def read_cell(arguments: Arguments) -> dict[str, Any]:
    """Returns the cell's frozen request.

    Raises:
        RequestError: The file is missing or spoilt, or it is not the one that this trial was planned with.
    """
    path = os.path.join(arguments.cell_dir, "cell.json")
    try:
        cell = read_json(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}; run the same sweep again to plan it") from error
    except ValueError as error:
        raise RequestError(f"{path}: {error}; remove it and run the same sweep again to plan it") from error
    problem = _problem(cell)
    if problem:
        raise RequestError(f"{path}: {problem}; remove it and run the same sweep again to plan it")
    if cell["fingerprint"] != arguments.fingerprint:
        raise RequestError(
            f"{path}: the cell has the fingerprint {cell['fingerprint']}, this trial was asked for with "
            f"{arguments.fingerprint}; the plan has changed since: run the sweep again so that it plans anew"
        )
    return dict(cell)


def _problem(cell: Any) -> str | None:
    """Says what makes a cell's request unusable, or returns None."""
    if not isinstance(cell, dict) or cell.get("schema_version") != 1:
        return "not a cell request of schema_version 1"
    for key, kind in _CELL_KEYS.items():
        if not isinstance(cell.get(key, ...), kind):
            return f"'{key}' is missing or has the wrong type"
    for key in ("nnodes", "nproc_per_node", "min_world_size"):
        if not isinstance(cell["launch"].get(key), int):
            return f"launch.{key} is not an integer"
    if cell["launch"].get("mode") not in ("single_process", "distributed"):
        return "launch.mode is neither single_process nor distributed"
    if "probe" in cell and not _is_command(cell["probe"]):
        return "probe does not say which command to run, and how"
    if not isinstance(cell.get("retry_errors", 0), int):
        return "retry_errors is not a whole number"
    if cell.get("stop_after") is not None and not is_rule(cell["stop_after"]):
        return "stop_after has no events or no event_verdict"
    if not isinstance(cell["environment"].get("name"), str):
        return "environment.name is missing"
    if not all(isinstance(options, dict) for options in cell["collect"].values()):
        return "collect does not map each collector to its options"
    for name, entry in cell["env"].items():
        if not isinstance(entry, dict) or not isinstance(entry.get("value"), str):
            return f"env.{name} has no string value"
        if not name or "=" in name or "\0" in name or "\0" in entry["value"]:
            return f"env.{name!r} cannot be an environment variable"
    if cell["isolation"] not in ("process", "in_process"):
        return f"isolation '{cell['isolation']}' is neither process nor in_process"
    return None


def _is_command(probe: Any) -> bool:
    """Tells whether a request's ``probe`` holds all that the run of a command needs."""
    return (
        isinstance(probe, dict)
        and bool(probe.get("argv"))
        and all(isinstance(word, str) for word in probe["argv"])
        and isinstance(probe.get("cwd"), str)
        and probe.get("env_passthrough_mode") in ("inherit", "file")
        and isinstance(probe.get("collect_paths"), list)
        and isinstance(probe.get("settings"), dict)
        and isinstance(probe.get("redaction"), dict)
    )


def overlay_of(cell: Mapping[str, Any]) -> dict[str, str]:
    """Returns the cell's controlled environment variables."""
    return {name: entry["value"] for name, entry in cell["env"].items()}


def outer_env(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without what an enclosing trial put on, so that no cell inherits another's overlay."""
    names = {name for name in env.get(OVERLAY_KEYS_VARIABLE, "").split(",") if name}
    return {name: value for name, value in env.items() if name not in names | {OVERLAY_KEYS_VARIABLE}}


def overlay_mark(overlay: Mapping[str, str], launched: bool) -> dict[str, str]:
    """Returns the variable that names what this trial puts on; ``launched`` adds the launcher's."""
    return {OVERLAY_KEYS_VARIABLE: ",".join([*overlay, *(LAUNCH_VARIABLES if launched else ())])}


def workload_folder(workload: str) -> str:
    """Returns the workload's folder name in a cell: ``aorta.plan.paths.safe_name``, loaded only where it matters."""
    if _ORDINARY_NAME.fullmatch(workload) and workload != "_no_ticket_":
        return workload
    from aorta.plan.paths import safe_name

    return safe_name(workload)


def trial_stem(arguments: Arguments, cell: Mapping[str, Any]) -> str:
    """Returns the absolute path of the trial's files without their extension."""
    folder = os.path.join(arguments.cell_dir, workload_folder(cell["workload"]))
    return os.path.join(folder, f"trial_d0_m0_t{arguments.trial}")


def snapshot_path(arguments: Arguments, cell: Mapping[str, Any]) -> str:
    """Returns the absolute path of the snapshot of the cell's environment."""
    return os.path.join(arguments.run_dir, "environments", str(cell["environment"]["name"]), "env.json")


def has_snapshot(path: str) -> bool:
    """Tells whether a valid environment snapshot, not a placeholder, lies at ``path``."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return False
    from aorta.instrumentation import is_valid_snapshot

    return is_valid_snapshot(value)


def probe_request(arguments: Arguments, cell: Mapping[str, Any], source: str) -> dict[str, str] | None:
    """Returns ``_aorta_env_probe`` for an isolated environment that has no valid snapshot yet, else None.

    Args:
        arguments: The command line.
        cell: The cell's request.
        source: The folder that holds the ``aorta`` package.
    """
    environment = cell["environment"]
    if environment.get("docker") is None and environment.get("venv") is None:
        return None
    out = snapshot_path(arguments, cell)
    if has_snapshot(out):
        return None
    # The workload mounts this folder into its container, so it must be there before.
    os.makedirs(os.path.dirname(out), exist_ok=True)
    return {"src": source, "out": out}


def workload_config(
    cell: Mapping[str, Any],
    overlay: Mapping[str, str],
    probe: Mapping[str, str] | None,
    log_prefix: str | None,
    trial: int,
) -> dict[str, Any]:
    """Returns the mapping that the workload's constructor gets: its own settings and the reserved keys.

    The trial's number is among them so that what a workload draws at random can differ from trial to trial and still
    be repeated.
    """
    options: dict[str, str] = {}
    for chosen in cell["collect"].values():
        options.update(chosen)
    config = {
        **cell["workload_config"],
        "steps": cell["steps"],
        "_aorta_environment": cell["environment"],
        "_aorta_trial_env": dict(overlay),
        "_aorta_trial_index": trial,
        "_aorta_collect": list(cell["collect"]),
        "_aorta_collect_options": options,
    }
    if probe is not None:
        config["_aorta_env_probe"] = dict(probe)
    if log_prefix is not None:
        config["_aorta_save_logs"] = True
        config["_aorta_log_prefix"] = log_prefix
    return config


def worker_request(cell: Mapping[str, Any], config: Mapping[str, Any], overlay: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the worker reads from its standard input."""
    late = cell["isolation"] == "in_process"
    return {
        "workload": cell["workload"],
        "workload_ref": cell["workload_ref"],
        "config": dict(config),
        "world_size": world_size(cell["launch"]),
        # In-process isolation: the overlay comes after the import of the workload's module.
        "late_env": {**overlay, **overlay_mark(overlay, cell["launch"]["mode"] == "distributed")} if late else {},
    }
