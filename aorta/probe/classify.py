"""Judges a command that has ended: which detectors fire, and what verdict they make.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import os
import re
import signal
import time

from aorta.probe.detectors import DETECTORS, TIERS
from aorta.probe.signatures import RANK_PREFIX, Scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from aorta.probe.observe import Observation
    from aorta.probe.patterns import Search, StepTimes
    from aorta.probe.settings import ProbeSettings

    Verdict = Literal["fail", "error", "pass"]

_SIGNALS = {"sigsegv": signal.SIGSEGV, "sigabrt": signal.SIGABRT, "sigbus": signal.SIGBUS}
_NOT_STARTED = (126, 127)
"""What shells, env, nohup and timeout end with when they cannot start what they were given."""

_AFTER_BYTES = 1 << 18
_AFTER_LINES = 3
"""Lines that may follow a traceback that ended its program: a launcher's last words, a shell's echo."""

_WENT_ON_SEC = 2.0
_LOG_RECORD = re.compile(r"\b(?:ERROR|WARN|WARNING|CRITICAL|EXCEPTION|INFO|DEBUG)\b|\bException in thread\b")
# PyTorch's advice below an error of a device belongs to the error's own text.
_ADVICE = re.compile(r"(?:HIP|CUDA) kernel errors might|For debugging consider|Compile with|Device-side assert")


class Classification:
    """What a command's end, logs and host come to.

    Attributes:
        verdict: ``fail``, ``error`` or ``pass``.
        failure_detectors_fired: Names of the detectors that make it fail, in the order of the tiers.
        error_detectors_fired: Names of those that make it an error.
        warn_detectors_fired: Names of those that only warn.
        capture: Of each detector that fired or recorded something, what it saw; ``unavailable`` says what could not be
            looked at, and why.
        tier_durations_ms: What each tier has cost, in milliseconds.
        step_times_ms: What ``step_time_regex`` found, in milliseconds.
    """

    def __init__(self) -> None:
        self.failure_detectors_fired: list[str] = []
        self.error_detectors_fired: list[str] = []
        self.warn_detectors_fired: list[str] = []
        self.capture: dict[str, Any] = {}
        self.tier_durations_ms: dict[str, float] = dict.fromkeys(TIERS, 0.0)
        self.step_times_ms: list[float] = []

    @property
    def verdict(self) -> Verdict:
        """``fail`` > ``error`` > ``pass``."""
        if self.failure_detectors_fired:
            return "fail"
        return "error" if self.error_detectors_fired else "pass"

    def to_json(self) -> dict[str, Any]:
        """Returns everything as a mapping that has a JSON form."""
        return {
            "verdict": self.verdict,
            "failure_detectors_fired": self.failure_detectors_fired,
            "error_detectors_fired": self.error_detectors_fired,
            "warn_detectors_fired": self.warn_detectors_fired,
            "capture": self.capture,
            "tier_durations_ms": self.tier_durations_ms,
            "step_times_ms": self.step_times_ms,
        }

    def fire(self, name: str, seen: Any, effect: str | None = None) -> None:
        """Notes that a detector has fired.

        Args:
            name: A built-in detector's, or a pattern's.
            seen: What it saw.
            effect: ``fail``, ``error``, ``warn`` or ``info``; by default what a built-in detector means.
        """
        self.capture[name] = seen
        fired = {
            "fail": self.failure_detectors_fired,
            "error": self.error_detectors_fired,
            "warn": self.warn_detectors_fired,
        }.get(effect or DETECTORS[name][1])
        if fired is not None and name not in fired:
            fired.append(name)


def classify(observation: Observation, settings: ProbeSettings) -> Classification:
    """Judges a command that has ended; reads its logs once or twice, in constant memory.

    Args:
        observation: What was seen of it.
        settings: Which detectors there are.
    """
    result = Classification()
    judges = (_judge_end, _judge_hang, _judge_host, _judge_logs, _judge_patterns)
    for tier, judge in zip(TIERS, judges, strict=True):
        started = time.perf_counter()
        judge(observation, settings, result)
        result.tier_durations_ms[tier] = (time.perf_counter() - started) * 1000
    for tier, spent in observation.durations_ms.items():
        result.tier_durations_ms[tier] += spent
    if observation.unavailable:
        result.capture["unavailable"] = observation.unavailable
    return result


def _judge_end(observation: Observation, settings: ProbeSettings, result: Classification) -> None:
    """Tier 1: how the command ended."""

    def fire(name: str, seen: Any) -> None:
        if settings.is_on(name):
            result.fire(name, seen)

    code = observation.exit_code
    if observation.exec_error is not None:
        fire("exec_failed", {"excerpt": observation.exec_error})
        return
    if observation.timed_out:
        fire("timeout", {"excerpt": f"ended at its time limit, after {observation.walltime_sec:.1f} s"})
    if observation.core_dumped:
        fire("coredump", {"excerpt": "its wait status says that core was dumped", "exit_code": code})
    if observation.was_cut or not code:
        return
    if code in _NOT_STARTED:
        fire("exec_failed", {"excerpt": f"a shell could not start a command (exit code {code})", "exit_code": code})
        return
    fire("exit_nonzero", {"excerpt": _exit_text(code), "exit_code": code})
    # A shell ends with 128 + n when its command died of signal n.
    number = -code if code < 0 else code - 128
    for name, signum in _SIGNALS.items():
        if number == signum:
            fire(name, {"excerpt": _exit_text(code), "exit_code": code})


def _exit_text(code: int) -> str:
    """Returns an exit code as a person reads it."""
    number = -code if code < 0 else code - 128
    try:
        return f"exit code {code} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit code {code}"


def _judge_hang(observation: Observation, settings: ProbeSettings, result: Classification) -> None:
    """Tier 2: whether it hung."""
    if observation.hang is not None and settings.is_on("hang"):
        result.fire("hang", observation.hang.to_json())


def _judge_host(observation: Observation, settings: ProbeSettings, result: Classification) -> None:
    """Tier 3: what its host says."""
    lines: dict[str, list[str]] = {}
    for name, line in observation.kernel_events:
        lines.setdefault(name, []).append(line)
    for name, seen in lines.items():
        if settings.is_on(name):
            result.fire(name, {"count": len(seen), "excerpt": seen[0]})
    growth, limit = observation.vram_growth_mib, settings.vram_growth_mib
    if growth is not None and limit is not None and growth > limit and settings.is_on("vram_growth"):
        result.fire("vram_growth", {"excerpt": f"grew by {growth:.0f} MiB", "growth_mib": growth, "limit_mib": limit})
    if observation.throttled and settings.is_on("thermal_throttle"):
        result.fire("thermal_throttle", observation.throttled)


def _logs(observation: Observation) -> dict[str, tuple[str, int | None]]:
    """Returns of each log its path and how many bytes count."""
    paths = {"stdout": observation.stdout_path, "stderr": observation.stderr_path}
    return {name: (path, observation.log_bytes.get(name)) for name, path in paths.items()}


def _judge_logs(observation: Observation, settings: ProbeSettings, result: Classification) -> None:
    """Tier 4: what its logs say; and which signals of tier 1 a launcher reports there."""
    wanted = [name for name, (tier, _) in DETECTORS.items() if tier == "tier4" and settings.is_on(name)]
    if not wanted and not settings.tier_is_on("tier1"):
        return
    scan = Scan(wanted)
    for name, (path, size) in _logs(observation).items():
        scan.read(name, path, size)
    for name in wanted:
        if name in scan.sightings:
            effect = None
            if name == "python_traceback" and not _ended_by_traceback(observation, scan):
                effect = "warn"
            result.fire(name, scan.sightings[name].to_json(), effect)
    # torchrun and scripts end with 1 when a process of theirs died of a signal, and say which.
    if observation.exit_code and not observation.was_cut:
        for name, signum in _SIGNALS.items():
            if signum in scan.signals and settings.is_on(name) and name not in result.capture:
                result.fire(name, scan.signals[signum].to_json())
        if scan.core_dumped is not None and settings.is_on("coredump") and "coredump" not in result.capture:
            result.fire("coredump", scan.core_dumped.to_json())


def _ended_by_traceback(observation: Observation, scan: Scan) -> bool:
    """Tells whether a traceback is an error that nobody handled.

    It is one if the command failed. In a command that ended with 0 (a script may lose its program's exit code, with
    ``|| true`` or ``| tee``), or that was ended, it is one if it is the last thing in its log, no log record announced
    it, and the other log did not go on.
    """
    if observation.exit_code and not observation.was_cut:
        return True
    logs = _logs(observation)
    for name, traceback in scan.tracebacks.items():
        if _LOG_RECORD.search(traceback.before):
            continue
        path, size = logs[name]
        other = logs["stderr" if name == "stdout" else "stdout"][0]
        if not observation.was_cut and _written_at(other) > _written_at(path) + _WENT_ON_SEC:
            continue
        if _is_last(path, size, traceback.offset):
            return True
    return False


def _written_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _is_last(path: str, size: int | None, offset: int) -> bool:
    """Tells whether no more than a few lines follow the traceback that begins at an offset."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(_AFTER_BYTES if size is None else min(_AFTER_BYTES, max(0, size - offset)))
            whole = size is None or size - offset <= _AFTER_BYTES
            if not whole or (size is None and file.read(1)):
                return False
    except OSError:
        return False
    lines = [re.sub(rf"^{RANK_PREFIX}", "", line) for line in data.decode("utf-8", "replace").splitlines()[1:]]
    # The traceback's own lines are indented; the first that is not is the exception.
    at = next(
        (index for index, line in enumerate(lines) if line and not line[0].isspace() and line[0] not in "+|"), None
    )
    if at is None:
        return True
    after = [line for line in lines[at + 1 :] if line.strip() and not _ADVICE.search(line)]
    return len(after) <= _AFTER_LINES


def _judge_patterns(observation: Observation, settings: ProbeSettings, result: Classification) -> None:
    """Tier 5: the recipe's own patterns, and step times, which are found in the same reading."""
    wanted = [pattern for pattern in settings.custom_patterns if settings.is_on(pattern.id)]
    if not wanted and settings.step_time_regex is None:
        return
    from aorta.probe.patterns import Search, StepTimes, search_logs

    values = {
        "exit_code": observation.exit_code,
        "walltime_sec": observation.walltime_sec,
        "peak_vram_mib": observation.peak_vram_mib,
    }
    searches = [Search(pattern) for pattern in wanted]
    steps = None if settings.step_time_regex is None else StepTimes(settings.step_time_regex)
    on_lines: list[Search | StepTimes] = [search for search in searches if search.regex is not None]
    if steps is not None:
        on_lines.append(steps)
    if on_lines:
        search_logs(on_lines, _logs(observation), values)
    for search in searches:
        _judge_pattern(search, observation, values, result)
    if steps is not None:
        result.step_times_ms = steps.times_ms
        if steps.dropped or steps.given_up:
            result.capture["step_times"] = {"dropped": steps.dropped, "given_up": steps.given_up}


def _came_to_its_end(observation: Observation) -> bool:
    """Tells whether what a command did not print means anything: it was started, and ended by itself."""
    started = observation.exec_error is None and observation.exit_code not in _NOT_STARTED
    return started and not observation.was_cut


def _judge_pattern(search: Search, observation: Observation, values: Mapping[str, Any], result: Classification) -> None:
    pattern = search.pattern
    if search.regex is None:
        assert search.condition is not None
        holds = search.condition.holds(values)
        seen: dict[str, Any] = {"excerpt": pattern.condition}
    else:
        holds = search.match is not None
        seen = search.match.to_json() if search.match is not None else {}
    if holds:
        result.fire(pattern.id, seen, pattern.on_match)
    elif search.given_up is not None:
        # A check that was asked for and not made is no pass.
        asked = pattern.required_for_pass or pattern.on_match == "fail"
        result.fire(pattern.id, {"excerpt": f"given up: {search.given_up}"}, "error" if asked else "warn")
    elif pattern.required_for_pass and _came_to_its_end(observation):
        result.fire(pattern.id, {"excerpt": "required for a pass, and not found"}, "fail")
