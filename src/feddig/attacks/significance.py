"""How likely mere chance does as well as an attack did: one-sided p-values, for tests that are made together."""

import math

from feddig.attacks.intervals import Estimate, Rate, incomplete_beta


def chance_of_rate(rate: Rate) -> float:
    """Give the probability of so many hits or more, if each trial is a hit by chance."""
    return 1.0 if rate.hits == 0 else incomplete_beta(rate.chance, rate.hits, rate.trials - rate.hits + 1)


def chance_of_mean(estimate: Estimate) -> float:
    """Give the probability of such a mean or a larger one, if its expectation is chance; by the normal law."""
    if estimate.error == 0:
        return 0.0 if estimate.value > estimate.chance else 1.0
    return 0.5 * math.erfc((estimate.value - estimate.chance) / estimate.error / math.sqrt(2))


def chance_of_ranks(hits: int, members: int, others: int, allowed: int) -> float:
    """Give the probability that so many members or more lie above all others but the `allowed` highest ones.

    If scores say nothing, members and others are in random order. Then it is that of at most `allowed` others among
    the first hits + allowed places. Unlike a binomial tail it knows that the threshold was estimated as well.
    """
    if hits == 0 or others <= allowed:
        return 1.0
    places = hits + allowed
    everybody = _log_comb(members + others, places)
    return min(
        1.0,
        math.fsum(
            math.exp(_log_comb(others, above) + _log_comb(members, places - above) - everybody)
            for above in range(max(0, places - members), allowed + 1)
        ),
    )


def _log_comb(total: int, chosen: int) -> float:
    if not 0 <= chosen <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
