"""What an attacker takes the noise of a digest for, from what the digest says about itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.digest.digest import Digest
from feddig.privacy.mechanism import DISCRETE, laplace_scale


@dataclass(frozen=True)
class Noise:
    """The law of the noise on each element, as far as an attack uses it."""

    deviation: float
    """Standard deviation, in units of a feature."""
    heavy_tails: bool = False
    """Whether it is Laplace's, whose likelihood falls with the absolute difference and not with its square."""

    def misfit(self, differences: Tensor) -> Tensor:
        """Say how badly differences [..., elements] fit the noise: the mean size, or the root mean square."""
        if self.heavy_tails:
            return differences.abs().mean(-1)
        return differences.square().mean(-1).sqrt()

    def draw(self, shape: torch.Size, stream: torch.Generator) -> Tensor:
        """Draw noise of this law, for an attacker who imitates a silo."""
        if not self.heavy_tails:
            return self.deviation * torch.randn(shape, generator=stream)
        sizes = torch.empty(shape).exponential_(generator=stream) * (self.deviation / math.sqrt(2))
        return torch.where(torch.rand(shape, generator=stream) < 0.5, -sizes, sizes)


def assumed_noise(digest: Digest, largest: float) -> Noise:
    """Read the noise off a digest; `largest` stands in for tau, which is the silo's: that of the candidates."""
    mechanism = digest.facts["mechanism"]
    if mechanism == "none":
        return Noise(0.0)
    if mechanism in DISCRETE:
        told = digest.facts.get("noise_deviation")
        if not isinstance(told, int | float):
            raise ValueError(
                f"{mechanism}: the digest does not tell its noise; give the attack the contract's"
            )
        return Noise(float(told), heavy_tails=mechanism == "discrete-laplace")
    if mechanism != "paper-laplace":
        raise ValueError(f"{mechanism}: give the attack the contract's noise")
    epsilon, size = digest.facts["epsilon"], digest.facts["scale_size"]
    assert isinstance(epsilon, int | float)
    assert isinstance(size, int)
    return Noise(math.sqrt(2) * laplace_scale(largest, epsilon, size), heavy_tails=True)
