"""Compares buffers with what they must hold, bit for bit, and records what is wrong.

On an accelerator nothing here makes the host wait for the device inside an iteration: each comparison leaves four
numbers a buffer on the device, an iteration's numbers are copied to the host together, and they are looked at when an
iteration or two have passed. On the CPU, where reading is free, a comparison that finds nothing is one pass of the C
library over both memories, and only one that finds something computes numbers.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: G buffers of one comparison,
M elements of each.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aorta.race.buffers import what_is_wrong
from aorta.race.patterns import INT_OF_SIZE, bits
from aorta.workloads.checksum import tensor_checksum
from aorta.workloads.failures import FailureLog
from aorta.workloads.inject import Injector

_LAG = 2
"""Iterations that the host may be behind the device with its reading."""

# torch.equal takes fifteen times as long on 2-byte integers, and numpy one and a half times.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


@dataclass(frozen=True)
class _Label:
    """A compared buffer."""

    name: str
    dtype: torch.dtype
    size: int


@dataclass(frozen=True)
class _Batch:
    """The comparisons of one iteration: their labels, and four numbers each, on their way to the host."""

    iteration: int
    labels: list[_Label]
    numbers_G4: torch.Tensor
    ready: Any


class Verifier:
    """Holds one rank's verdicts.

    Args:
        rank: This rank.
        device: Where the buffers are.
        injector: Strikes buffers right before they are compared.

    Attributes:
        log: The corruption records.
        layers_verified: Number of layers whose checksum was compared.
    """

    def __init__(self, *, rank: int, device: torch.device, injector: Injector) -> None:
        self.log = FailureLog("race")
        self.layers_verified = 0
        self._rank = rank
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._injector = injector
        self._iteration = 0
        self._labels: list[_Label] = []
        self._numbers: list[torch.Tensor] = []
        self._pending: deque[_Batch] = deque()
        self._scratch: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
        self._checksum_mismatches = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def corrupted(self) -> bool:
        """Whether any corruption was seen so far; on an accelerator it takes up to two iterations to be seen."""
        return self.log.count > 0

    def begin(self, iteration: int) -> None:
        """Starts an iteration; a negative number is one of the warm-up, in which nothing is compared."""
        self._iteration = iteration

    def check(self, names: Sequence[str], found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compares buffers of equal size.

        Args:
            names: Names of the G buffers.
            found: Their contents one after the other, contiguous, of a shape that divides evenly among them.
            expected: What they must hold: as many elements of the same dtype, contiguous or R contiguous rows.

        Raises:
            ValueError: The two do not match: another dtype, or another number of elements.
        """
        if self._injector:
            for name, buffer in zip(names, found.view(len(names), -1).unbind(), strict=True):
                self._injector.tensor(name, buffer, step=self._iteration)
        if self._iteration < 0:
            return
        if self._on_cpu and _same_memory(found, expected):
            return
        if expected.dtype != found.dtype or expected.numel() != found.numel():
            raise ValueError(f"{names[0]}: {found.dtype} {found.shape} compared with {expected.dtype} {expected.shape}")
        scratch = self._scratch_like(found)
        torch.bitwise_xor(bits(expected), bits(found).view(expected.shape), out=bits(scratch).view(expected.shape))
        self._labels += [_Label(name, found.dtype, found.numel() // len(names)) for name in names]
        self._numbers.append(_summary(bits(scratch).view(len(names), -1), bits(found).view(len(names), -1)))

    def check_layer_checksum(self, content: torch.Tensor, expected_checksum: torch.Tensor) -> None:
        """Compares the checksum of a layer's content with the one that all layers share; nothing in the warm-up."""
        if self._iteration < 0:
            return
        self.layers_verified += 1
        self._checksum_mismatches += tensor_checksum(content) != expected_checksum

    def end(self) -> None:
        """Sends the iteration's numbers to the host and looks at those that have arrived; queue it on ``compute``."""
        if self._numbers:
            numbers_G4 = torch.cat(self._numbers)
            ready = None
            if self._device.type == "cuda":
                arrived = torch.empty(numbers_G4.shape, dtype=numbers_G4.dtype, pin_memory=True)
                numbers_G4 = arrived.copy_(numbers_G4, non_blocking=True)
                ready = torch.cuda.Event()
                ready.record()
            self._pending.append(_Batch(self._iteration, self._labels, numbers_G4, ready))
            self._labels, self._numbers = [], []
        while self._pending and (len(self._pending) > _LAG or _arrived(self._pending[0])):
            self._read(self._pending.popleft())

    def finish(self) -> None:
        """Looks at everything that is still on its way."""
        while self._pending:
            self._read(self._pending.popleft())

    def checksum_mismatches(self) -> int:
        """Returns how many layers had another checksum than the others; waits for the device."""
        return int(self._checksum_mismatches)

    def _scratch_like(self, found: torch.Tensor) -> torch.Tensor:
        key = (found.shape, found.dtype)
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(found)
        return self._scratch[key]

    def _read(self, batch: _Batch) -> None:
        if batch.ready is not None:
            batch.ready.synchronize()
        for label, (count, position, found, differing) in zip(batch.labels, batch.numbers_G4.tolist(), strict=True):
            if count:
                self._record(batch.iteration, label, count, position, found, differing)

    def _record(self, iteration: int, label: _Label, count: int, position: int, found: int, differing: int) -> None:
        width = 8 * label.dtype.itemsize
        flipped = (differing & ((1 << width) - 1)).bit_count()
        if count == 1:
            extent = "one flipped bit" if flipped == 1 else "one wrong element"
        else:
            extent = "every element is wrong" if count == label.size else "some elements are wrong"
        self.log.add(
            step=iteration,
            check="corruption",
            # Place and numbers have fields of their own: trials that fail alike are counted by their hint.
            hint=f"{label.name}: {extent}: {what_is_wrong(label.name)}",
            iteration=iteration,
            rank=self._rank,
            buffer=label.name,
            dtype=str(label.dtype).removeprefix("torch."),
            count=count,
            first_position=position,
            expected=_described(found ^ differing, label.dtype),
            found=_described(found, label.dtype),
        )


def _same_memory(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Tells whether a contiguous tensor of the CPU has the same bytes as one that is contiguous or has such rows."""
    size = found.nbytes
    if expected.nbytes != size:
        return False
    if expected.is_contiguous():
        return not _memcmp(found.data_ptr(), expected.data_ptr(), size)
    start, wanted, rows = found.data_ptr(), expected.data_ptr(), len(expected)
    apart = expected.stride(0) * expected.element_size()
    size //= rows
    return not any(_memcmp(start + row * size, wanted + row * apart, size) for row in range(rows))


def _summary(differing: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Returns for each row: wrong elements, first position, its bits as found, and which of them differ; int64."""
    wrong = differing != 0
    first_G1 = wrong.to(torch.uint8).argmax(dim=1, keepdim=True)
    columns = (wrong.sum(dim=1, keepdim=True), first_G1, found.gather(1, first_G1), differing.gather(1, first_G1))
    return torch.cat([column.to(torch.int64) for column in columns], dim=1)


def _arrived(batch: _Batch) -> bool:
    return batch.ready is None or bool(batch.ready.query())


def _described(pattern: int, dtype: torch.dtype) -> dict[str, Any]:
    """Returns an element's value and its bit pattern in hexadecimal."""
    size = dtype.itemsize
    value = torch.tensor([pattern], dtype=INT_OF_SIZE[size]).view(dtype)
    return {"value": value.item(), "bits": f"0x{pattern & ((1 << 8 * size) - 1):0{2 * size}x}"}
