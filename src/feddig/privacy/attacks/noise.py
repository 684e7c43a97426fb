"""What an attacker takes the noise of a digest for, from what the digest says about itself."""

import math
from dataclasses import dataclass

from torch import Tensor

from feddig.digest import Digest
from feddig.privacy.mechanism import laplace_scale


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


def assumed_noise(digest: Digest, largest: float) -> Noise:
    """Read the noise off a digest; `largest` stands in for tau, which is the silo's: that of the candidates."""
    mechanism = digest.facts["mechanism"]
    if mechanism == "none":
        return Noise(0.0)
    if mechanism != "paper-laplace":
        raise ValueError(f"{mechanism}: give the attack the contract's noise")
    epsilon, size = digest.facts["epsilon"], digest.facts["scale_size"]
    assert isinstance(epsilon, int | float)
    assert isinstance(size, int)
    return Noise(math.sqrt(2) * laplace_scale(largest, epsilon, size), heavy_tails=True)
