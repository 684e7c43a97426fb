"""Discrete Gaussian noise on integer sums, after Canonne, Kamath and Steinke (2020)."""

from collections.abc import Mapping
from fractions import Fraction

from feddig.errors import SettingError
from feddig.privacy.clipping import Clip
from feddig.privacy.integer_gaussian import integer_sigma
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

    def noise_for(self, privacy: PrivacySettings, clip: Clip, elements: int) -> DiscreteGaussianNoise:
        """Return noise of the smallest sigma that is proved to keep epsilon and delta, rounded up."""
        sigma = integer_sigma(privacy.epsilon, privacy.delta, clip.l2_sensitivity(elements), elements)
        return DiscreteGaussianNoise.for_multiplier(sigma, clip.squared_l2_sensitivity(elements))

    def noise_of(self, facts: Mapping[str, Fact]) -> DiscreteGaussianNoise:
        """Return the noise of the variance that the facts tell."""
        return DiscreteGaussianNoise(Fraction(str(facts["noise_variance"])))

    def epsilon(self, ratio: float, delta: float) -> float:
        """Return 0: the noise is made for the epsilon that the facts tell."""
        return 0.0

    def rho(self, sensitivity: float, noise_scale: float) -> float:
        """Return sensitivity^2 / (2 sigma^2)."""
        return (sensitivity / noise_scale) ** 2 / 2
