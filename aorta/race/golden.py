"""What layers with shared weights must compute, worked out before any communication.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aorta.race.compute import Compute
from aorta.race.verify import Verifier
from aorta.workloads.checksum import tensor_checksum


@dataclass(frozen=True)
class _Reference:
    content: torch.Tensor
    checksum: torch.Tensor


class Golden:
    """Outputs and gradients of a layer, for each phase of its weights.

    Every layer is compared with the same reference, so that layers are compared with each other, too; and a wrong first
    layer does not make all others look wrong.

    Args:
        compute: The work of a layer.
        weights: The weights of each phase, as a gather delivers them.
    """

    def __init__(self, compute: Compute, weights: Sequence[torch.Tensor]) -> None:
        self._weights = [_Reference(torch.empty(0), tensor_checksum(content)) for content in weights]
        self._outputs: list[_Reference | None] = []
        self._grads: list[_Reference | None] = []
        for content in weights:
            compute.begin()
            output = compute.forward(0, content)
            grad = compute.backward(0, content).grad
            self._outputs.append(_reference(output))
            self._grads.append(_reference(grad))

    def check_weights(self, verifier: Verifier, weights: torch.Tensor, *, phase: int) -> None:
        """Compares the checksum of a layer's weights where nothing is computed from them."""
        if self._outputs[phase] is None:
            verifier.check_layer_checksum(weights, self._weights[phase].checksum)

    def check_output(self, verifier: Verifier, layer: int, output: torch.Tensor | None, *, phase: int) -> None:
        """Compares a layer's output, element by element and by its checksum."""
        _check(verifier, f"layer{layer}.output", output, self._outputs[phase])

    def check_grad(self, verifier: Verifier, layer: int, grad: torch.Tensor | None, *, phase: int) -> None:
        """Compares the gradient of a layer's weights in the same way."""
        _check(verifier, f"layer{layer}.grad", grad, self._grads[phase])


def _reference(content: torch.Tensor | None) -> _Reference | None:
    if content is None:
        return None
    content = content.detach().clone(memory_format=torch.contiguous_format)
    return _Reference(content, tensor_checksum(content))


def _check(verifier: Verifier, name: str, found: torch.Tensor | None, reference: _Reference | None) -> None:
    if found is not None and reference is not None:
        found = found.contiguous()
        verifier.check([name], found, reference.content)
        verifier.check_layer_checksum(found, reference.checksum)
