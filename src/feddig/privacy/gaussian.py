"""The exact trade of epsilon against delta for Gaussian noise, and its two inverses.

All depends on one number, the sensitivity divided by the noise's standard deviation sigma. With it called mu,

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

and several releases of one record act like a single one whose mu is the root of the sum of their squares.
"""

import math
from collections.abc import Callable, Iterable

_HALVINGS = 200
_FAR = 30.0


def gaussian_delta(epsilon: float, ratio: float) -> float:
    """Give delta for this epsilon, where `ratio` is sensitivity / sigma."""
    near, far = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    # logarithms, because e^epsilon overflows long before its product with the tail does
    return max(0.0, math.exp(_log_tail(near)) - math.exp(epsilon + _log_tail(far)))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Give the least sigma that keeps (epsilon, delta)."""
    ratio = largest_within(lambda candidate: gaussian_delta(epsilon, candidate) <= delta)
    return sensitivity / ratio


def gaussian_epsilon(delta: float, ratio: float) -> float:
    """Give the least epsilon that holds with this delta."""
    if gaussian_delta(0.0, ratio) <= delta:
        return 0.0
    # the largest 1/epsilon is the least epsilon
    return 1 / largest_within(lambda inverse: gaussian_delta(1 / inverse, ratio) <= delta)


def concentrated_epsilon(delta: float, ratio: float) -> float:
    """Give an epsilon that is proved for any number of integers with discrete Gaussian noise, at this delta.

    Such noise is as concentrated as noise on real numbers, ratio^2/2, in any number of dimensions (Canonne, Kamath and
    Steinke, "The Discrete Gaussian for Differential Privacy", 2020). Of the bounds that follow from this, one for each
    order above 1, it is the least.
    """
    rho = ratio**2 / 2

    def bound(order: float) -> float:
        gained = (order - 1) * math.log1p(-1 / order) - math.log(order) - math.log(delta)
        return order * rho + gained / (order - 1)

    # it falls, then rises; the search is over the logarithm of order - 1
    low, high = -30.0, 60.0
    for _ in range(_HALVINGS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if bound(1 + math.exp(left)) < bound(1 + math.exp(right)) else (left, high)
    return max(0.0, bound(1 + math.exp((low + high) / 2)))


def joined(ratios: Iterable[float]) -> float:
    """Give the one ratio that several releases of a record amount to."""
    return math.hypot(*ratios)


def largest_within(allowed: Callable[[float], bool]) -> float:
    """Find the largest positive number that is allowed, where all smaller ones are too."""
    low = 1.0
    while not allowed(low):
        low /= 2
    high = 2 * low
    while allowed(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _log_tail(at: float) -> float:
    """Give ln Phi(-at), also where Phi(-at) itself is zero to a float."""
    if at < _FAR:
        return math.log(math.erfc(at / math.sqrt(2)) / 2)
    series, term = 0.0, 1.0
    for odd in (1, 3, 5, 7, 9, 11):
        term *= -odd / (at * at)
        series += term
    return math.log1p(series) - at * at / 2 - math.log(at * math.sqrt(2 * math.pi))
