"""How good the model is: test accuracy at the moderator, validation accuracy at each silo."""

import torch
from torch import Tensor

from feddig.core.samples import RawSamples
from feddig.models.flat import FlatNetwork

AT_ONCE = 1024
AT_ONCE_ON_GPU = 4096


@torch.no_grad()
def accuracy(network: FlatNetwork, samples: RawSamples) -> float | None:
    """Give the percentage of samples that the network classifies rightly; None where there are none."""
    if not len(samples):
        return None
    network.module.eval()
    right = torch.zeros((), dtype=torch.long, device=network.device)
    at_once = AT_ONCE if network.device.type == "cpu" else AT_ONCE_ON_GPU
    for indices in torch.split(torch.arange(len(samples), device=network.device), at_once):
        guesses: Tensor = network.module(*samples.inputs(indices)).argmax(1)
        right += (guesses == samples.targets(indices)).sum()
    return 100.0 * int(right) / len(samples)
