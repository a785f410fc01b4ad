"""Checksums of what passes through a model in one training step, taken where it passes.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from aorta.llm_determinism.compare import Place, Replay
from aorta.workloads.checksum import plain_checksum, tensor_checksum
from aorta.workloads.models import TokenModel

Strike = Callable[[str, torch.Tensor], None]
"""Offers a buffer to the planted faults: name and content."""


class Watch:
    """Collects the checksums of one replay on the device and reads them once, at the end."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._plain: list[torch.Tensor] = []
        self._ordered: list[torch.Tensor] = []

    def observe(self, place: Place, tensor: torch.Tensor) -> None:
        """Adds one tensor, of any shape; its content is taken now."""
        self._places.append(place)
        self._plain.append(plain_checksum(tensor))
        self._ordered.append(tensor_checksum(tensor))

    def tensors(self) -> torch.Tensor:
        """Returns the checksums so far as one int64 tensor of shape [2, number of tensors]: plain, ordered."""
        return torch.stack([torch.stack(self._plain), torch.stack(self._ordered)])

    def replay(self, tensors: torch.Tensor) -> Replay:
        """Reads a tensor of checksums from the device; it may have been joined over ranks."""
        plain, ordered = tensors.tolist()
        return Replay(places=tuple(self._places), plain=tuple(plain), ordered=tuple(ordered))


class BlockHooks:
    """Shows each block's input and output, and their gradients, to a watch and to the planted faults.

    Args:
        model: The model, after it was sharded: what is watched is what the blocks themselves get.
    """

    def __init__(self, model: TokenModel) -> None:
        self._watch: Watch | None = None
        self._strike: Strike | None = None
        for number, block in enumerate(model.blocks):
            block.register_forward_pre_hook(partial(self._before, number))
            block.register_forward_hook(partial(self._after, number))

    def attach(self, watch: Watch | None, strike: Strike | None) -> None:
        """Sets who sees the next training steps; None for nobody."""
        self._watch = watch
        self._strike = strike

    def _before(self, block: int, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._pass(block, "input", args[0])

    def _after(self, block: int, module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        self._pass(block, "output", output)

    def _pass(self, block: int, side: str, x_BTD: torch.Tensor) -> None:
        name = f"blocks.{block}.{side}"
        if self._strike is not None:
            self._strike(name, x_BTD)
        if self._watch is not None:
            self._watch.observe(_place(block, side, name, "forward"), x_BTD)
            if x_BTD.requires_grad:
                x_BTD.register_hook(partial(self._pass_gradient, block, side, self._watch, self._strike))

    @staticmethod
    def _pass_gradient(
        block: int, side: str, watch: Watch, strike: Strike | None, gradient_BTD: torch.Tensor
    ) -> torch.Tensor | None:
        name = f"blocks.{block}.{side}.grad"
        if strike is None:
            watch.observe(_place(block, side, name, "backward"), gradient_BTD)
            return None
        # Autograd may use the same memory elsewhere, where the fault was not planted.
        gradient_BTD = gradient_BTD.clone()
        strike(name, gradient_BTD)
        watch.observe(_place(block, side, name, "backward"), gradient_BTD)
        return gradient_BTD


def _place(block: int, side: str, name: str, direction: Any) -> Place:
    return Place(block=block, direction=direction, tensor=name, role="block_pre" if side == "input" else "block_post")
