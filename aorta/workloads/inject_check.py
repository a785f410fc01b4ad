"""Planted faults that can never strike, as far as the configuration and the number of ranks tell before a trial.

Does not import torch. ``Injector`` refuses the same at run time, when it knows every buffer.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aorta.workloads.base import ConfigProblem, TrialShape
from aorta.workloads.inject import RANK_KINDS, FaultConfig, nearest_buffers, ranks_there_are

_NAN_KINDS = frozenset({"nan_grad", "nan_logits"})
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class BufferShape:
    """What is known of a buffer before a trial.

    Attributes:
        bits: Bits of an element, or None.
        elements: Number of elements on a rank, or None.
        whole_numbers: Whether it holds numbers that have no NaN.
    """

    bits: int | None = None
    elements: int | None = None
    whole_numbers: bool = False


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """The buffers of a workload, as far as they are known before a trial.

    Attributes:
        known: Those with a name that is known.
        parameters: What holds for all that are named after a parameter (``a.b``), whose names take the model to know;
            None where all names are in ``known``.
        blocks: Number of the model's ``blocks.N``; needed with ``parameters``.
        gradients: Whether parameters have a ``.grad``.
    """

    known: Mapping[str, BufferShape]
    parameters: BufferShape | None = None
    blocks: int = 0
    gradients: bool = True

    def matching(self, pattern: str) -> list[BufferShape]:
        """Returns what a name or pattern of a fault may strike; nothing if there is no such buffer."""
        found = [shape for name, shape in self.known.items() if fnmatch.fnmatchcase(name, pattern)]
        if self.parameters is None or (found and not _GLOB.search(pattern)):
            return found
        if pattern.endswith(".grad") and not self.gradients:
            return found
        block = re.match(r"blocks\.(\d+)\.", pattern)
        if (block and int(block[1]) >= self.blocks) or not ("." in pattern or _GLOB.search(pattern)):
            return found
        return [*found, self.parameters]

    def nearest(self, pattern: str) -> str:
        """Says which buffers there are that may have been meant."""
        rest = [] if self.parameters is None else ["each parameter"]
        if rest and pattern.startswith("blocks."):
            return f"the model has blocks.0 to blocks.{self.blocks - 1}"
        return nearest_buffers(pattern, [*self.known, *rest])


class Injectable(Protocol):
    """A configuration with planted faults."""

    @property
    def inject(self) -> tuple[FaultConfig, ...]:
        """The faults."""

    @property
    def buffers(self) -> Buffers:
        """What they can strike."""


def fault_problems(
    faults: Sequence[FaultConfig], raw: Any, *, steps: int, shape: TrialShape, buffers: Buffers
) -> list[ConfigProblem]:
    """Returns what keeps planned faults from ever striking.

    Args:
        faults: The faults of a configuration.
        raw: The value of ``inject`` that they were read from, for the names of the places.
        steps: Number of steps that the workload injects into.
        shape: What is known of the trial.
        buffers: What the workload has.
    """
    found = []
    for index, fault in enumerate(faults):
        place, entry = ("inject", raw) if isinstance(raw, Mapping) else (f"inject[{index}]", raw[index])
        for name, message in _problems(fault, steps, shape, buffers):
            written = "iteration" if name == "step" and isinstance(entry, Mapping) and name not in entry else name
            key = f"{place}.{written}"
            found.append(ConfigProblem(key=key, message=f"{key} {message}", code="bad_config_value"))
    return found


def trial_fault_problems(
    settings: Injectable | None, config: Mapping[str, Any], shape: TrialShape
) -> list[ConfigProblem]:
    """Returns what keeps the planned faults of a merged ``workload_config`` from ever striking.

    Args:
        settings: The configuration as it was read, or None if it has unusable values: then there is nothing to say.
        config: The configuration as the recipe has it.
        shape: What is known of the trial.
    """
    if settings is None:
        return []
    raw = config.get("inject")
    return fault_problems(settings.inject, raw, steps=shape.steps, shape=shape, buffers=settings.buffers)


def _problems(fault: FaultConfig, steps: int, shape: TrialShape, buffers: Buffers) -> Iterator[tuple[str, str]]:
    if shape.world_size is not None and fault.rank is not None and fault.rank >= shape.world_size:
        yield "rank", f"is {fault.rank}; the trial has {ranks_there_are(shape.world_size)}"
    if fault.step is not None and fault.step >= steps:
        yield "step", f"is {fault.step}; the trial has steps 0 to {steps - 1}"
    if fault.kind in RANK_KINDS:
        return
    struck = buffers.matching(fault.pattern)
    if not struck:
        yield "buffer", f"'{fault.pattern}' is none of this workload's; {buffers.nearest(fault.pattern)}"
        return
    bits = [one.bits for one in struck if one.bits is not None]
    if fault.bit is not None and len(bits) == len(struck) and fault.bit >= max(bits):
        yield "bit", f"is {fault.bit}; an element of buffer '{fault.pattern}' has {max(bits)} bits"
    elements = [one.elements for one in struck if one.elements is not None]
    if fault.element is not None and len(elements) == len(struck) and fault.element >= max(elements):
        yield "element", f"is {fault.element}; buffer '{fault.pattern}' has {max(elements)} elements"
    if fault.kind in _NAN_KINDS and all(one.whole_numbers for one in struck):
        yield "buffer", f"'{fault.pattern}' holds token ids, which have no NaN; use perturb_input"
