"""Coins that fall with probability exp(-a/b) exactly, by integers alone."""

import numpy as np

from feddig.privacy.words import Words, uniform_below


def bernoulli_exp(numerators: np.ndarray, denominator: int, words: Words) -> np.ndarray:
    """Be true with probability exp(-numerator / denominator), for quotients in [0, 1].

    Go on from step k with probability quotient / k: the number of the step at which that ends is odd with the
    probability wanted, since its tail is quotient^k / k! (von Neumann's trick, as Canonne, Kamath and Steinke use it).
    """
    odd = np.ones(len(numerators), dtype=bool)
    going = np.arange(len(numerators))
    bounds, step = numerators.astype(np.uint64), 1
    while len(going):
        goes_on = uniform_below(denominator, len(going), words) < bounds
        if step > 1:
            goes_on &= uniform_below(step, len(going), words) == 0
        going, bounds, step = going[goes_on], bounds[goes_on], step + 1
        odd[going] ^= True
    return odd


def bernoulli_exp_once(numerator: int, denominator: int, words: Words) -> bool:
    """Be true with probability exp(-numerator / denominator), for any quotient: one factor 1/e at a time."""
    whole, rest = divmod(numerator, denominator)
    factors = [(1, 1)] * whole + [(rest, denominator)]
    return all(bernoulli_exp(np.array([above]), below, words)[0] for above, below in factors)
