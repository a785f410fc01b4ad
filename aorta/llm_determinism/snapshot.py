"""Everything that a training step starts from, kept so that the step can start there again.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch
from torch import nn

from aorta.workloads.sharding import local_part


class RngState:
    """The state of every random number generator that a training step may draw from.

    Python's, numpy's where it is loaded, torch's on the CPU and on each accelerator of this process.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = _numpy()
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._cpu = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Sets the generators back."""
        random.setstate(self._python)
        numpy = _numpy()
        if numpy is not None and self._numpy is not None:
            numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


class Snapshot:
    """A copy of this rank's parameters, buffers, optimiser state and generators.

    Args:
        model: The model, sharded or not.
        optimizer: Its optimiser.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        with torch.no_grad():
            self._tensors = [(tensor, local_part(tensor).clone()) for tensor in _state_of(model)]
            self._optimizer_state = {p: _cloned(state) for p, state in optimizer.state.items()}
            self._groups = [
                {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ]
        self._rng = RngState()

    def restore(self) -> None:
        """Puts everything back in place and drops the gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for tensor, saved in self._tensors:
                local_part(tensor).copy_(saved)
            self._optimizer.state.clear()
            for parameter, state in self._optimizer_state.items():
                self._optimizer.state[parameter] = _cloned(state)
            for group, saved_group in zip(self._optimizer.param_groups, self._groups, strict=True):
                group.update(copy.deepcopy(saved_group))
        self._rng.restore()


def _state_of(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _cloned(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in state.items()
    }


def _numpy() -> Any:
    # A library that was never imported has drawn nothing.
    return sys.modules.get("numpy")
