"""One run of a command that aorta knows nothing of (``mode: probe``): it is watched and judged from outside.

What it leaves lies in ``<run_dir>/<cell>/trial_<n>/``: ``stdout.log``, ``stderr.log``, ``result.json``, ``probe.env``
where the variables go by file, and ``collected/``. The engine's own record lies where every trial's does, so that
resuming, stopping and the matrix need not know the difference.

Standard library only. The supervisor imports this before such a trial, and no other.
"""

from __future__ import annotations

import os
import time
from functools import cached_property

from aorta._jsonio import write_json_atomic
from aorta.probe.classify import classify
from aorta.probe.observe import Observer
from aorta.probe.settings import ProbeSettings
from aorta.run import record, request
from aorta.run.attempt import OneTry
from aorta.run.device import HELD_VARIABLE
from aorta.run.output import ErrorOutput
from aorta.run.process import TOKEN_VARIABLE, Tree
from aorta.run.ranks import TERM_GRACE_SEC
from aorta.run.report import ReportFile
from aorta.run.sanitize import plain, text
from aorta.run.start import ENGINE_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.probe.classify import Classification
    from aorta.probe.observe import Observation
    from aorta.run.process import Worker

ENV_FILE_VARIABLE = "AORTA_ENV_FILE"
"""Names the file of a cell's variables, where ``env_passthrough_mode`` is ``file``."""

FOLDER_VARIABLE = "AORTA_TRIAL_DIR"
"""Names the trial's folder, absolute: a place for what the command wants to leave."""

COLLECT_VARIABLE = "AORTA_COLLECT"
"""Names of the attached collectors, separated by commas."""

_COLLECTED_TO = "NANLOG_DIR"
_POLL_SEC = 1.0
_NOT_STARTED = "the worker did not start: "


class CommandAttempt(OneTry):
    """One run of the command; the cell's request has a part ``probe``."""

    @property
    def _probe(self) -> dict[str, Any]:
        return dict(self._cell["probe"])

    @cached_property
    def _settings(self) -> ProbeSettings:
        return ProbeSettings.from_mapping(self._probe["settings"])

    @property
    def _folder(self) -> str:
        return os.path.join(self._arguments.run_dir, self._arguments.cell, f"trial_{self._arguments.trial}")

    def run(self) -> dict[str, Any]:
        """Runs the command, judges it, writes what it leaves, and returns the trial's record.

        Raises:
            Interrupted: The supervisor was asked to end; the command's processes have been killed.
            OSError: The trial's folder or a file in it cannot be written.
        """
        _clear(self._folder)
        os.makedirs(self._folder)
        output = ErrorOutput(self._path("stdout.log"), self._path("stderr.log"))
        started_at = time.time()
        report = ReportFile()
        tree = Tree(self._token, self._signals)
        worker = self._start(tree, output, report)
        observer = Observer(worker.pid, self._path("stdout.log"), self._path("stderr.log"), self._settings)
        try:
            self._watch(worker, tree, observer)
            tree.let_helpers_end([output])
        finally:
            left_behind = tree.kill([output])
        if left_behind:
            self._say(f"SIGKILL did not end process {', '.join(map(str, left_behind))}")
        ending = worker.ending
        failed = report.read().error
        observation = observer.finish(
            None if failed else ending.exit_code,
            ending.cut == "time_limit",
            ending.ended - ending.started,
            failed["message"].removeprefix(_NOT_STARTED) if failed else None,
            core_dumped=ending.core_dumped,
        )
        found = classify(observation, self._settings)
        exit_status, error = _judge(found, observation, self._settings.timeout_per_trial)
        if error is not None:
            error["stderr_tail"] = output.tail()
        write_json_atomic(self._path("result.json"), self._result(found, observation, self._collect(started_at)))
        kept = self._keep(self._settings.retain[f"on_{found.verdict}"])
        return record.build(
            self._arguments,
            self._cell,
            exit_status=exit_status,
            error=error,
            overlay=self._overlay,
            device=self._held.device,
            started_at=started_at,
            ended_at=started_at + (ending.ended - ending.started),
            ending=ending,
            result=_workload_result(found, observation) if error is None else None,
            worker_pid=worker.pid,
            logs=self._logs() if kept else None,
        )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _start(self, tree: Tree, output: ErrorOutput, report: ReportFile) -> Worker:
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        worker = tree.start(
            self._probe["argv"],
            self._variables(),
            stdin=stdin,
            output=output,
            keep=[],
            failed=report.exec_failed,
            cwd=self._probe["cwd"],
        )
        os.close(stdin)
        output.release()
        return worker

    def _variables(self) -> dict[str, str]:
        """Returns the command's whole environment."""
        env = {name: value for name, value in self._env.items() if not name.startswith(ENGINE_PREFIX)}
        # Not pinned to one device: only the command knows how many it wants, and the trial holds all of them.
        env.update({name: value for name, value in self._held.variables.items() if name == HELD_VARIABLE})
        env[FOLDER_VARIABLE] = self._folder
        if self._cell["collect"]:
            env[COLLECT_VARIABLE] = ",".join(self._cell["collect"])
            # Else the runs would write over each other's files, where they all run.
            env.setdefault(_COLLECTED_TO, self._path("layer_numerics"))
        if self._probe["env_passthrough_mode"] == "file":
            path = self._path("probe.env")
            _write_private(path, "".join(f"{name}={value}\n" for name, value in self._overlay.items()))
            env[ENV_FILE_VARIABLE] = path
        else:
            env.update(self._overlay)
            env.update(request.overlay_mark(self._overlay, launched=False))
        env[TOKEN_VARIABLE] = self._token
        return env

    def _watch(self, worker: Worker, tree: Tree, observer: Observer) -> None:
        """Waits for the command's end; ends it at its time limit, or when it hangs."""
        limit = self._settings.timeout_per_trial
        deadline = worker.ending.started + limit if limit is not None else float("inf")
        while True:
            tree.reap()
            if worker.gone:
                return
            self._signals.check()
            now = time.monotonic()
            if now >= deadline:
                worker.ending.cut = "time_limit"
            elif observer.poll() is not None:
                worker.ending.cut = "hang"
            if worker.ending.cut is not None:
                break
            self._signals.wait(min(_POLL_SEC, deadline - now))
        observer.cut()
        worker.terminate()
        deadline = time.monotonic() + TERM_GRACE_SEC
        while not worker.gone and (left := deadline - time.monotonic()) > 0:
            self._signals.check()
            self._signals.wait(left)
            tree.reap()

    def _collect(self, started_at: float) -> dict[str, Any]:
        """Copies what ``collect_paths`` matches; returns what was copied and what could not be."""
        patterns = self._probe["collect_paths"]
        if not patterns:
            return {"files": [], "problems": []}
        from aorta.run.collect import copy_matches

        return copy_matches(patterns, self._probe["cwd"], self._path("collected"), outside=self._arguments.run_dir)

    def _result(self, found: Classification, observation: Observation, collected: dict[str, Any]) -> dict[str, Any]:
        """Returns what ``result.json`` holds."""
        judged = found.to_json()
        return {
            "verdict": found.verdict,
            "exit_code": observation.exit_code,
            "walltime_sec": round(observation.walltime_sec, 6),
            "peak_vram_mib": observation.peak_vram_mib,
            "argv": self._probe["argv"],
            "cwd": self._probe["cwd"],
            "cell_name": self._arguments.cell,
            "trial_index": self._arguments.trial,
            **{name: plain(judged[name]) for name in judged if name != "verdict"},
            "env": self._shown_variables(),
            # Names of files may hold bytes that no JSON can.
            "collected": plain(collected),
        }

    def _shown_variables(self) -> dict[str, str]:
        """Returns the cell's variables, without the values that the recipe wants scrubbed."""
        if not self._probe["redaction"]:
            return self._overlay
        from aorta.probe.redact import VALUE, Redactor

        redactor = Redactor.from_mapping(self._probe["redaction"])
        return {
            name: VALUE if redactor.is_secret(name) else redactor.redact(value)[0]
            for name, value in self._overlay.items()
        }

    def _keep(self, level: str) -> bool:
        """Removes what the recipe does not want kept of a run with this verdict; returns whether its logs stay."""
        if level == "none":
            _clear(self._folder)
        elif level != "full":
            kept = {"result.json"} if level == "summary" else {"result.json", "stdout.log", "stderr.log"}
            for name in os.listdir(self._folder):
                if name not in kept:
                    _clear(self._path(name))
        return level in ("full", "log")

    def _logs(self) -> dict[str, str]:
        """Returns where the logs lie, from the folder of the trial's record."""
        here = os.path.dirname(request.trial_stem(self._arguments, self._cell))
        return {name: os.path.relpath(self._path(f"{name}.log"), here) for name in ("stdout", "stderr")}


def _clear(path: str) -> None:
    """Removes a file, or a folder with all that is in it, if it is there."""
    import shutil

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _write_private(path: str, content: str) -> None:
    """Writes a new file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(content)


def _judge(
    found: Classification, observation: Observation, limit_sec: float | None
) -> tuple[str, dict[str, Any] | None]:
    """Returns the record's ``exit_status`` and ``error``."""
    if found.verdict != "error":
        return ("ok" if found.verdict == "pass" else "workload_failed"), None
    code = observation.exit_code
    if "exec_failed" in found.error_detectors_fired:
        # With an exit code it did start, and is the shell that says so.
        seen = found.capture["exec_failed"]["excerpt"]
        message = seen if code is not None else f"the command could not be started: {seen}"
        return "workload_setup_failed", record.error_entry("process", "exec", message, exit_code=code)
    if observation.timed_out:
        message = f"the time limit of {limit_sec:g} s (timeout_per_trial) was reached"
        return "timed_out", record.error_entry("process", "timeout", message)
    message = f"the detectors {', '.join(found.error_detectors_fired)} fired"
    return "infrastructure_failed", record.error_entry("process", "exit", message, exit_code=code)


def _workload_result(found: Classification, observation: Observation) -> dict[str, Any]:
    """Returns what a workload would have reported, so that the matrix treats a command like one."""
    figures = {
        "exit_code": observation.exit_code,
        "walltime_sec": round(observation.walltime_sec, 6),
        "peak_vram_mib": observation.peak_vram_mib,
    }
    steps = len(found.step_times_ms)
    came_to_its_end = observation.exit_code == 0 and not observation.was_cut
    return {
        "passed": found.verdict == "pass",
        "failure_count": len(found.failure_detectors_fired),
        "first_failure_iteration": None,
        "failure_details": [
            {"detector": name, "hint": text(_hint(name, found.capture.get(name)))}
            for name in found.failure_detectors_fired
        ],
        "total_iterations": steps,
        "step_times_ms": list(found.step_times_ms),
        "elapsed_sec": None,
        "metrics": {name: value for name, value in figures.items() if value is not None},
        "main_work_started": True,
        # None executed: how long a command took that crashed or was ended says nothing of its speed.
        "executed_iterations": steps or int(came_to_its_end),
        "configured_iterations": None,
    }


def _hint(name: str, seen: Any) -> str:
    """Returns a line that tells a reader of the matrix what a detector saw."""
    if isinstance(seen, dict):
        seen = seen.get("excerpt") or ", ".join(f"{key} {value}" for key, value in seen.items())
    return f"{name}: {seen}" if seen else name
