"""Planted faults: ``workload_config.inject`` makes a workload go wrong in a known place.

A detector that was never seen to fire proves nothing. Each fault says what goes wrong, on which rank, at which step
and how likely in a trial. Whether it strikes in a trial, and what the recipe leaves open of its place, follows from
its seed and the trial's number alone, so a matrix can be predicted and repeated.

Does not import torch: configurations are checked in a process that must stay light.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from aorta.workloads.base import ConfigProblem
from aorta.workloads.config import NOT_NEGATIVE, ConfigBlock, load_config, parse_config

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("aorta.workloads")

TRIAL_INDEX_KEY = "_aorta_trial_index"
"""Reserved key of ``workload_config``: the trial's number within its cell, from 0."""

FaultKind = Literal[
    "bitflip",
    "stale_buffer",
    "partial_write",
    "nan_grad",
    "nan_logits",
    "perturb_input",
    "slow_rank",
    "crash_rank",
    "hang_rank",
]
RANK_KINDS: frozenset[str] = frozenset({"slow_rank", "crash_rank", "hang_rank"})
"""Kinds that strike a process; the others strike a buffer."""
DEFAULT_BUFFER: Mapping[str, str] = {"nan_grad": "*.grad", "nan_logits": "*logits", "perturb_input": "input"}
"""The buffer of the kinds that need not name one; a pattern strikes the first match that comes along."""

_ELEMENT_KINDS = frozenset({"bitflip", "nan_grad", "nan_logits", "perturb_input", "partial_write"})
_KEPT = 32
"""Strikes of one fault that are reported in full; the rest are counted."""
_SHOWN_NAMES = 12
_SLOW_SECONDS = 1.0
_WIDEST = 64


@dataclass(frozen=True, kw_only=True)
class FaultConfig(ConfigBlock):
    """One entry of ``workload_config.inject``; ``iteration`` is another name for ``step``."""

    key_aliases: ClassVar[Mapping[str, str]] = {"iteration": "step"}

    kind: FaultKind
    """What goes wrong; ``docs/fault-injection.md`` says it of each kind."""
    buffer: str | None = None
    """Name of the buffer, as the workload's page lists them, or a shell pattern: the first that matches is hit.
    Needed by ``bitflip``, ``stale_buffer`` and ``partial_write``; no use to the kinds that strike a process."""
    rank: int | None = field(default=0, metadata=NOT_NEGATIVE)
    """The rank that is struck; null for every rank."""
    step: int | None = field(default=0, metadata=NOT_NEGATIVE)
    """The step, from 0, that is struck; null for every step."""
    element: int | None = field(default=None, metadata=NOT_NEGATIVE)
    """Index of the struck element in the flattened buffer (of this rank's part of it); null draws one. For
    ``partial_write`` the first element that was not written; null leaves out the second half."""
    bit: int | None = field(default=None, metadata=NOT_NEGATIVE)
    """``bitflip``: the flipped bit, 0 the lowest; null draws one."""
    probability: float = field(default=1.0, metadata=NOT_NEGATIVE)
    """Chance that the fault is planted in a trial, from 0 to 1: drawn once a trial, the same on all ranks."""
    seed: int = field(default=0, metadata=NOT_NEGATIVE)
    """Fixes all draws, together with the trial's number and the fault's place in the list."""
    seconds: float | None = field(default=None, metadata=NOT_NEGATIVE)
    """``slow_rank``: how long the rank sleeps, 1 by default. ``hang_rank``: how long it hangs, for ever by default."""
    how: Literal["exception", "exit", "sigkill", "sigsegv"] | None = None
    """``crash_rank``: how the rank ends, ``sigkill`` by default."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks what the fields mean to each other: a setting that does nothing is a fault that was not planted."""
        strikes_rank = self.kind in RANK_KINDS
        if self.probability > 1:
            yield "probability", f"is {self.probability}; use a number from 0 to 1"
        if not strikes_rank and self.buffer is None and self.kind not in DEFAULT_BUFFER:
            yield "buffer", f"is missing; name the buffer that {self.kind} strikes (docs/fault-injection.md)"
        if self.buffer == "":
            yield "buffer", "is empty; name the buffer, or leave it out where the kind has one of its own"
        if self.kind == "bitflip" and self.bit is not None and self.bit >= _WIDEST:
            yield "bit", f"is {self.bit}; no buffer's elements have more than {_WIDEST} bits"
        uses = {
            "buffer": not strikes_rank,
            "element": self.kind in _ELEMENT_KINDS,
            "bit": self.kind == "bitflip",
            "seconds": self.kind in ("slow_rank", "hang_rank"),
            "how": self.kind == "crash_rank",
        }
        for name, used in uses.items():
            if not used and getattr(self, name) is not None:
                yield name, f"has no meaning for {self.kind}; leave it out"

    @property
    def pattern(self) -> str:
        """The buffer's name or pattern, the kind's default where none is given; empty for a struck process."""
        return self.buffer if self.buffer is not None else DEFAULT_BUFFER.get(self.kind, "")


@dataclass(frozen=True, kw_only=True)
class InjectBlock(ConfigBlock):
    """The part of a ``workload_config`` that plants faults."""

    inject: tuple[FaultConfig, ...] = ()
    """Faults to plant on purpose, one mapping or a list of them; see fault-injection.md. Marked in every report."""


def strikes_trial(fault: FaultConfig | Mapping[str, Any], index: int, trial: int) -> bool:
    """Tells whether a fault is planted in a trial.

    Args:
        fault: The fault, as a recipe holds it or as :func:`parse_faults` returns it.
        index: Its place in the list of ``inject``, from 0.
        trial: The trial's number within its cell, from 0.

    Raises:
        ValueError: Some value of the mapping is unusable.
    """
    if not isinstance(fault, FaultConfig):
        (fault,) = parse_faults(fault)
    return _draws(fault, index, trial).random() < fault.probability


def inject_problems(raw: Any) -> list[ConfigProblem]:
    """Returns what is wrong with the value of ``workload_config.inject``, for a workload's ``check_config``."""
    return parse_config(InjectBlock, {"inject": raw}).problems if raw is not None else []


def parse_faults(raw: Any) -> tuple[FaultConfig, ...]:
    """Returns the faults of a ``workload_config.inject``: None, a mapping, or a list of mappings.

    An unknown key is warned about and ignored, as everywhere in a ``workload_config``.

    Raises:
        ValueError: Some value is unusable; the message has a line for each, ``workload_config.inject`` first.
    """
    return () if raw is None else load_config(InjectBlock, {"inject": raw}, "inject").inject


class Injector:
    """Strikes one rank of one trial with the faults that are planned for it.

    Args:
        faults: The planned faults.
        rank: This process's rank.
        world_size: Number of ranks.
        trial: The trial's number within its cell, from 0.
        sleep: Waits for seconds.

    Raises:
        ValueError: A fault is planned for a rank that the trial does not have.
    """

    def __init__(
        self,
        faults: Sequence[FaultConfig] = (),
        *,
        rank: int = 0,
        world_size: int = 1,
        trial: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for index, fault in enumerate(faults):
            if fault.rank is not None and fault.rank >= world_size:
                have = ranks_there_are(world_size)
                raise ValueError(f"workload_config.inject[{index}].rank is {fault.rank}; the trial has {have}")
        self._rank = rank
        self._trial = trial
        self._sleep = sleep
        self._plans = [_Plan(fault, index, trial) for index, fault in enumerate(faults)]
        self._mine = [plan for plan in self._plans if plan.active and plan.fault.rank in (None, rank)]
        self._former: dict[str, torch.Tensor] = {}

    @classmethod
    def from_config(cls, raw: Any, *, rank: int = 0, world_size: int = 1, trial: int = 0) -> Injector:
        """Reads ``workload_config.inject``, raw or parsed.

        Args:
            raw: None, a mapping, a list of mappings, or a sequence of :class:`FaultConfig`.
            rank: This process's rank.
            world_size: Number of ranks.
            trial: The trial's number, ``config.get("_aorta_trial_index", 0)``.

        Raises:
            ValueError: A value is unusable, or a fault is planned for a rank that the trial does not have.
        """
        return cls(parse_faults(raw), rank=rank, world_size=world_size, trial=trial)

    def __bool__(self) -> bool:
        """Whether any fault is planned, in this trial or not."""
        return bool(self._plans)

    def expect(self, *, buffers: Iterable[str], steps: int) -> None:
        """Refuses faults that can never strike, as a matrix would take them for faults that nobody found.

        Args:
            buffers: Names of all buffers that this rank passes to :meth:`tensor`.
            steps: Number of steps that the workload injects into.

        Raises:
            ValueError: A fault names a buffer or a step that does not occur.
        """
        names = sorted(set(buffers))
        problems = []
        for plan in self._plans:
            fault, place = plan.fault, f"workload_config.inject[{plan.index}]"
            if fault.step is not None and fault.step >= steps:
                problems.append(f"{place}.step is {fault.step}; the trial has steps 0 to {steps - 1}")
            if fault.kind not in RANK_KINDS and not fnmatch.filter(names, fault.pattern):
                meant = nearest_buffers(fault.pattern, names)
                problems.append(f"{place}.buffer '{fault.pattern}' is none of this workload's; {meant}")
        if problems:
            raise ValueError("\n".join(problems))

    def tensor(self, buffer: str, tensor: torch.Tensor, *, step: int) -> None:
        """Offers a buffer at the moment in which a fault could strike it; changes it in place if one does.

        Autograd does not notice the change, as it would not notice a real fault.

        Args:
            buffer: The buffer's name.
            tensor: Its content, of any shape; this rank's part of a distributed one.
            step: The step, from 0; negative in a warm-up, which is never struck but fills what ``stale_buffer``
                and ``partial_write`` fall back to.

        Raises:
            ValueError: A fault names an element or a bit that the buffer does not have.
        """
        keep = False
        for plan in self._mine:
            if not plan.aims_at(buffer):
                continue
            keep = keep or plan.fault.kind in ("stale_buffer", "partial_write")
            if plan.is_due(step):
                plan.note(self._strike(plan, buffer, tensor), step=step, rank=self._rank)
        if keep:
            # Keeps the struck content: what a buffer held before is what was last in it, right or wrong.
            self._former[buffer] = tensor.detach().clone()

    def forget(self) -> None:
        """Drops what buffers held, so that ``stale_buffer`` and ``partial_write`` fall back to zeros again.

        For a workload whose buffers hold the same content at each step, where a stale one could not be found.
        """
        self._former.clear()

    def step(self, step: int) -> None:
        """Strikes the process at the start of a step: sleeps, hangs, or ends it; negative steps never are struck.

        Raises:
            RuntimeError: A planned ``crash_rank`` with ``how: exception``.
        """
        for plan in self._mine:
            fault = plan.fault
            if fault.kind not in RANK_KINDS or not plan.is_due(step):
                continue
            if fault.kind == "slow_rank":
                seconds = _SLOW_SECONDS if fault.seconds is None else fault.seconds
                plan.note({"seconds": seconds}, step=step, rank=self._rank)
                self._sleep(seconds)
            elif fault.kind == "hang_rank":
                plan.note({"seconds": fault.seconds}, step=step, rank=self._rank)
                self._hang(fault.seconds)
            else:
                how = fault.how or "sigkill"
                plan.note({"how": how}, step=step, rank=self._rank)
                _crash(how, f"planted fault: crash_rank on rank {self._rank} at step {step}")

    def report(self) -> dict[str, Any]:
        """Returns what was planned and what struck this rank, ready for ``metrics["injected"]``.

        Returns:
            ``trial``; ``planned``: the faults, each with its settings, ``active`` (whether this trial drew it),
            ``strike_count`` and ``strikes`` (the first 32: rank, step, buffer and what was changed); and
            ``strike_count`` over all. ``unchanged_count`` says how many strikes left every bit as it was.
        """
        planned = [plan.report() for plan in self._plans]
        return {"trial": self._trial, **_totals(planned), "planned": planned}

    def _hang(self, seconds: float | None) -> None:
        if seconds is not None:
            self._sleep(seconds)
            return
        while True:
            self._sleep(3600.0)

    def _strike(self, plan: _Plan, buffer: str, tensor: torch.Tensor) -> dict[str, Any]:
        fault, where = plan.fault, f"workload_config.inject[{plan.index}]"
        if tensor.numel() == 0:
            raise ValueError(f"{where}.buffer '{buffer}' has no elements on rank {self._rank}")
        if fault.element is not None and fault.element >= tensor.numel():
            raise ValueError(f"{where}.element is {fault.element}; buffer '{buffer}' has {tensor.numel()} elements")
        if fault.kind in ("stale_buffer", "partial_write"):
            return {"buffer": buffer, **self._withhold(plan, buffer, tensor)}
        from aorta.workloads import inject_bits

        element = plan.draw(tensor.numel()) if fault.element is None else fault.element
        if fault.kind == "bitflip":
            bits = 8 * tensor.element_size()
            if fault.bit is not None and fault.bit >= bits:
                raise ValueError(f"{where}.bit is {fault.bit}; an element of buffer '{buffer}' has {bits} bits")
            bit = plan.draw(bits) if fault.bit is None else fault.bit
            return {"buffer": buffer, "bit": bit, **inject_bits.flip_bit(tensor, element, bit)}
        if fault.kind == "perturb_input":
            return {"buffer": buffer, **inject_bits.perturb(tensor, element)}
        return {"buffer": buffer, **inject_bits.set_nan(tensor, element)}

    def _withhold(self, plan: _Plan, buffer: str, tensor: torch.Tensor) -> dict[str, Any]:
        """Puts back what the buffer held at the last step, zeros if there was none, from an element on."""
        from aorta.workloads import inject_bits

        first = 0
        if plan.fault.kind == "partial_write":
            first = tensor.numel() // 2 if plan.fault.element is None else plan.fault.element
        former = self._former.get(buffer)
        if former is not None and former.shape != tensor.shape:
            former = None
        return inject_bits.restore(tensor, former, first)


def merge_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins the reports of all ranks into one, as only rank 0's metrics are recorded.

    Args:
        reports: ``Injector.report()`` of each rank, in rank order, of one trial and one configuration.
    """
    planned = []
    for entries in zip(*(report["planned"] for report in reports), strict=True):
        strikes = [strike for entry in entries for strike in entry["strikes"]]
        strikes.sort(key=lambda strike: (strike["step"], strike["rank"]))
        planned.append({**entries[0], **_totals(entries), "strikes": strikes[:_KEPT]})
    return {"trial": reports[0]["trial"], **_totals(planned), "planned": planned}


def _totals(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    listed = list(entries)
    return {name: sum(entry[name] for entry in listed) for name in ("strike_count", "unchanged_count")}


class _Plan:
    """One fault in one trial: its draws, and what came of it."""

    def __init__(self, fault: FaultConfig, index: int, trial: int) -> None:
        self.fault = fault
        self.index = index
        self._random = _draws(fault, index, trial)
        # The first draw, as in strikes_trial(); those of the place follow.
        self.active = self._random.random() < fault.probability
        self._strikes: list[dict[str, Any]] = []
        self._count = 0
        self._unchanged = 0
        self._last_step: int | None = None

    def draw(self, below: int) -> int:
        """Draws a whole number from 0 to below an upper bound."""
        return self._random.randrange(below)

    def aims_at(self, buffer: str) -> bool:
        """Tells whether the fault is meant for a buffer of that name."""
        if self.fault.kind in RANK_KINDS:
            return False
        return buffer == self.fault.pattern or fnmatch.fnmatchcase(buffer, self.fault.pattern)

    def is_due(self, step: int) -> bool:
        """Tells whether the fault strikes now: at its step, and once a step."""
        return step >= 0 and self.fault.step in (None, step) and self._last_step != step

    def note(self, found: Mapping[str, Any], *, step: int, rank: int) -> None:
        """Records a strike, and says it on the log: a process that is about to die leaves no other trace."""
        self._last_step = step
        self._count += 1
        same = found.get("changed") == 0 or ("before" in found and found["before"] == found["after"])
        self._unchanged += same
        strike = {"rank": rank, "step": step, **found}
        if len(self._strikes) < _KEPT:
            self._strikes.append(strike)
            details = ", ".join(f"{name} {value}" for name, value in strike.items())
            nothing = "; it changed nothing, so that nothing can be found" if same else ""
            logger.warning("planted fault: %s (inject[%d]): %s%s", self.fault.kind, self.index, details, nothing)

    def report(self) -> dict[str, Any]:
        """Returns the fault's settings, whether this trial drew it, and its strikes."""
        settings = {name: value for name, value in dataclasses.asdict(self.fault).items() if value is not None}
        # What null means is no default that a reader knows by heart.
        settings |= {"rank": self.fault.rank, "step": self.fault.step}
        if self.fault.pattern:
            settings["buffer"] = self.fault.pattern
        counts = {"strike_count": self._count, "unchanged_count": self._unchanged}
        return {**settings, "active": self.active, **counts, "strikes": list(self._strikes)}


def ranks_there_are(world_size: int) -> str:
    """Says which ranks a trial has."""
    return "only rank 0" if world_size == 1 else f"ranks 0 to {world_size - 1}"


def nearest_buffers(pattern: str, names: Sequence[str]) -> str:
    """Says which buffers may have been meant, or else which there are."""
    near = difflib.get_close_matches(pattern, names, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    rest = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"it has {', '.join(names[:_SHOWN_NAMES])}{rest}"


def _draws(fault: FaultConfig, index: int, trial: int) -> random.Random:
    # A text as seed goes through SHA-512: neighbouring trials and seeds give unrelated draws, on every Python.
    return random.Random(f"{fault.seed}/{index}/{trial}")


def _crash(how: str, message: str) -> NoReturn:
    if how == "exception":
        raise RuntimeError(message)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL if how == "sigkill" else signal.SIGSEGV)
    while True:  # A blocked or handled signal must not let the rank live on.
        os.abort()
