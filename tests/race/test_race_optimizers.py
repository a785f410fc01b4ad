"""Update rules of ``race``: Shampoo's mathematics, and the comparison of two copies."""

from __future__ import annotations

import pytest
import torch

from aorta.race.config import ReproducerConfig
from aorta.race.optimizers import CheckedOptimizer, Shampoo, inverse_fourth_root
from aorta.race.patterns import bits

CPU = torch.device("cpu")


def test_inverse_fourth_root_is_one() -> None:
    """The root, to the fourth power, times the ridged matrix is the identity."""
    random = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = random @ random.transpose(1, 2)
    ridge = 1e-2 * matrix.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None] * torch.eye(16, dtype=torch.float64)
    root = inverse_fourth_root(matrix.float(), 1e-2).double()
    product = root @ root @ root @ root @ (matrix + ridge)
    assert torch.allclose(product, torch.eye(16, dtype=torch.float64).expand(3, -1, -1), atol=2e-2)


def test_root_of_nothing_is_finite() -> None:
    """A block whose gradients were all zero does not turn into NaN."""
    assert torch.isfinite(inverse_fourth_root(torch.zeros(1, 8, 8), 1e-8)).all()


def test_shampoo_takes_a_block_apart_into_its_directions() -> None:
    """For one gradient, L^(-1/4) G R^(-1/4) levels the singular values: all become nearly equal."""
    generator = torch.Generator().manual_seed(2)
    left, _ = torch.linalg.qr(torch.randn(64, 64, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(64, 64, generator=generator))
    grad = left @ torch.diag(torch.linspace(1, 3, 64)) @ right
    parameter = torch.zeros(64 * 64 + 3)
    parameter.grad = torch.cat([grad.reshape(-1), torch.tensor([4.0, 4.0, 4.0])])
    Shampoo([parameter], lr=1.0, beta=0.0, eps=1e-8, weight_decay=0.0).step()
    singular = torch.linalg.svdvals(parameter[: 64 * 64].view(64, 64))
    assert singular.min() > 0.95 * singular.max()
    assert torch.allclose(parameter[64 * 64 :], torch.tensor(-1.0))


@pytest.mark.parametrize("kind", ["adamw", "sgd", "shampoo"])
def test_both_copies_stay_equal_and_move(kind: str) -> None:
    """The same gradients give the same bits, step after step, and the parameters change."""
    checked = CheckedOptimizer(ReproducerConfig(optimizer=kind), 5000, CPU)  # type: ignore[arg-type]
    start = checked.parameter.clone()
    for step in range(3):
        grad = torch.randn(5000, generator=torch.Generator().manual_seed(step))
        checked.step(grad, grad.clone())
        assert torch.equal(bits(checked.parameter), bits(checked.reference))
        checked.heal()
    assert not torch.equal(start, checked.parameter)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "shampoo"])
def test_a_wrong_gradient_shows_once(kind: str) -> None:
    """After a wrong gradient the copies differ; once healed they are equal again, momentum and all."""
    checked = CheckedOptimizer(ReproducerConfig(optimizer=kind), 5000, CPU)  # type: ignore[arg-type]
    grad = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    wrong = grad.clone()
    wrong[17] = -5.0
    checked.step(grad, grad)
    checked.heal()
    checked.step(wrong, grad)
    assert not torch.equal(checked.parameter, checked.reference)
    checked.heal()
    checked.step(grad, grad)
    assert torch.equal(bits(checked.parameter), bits(checked.reference))
