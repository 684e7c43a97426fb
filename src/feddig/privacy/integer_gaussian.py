"""What Gaussian noise on integers promises: the curve of real numbers, and a proved trifle on top of it.

A record moves one sum of integers by a vector v, |v| at most the sensitivity. Let h be what delta is the integral of
on the line along v, in units of sigma, for real numbers: the part of the bell at 0 that exceeds e^epsilon times the
bell at mu = |v| / sigma. Across v it is multiplied by a bell, and on integers delta is at most the sum of that product
over all points of the grid. By Poisson's summation formula this sum is the integral plus the product's Fourier
transform at all other points k of the dual grid, whose nearest lie sigma apart:

- h has a kink, and its slope varies by V = 2 far phi(near) in all, where near and far are epsilon/mu -+ mu/2 and
  near >= 1; so its transform at w is at most V / w^2. Points within sigma/4 of the line along v are at least
  sqrt(3/4) sigma apart along it, and together they add no more than V / (9 sigma^2).
- The bell across v makes all other points add no more than e^(-(2 pi^2 sigma^2 - 1)/16 + 1/4) T^elements
  (2 + V/(12 sigma^2)), T being the sum of e^(-k^2) over the integers: each slab of points is a bell around its middle,
  and no bell sums up to more than one around 0.

Shorter v promise more, because delta and V grow with mu. Sigma is counted in steps of the grid, of which a digest has
tens of thousands, so all of it is about a hundred millionth of delta. Several releases of one record are one release
of all their numbers: then the least of their sigmas counts.

Where this does not reach (a coarse grid, or an epsilon of next to nothing), concentrated differential privacy does.
"""

import math

from feddig.privacy.gaussian import concentrated_epsilon, gaussian_delta, largest_within

MOST_ELEMENTS = 2**20
"""More numbers than a digest may have: what is proved for several releases counts so many for each."""

_LOG_T = math.log(math.fsum(math.exp(-k * k) for k in range(-9, 10)))
_SPARE = 1e-9
"""The share of delta that is left for what floating point rounds."""


def integer_delta(epsilon: float, ratio: float, sigma: float, elements: int) -> float:
    """Give a delta that is proved for so many integers; `ratio` is sensitivity / sigma, and sigma is in steps.

    It is 1, which promises nothing, where the argument does not reach.
    """
    near, far = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    if not near >= 1:
        return 1.0
    varied = 2 * far * math.exp(-near * near / 2) / math.sqrt(2 * math.pi) / (sigma * sigma)
    return min(1.0, gaussian_delta(epsilon, ratio) + varied / 9 + _aside(sigma, elements) * (2 + varied / 12))


def integer_sigma(epsilon: float, delta: float, sensitivity: float, elements: int) -> float:
    """Give the least noise, in sensitivities, that is proved to keep (epsilon, delta); `sensitivity` is in steps."""

    def keeps(ratio: float) -> bool:
        proved = integer_delta(epsilon, ratio, sensitivity / ratio, elements)
        return proved <= delta * (1 - _SPARE) or concentrated_epsilon(delta, ratio) <= epsilon

    return 1 / largest_within(keeps)


def integer_epsilon(delta: float, ratio: float, sigma: float, elements: int) -> float:
    """Give the least epsilon that is proved for so many integers with this delta."""
    concentrated = concentrated_epsilon(delta, ratio)
    if 2 * _aside(sigma, elements) > delta / 2:
        return concentrated
    # the largest 1/epsilon is the least epsilon
    inverse = largest_within(
        lambda inverse: integer_delta(1 / inverse, ratio, sigma, elements) <= delta * (1 - _SPARE)
    )
    return min(concentrated, 1 / inverse)


def _aside(sigma: float, elements: int) -> float:
    """Bound what points of the dual grid add that are not near the line along v."""
    exponent = elements * _LOG_T + 0.25 - (2 * math.pi**2 * sigma * sigma - 1) / 16
    return math.exp(exponent) if exponent < 0 else math.inf
