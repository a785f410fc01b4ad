"""The workflow's environment jobs: writes ``environments/<name>/env.json`` or ``host_env.json`` of a run directory.

    python -m aorta.instrumentation.snapshot --run-dir D --environment NAME --out PATH
    python -m aorta.instrumentation.snapshot --run-dir D --host

An environment that runs on the host is probed here, under its own variables. An isolated one (a container or a virtual
environment) can only be probed from inside: its job comes after its trials, keeps the snapshot that one of them left,
and otherwise writes a placeholder. Standard library only, as the probe itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress

from aorta._jsonio import read_json, told, write_json_atomic, write_json_through
from aorta.instrumentation import _probe_main
from aorta.instrumentation._collect import collect_env
from aorta.instrumentation._shape import NEVER_CAPTURED, is_valid_snapshot, placeholder_snapshot
from aorta.instrumentation._tool import run_tool
from aorta.run.claim import Claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

NO_TORCH_VARIABLE = "AORTA_ENV_NO_TORCH"
"""Set to 1, a sweep's snapshots leave out what only an import of PyTorch can tell, and say so."""

_CHILD_LIMIT_SEC = 120.0


class SnapshotError(Exception):
    """The job was asked for something that the run directory does not have."""


def environment_snapshot(entry: Mapping[str, Any], captured: str, *, import_torch: bool = True) -> dict[str, Any]:
    """Returns what belongs into the ``env.json`` of one environment.

    Args:
        entry: The environment's entry in ``plan.json``: its descriptor and ``isolated``.
        captured: Where a trial inside an isolated environment would have left its snapshot.
        import_torch: As in :func:`~aorta.instrumentation.collect_env`.

    Returns:
        A snapshot with the descriptor under ``environment``, or a placeholder. Fields that nothing here acts on, an
        emulator say, appear in the descriptor alone: the rest describes what the probe really ran on.
    """
    descriptor = {key: value for key, value in entry.items() if key != "isolated"}
    if entry.get("isolated"):
        return _captured_inside(descriptor, captured)
    variables = {str(key): str(value) for key, value in (descriptor.get("env") or {}).items()}
    if not variables:
        return {**collect_env(import_torch), "environment": descriptor}
    return _probed_under(descriptor, variables, captured, import_torch)


def _captured_inside(descriptor: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return placeholder_snapshot(descriptor)
    except (OSError, ValueError) as error:
        return placeholder_snapshot(descriptor, f"{NEVER_CAPTURED}; the file that it left cannot be read: {error}")
    if not is_valid_snapshot(value):
        left_by_us = isinstance(value, dict) and value.get("snapshot_captured") is False
        return placeholder_snapshot(
            descriptor,
            NEVER_CAPTURED if left_by_us else f"{NEVER_CAPTURED}; the file that it left is no snapshot of this version",
        )
    return {**value, "environment": descriptor}


def _probed_under(
    descriptor: dict[str, Any], variables: Mapping[str, str], path: str, import_torch: bool
) -> dict[str, Any]:
    """Probes in a fresh process: the loader and Python read LD_PRELOAD, PYTHONPATH and others only as they start."""
    answer = os.path.join(os.path.dirname(os.path.abspath(path)), f".tmp-probe-{os.urandom(8).hex()}")
    argv = [sys.executable, os.path.abspath(_probe_main.__file__), *([] if import_torch else ["--no-torch"]), answer]
    try:
        result = run_tool(argv, env={**os.environ, **variables}, timeout_sec=_CHILD_LIMIT_SEC, c_locale=False)
        failure = result.failure(_CHILD_LIMIT_SEC)
        value = None if failure else read_json(answer)
    except (OSError, ValueError) as error:
        failure, value = f"could not be used: {error}", None
    finally:
        with suppress(OSError):
            os.unlink(answer)
    if not is_valid_snapshot(value):
        names = ", ".join(sorted(variables))
        return placeholder_snapshot(
            descriptor, f"the probe under this environment's variables ({names}) {failure or 'wrote no snapshot'}"
        )
    assert isinstance(value, dict)
    return {**value, "environment": descriptor}


def planned_environment(run_dir: str, name: str) -> dict[str, Any]:
    """Returns an environment's entry in the run's ``plan.json``.

    Raises:
        SnapshotError: There is no readable plan, or it has no such environment.
    """
    path = os.path.join(run_dir, "plan.json")
    try:
        environments = read_json(path)["environments"]
        if name in environments:
            return dict(environments[name])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: not a plan that can be read: {type(error).__name__}: {error}") from error
    known = ", ".join(sorted(environments)) or "none"
    raise SnapshotError(f"{path}: no environment {name!r}; the plan has: {known}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one environment job.

    Returns:
        0; 1 with a message when the plan has no such environment or the file cannot be written; 2 when the arguments
        are wrong or ``--run-dir`` is no run directory, and then nothing is made.
    """
    parser = argparse.ArgumentParser(prog="python -m aorta.instrumentation.snapshot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="run directory, which holds plan.json")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--environment", metavar="NAME", help="environment of the plan to describe")
    what.add_argument("--host", action="store_true", help="describe the host of the engine itself")
    parser.add_argument(
        "--out", metavar="PATH", help="file to write, in a folder that exists (default: its place in the run directory)"
    )
    parser.add_argument(
        "--captured", metavar="PATH", help="snapshot left from inside an isolated environment (default: --out)"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="leave a snapshot that is there as it is, and wait for one that another process is taking",
    )
    parser.add_argument(
        "--no-torch",
        action="store_true",
        default=os.environ.get(NO_TORCH_VARIABLE) == "1",
        help=f"do not start a process that imports PyTorch (also: {NO_TORCH_VARIABLE}=1)",
    )
    options = parser.parse_args(argv)
    for flag, value in (("--run-dir", options.run_dir), ("--out", options.out), ("--captured", options.captured)):
        if value == "":
            parser.error(f"{flag} is empty; name a path")
    if not os.path.isfile(os.path.join(options.run_dir, "plan.json")):
        parser.error(f"--run-dir: {options.run_dir} is no run directory, it holds no plan.json")
    default = ("host_env.json",) if options.host else ("environments", options.environment, "env.json")
    out = options.out or os.path.join(options.run_dir, *default)
    try:
        entry = None if options.host else planned_environment(options.run_dir, options.environment)
        if options.out is None:
            # Only the run directory's own layout is made here: a folder elsewhere is more likely mistyped than missing.
            os.makedirs(os.path.dirname(out), exist_ok=True)
        with _sole(options.run_dir, options.environment, out) if options.once else nullcontext(False) as is_there:
            if not is_there:
                _take(entry, out, options)
    except (SnapshotError, OSError, ValueError) as error:
        text = told(error, out) if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"aorta: no environment snapshot: {text}\n")
        return 1
    return 0


def _take(entry: Mapping[str, Any] | None, out: str, options: argparse.Namespace) -> None:
    if entry is None:
        snapshot = collect_env(not options.no_torch)
    else:
        snapshot = environment_snapshot(entry, options.captured or out, import_torch=not options.no_torch)
    # In its own place it replaces whatever is there; only what a user named may be a pipe or a device.
    (write_json_atomic if options.out is None else write_json_through)(out, snapshot)


@contextmanager
def _sole(run_dir: str, environment: str | None, out: str) -> Iterator[bool]:
    """Claims a snapshot as trials are claimed, across hosts; gives whether it is there, after waiting for its taker."""

    def tell(text: str) -> None:
        sys.stderr.write(f"aorta: {out}: {text.replace('this trial', 'this snapshot')}\n")

    # No cell has such a name.
    claim = Claim(run_dir, ".host" if environment is None else f".environment.{environment}", 0, os.urandom(16).hex())
    claimed = claim.acquire(
        is_recorded=lambda: _is_whole(out),
        pause=time.sleep,
        notify=tell,
    )
    try:
        yield not claimed
    finally:
        claim.release()


def _is_whole(path: str) -> bool:
    try:
        return isinstance(read_json(path), dict)
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    sys.exit(main())
