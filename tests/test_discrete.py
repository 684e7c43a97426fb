"""The integer noise has exactly the stated distribution: its tables to the last bit, its draws by chi-square."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddig.privacy import integer_noise
from feddig.privacy.integer_noise import DiscreteGaussianNoise, DiscreteLaplaceNoise, IntegerNoise, rounded_up
from feddig.privacy.samplers import (
    SeededSource,
    SystemSource,
    Words,
    bernoulli_exp,
    bernoulli_exp_once,
    cumulative_bounds,
    exp_bounds,
    resolve,
    thresholds,
    uniform_below,
)

COUNT = 600_000
TOO_FAR = 6.0
"""Standard deviations; chance exceeds them at most once in 10^6 with many bins, and once in 500 with two."""
DIGITS = 120

NOISES = [
    DiscreteLaplaceNoise(Fraction(1, 2)),
    DiscreteLaplaceNoise(Fraction(7, 3)),
    DiscreteLaplaceNoise(Fraction(50)),
    DiscreteLaplaceNoise(Fraction(5000)),
    DiscreteLaplaceNoise(Fraction(1_000_001, 10)),
    DiscreteGaussianNoise(Fraction(1, 4)),
    DiscreteGaussianNoise(Fraction(10, 3)),
    DiscreteGaussianNoise(Fraction(25)),
    DiscreteGaussianNoise(Fraction(500**2)),
    DiscreteGaussianNoise(Fraction(10**10 + 1, 3)),
]
names = pytest.mark.parametrize("noise", NOISES, ids=str)


def seeded() -> Words:
    return SeededSource(0, "test").streams(1)[0]


def scripted(*values: int) -> Words:
    """Return a source that gives these words in order and fails when they are used up."""
    rest = list(values)

    def words(count: int) -> np.ndarray:
        taken, rest[:] = rest[:count], rest[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)

    return words


def probabilities(noise: IntegerNoise) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers with a noticeable probability, and their probabilities by the definition."""
    reach = int(40 * noise.spread) + 60
    at = np.arange(-reach, reach + 1)
    if isinstance(noise, DiscreteLaplaceNoise):
        weights = np.exp(-np.abs(at) / float(noise.scale))
    else:
        assert isinstance(noise, DiscreteGaussianNoise)
        weights = np.exp(-(at.astype(float) ** 2) / (2 * float(noise.variance)))
    return at, weights / weights.sum()


def excess(observed: np.ndarray, expected: np.ndarray) -> float:
    """Return by how many standard deviations the chi-square statistic exceeds its mean."""
    keep = expected > 0
    statistic = ((observed[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    free = keep.sum() - 1
    return float((statistic - free) / math.sqrt(2 * free))


def excess_by_size(draws: np.ndarray, noise: IntegerNoise) -> float:
    """Test the draws over a hundred quantiles, and over tails that halve until ten draws are expected."""
    at, probability = probabilities(noise)
    below = np.cumsum(probability)
    tails = 0.5 ** np.arange(2, int(math.log2(len(draws) / 10)) + 1)
    cuts = np.sort(np.concatenate([np.arange(1, 100) / 100, tails, 1 - tails]))
    edges = np.unique(at[np.searchsorted(below, cuts)])
    observed = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    expected = np.bincount(np.searchsorted(edges, at), weights=probability) * len(draws)
    enough = expected >= 8
    pooled = [np.append(each[enough], each[~enough].sum()) for each in (observed, expected)]
    return excess(*pooled)


def excess_by_remainder(draws: np.ndarray, noise: IntegerNoise) -> float:
    """Test the positions within two cells, where a sampler that works by cells could leave a pattern."""
    at, probability = probabilities(noise)
    period = 2 * noise.width
    fold = max(1, period // 256)
    observed = np.bincount(draws % period // fold, minlength=period // fold)
    expected = np.bincount(at % period // fold, weights=probability) * len(draws)
    return excess(observed, expected)


def excess_by_position(draws: np.ndarray, noise: IntegerNoise) -> float:
    """Test the positions of sizes within their cells: coins make the far end of a cell rarer than the near end."""
    at, probability = probabilities(noise)
    fold = max(1, noise.width // 8)
    observed = np.bincount(np.abs(draws) % noise.width // fold, minlength=noise.width // fold)
    expected = np.bincount(np.abs(at) % noise.width // fold, weights=probability) * len(draws)
    return excess(observed, expected)


# --- the distribution of the draws


@names
def test_draws_have_the_law_by_definition(noise: IntegerNoise) -> None:
    draws = noise.draw(COUNT, SeededSource(1, "noise"))
    assert draws.dtype == np.int64
    assert excess_by_size(draws, noise) < TOO_FAR
    assert excess_by_remainder(draws, noise) < TOO_FAR


@pytest.mark.parametrize("wrong", [Fraction(49, 50), Fraction(51, 50)], ids=str)
@names
def test_a_scale_two_per_cent_off_would_be_noticed(noise: IntegerNoise, wrong: Fraction) -> None:
    other: IntegerNoise
    if isinstance(noise, DiscreteLaplaceNoise):
        other = DiscreteLaplaceNoise(noise.scale * wrong)
    else:
        assert isinstance(noise, DiscreteGaussianNoise)
        other = DiscreteGaussianNoise(noise.variance * wrong**2)
    assert excess_by_size(other.draw(COUNT, SeededSource(1, "noise")), noise) > TOO_FAR


def test_the_other_distribution_of_the_same_variance_would_be_noticed() -> None:
    laplace, gaussian = DiscreteLaplaceNoise(Fraction(50)), DiscreteGaussianNoise(Fraction(5000))
    assert excess_by_size(laplace.draw(20_000, SeededSource(0)), gaussian) > TOO_FAR
    assert excess_by_size(gaussian.draw(20_000, SeededSource(0)), laplace) > TOO_FAR


def test_a_pattern_in_the_cells_would_be_noticed() -> None:
    noise = DiscreteLaplaceNoise(Fraction(5000))
    draws = noise.draw(COUNT, SeededSource(0))
    assert excess_by_remainder(np.where(draws % 64 == 63, draws - 1, draws), noise) > TOO_FAR


COARSE = [
    (DiscreteLaplaceNoise, Fraction(5000), 1),
    (DiscreteLaplaceNoise, Fraction(1_000_001, 10), 1),
    (DiscreteGaussianNoise, Fraction(640**2), 10),
    (DiscreteGaussianNoise, Fraction(3 * 81920**2 + 1, 3), 10),
]
coarse = pytest.mark.parametrize(("kind", "parameter", "fineness"), COARSE)
"""Cells so wide that coins often reject, which shows a wrong coin; with 64 cells per scale it would hardly show."""


@coarse
def test_draws_have_the_law_where_coins_decide_much(
    kind: type[IntegerNoise], parameter: Fraction, fineness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_noise, "FINENESS", fineness)
    noise = kind(parameter)  # type: ignore[call-arg]
    draws = noise.draw(COUNT, SeededSource(1, "noise"))
    assert noise.width > noise.spread / fineness / 2
    assert excess_by_size(draws, noise) < TOO_FAR
    assert excess_by_position(draws, noise) < TOO_FAR


def wrong_coin(numerators: np.ndarray, denominator: int, words: Words) -> np.ndarray:
    """A coin of probability 1 - a/b, the first two terms of exp(-a/b), which is slightly too small."""
    return ~(uniform_below(denominator, len(numerators), words) < numerators.astype(np.uint64))


def test_a_coin_that_is_a_little_off_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_noise, "FINENESS", 1)
    monkeypatch.setattr(integer_noise, "bernoulli_exp", wrong_coin)
    noise = DiscreteLaplaceNoise(Fraction(5000))
    draws = noise.draw(COUNT, SeededSource(1, "noise"))
    assert excess_by_position(draws, noise) > TOO_FAR


def test_a_wrong_rise_within_cells_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_noise, "FINENESS", 10)
    monkeypatch.setattr(
        DiscreteGaussianNoise,
        "rise",
        lambda noise, start, offset: offset * (start + offset) * noise.variance.denominator,
    )
    noise = DiscreteGaussianNoise(Fraction(640**2))
    assert excess_by_position(noise.draw(COUNT, SeededSource(1, "noise")), noise) > TOO_FAR


@names
def test_draws_are_symmetric_and_have_the_variance(noise: IntegerNoise) -> None:
    at, probability = probabilities(noise)
    variance = float((probability * at.astype(float) ** 2).sum())
    fourth = float((probability * at.astype(float) ** 4).sum())
    assert noise.variance_of_draws == pytest.approx(variance, rel=1e-9)
    draws = noise.draw(COUNT, SeededSource(2, "noise")).astype(float)
    assert abs(draws.mean()) < TOO_FAR * math.sqrt(variance / COUNT)
    assert abs(np.sign(draws).sum()) < TOO_FAR * math.sqrt(COUNT)
    assert np.mean(draws**2) == pytest.approx(
        variance, abs=TOO_FAR * math.sqrt((fourth - variance**2) / COUNT)
    )


def test_neighbours_are_independent() -> None:
    draws = DiscreteGaussianNoise(Fraction(10**6)).draw(COUNT, SeededSource(0)).reshape(-1, 2)
    assert abs(np.corrcoef(draws.T)[0, 1]) < TOO_FAR / math.sqrt(COUNT // 2)


# --- the tables, against decimal numbers of 120 digits


@cache
def cumulative(first: Fraction, bend: Fraction) -> list[Decimal]:
    """Return F(0), F(1), ... of the weights exp(-(first j + bend j (j - 1) / 2)), by the definition."""
    with localcontext() as context:
        context.prec = DIGITS
        weights: list[Decimal] = []
        while not weights or weights[-1] > Decimal(10) ** -(DIGITS // 2):
            exponent = first * len(weights) + bend * len(weights) * (len(weights) - 1) / 2
            weights.append((-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
        total, sums = sum(weights), [Decimal(0)]
        for weight in weights:
            sums.append(sums[-1] + weight)
        return [part / total for part in sums[1:]]


LAWS = [(Fraction(1, 50), Fraction(0)), (Fraction(2), Fraction(0)), (Fraction(2, 25), Fraction(4, 25))]
laws = pytest.mark.parametrize(("first", "bend"), LAWS)


@laws
def test_thresholds_are_right_to_the_last_bit_and_reach_the_end(first: Fraction, bend: Fraction) -> None:
    table = thresholds(first, bend, 63)
    with localcontext() as context:
        context.prec = DIGITS
        exact = [int(part * 2**63) for part in cumulative(first, bend)[: len(table)]]
    assert table.tolist() == exact
    assert table[-1] == 2**63 - 1
    assert table[-2] < 2**63 - 1


def test_geometric_thresholds_by_hand() -> None:
    """F(j) = 1 - e^(-(j + 1) first); with first close to ln 2 it is 1/2, 3/4, 7/8, ..."""
    table = thresholds(Fraction(6931, 10_000), Fraction(0), 32)
    assert table[:3] / 2**32 == pytest.approx([0.5, 0.75, 0.875], abs=1e-4)


@settings(deadline=None)
@given(st.fractions(0, 100, max_denominator=1000), st.integers(1, 200))
def test_exponentials_are_enclosed(exponent: Fraction, bits: int) -> None:
    lower, upper = exp_bounds(exponent, bits)
    with localcontext() as context:
        context.prec = DIGITS
        exact = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp() * 2**bits
    assert lower <= exact <= upper
    assert upper - lower < 2**15


def test_exponentials_of_zero_and_of_large_numbers() -> None:
    assert exp_bounds(Fraction(0), 10) == (1024, 1024)
    lower, upper = exp_bounds(Fraction(2**40), 64)
    assert lower == 0
    assert upper < 10


@laws
def test_cumulative_weights_are_enclosed_beyond_a_word(first: Fraction, bend: Fraction) -> None:
    lows, highs = cumulative_bounds(first, bend, 128)
    with localcontext() as context:
        context.prec = DIGITS
        for low, high, exact in zip(lows, highs, cumulative(first, bend), strict=False):
            assert low <= exact * 2**128 <= high
            assert high - low <= 2
    assert highs[-1] - lows[-1] <= 2
    assert lows[-1] >= 2**128 - 2


@laws
@given(picked=st.floats(0, 1, exclude_max=True), nudge=st.sampled_from([-1, 1]), depth=st.integers(1, 2))
@settings(max_examples=30, deadline=None)
def test_ties_are_decided_by_the_next_bits(
    first: Fraction, bend: Fraction, picked: float, nudge: int, depth: int
) -> None:
    """A uniform number that equals F(j) in several words is compared by the first word that differs."""
    parts = cumulative(first, bend)[: len(thresholds(first, bend, 32))]
    cell = int(picked * len(parts))
    bits = 32 + 64 * depth
    with localcontext() as context:
        context.prec = DIGITS
        digits = int(parts[cell] * 2**bits) + nudge
    drawn = [digits >> shift & (2**64 - 1) for shift in range(64 * (depth - 1), -1, -64)]
    found = resolve(first, bend, digits >> (64 * depth), 32, scripted(*drawn))
    assert found == (cell if nudge < 0 else cell + 1)


def test_the_tail_beyond_the_table_is_drawn_too() -> None:
    """With 1 - U = 1.5 x 2^-128, the size j is the first with e^(-(j + 1) / 50) below that."""
    noise = DiscreteLaplaceNoise(Fraction(50))
    drawn = scripted(2**64 - 2, 2**64 - 1, 2**62)
    (tail,) = noise._propose(1, drawn)
    expected = math.ceil(50 * math.log(2**128 / 1.5)) - 1
    assert tail == expected
    assert tail > len(noise.table)


def test_a_size_beyond_the_table_is_kept_or_not_by_whole_numbers() -> None:
    noise = DiscreteGaussianNoise(Fraction(10**10))
    last = len(noise.table) - 1
    cells, offsets = np.full(5000, 12 * last), np.full(5000, noise.width - 1)
    rise = Fraction(noise.rise(12 * last * noise.width, noise.width - 1), noise.over)
    assert rise > 1
    kept = noise._stays(cells, offsets, seeded()).mean()
    likely = math.exp(-rise)
    assert kept == pytest.approx(likely, abs=TOO_FAR * math.sqrt(likely * (1 - likely) / len(cells)))


@given(st.fractions(Fraction(1, 64), 2**40, max_denominator=2**20))
@settings(max_examples=40, deadline=None)
def test_no_scale_overflows_sixty_four_bits(scale: Fraction) -> None:
    for noise in (
        DiscreteLaplaceNoise(scale),
        DiscreteGaussianNoise(rounded_up(min(scale**2, Fraction(2**60)))),
    ):
        last = len(noise.table) - 1
        assert noise.rise(last * noise.width, noise.width - 1) <= noise.over < 2**63
        assert (last + 1) * noise.width < 2**50
        assert np.abs(noise.draw(100, SeededSource(0))).max() < 60 * (noise.spread + 1)


# --- coins and uniform integers


@pytest.mark.parametrize("quotient", [Fraction(0), Fraction(1, 7), Fraction(2, 3), Fraction(1)])
def test_coins_fall_with_the_exponential(quotient: Fraction) -> None:
    numerators = np.full(COUNT, quotient.numerator * 1000)
    heads = bernoulli_exp(numerators, quotient.denominator * 1000, seeded()).mean()
    likely = math.exp(-quotient)
    assert heads == pytest.approx(likely, abs=TOO_FAR * math.sqrt(likely * (1 - likely) / COUNT))


def test_a_coin_by_hand() -> None:
    """The coin continues at step 1 (4 < 5 of 10) and step 2 (4 < 5, and 0 of 2) and stops at step 3, which is odd."""
    assert bernoulli_exp(np.array([5]), 10, scripted(4, 4, 0, 9, 0)).tolist() == [True]
    assert bernoulli_exp(np.array([5]), 10, scripted(4, 4, 1)).tolist() == [False]
    assert bernoulli_exp(np.array([5]), 10, scripted(5)).tolist() == [True]


def test_a_coin_beyond_one() -> None:
    words, throws = seeded(), 5000
    heads = sum(bernoulli_exp_once(3, 2, words) for _ in range(throws)) / throws
    assert heads == pytest.approx(math.exp(-1.5), abs=TOO_FAR * math.sqrt(0.25 / throws))


def test_integers_below_a_bound_are_redrawn_past_the_last_multiple() -> None:
    """2^64 = 6 mod 10: the six largest words would favour 0 to 5."""
    assert uniform_below(10, 2, scripted(2**64 - 6, 13, 2**64 - 1, 7)).tolist() == [7, 3]
    assert uniform_below(10, 1, scripted(2**64 - 7)).tolist() == [9]
    assert uniform_below(8, 1, scripted(2**64 - 1)).tolist() == [7]


@pytest.mark.parametrize("bound", [3, 10, 3 * 2**61])
def test_integers_below_a_bound_are_uniform(bound: int) -> None:
    drawn = uniform_below(bound, COUNT, seeded())
    thirds = np.minimum(drawn // np.uint64(math.ceil(bound / 3)), 2).astype(int)
    shares = np.array([math.ceil(bound / 3), math.ceil(bound / 3), bound - 2 * math.ceil(bound / 3)]) / bound
    assert excess(np.bincount(thirds, minlength=3), shares * COUNT) < TOO_FAR


@pytest.mark.parametrize("bound", [0, -3, 2**63])
def test_a_bound_that_words_cannot_reach_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="integers are drawn below 1 to"):
        uniform_below(bound, 1, seeded())


# --- sources


@names
def test_a_seed_gives_the_same_draws_on_any_number_of_threads(noise: IntegerNoise) -> None:
    one, two = (noise.draw(150_000, SeededSource(5, "noise", 3), threads) for threads in (1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, noise.draw(150_000, SeededSource(6, "noise", 3)))
    assert not np.array_equal(one, noise.draw(150_000, SeededSource(5, "noise", 4)))


def test_no_word_of_a_source_is_returned_twice() -> None:
    source, noise = SeededSource(0), DiscreteLaplaceNoise(Fraction(1000))
    first, second = noise.draw(1000, source), noise.draw(1000, source)
    assert not np.array_equal(first, second)
    blocks = noise.draw(2**17, source).reshape(2, -1)
    assert not np.array_equal(*blocks)


def test_the_systems_draws_never_repeat_and_have_the_law() -> None:
    noise = DiscreteLaplaceNoise(Fraction(5000))
    first, second = (noise.draw(COUNT, SystemSource(), 2) for _ in range(2))
    assert not np.array_equal(first, second)
    assert excess_by_size(first, noise) < TOO_FAR


def test_the_systems_words_are_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert SystemSource().streams(1)[0](2).tolist() == [2**64 - 1, 2**64 - 1]


def test_seeded_words_reach_both_ends() -> None:
    words = seeded()(COUNT)
    assert words.dtype == np.uint64
    assert words.min() < 2**64 / 10_000
    assert words.max() > 2**64 * 0.9999


def test_no_draws_at_all() -> None:
    assert DiscreteLaplaceNoise(Fraction(3)).draw(0, SystemSource()).shape == (0,)


# --- parameters


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DiscreteLaplaceNoise(Fraction(0)), "scale must lie between 0.015625 and"),
        (lambda: DiscreteLaplaceNoise(Fraction(-3)), "not at -3"),
        (lambda: DiscreteLaplaceNoise(Fraction(2**41)), "not at 2.19902e"),
        (lambda: DiscreteLaplaceNoise(Fraction(2**62 + 1, 2**62)), "does not fit 64-bit arithmetic"),
        (lambda: DiscreteGaussianNoise(Fraction(1, 2**13)), "variance must lie between"),
        (lambda: DiscreteGaussianNoise(Fraction(2**61)), "variance must lie between"),
        (lambda: DiscreteLaplaceNoise.for_epsilon(0, 5), "epsilon must be a finite number above 0, not 0"),
        (lambda: DiscreteLaplaceNoise.for_epsilon(math.nan, 5), "epsilon must be a finite number"),
        (lambda: DiscreteGaussianNoise.for_multiplier(math.inf, 5), "multiplier must be a finite number"),
    ],
)
def test_parameters_that_cannot_be_held_are_refused(make: Callable[[], IntegerNoise], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_a_float_is_no_exact_parameter() -> None:
    with pytest.raises(TypeError, match=r"must be a Fraction, not 0\.3"):
        DiscreteLaplaceNoise(0.3)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.fractions(Fraction(1, 10**4), 10**15, max_denominator=10**12))
def test_rounding_goes_up_and_not_far(value: Fraction) -> None:
    rounded = rounded_up(value)
    assert value <= rounded <= value + max(value, Fraction(1)) / 2**31
    assert rounded.denominator <= 2**32
    assert rounded_up(rounded) == rounded


@settings(deadline=None)
@given(st.floats(1e-3, 50), st.integers(1, 10**6))
def test_the_promise_is_never_weaker_than_asked_for(epsilon: float, sensitivity: int) -> None:
    promised = sensitivity / DiscreteLaplaceNoise.for_epsilon(epsilon, sensitivity).scale
    assert promised <= Fraction(epsilon)
    assert float(promised) == pytest.approx(epsilon, rel=1e-6)


@settings(deadline=None)
@given(st.floats(0.1, 1000), st.integers(1, 10**10))
def test_sigma_is_never_less_than_asked_for(multiplier: float, squared: int) -> None:
    exact = Fraction(multiplier) ** 2 * squared
    variance = DiscreteGaussianNoise.for_multiplier(multiplier, squared).variance
    assert exact <= variance
    assert float(variance) == pytest.approx(float(exact), rel=1e-6)


def test_the_exact_parameter_is_stated() -> None:
    assert DiscreteLaplaceNoise.for_epsilon(3, 1).facts == {"noise_scale": "715827883/2147483648"}
    assert DiscreteGaussianNoise.for_multiplier(1.5, 4).facts == {"noise_variance": "9"}
