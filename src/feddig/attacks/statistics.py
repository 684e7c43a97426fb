"""Statistics of attacks: exact intervals, areas under curves, the epsilon that canaries prove, one-sided p-values."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

LEVEL = 0.95
BISECTIONS = 80
MAX_TERMS = 100_000
TINY = 1e-300


@dataclass(frozen=True)
class SuccessRate:
    """How often an attack was right, and how often chance would be."""

    hits: int
    trials: int
    chance: float

    @property
    def share(self) -> float:
        """The share of hits, or chance without any trial."""
        return self.hits / self.trials if self.trials else self.chance

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the Clopper-Pearson interval of the share."""
        return clopper_pearson(self.hits, self.trials, level)


@dataclass(frozen=True)
class Estimate:
    """A measured mean with its standard error, and its value without an attack."""

    value: float
    error: float
    chance: float

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the normal interval of the mean."""
        reach = NormalDist().inv_cdf((1 + level) / 2) * self.error
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class Auc(Estimate):
    """The probability that a member's score is above a non-member's; it has an interval even if it is 0 or 1."""

    pairs: int
    """Disjoint pairs of a member and a non-member."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval within 0 and 1."""
        if self.error == 0 and self.value in (0.0, 1.0):
            return clopper_pearson(int(self.value) * self.pairs, self.pairs, level)
        low, high = super().interval(level)
        return max(0.0, low), min(1.0, high)


def clopper_pearson(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact two-sided interval of a share; each end leaves out half of the remaining probability."""
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits in {trials} trials")
    tail = (1 - level) / 2
    low = _lowest_share(hits, trials, tail)
    return low, 1 - _lowest_share(trials - hits, trials, tail)


def canary_epsilon(
    right: int, guesses: int, level: float = LEVEL, *, canaries: int = 0, delta: float = 0.0
) -> float:
    """Return the lower bound on epsilon that this many right guesses of fair coins prove, on `canaries` coins in all.

    Under epsilon each guess is right with probability e^epsilon / (1 + e^epsilon) at most, independent of the other
    canaries, also if the attacker guesses only the coins it is surest of (Steinke, Nasr and Jagielski, 2023). So the
    one-sided lower end of the share bounds it. With a delta above 0, the promise fails for each canary with that
    probability, independently, because each has noise of its own. As many right guesses as such failures are likely
    at most do not count; they get half of the error.
    """
    tail = 1 - level
    if delta > 0:
        tail /= 2
        failures = int(canaries * delta)
        while failures < right and incomplete_beta(delta, failures + 1, canaries - failures) > tail:
            failures += 1
        right, guesses = right - failures, guesses - failures
    share = _lowest_share(right, guesses, tail) if right > 0 else 0.0
    return math.log(share / (1 - share)) if share > 0.5 else 0.0


def area_under_curve(members: Tensor, others: Tensor) -> Auc:
    """Compare every member's score with every other's; ties count half, and the error is DeLong's."""
    members, others = members.double().flatten(), others.double().flatten()
    above = _shares_below(members, others)
    below = _shares_below(others, members)
    variance = sum(float(shares.var()) / len(shares) for shares in (above, below) if len(shares) > 1)
    return Auc(float(above.mean()), math.sqrt(variance), 0.5, min(len(members), len(others)))


def true_positives(members: Tensor, others: Tensor, false_positives: float) -> SuccessRate:
    """Count members above the score that at most this share of others exceeds."""
    allowed = int(false_positives * len(others) + 1e-9)
    threshold = others.flatten().sort(descending=True).values[min(allowed, len(others) - 1)]
    return SuccessRate(int((members > threshold).sum()), members.numel(), false_positives)


def mean_estimate(values: Tensor, chance: float) -> Estimate:
    """Return the mean of independent values with its standard error."""
    values = values.double().flatten()
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Estimate(float(values.mean()), error, chance)


def p_value_of_rate(rate: SuccessRate) -> float:
    """Return the probability of at least this many hits if each trial is a hit by chance."""
    return 1.0 if rate.hits == 0 else incomplete_beta(rate.chance, rate.hits, rate.trials - rate.hits + 1)


def p_value_of_mean(estimate: Estimate) -> float:
    """Return the probability of at least this mean if its expectation is chance, by the normal approximation."""
    if estimate.error == 0:
        return 0.0 if estimate.value > estimate.chance else 1.0
    return 0.5 * math.erfc((estimate.value - estimate.chance) / estimate.error / math.sqrt(2))


def p_value_of_ranks(hits: int, members: int, others: int, allowed: int) -> float:
    """Return the probability that at least `hits` members rank above all others but the `allowed` highest ones.

    If scores carry no information, members and others are in random order. The probability is then that of at most
    `allowed` others among the first hits + allowed ranks. Unlike a binomial tail, it accounts for the threshold
    being estimated too.
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


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # the continued fraction converges fast on this side of the mean only
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function by Lentz's method."""
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, MAX_TERMS):
        half = term // 2
        if term % 2:
            step = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            step = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + step * lower) or TINY)
        upper = (1 + step / upper) or TINY
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value


def _lowest_share(hits: int, trials: int, tail: float) -> float:
    """Return the share under which at least this many hits have the probability `tail`."""
    if hits == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = incomplete_beta(middle, hits, trials - hits + 1) < tail
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def _shares_below(scores: Tensor, others: Tensor) -> Tensor:
    """Return, for each score, the share of others below it."""
    ranked = others.sort().values
    left, right = torch.searchsorted(ranked, scores), torch.searchsorted(ranked, scores, right=True)
    return (left + right).double() / (2 * len(others))


def _log_comb(total: int, chosen: int) -> float:
    if not 0 <= chosen <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
