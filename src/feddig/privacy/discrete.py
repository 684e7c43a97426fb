"""The discrete Laplace and the discrete Gaussian distribution over the integers, with exact draws.

Both are defined as in Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), over
all integers and around zero. Scale and variance are rational, and rounded up where they are derived from a promise.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from feddig.privacy.integer_noise import IntegerNoise

DIGITS = 32
"""Binary digits, before and after the point, to which a scale or variance is rounded up."""


@dataclass(frozen=True)
class DiscreteLaplace(IntegerNoise):
    """P(x) proportional to exp(-|x| / scale): epsilon = L1 sensitivity / scale."""

    scale: Fraction
    name: ClassVar[str] = "discrete-laplace"

    def __post_init__(self) -> None:
        _check("scale", self.scale, 2**-6, 2**40)

    @classmethod
    def for_epsilon(cls, epsilon: float | Fraction, sensitivity: int) -> "DiscreteLaplace":
        """Give the noise that promises epsilon, or a trifle less, to integers of this L1 sensitivity."""
        return cls(rounded_up(sensitivity / _above_zero("epsilon", epsilon)))

    @property
    def spread(self) -> Fraction:
        """The scale itself."""
        return self.scale

    @property
    def over(self) -> int:
        """With scale = p / q the exponent is |x| q / p."""
        return self.scale.numerator

    def rise(self, start: Any, offset: Any) -> Any:
        """The exponent rises alike from everywhere."""
        return offset * self.scale.denominator

    @property
    def variance_of_draws(self) -> float:
        """2 r / (1 - r)^2 with r = exp(-1 / scale)."""
        return 1 / (2 * math.sinh(1 / (2 * self.scale)) ** 2)

    @property
    def facts(self) -> dict[str, str]:
        """The scale."""
        return {"noise_scale": str(self.scale)}


@dataclass(frozen=True)
class DiscreteGaussian(IntegerNoise):
    """P(x) proportional to exp(-x^2 / (2 variance)); `variance` is sigma^2, which the draws' own nears from below."""

    variance: Fraction
    name: ClassVar[str] = "discrete-gaussian"

    def __post_init__(self) -> None:
        _check("variance", self.variance, 2**-12, 2**60)

    @classmethod
    def for_multiplier(
        cls, multiplier: float | Fraction, squared_sensitivity: int | Fraction
    ) -> "DiscreteGaussian":
        """Give the noise whose sigma is so many L2 sensitivities, or a trifle more."""
        return cls(rounded_up(squared_sensitivity * _above_zero("multiplier", multiplier) ** 2))

    @property
    def spread(self) -> Fraction:
        """Sigma, rounded down."""
        return Fraction(math.isqrt(int(self.variance)))

    @property
    def over(self) -> int:
        """With variance = p / q the exponent is x^2 q / 2p."""
        return 2 * self.variance.numerator

    def rise(self, start: Any, offset: Any) -> Any:
        """The difference of two squares."""
        return offset * (2 * start + offset) * self.variance.denominator

    @property
    def variance_of_draws(self) -> float:
        """Sigma^2 or a little less."""
        # from sigma 4 on the two differ by less than a double can tell
        if self.variance >= 16:
            return float(self.variance)
        weights = {x: math.exp(-(x**2) / (2 * self.variance)) for x in range(-60, 61)}
        return sum(x**2 * weight for x, weight in weights.items()) / sum(weights.values())

    @property
    def facts(self) -> dict[str, str]:
        """Sigma^2."""
        return {"noise_variance": str(self.variance)}


def rounded_up(value: Fraction) -> Fraction:
    """Round up to few binary digits, or to a whole number: samplers can hold it, and no promise is weakened."""
    one = 2 ** max(0, DIGITS - int(value).bit_length())
    return Fraction(math.ceil(value * one), one)


def _above_zero(name: str, value: float | Fraction) -> Fraction:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value}")
    return Fraction(value)


def _check(name: str, value: Fraction, least: float, most: int) -> None:
    """Refuse what the samplers' 64-bit arithmetic cannot hold."""
    if not isinstance(value, Fraction):
        raise TypeError(f"the noise's {name} must be a Fraction, not {value!r}")
    if not least <= value <= most:
        raise ValueError(
            f"the noise's {name} must lie between {least:g} and {float(most):g}, not at {float(value):g}"
        )
    if value.numerator >= 2**62 or value.denominator >= 2**62:
        raise ValueError(f"the noise's {name} {value} does not fit 64-bit arithmetic; round it up first")
