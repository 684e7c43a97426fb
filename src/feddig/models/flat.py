"""A network whose parameters lie in one vector, and its gradients in another.

Everything federated (updates, corrections, aggregation, checkpoints) is then arithmetic on vectors, and
an optimiser step is a handful of operations whatever the number of layers.
"""

import torch
from torch import Tensor, nn

from feddig.errors import SettingError


class FlatNetwork:
    """A module with its parameters as one vector; writing to the vector changes the module."""

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        self.module = module.to(device) if device is not None else module
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise SettingError(f"{type(module).__name__}: has no parameter to train; give a network that has")
        self.vector = torch.cat([parameter.detach().flatten().float() for parameter in parameters])
        self.gradient = torch.zeros_like(self.vector)
        place = 0
        for parameter in parameters:
            stretch = slice(place, place + parameter.numel())
            parameter.data = self.vector[stretch].view_as(parameter)
            parameter.grad = self.gradient[stretch].view_as(parameter)
            place += parameter.numel()

    def load(self, weights: Tensor) -> None:
        """Take over these weights."""
        self.vector.copy_(weights)

    def weights(self) -> Tensor:
        """Give a copy of the weights."""
        return self.vector.clone()

    def tensors(self) -> dict[str, Tensor]:
        """Give the module's tensors by name, as its state dict has them: this is what is saved."""
        return {name: tensor.detach().cpu() for name, tensor in self.module.state_dict().items()}

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return self.vector.device
