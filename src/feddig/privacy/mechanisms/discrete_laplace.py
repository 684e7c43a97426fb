"""Discrete Laplace noise on integer sums: epsilon = L1 sensitivity / scale, delta 0.

The geometric mechanism of Ghosh, Roughgarden and Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms"
(2009), on every element of a sum.
"""

from collections.abc import Mapping
from fractions import Fraction

from feddig.privacy.clipping import Clip
from feddig.privacy.integer_noise import DiscreteLaplaceNoise
from feddig.privacy.mechanisms.base import Fact
from feddig.privacy.mechanisms.integer_sums import IntegerSums
from feddig.settings import PrivacySettings


class DiscreteLaplace(IntegerSums):
    """Integer sums with discrete Laplace noise."""

    citation = (
        'Ghosh, Roughgarden and Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms" (2009)'
    )
    heavy_tails = True
    norm = "L1"

    def noise_for(
        self, privacy: PrivacySettings, clip: Clip, elements: int, records: int
    ) -> DiscreteLaplaceNoise:
        """Return noise of scale sensitivity / epsilon, rounded up."""
        return DiscreteLaplaceNoise.for_epsilon(privacy.epsilon, records * clip.l1_sensitivity(elements))

    def noise_of(self, facts: Mapping[str, Fact]) -> DiscreteLaplaceNoise:
        """Return the noise of the scale that the facts tell."""
        return DiscreteLaplaceNoise(Fraction(str(facts["noise_scale"])))

    def epsilon(self, ratio: float, delta: float) -> float:
        """Return the ratio itself, whatever delta is."""
        return ratio
