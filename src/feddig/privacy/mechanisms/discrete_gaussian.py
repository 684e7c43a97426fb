"""Discrete Gaussian noise on integer sums, after Canonne, Kamath and Steinke (2020).

Noise of parameter sigma on every element keeps rho-concentrated differential privacy with rho = sensitivity^2 /
(2 sigma^2), where the sensitivity is in L2, in any number of dimensions. Epsilon and delta follow from rho by the same
paper's conversion.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from feddig.errors import SettingError
from feddig.privacy.accounting import concentrated_epsilon
from feddig.privacy.clipping import Clip
from feddig.privacy.integer_noise import DiscreteGaussianNoise
from feddig.privacy.mechanisms.base import Fact
from feddig.privacy.mechanisms.integer_sums import IntegerSums
from feddig.settings import DigestSettings, PrivacySettings


class DiscreteGaussian(IntegerSums):
    """Integer sums with discrete Gaussian noise."""

    citation = 'Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020)'
    uses = IntegerSums.uses | {"delta"}
    norm = "L2"

    def check(self, privacy: PrivacySettings, digest: DigestSettings) -> None:
        """Refuse a delta of 0 as well."""
        super().check(privacy, digest)
        if privacy.delta == 0:
            raise SettingError(
                f"privacy.delta: {privacy.mechanism} needs one above 0, far below 1 over the number of samples, "
                "for example 1e-6"
            )

    def noise_for(
        self, privacy: PrivacySettings, clip: Clip, elements: int, records: int
    ) -> DiscreteGaussianNoise:
        """Return noise of the smallest sigma that keeps epsilon and delta, rounded up."""
        sigma = smallest_sigma(privacy.epsilon, privacy.delta)
        return DiscreteGaussianNoise.for_multiplier(sigma, records**2 * clip.squared_l2_sensitivity(elements))

    def noise_of(self, facts: Mapping[str, Fact]) -> DiscreteGaussianNoise:
        """Return the noise of the variance that the facts tell."""
        return DiscreteGaussianNoise(Fraction(str(facts["noise_variance"])))

    def epsilon(self, ratio: float, delta: float) -> float:
        """Return what follows from rho."""
        return concentrated_epsilon(ratio**2 / 2, delta)

    def rho(self, sensitivity: float, noise_scale: float) -> float:
        """Return sensitivity^2 / (2 sigma^2)."""
        return (sensitivity / noise_scale) ** 2 / 2


@lru_cache
def smallest_sigma(epsilon: float, delta: float) -> float:
    """Return the smallest sigma, in sensitivities, that keeps epsilon and delta."""
    # epsilon falls as sigma rises: bracket it, then halve the bracket down to neighbouring floats
    too_small, enough = 0.5, 1.0
    while concentrated_epsilon(0.5 / enough / enough, delta) > epsilon:
        too_small, enough = enough, 2 * enough
    while concentrated_epsilon(0.5 / too_small / too_small, delta) <= epsilon:
        too_small, enough = too_small / 2, too_small
    while too_small < (middle := (too_small + enough) / 2) < enough:
        if concentrated_epsilon(0.5 / middle / middle, delta) <= epsilon:
            enough = middle
        else:
            too_small = middle
    return enough
