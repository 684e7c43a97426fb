"""A network whose parameters are one vector and whose gradients are another.

Updates, corrections, aggregation and checkpoints are then arithmetic on vectors, and an optimiser step takes few
operations for any number of layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feddig.errors import SettingError

KERNEL_DIMENSIONS = 4


class FlatNetwork:
    """A module with its parameters as one vector; writing to the vector changes the module.

    With bf16 the module computes with a rounded copy, and the vector keeps full precision.
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None, *, bf16: bool = False) -> None:
        self.module = module.to(device) if device is not None else module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise SettingError(
                f"{type(module).__name__}: has no parameter to train; give a network with parameters"
            )
        self.vector = torch.cat([_as_stored(parameter.detach()).float() for parameter in self.parameters])
        self._rounded = self.vector.bfloat16() if bf16 else self.vector
        self.gradient = torch.zeros_like(self._rounded)
        for parameter, view in zip(self.parameters, self._views(self._rounded), strict=True):
            parameter.data = view

    def load(self, weights: Tensor) -> None:
        """Copy these weights into the vector and the module."""
        self.vector.copy_(weights)
        self.publish()

    def publish(self) -> None:
        """Update the module's rounded copy from the vector."""
        if self._rounded is not self.vector:
            self._rounded.copy_(self.vector)

    def collect(self, gradients: Sequence[Tensor]) -> None:
        """Write gradients, one per parameter, into the gradient vector."""
        torch.cat([_as_stored(gradient) for gradient in gradients], out=self.gradient)

    def weights(self) -> Tensor:
        """Return a copy of the weights."""
        return self.vector.clone()

    def tensors(self) -> dict[str, Tensor]:
        """Return the module's tensors by name, as in its state dict, in full precision: this is what is saved."""
        # by identity, because a network may have one parameter under two names
        exact = dict(zip(map(id, self.parameters), self._views(self.vector), strict=True))
        state = self.module.state_dict(keep_vars=True)
        return {
            name: exact.get(id(tensor), tensor).detach().cpu().contiguous() for name, tensor in state.items()
        }

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.vector.device

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into views, one per parameter, in its shape."""
        parts = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return [
            _from_stored(part, parameter.shape)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]


def _as_stored(tensor: Tensor) -> Tensor:
    """Flatten a tensor, a convolution's weight with its input channels last, because convolutions are fastest so."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == KERNEL_DIMENSIONS else tensor).reshape(-1)


def _from_stored(part: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != KERNEL_DIMENSIONS:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
