"""Judges a command that has ended: which detectors fire, and what verdict they make.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import signal
import time

from aorta.probe.detectors import DETECTORS, TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from aorta.probe.observe import Observation
    from aorta.probe.settings import ProbeSettings

    Verdict = Literal["fail", "error", "pass"]

_SIGNALS = {"sigsegv": signal.SIGSEGV, "sigabrt": signal.SIGABRT, "sigbus": signal.SIGBUS}
_NOT_STARTED = (126, 127)
"""What shells, env, nohup and timeout end with when they cannot start what they were given."""


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
    for tier, judge in (("tier1", _judge_end), ("tier2", _judge_hang), ("tier3", _judge_host)):
        if settings.tier_is_on(tier):
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
        fire("exec_failed", observation.exec_error)
        return
    if observation.timed_out:
        fire("timeout", {"walltime_sec": observation.walltime_sec})
    if observation.core_dumped:
        fire("coredump", {"exit_code": code})
    if observation.was_cut or not code:
        return
    if code in _NOT_STARTED:
        fire("exec_failed", f"exit code {code}: a shell could not start a command")
        return
    fire("exit_nonzero", {"exit_code": code})
    # A shell ends with 128 + n when its command died of signal n.
    number = -code if code < 0 else code - 128
    for name, signum in _SIGNALS.items():
        if number == signum:
            fire(name, {"exit_code": code})


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
        result.fire("vram_growth", {"growth_mib": growth, "limit_mib": limit})
    if observation.throttled and settings.is_on("thermal_throttle"):
        result.fire("thermal_throttle", observation.throttled)
