"""Update rules that consume the reduced gradients, and the check of what they computed.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: N parameters, C square blocks of
K x K, Q parameters that fill no block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aorta.race.config import ReproducerConfig

_BLOCK = 64
# Eigenvalues grow by (5/4)^4 a step from at least 1e-4 / 64 of the largest, then converge quadratically.
_ROOT_STEPS = 22


class Shampoo(torch.optim.Optimizer):  # type: ignore[misc]
    """Shampoo (Gupta et al., 2018) on a flat parameter, blocked: ``L^(-1/4) G R^(-1/4)`` for each square block.

    What fills no block is scaled by the root of its mean square, as Shampoo does for vectors. The matrix roots come
    from a coupled Newton iteration, which is matrix products only, so the same input gives the same bits.

    Args:
        params: Flat parameters.
        lr: Learning rate.
        beta: Decay rate of the statistics, from 0 to below 1.
        eps: Share of the mean eigenvalue that is added to the diagonals, and floor of the roots.
        weight_decay: Decoupled weight decay.
    """

    def __init__(self, params: Any, *, lr: float, beta: float, eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient; returns what the closure does, if there is one."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter_N in group["params"]:
                if parameter_N.grad is not None:
                    self._update(parameter_N, group)
        return loss

    def _update(self, parameter_N: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter_N]
        grad_N = parameter_N.grad
        assert grad_N is not None
        blocks = grad_N.numel() // _BLOCK**2
        grad_CKK = grad_N[: blocks * _BLOCK**2].view(blocks, _BLOCK, _BLOCK)
        grad_Q = grad_N[blocks * _BLOCK**2 :]
        if not state:
            state["left"] = torch.zeros_like(grad_CKK)
            state["right"] = torch.zeros_like(grad_CKK)
            state["square"] = torch.zeros_like(grad_Q)
        beta, eps = group["beta"], group["eps"]
        transposed = grad_CKK.transpose(1, 2)
        state["left"].mul_(beta).add_(grad_CKK @ transposed, alpha=1 - beta)
        state["right"].mul_(beta).add_(transposed @ grad_CKK, alpha=1 - beta)
        state["square"].mul_(beta).addcmul_(grad_Q, grad_Q, value=1 - beta)
        parameter_N.mul_(1 - group["lr"] * group["weight_decay"])
        if blocks:
            step_CKK = inverse_fourth_root(state["left"], eps) @ grad_CKK @ inverse_fourth_root(state["right"], eps)
            parameter_N[: blocks * _BLOCK**2].view_as(step_CKK).sub_(step_CKK, alpha=group["lr"])
        parameter_N[blocks * _BLOCK**2 :].addcdiv_(grad_Q, state["square"].sqrt().add_(eps), value=-group["lr"])


def inverse_fourth_root(matrix_CKK: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns ``A^(-1/4)`` of symmetric positive semidefinite matrices by a coupled Newton iteration.

    Args:
        matrix_CKK: The matrices, float32.
        eps: Share of the mean eigenvalue that is added to the diagonal, at least 1e-4 so that float32 converges.
    """
    eye_KK = torch.eye(matrix_CKK.shape[-1], device=matrix_CKK.device)
    mean = matrix_CKK.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None] + torch.finfo(torch.float32).tiny
    ridged_CKK = matrix_CKK / mean + max(eps, 1e-4) * eye_KK
    # The Frobenius norm bounds the largest eigenvalue, so M starts with eigenvalues in (0, 1].
    norm = torch.linalg.matrix_norm(ridged_CKK)[:, None, None]
    root_CKK = eye_KK.expand_as(matrix_CKK)
    m_CKK = ridged_CKK / norm
    for _ in range(_ROOT_STEPS):
        factor_CKK = (5 * eye_KK - m_CKK) / 4
        root_CKK = root_CKK @ factor_CKK
        square_CKK = factor_CKK @ factor_CKK
        m_CKK = square_CKK @ square_CKK @ m_CKK
    return root_CKK * (norm * mean) ** -0.25


class CheckedOptimizer:
    """Two copies of parameters and optimiser: one gets what the runtime delivered, the other what is right.

    Both start an iteration with the same bits, so they must end it so. Afterwards the first takes over the state of the
    second: a wrong gradient is reported in its iteration and not in all that follow.

    Args:
        settings: Configuration; its optimizer is not ``none``.
        size: Number of parameters.
        device: Where they are.

    Attributes:
        parameter: The parameters, float32, that follow the delivered gradients.
        reference: The parameters that follow the right ones.
    """

    def __init__(self, settings: ReproducerConfig, size: int, device: torch.device) -> None:
        self.parameter = torch.linspace(-1, 1, size, device=device)
        self.reference = self.parameter.clone()
        self._optimizers = [_build(settings, p) for p in (self.parameter, self.reference)]

    def step(self, delivered_N: torch.Tensor, right_N: torch.Tensor) -> None:
        """Updates both copies; the gradients are flat and become float32."""
        pairs = zip(self._optimizers, (self.parameter, self.reference), (delivered_N, right_N), strict=True)
        for optimizer, parameter_N, grad_N in pairs:
            parameter_N.grad = grad_N.reshape(-1).float()
            optimizer.step()
            parameter_N.grad = None

    def heal(self) -> None:
        """Makes the first copy equal to the second, its state included."""
        self.parameter.copy_(self.reference)
        mine, theirs = (o.state[p] for o, p in zip(self._optimizers, (self.parameter, self.reference), strict=True))
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                mine[key].copy_(value)


def _build(settings: ReproducerConfig, parameter_N: torch.Tensor) -> torch.optim.Optimizer:
    s = settings
    if s.optimizer == "adamw":
        return torch.optim.AdamW(
            [parameter_N],
            lr=s.optimizer_lr,
            betas=s.optimizer_betas,
            eps=s.optimizer_eps,
            weight_decay=s.optimizer_weight_decay,
        )
    if s.optimizer == "sgd":
        momentum = s.optimizer_betas[0]
        return torch.optim.SGD(
            [parameter_N], lr=s.optimizer_lr, momentum=momentum, weight_decay=s.optimizer_weight_decay
        )
    return Shampoo(
        [parameter_N],
        lr=s.optimizer_lr,
        beta=s.optimizer_betas[1],
        eps=s.optimizer_eps,
        weight_decay=s.optimizer_weight_decay,
    )
