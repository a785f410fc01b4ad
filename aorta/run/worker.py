"""The fresh interpreter that runs one trial's workload.

Started by the supervisor, never by hand: the request comes as JSON on standard input, the report goes to the open file
whose number ``argv`` names. Imports as little as it can, because what is imported here is imported before the
workload's own module, and its time is part of every trial.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys

from aorta.run.launch import too_few_ranks
from aorta.run.report import Reporter
from aorta.run.sanitize import result_fields, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

ENTRY_POINT_GROUP = "aorta.workloads"

_MAX_TRACEBACK = 16 * 1024


class ResolveError(Exception):
    """The workload's name or reference leads to no class that a trial can run."""


class PhaseFailed(Exception):
    """An exception of the workload, with the phase it came from.

    Attributes:
        phase: ``resolve``, ``construct``, ``setup`` or ``run``.
        error: What was raised.
    """

    def __init__(self, phase: str, error: BaseException) -> None:
        super().__init__(phase)
        self.phase = phase
        self.error = error


class Trial:
    """One trial's life: import, construct, setup, run, cleanup.

    Args:
        request: ``workload``, ``workload_ref``, ``config``, ``late_env``, ``overlay_keys``, ``world_size``.
        reporter: Where the report goes.
    """

    def __init__(self, request: dict[str, Any], reporter: Reporter) -> None:
        self._request = request
        self._reporter = reporter
        self._pid = os.getpid()
        self._getpid, self._exit = os.getpid, os._exit

    def run(self) -> None:
        """Runs the phases and reports each; an exception of the workload becomes part of the report."""
        workload = None
        try:
            self._reporter.send(phase="import")
            factory = self._guard("resolve", self._resolve)
            # After the import: what a module or a library read from the environment at import time it has read.
            os.environ.update(self._request["late_env"])
            self._reporter.send(phase="construct")
            workload = self._guard("construct", lambda: factory(self._request["config"]))
            self._reporter.send(phase="setup")
            self._guard("setup", getattr(workload, "setup", _nothing))
            self._reporter.send(phase="run")
            fields = self._guard("run", lambda: result_fields(workload.run()))
            # Before cleanup: a runtime that crashes while it is torn down does not take the numbers with it.
            self._reporter.send(result=fields)
        except PhaseFailed as failure:
            self._reporter.send(error=describe(failure.phase, failure.error))
        if workload is not None:
            self._reporter.send(phase="cleanup")
            try:
                self._guard("cleanup", getattr(workload, "cleanup", _nothing))
            except PhaseFailed as failure:
                self._reporter.send(cleanup_error=_one_line(failure.error))

    def _guard(self, phase: str, step: Any) -> Any:
        try:
            value = step()
        except BaseException as error:
            self._leave_if_forked(error)
            # A sys.exit() or a Ctrl-C of the workload's own is an end like any other.
            raise PhaseFailed(phase, error) from error
        self._leave_if_forked(None)
        return value

    def _leave_if_forked(self, error: BaseException | None) -> None:
        """Ends a copy of this process that the workload forked and that came back here; only one may report."""
        if self._getpid() != self._pid:
            code = error.code if isinstance(error, SystemExit) else error is not None
            self._exit(code if isinstance(code, int) else 1)

    def _resolve(self) -> Any:
        reference = self._request["workload_ref"] or find_reference(self._request["workload"])
        factory = load(reference)
        world = int(self._request["world_size"])
        needed = getattr(factory, "min_world_size", 1)
        if getattr(factory, "launch_mode", None) == "distributed" and isinstance(needed, int) and needed > world:
            raise ResolveError(too_few_ranks(self._request["workload"], needed, world))
        return factory


def _nothing() -> None:
    """Stands in for a ``setup()`` or ``cleanup()`` that a workload does not have."""


def find_reference(name: str) -> str:
    """Returns ``module:attribute`` of a registered workload.

    Raises:
        ResolveError: No package registers the name, or two register it for different classes.
    """
    # A scan of every installed distribution: only for a name that was unknown when the plan was made.
    from importlib.metadata import entry_points

    group = entry_points(group=ENTRY_POINT_GROUP)
    references = sorted({entry.value for entry in group if entry.name == name})
    if len(references) == 1:
        return references[0]
    if references:
        raise ResolveError(f"workload '{name}' is registered more than once: {', '.join(references)}; remove one")
    if _is_built_in(name):
        raise ResolveError(
            f"workload '{name}' is part of this code and is not in the entry-point group {ENTRY_POINT_GROUP}: the "
            "installation is older than the code; run 'make install' (pip install -e .) in the checkout"
        )
    from difflib import get_close_matches

    known = sorted({entry.name for entry in group})
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(repr(found) for found in near)}?" if near else f"known are: {', '.join(known)}"
    raise ResolveError(
        f"workload '{name}' is not registered in the entry-point group {ENTRY_POINT_GROUP}; {advice} "
        "(a plugin that registers it must be installed where aorta runs)"
    )


def _is_built_in(name: str) -> bool:
    """Whether ``aorta.workloads`` has a module of this name with the workload's class in it; imports neither."""
    from importlib.util import find_spec

    spec = find_spec(f"aorta.workloads.{name}") if name.isidentifier() else None
    read = getattr(spec and spec.loader, "get_source", None)
    source = read(f"aorta.workloads.{name}") if read is not None else None
    return f"class {''.join(part.capitalize() for part in name.split('_'))}Workload(" in (source or "")


def load(reference: str) -> Any:
    """Imports ``module:attribute``.

    Raises:
        ResolveError: The reference is malformed, or the module has no such attribute, or it has no ``run()``.
        BaseException: Whatever importing the module raises.
    """
    from importlib import import_module

    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ResolveError(f"workload reference '{reference}' is not of the form module:Class")
    found: Any = import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ResolveError(f"module '{module_name}' has no '{attribute}' (looked for {reference})")
        found = getattr(found, part)
    if not callable(found):
        raise ResolveError(f"{reference} is a {type(found).__name__}, not a class")
    if isinstance(found, type) and not callable(getattr(found, "run", None)):
        raise ResolveError(f"{reference} has no run(), so it is not a workload")
    return found


def describe(phase: str, error: BaseException) -> dict[str, Any]:
    """Returns an exception as the record's ``error`` has it."""
    message = text(error)
    if isinstance(error, SystemExit):
        message = f"the workload called sys.exit({error.code!r}) before it returned a result"
    hint = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install what provides '{error.name}' in the environment that aorta runs in"
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(error, SystemExit) and not isinstance(code, int):
        code = 0 if code is None else 1
    return {
        "phase": phase,
        "type": type(error).__name__,
        "message": text(message),
        "hint": hint,
        "exit_code": code,
        "traceback": None if isinstance(error, ResolveError) else _traceback(error),
    }


def _one_line(error: BaseException) -> str:
    message = " ".join(text(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _traceback(error: BaseException) -> str | None:
    """Returns the traceback from the workload's first frame on, cut in the middle when it is long."""
    try:
        import traceback

        frame: TracebackType | None = error.__traceback__
        while frame is not None and _is_machinery(frame.tb_frame.f_code.co_filename):
            frame = frame.tb_next
        lines = "".join(traceback.format_exception(type(error), error, frame or error.__traceback__))
    except Exception:
        return None  # the exception's own text raised
    if len(lines) > _MAX_TRACEBACK:
        half = _MAX_TRACEBACK // 2
        lines = f"{lines[:half]}\n... (cut)\n{lines[-half:]}"
    return lines.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename


def _device_memory() -> int | None:
    """Returns the most bytes that torch's allocator held on one device, or None; never imports torch."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return None
        return max(int(torch.cuda.max_memory_allocated(device)) for device in range(torch.cuda.device_count()))
    except Exception:
        return None


def _flush_output() -> None:
    """Flushes what Python still holds, so that a descriptor that the workload closed does not fail the exit."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:
            setattr(sys, name, None)


def _explain_signals() -> None:
    """Lets a fatal signal, and the supervisor's SIGTERM at the time limit, leave every thread's Python stack."""
    try:
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        # Data loaders and pools end their forked helpers by SIGTERM in every good run.
        os.register_at_fork(after_in_child=lambda: faulthandler.unregister(signal.SIGTERM))
    except (OSError, RuntimeError, ValueError):
        pass  # a comfort; the trial does not need it


def main() -> None:
    """Runs the trial that standard input asks for; ``argv[1:3]`` are the report's descriptor and the supervisor."""
    reporter = Reporter(int(sys.argv[1]), int(sys.argv[2]))
    # What is left looks like a program without arguments to a workload that parses its command line.
    del sys.argv[1:]
    _explain_signals()
    with open(0, "rb", closefd=False) as file:
        request: dict[str, Any] = json.loads(file.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    Trial(request, reporter).run()
    _flush_output()
    reporter.send(done={"peak_device_memory_bytes": _device_memory()})


if __name__ == "__main__":
    main()
