"""The snapshot: a step that starts from it twice starts from the same bits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from aorta.llm_determinism.snapshot import RngState, Snapshot


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_every_generator_is_set_back() -> None:
    """Python, numpy and torch draw the same numbers again."""
    state = RngState()
    first = draw()
    assert draw() != first
    state.restore()
    assert draw() == first


class Net(nn.Module):  # type: ignore[misc]
    """A layer with a buffer, and a dropout that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(self.norm(self.linear(x)))
        return out


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers()]
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [t.detach().clone() for t in [*tensors, *moments]]


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.arange(12.0).view(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_training_from_a_snapshot_repeats_itself() -> None:
    """Parameters, buffers, optimiser and dropout's random numbers are all set back, as often as asked."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    snapshot = Snapshot(model, optimizer)
    outcomes = []
    for _ in range(3):
        snapshot.restore()
        optimizer_lr = optimizer.param_groups[0]["lr"]
        loss = train(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.7
        outcomes.append((optimizer_lr, loss, *state_of(model, optimizer)))
    for later in outcomes[1:]:
        assert all(
            a == b if isinstance(a, float) else torch.equal(a, b) for a, b in zip(outcomes[0], later, strict=True)
        )
    # And without the snapshot nothing of this would hold.
    assert not torch.equal(train(model, optimizer), outcomes[0][1])


def test_a_fresh_optimiser_is_fresh_again() -> None:
    """State that did not exist at the time of the snapshot is gone after it, and so are the gradients."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    snapshot = Snapshot(model, optimizer)
    train(model, optimizer)
    assert optimizer.state
    snapshot.restore()
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
