"""The computation between the communications.

Everything here is made of matrix products and elementwise operations, which give the same bits for the same input on
the same device: no fused attention, whose backward pass may add up in any order.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: B batch, T tokens, D width, H heads,
K width of a head, F inner width, P weights of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from aorta.race.config import ReproducerConfig
from aorta.workloads.dtypes import torch_dtype


@dataclass(frozen=True)
class Backward:
    """What a layer's backward pass leaves.

    Attributes:
        grad: Gradient of the layer's weights, flat; None if only its cost was simulated.
    """

    grad: torch.Tensor | None


class Compute:
    """Does nothing; the base of what does something. One object serves all layers of a rank."""

    def begin(self) -> None:
        """Starts an iteration."""

    def forward(self, layer: int, weights_P: torch.Tensor) -> torch.Tensor | None:
        """Computes a layer; returns its output, or None if nothing is computed.

        Args:
            layer: Number of the layer; layers come in order.
            weights_P: At least as many elements as a layer has weights.
        """
        return None

    def backward(self, layer: int, weights_P: torch.Tensor) -> Backward:
        """Computes a layer's backward pass, layers in reverse order."""
        return Backward(None)


class GemmCompute(Compute):
    """One product of square matrices a layer, with matrices of its own.

    Args:
        settings: Configuration.
        device: Where to compute.
        generator: Draws the matrices, on the CPU.
    """

    def __init__(self, settings: ReproducerConfig, device: torch.device, generator: torch.Generator) -> None:
        self._settings = settings
        size, dtype = settings.gemm_size, torch_dtype(settings.dtype)

        def matrix() -> torch.Tensor:
            return torch.randn(size, size, generator=generator).mul_(size**-0.5).to(device, dtype)

        self._input, self._output_grad = matrix(), matrix()
        self._weights = [matrix().requires_grad_(settings.real_backward) for _ in range(settings.gemm_layers)]

    def forward(self, layer: int, weights_P: torch.Tensor) -> torch.Tensor:
        """Multiplies the input with the layer's matrix."""
        with torch.no_grad():
            return self._input @ self._weights[layer]

    def backward(self, layer: int, weights_P: torch.Tensor) -> Backward:
        """Runs autograd on the product, or computes the two products that it would."""
        weight = self._weights[layer]
        if self._settings.real_backward:
            (grad,) = torch.autograd.grad(self._input @ weight, weight, self._output_grad)
            return Backward(grad.reshape(-1))
        if self._settings.include_backward_compute:
            self._output_grad @ weight.t()
            self._input.t() @ self._output_grad
        return Backward(None)


class TransformerCompute(Compute):
    """A transformer layer whose weights are views of a flat buffer, such as one that was just gathered.

    With shared weights every layer gets the same input and the same output gradient, so that all must compute the same
    bits; otherwise each layer gets the output of the one before. The backward pass computes the layer's forward pass
    again from its input, as the weights have been overwritten since.

    Args:
        settings: Configuration.
        device: Where to compute.
        generator: Draws the input and the output gradient, on the CPU.
    """

    def __init__(self, settings: ReproducerConfig, device: torch.device, generator: torch.Generator) -> None:
        self._settings = settings
        shape = (settings.batch_size, settings.seq_len, settings.model_dim)
        dtype = torch_dtype(settings.dtype)
        self._input_BTD = torch.randn(shape, generator=generator).to(device, dtype)
        self._output_grad_BTD = torch.randn(shape, generator=generator).to(device, dtype)
        self.begin()

    def begin(self) -> None:
        """Puts the iteration's input before the first layer."""
        self._x_BTD, self._dy_BTD = self._input_BTD, self._output_grad_BTD
        self._inputs: list[torch.Tensor] = []

    def forward(self, layer: int, weights_P: torch.Tensor) -> torch.Tensor:
        """Computes the layer without autograd."""
        del self._inputs[layer:]
        self._inputs.append(self._x_BTD)
        with torch.no_grad():
            y_BTD = self._layer(self._x_BTD, weights_P)
        if not self._settings.shared_layer_weights:
            self._x_BTD = y_BTD
        return y_BTD

    def backward(self, layer: int, weights_P: torch.Tensor) -> Backward:
        """Runs autograd through the layer, or computes the forward pass twice more, which costs as much."""
        x_BTD = self._inputs[layer]
        if self._settings.real_backward:
            leaf_P = weights_P[: self._settings.layer_parameters].detach().requires_grad_()
            x_BTD = x_BTD.detach().requires_grad_()
            with torch.enable_grad():
                y_BTD = self._layer(x_BTD, leaf_P)
            grad_P, dx_BTD = torch.autograd.grad(y_BTD, (leaf_P, x_BTD), self._dy_BTD)
            if not self._settings.shared_layer_weights:
                self._dy_BTD = dx_BTD
            return Backward(grad_P)
        if self._settings.include_backward_compute:
            with torch.no_grad():
                for _ in range(2):
                    self._layer(x_BTD, weights_P)
        return Backward(None)

    def _layer(self, x_BTD: torch.Tensor, weights_P: torch.Tensor) -> torch.Tensor:
        s = self._settings
        d, f = s.model_dim, s.ffn
        flat_P = weights_P[: s.layer_parameters]
        qkv, out, up, down = flat_P.split([3 * d * d, d * d, d * f, d * f])
        h_BTD = F.rms_norm(x_BTD, (d,))
        q_BHTK, k_BHTK, v_BHTK = (
            part.unflatten(-1, (s.heads, d // s.heads)).transpose(1, 2)
            for part in (h_BTD @ qkv.view(3 * d, d).t()).chunk(3, dim=-1)
        )
        scores_BHTT = (q_BHTK @ k_BHTK.transpose(-1, -2)) * (d // s.heads) ** -0.5
        mixed_BTD = (scores_BHTT.softmax(-1) @ v_BHTK).transpose(1, 2).flatten(2)
        x_BTD = x_BTD + mixed_BTD @ out.view(d, d).t()
        h_BTF = F.gelu(F.rms_norm(x_BTD, (d,)) @ up.view(f, d).t())
        return x_BTD + h_BTF @ down.view(d, f).t()


def build_compute(settings: ReproducerConfig, device: torch.device, seed: int) -> Compute:
    """Returns what the settings ask for."""
    if not settings.simulate_compute:
        return Compute()
    generator = torch.Generator().manual_seed(seed)
    kinds = {"gemm": GemmCompute, "transformer": TransformerCompute}
    return kinds[settings.compute_type](settings, device, generator)
