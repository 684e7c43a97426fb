"""Clipping is exact in integers, sensitivities agree with brute force, and a release keeps its promise."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from feddig.errors import DataError, SettingError
from feddig.privacy.clipping import (
    NORMS,
    Clip,
    clip_for,
    clip_records,
    count_labels,
    keep_fraction,
    project_to_simplex,
    quantise,
    randomise_labels,
    received_features,
    release_sums,
    soft_labels,
    sum_records,
)
from feddig.privacy.integer_noise import DiscreteGaussianNoise, DiscreteLaplaceNoise
from feddig.privacy.mechanisms import MECHANISMS, Randomness, Samples, public_facts
from feddig.privacy.samplers import SeededSource, SystemSource
from feddig.settings import DigestSettings, PrivacySettings

ONE = Fraction(1)

clips = st.builds(Clip, st.sampled_from(NORMS), st.integers(1, 2**16), st.just(ONE))
records = arrays(
    np.int64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(-(2**26), 2**26)
)


def laplace_noise_for(clip: Clip, elements: int, epsilon: float) -> DiscreteLaplaceNoise:
    return DiscreteLaplaceNoise.for_epsilon(epsilon, clip.l1_sensitivity(elements))


def holds(record: np.ndarray, clip: Clip) -> bool:
    """Return whether a record is within its clip, computed with Python integers."""
    entries = [int(entry) for entry in record]
    if min(entries) < 0:
        return False
    if clip.norm == "l1":
        return sum(map(abs, entries)) <= clip.bound
    if clip.norm == "l2":
        return sum(entry**2 for entry in entries) <= clip.bound**2
    return max(map(abs, entries)) <= clip.bound


# --- clipping


@settings(deadline=None)
@given(records, clips)
def test_no_record_leaves_its_clip(raw: np.ndarray, clip: Clip) -> None:
    before = raw.copy()
    clipped = clip_records(raw, clip)
    assert clipped.dtype == np.int64
    assert all(holds(record, clip) for record in clipped)
    assert np.array_equal(clip_records(clipped, clip), clipped)
    assert np.array_equal(raw, before)
    for record, result in zip(raw, clipped, strict=True):
        if holds(record, clip):
            assert np.array_equal(record, result)


@settings(deadline=None)
@given(records, clips)
def test_a_record_is_clipped_independently_of_other_records(raw: np.ndarray, clip: Clip) -> None:
    alone = [clip_records(record[None], clip)[0] for record in raw]
    assert np.array_equal(clip_records(raw, clip), alone)


@pytest.mark.parametrize(
    ("clip", "clipped"),
    [
        (Clip("l1", 10, ONE), [[4, 0, 5], [1, 0, 2]]),
        (Clip("l2", 5, ONE), [[3, 0, 3], [1, 0, 2]]),
        (Clip("box", 4, ONE), [[4, 0, 4], [1, 0, 2]]),
    ],
    ids=str,
)
def test_clips_by_hand(clip: Clip, clipped: list[list[int]]) -> None:
    """Clip 8, -6, 10: without the negative value the sum is 18 and the root of the squares is just below 13."""
    assert clip_records(np.array([[8, -6, 10], [1, -5, 2]]), clip).tolist() == clipped


def test_the_square_of_the_bound_is_still_within_and_one_more_is_not() -> None:
    clip = Clip("l2", 5, ONE)
    assert clip_records(np.array([[3, 4, 0], [3, 4, 1]]), clip).tolist() == [[3, 4, 0], [2, 3, 0]]


def test_large_squares_are_compared_as_integers() -> None:
    """Compare two integers that are equal as doubles: the square of 2^26, and one more."""
    clip = Clip("l2", 2**26, ONE)
    just = np.array([[2**26, 0], [2**26, 1]])
    assert clip_records(just, clip).tolist() == [[2**26, 0], [2**26 * 2**26 // (2**26 + 1), 0]]


@pytest.mark.parametrize(("norm", "bound", "step"), [("l3", 1, 1), ("l1", 0, 1), ("l1", 1, 0)])
def test_a_clip_without_sense_is_refused(norm: str, bound: int, step: int) -> None:
    with pytest.raises(SettingError, match=r"privacy\.clip_(norm|bound)"):
        Clip(norm, bound, Fraction(step))


# --- the grid


@pytest.mark.parametrize("bound", [1.0, 60.0, 0.3, 1e-30, 1e30])
def test_the_grid_has_a_step_of_a_power_of_two_and_a_bound_of_sixteen_bits(bound: float) -> None:
    clip = clip_for("l2", bound)
    assert math.frexp(float(clip.step))[0] == 0.5
    assert 2**15 <= clip.bound < 2**16
    assert bound * (1 - 2**-15) <= clip.bound * clip.step <= Fraction(bound)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_without_sense_is_refused(bound: float) -> None:
    with pytest.raises(SettingError, match=r"privacy\.clip_bound: must be a finite number above 0"):
        clip_for("l1", bound)


@settings(deadline=None)
@given(arrays(np.float32, (3, 5), elements=st.floats(0, 60, width=32)))
def test_rounding_to_the_grid_changes_at_most_half_a_step(features: np.ndarray) -> None:
    clip = clip_for("box", 60)
    back = received_features(quantise(features, clip), float(clip.step), 1)
    assert back.dtype == np.float32
    assert np.abs(back - features).max() <= float(clip.step) / 2
    assert np.array_equal(quantise(back, clip), quantise(features, clip))


def test_values_beyond_the_bound_saturate() -> None:
    clip = clip_for("l2", 1)
    far = quantise(np.array([[1e38, -1e38, 1e9, 0.5]], dtype=np.float32), clip)
    assert far.tolist() == [[2**29, -(2**29), 2**29, 2**14]]
    assert all(holds(record, clip) for record in clip_records(far, clip))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(DataError, match="not finite numbers"):
        quantise(np.array([[1.0, value]]), clip_for("l1", 1))


def test_a_bound_that_sums_of_squares_cannot_hold_is_refused() -> None:
    with pytest.raises(SettingError, match="too many for records of 256 elements; at most 67108864"):
        quantise(np.zeros((1, 256)), Clip("l2", 2**27, ONE))


# --- sensitivity, by brute force


VALUES = (-4.0, -1.0, -0.5, 0.0, 0.5, 1.5, 2.0, 3.5, 6.0)
"""Halves, which are rounded, and values inside and outside the bounds."""


def farthest(clip: Clip, elements: int, values: tuple[float, ...]) -> tuple[int, int]:
    """Return the largest L1 and squared L2 distance of the sums of two data sets of two records that differ in one."""
    every = np.array(list(itertools.product(values, repeat=elements)))
    others = every[:: max(1, len(every) // 7)]
    firsts = []
    for other in others:
        features = np.concatenate([every, other[None]])
        groups = np.stack([np.arange(len(every)), np.full(len(every), len(every))], axis=1)
        firsts.append(sum_records(features, groups, clip))
    apart = [np.abs(sums[:, None] - sums[None]) for sums in firsts]
    return max(int(gap.sum(2).max()) for gap in apart), max(int((gap**2).sum(2).max()) for gap in apart)


@pytest.mark.parametrize("elements", [1, 2, 3])
@pytest.mark.parametrize("bound", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", NORMS)
def test_no_two_neighbours_are_farther_apart_than_the_sensitivity(
    norm: str, bound: int, elements: int
) -> None:
    clip = Clip(norm, bound, ONE)
    l1, squared_l2 = farthest(clip, elements, VALUES)
    assert l1 <= clip.l1_sensitivity(elements)
    assert squared_l2 <= clip.squared_l2_sensitivity(elements)


@pytest.mark.parametrize(
    ("clip", "elements", "l1", "squared_l2"),
    [
        (Clip("l1", 3, ONE), 2, 6, 18),
        (Clip("box", 3, ONE), 3, 9, 27),
    ],
    ids=str,
)
def test_the_sensitivity_is_reached(clip: Clip, elements: int, l1: int, squared_l2: int) -> None:
    assert (l1, squared_l2) == farthest(clip, elements, (-8.0, 0.0, 8.0))
    assert (l1, squared_l2) == (clip.l1_sensitivity(elements), clip.squared_l2_sensitivity(elements))


def test_the_sensitivities_of_the_design_notes() -> None:
    """Sensitivities in steps: L1 ball 2 C; L2 ball sqrt(2) C; box [0, c]: ell c and sqrt(ell) c."""
    assert Clip("l1", 7, ONE).l1_sensitivity(256) == 14
    assert Clip("l2", 7, ONE).squared_l2_sensitivity(256) == 98
    assert Clip("box", 7, ONE).l1_sensitivity(256) == 1792
    assert Clip("box", 7, ONE).squared_l2_sensitivity(256) == 256 * 49
    assert Clip("l2", 7, ONE).l1_sensitivity(256) == math.isqrt(256 * 98)


def test_rounding_before_clipping_is_what_keeps_the_bound() -> None:
    """100 elements of 0.53 steps have an L1 norm of 53; rounded up it is 100."""
    record, clip = np.full((1, 100), 0.53), Clip("l1", 60, ONE)
    assert np.abs(record).sum() < 60
    assert quantise(record, clip).sum() == 100
    assert clip_records(quantise(record, clip), clip).sum() <= 60


# --- the promise


def probability(scale: Fraction, size: int) -> Decimal:
    """Return the discrete Laplace probability of a size, with many digits."""
    ratio = (-Decimal(scale.denominator) / Decimal(scale.numerator)).exp()
    return (1 - ratio) / (1 + ratio) * ratio**size


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("norm", NORMS)
def test_the_privacy_loss_of_a_release_is_at_most_epsilon(norm: str, epsilon: float) -> None:
    """Check all outputs of all neighbouring records of two elements; beyond the window the ratios are constant."""
    clip, window = Clip(norm, 2, ONE), range(-3, 6)
    scale = laplace_noise_for(clip, 2, epsilon).scale
    raw = np.array(list(itertools.product((0.0, 0.5, 1.5, 3.0), repeat=2)))
    sums = {tuple(map(int, row)) for row in clip_records(quantise(raw, clip), clip)}
    largest = Fraction(0)
    with localcontext() as context:
        context.prec = 60
        chance = {size: probability(scale, size) for size in range(10)}
        for one, other in itertools.product(sums, repeat=2):
            delta = Decimal(0)
            for output in itertools.product(window, repeat=2):
                there = [abs(y - x) for x, y in zip(one, output, strict=True)]
                here = [abs(y - x) for x, y in zip(other, output, strict=True)]
                largest = max(largest, (sum(here) - sum(there)) / scale)
                first = chance[there[0]] * chance[there[1]]
                second = chance[here[0]] * chance[here[1]]
                delta += max(Decimal(0), first - Decimal(epsilon).exp() * second)
            assert delta < Decimal(10) ** -50
    assert largest <= Fraction(epsilon)


def test_less_noise_would_break_the_promise() -> None:
    """Two corners of the L1 ball of bound 2 are 4 apart, so a scale of at least 4 / epsilon is needed."""
    clip = Clip("l1", 2, ONE)
    corners = clip_records(quantise(np.array([[9.0, 0.0], [0.0, 9.0]]), clip), clip)
    apart = int(np.abs(corners[0] - corners[1]).sum())
    assert apart / laplace_noise_for(clip, 2, 1.0).scale == 1
    assert apart / (laplace_noise_for(clip, 2, 1.0).scale * Fraction(99, 100)) > 1


def test_the_laplace_probabilities_sum_to_one() -> None:
    with localcontext() as context:
        context.prec = 60
        total = probability(Fraction(5, 2), 0) + 2 * sum(
            probability(Fraction(5, 2), size) for size in range(1, 400)
        )
        assert abs(total - 1) < Decimal(10) ** -50


# --- the release


CLIP = clip_for("l2", 4.0)
NOISE = laplace_noise_for(CLIP, 6, 2.0)
PRIVACY = PrivacySettings("discrete-laplace", 2.0, clip_bound=4.0)


def draw_features(count: int = 8) -> np.ndarray:
    return np.random.default_rng(0).exponential(1.5, (count, 2, 3)).astype(np.float32)


def test_a_release_is_the_sum_of_clipped_records_and_noise() -> None:
    features, groups = draw_features(), np.array([[0, 5], [7, 2], [1, 3]])
    sums = release_sums(features, groups, CLIP, NOISE, SeededSource(0, "noise"))
    noise = NOISE.draw(18, SeededSource(0, "noise"))
    clipped = clip_records(quantise(features.reshape(8, 6), CLIP), CLIP)
    expected = clipped[groups[:, 0]] + clipped[groups[:, 1]] + noise.reshape(3, 6)
    assert sums.dtype == np.int64
    assert sums.shape == (3, 2, 3)
    assert np.array_equal(sums.reshape(3, 6), expected)


def test_sums_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, groups = draw_features(100), np.random.default_rng(1).permutation(100).reshape(25, 4)
    whole = sum_records(features, groups, clip_for("l1", 5.0))
    monkeypatch.setattr("feddig.privacy.clipping.AT_ONCE", 50)
    assert np.array_equal(sum_records(features, groups, clip_for("l1", 5.0)), whole)


def test_a_receiver_gets_the_mean_of_the_features_and_knows_the_noise() -> None:
    features = np.random.default_rng(0).uniform(0, 1, (40_000, 6)).astype(np.float32)
    groups, facts = np.arange(40_000).reshape(-1, 2), public_facts(PRIVACY, DigestSettings(2), 6, 3)
    sums = release_sums(features, groups, CLIP, NOISE, SystemSource(), threads=2)
    received = MECHANISMS["discrete-laplace"].received(sums, facts)
    noise, deviation = received - features[groups].mean(1), float(str(facts["noise_deviation"]))
    assert received.dtype == np.float32
    assert noise.std() == pytest.approx(deviation, rel=0.03)
    assert abs(noise.mean()) < 6 * deviation / math.sqrt(noise.size)


def test_the_facts_are_exact() -> None:
    """An L2 bound of 4 is 2^15 steps of 2^-13; the L1 sensitivity is the root of 12 x 2^30, rounded down."""
    moved = math.isqrt(12 * 2**30)
    assert MECHANISMS["discrete-laplace"].facts(PRIVACY, DigestSettings(2), 6, 3) == {
        "noise_scale": str(Fraction(moved, 2)),
        "adjacency": "same-label",
        "label_keep": "1",
        "clip_norm": "l2",
        "clip_bound": 4.0,
        "clip_steps": 2**15,
        "step": 2.0**-13,
        "signed": 0,
        "elements": 6,
        "delta": 0.0,
        "label_epsilon": 0.0,
        "sensitivity": moved * 2.0**-14,
        "sensitivity_norm": "L1",
        "noise_deviation": pytest.approx(math.sqrt(2) * moved / 2 * 2.0**-14),
    }
    noise = DiscreteGaussianNoise(Fraction(9, 2))
    assert noise.facts == {"noise_variance": "9/2"}
    assert MECHANISMS["discrete-gaussian"].noise_of(noise.facts) == noise  # type: ignore[attr-defined]


def test_gaussian_noise_follows_the_l2_sensitivity() -> None:
    """Sigma is 4.2247 sensitivities."""
    squared = clip_for("l2", 1.0).squared_l2_sensitivity(256)
    variance = DiscreteGaussianNoise.for_multiplier(4.2247, squared).variance
    assert math.sqrt(variance) == pytest.approx(4.2247 * math.sqrt(squared))
    assert variance >= squared * Fraction(4.2247) ** 2


@pytest.mark.parametrize("count", [0, 2**40])
def test_samples_that_do_not_fit_one_sum_are_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"{count} records do not fit one sum"):
        MECHANISMS["discrete-laplace"].facts(PRIVACY, DigestSettings(count), 6, 3)


def test_samples_that_the_noise_was_not_made_for_are_refused() -> None:
    with pytest.raises(ValueError, match="in more than one group"):
        release_sums(draw_features(), np.array([[0, 1], [1, 2]]), CLIP, NOISE, SystemSource())
    features, labels = draw_features(), np.zeros(8, dtype=int)
    for elements, spd in ((7, 2), (6, 4)):
        facts = public_facts(PRIVACY, DigestSettings(spd), elements, 3)
        samples = Samples(features, labels, np.array([[0, 1]]), 3, lambda: (features, features))
        with pytest.raises(ValueError, match=f"groups of 2: the noise is for {elements} and {spd}"):
            MECHANISMS["discrete-laplace"].release(samples, facts, Randomness("system", 0, 0))


# --- labels


@settings(deadline=None)
@given(st.floats(0.01, 30), st.integers(2, 100))
def test_a_label_is_kept_as_often_as_epsilon_allows_and_not_more_often(epsilon: float, classes: int) -> None:
    keep = keep_fraction(epsilon, classes)
    with localcontext() as context:
        context.prec = 60
        odds = Decimal(keep.numerator) * (classes - 1) / (keep.denominator - keep.numerator)
        assert odds <= Decimal(epsilon).exp()
    ideal = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    assert ideal - 1e-9 < float(keep) <= ideal + 1e-12
    assert keep.denominator <= 2**32


@pytest.mark.parametrize("keep", [Fraction(2, 3), keep_fraction(1.0, 5), keep_fraction(4.0, 5)], ids=str)
def test_labels_change_with_the_probabilities_of_randomised_response(keep: Fraction) -> None:
    classes, count = 5, 300_000
    labels = np.full(count, 3)
    shares = np.bincount(randomise_labels(labels, classes, keep, SeededSource(0)), minlength=classes) / count
    other = float((1 - keep) / 4)
    expected = [other, other, other, float(keep), other]
    assert shares == pytest.approx(expected, abs=6 * math.sqrt(0.25 / count))
    assert (labels == 3).all()


def test_public_labels_stay_as_they_are() -> None:
    labels = np.array([2, 0, 1])
    assert np.array_equal(randomise_labels(labels, 3, ONE, SystemSource()), labels)
    counts = count_labels(labels, np.array([[0, 2], [1, 1]]), 3)
    assert counts.tolist() == [[0, 1, 1], [2, 0, 0]]
    assert soft_labels(counts, ONE).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]


def test_seeded_labels_can_be_drawn_again() -> None:
    labels = np.arange(1000) % 10
    first, second, third = (
        randomise_labels(labels, 10, Fraction(1, 2), SeededSource(seed, "labels")) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_soft_labels_are_estimated_without_bias() -> None:
    """Half of a large group is of class 0, half of class 2."""
    labels, keep = np.repeat([0, 2], 50_000), Fraction(3, 5)
    noisy = randomise_labels(labels, 4, keep, SeededSource(0))
    counts = count_labels(noisy, np.arange(100_000)[None], 4)
    assert counts[0, 0] / 100_000 == pytest.approx(0.5 * 0.6 + 0.5 * 0.4 / 3, abs=0.01)
    assert soft_labels(counts, keep)[0] == pytest.approx([0.5, 0, 0.5, 0], abs=0.02)


def test_soft_labels_of_small_groups_are_shares_still() -> None:
    counts = np.array([[4, 0, 0], [2, 1, 1], [0, 2, 2]])
    shares = soft_labels(counts, Fraction(1, 2))
    assert shares.dtype == np.float32
    assert shares.min() >= 0
    assert shares.sum(1) == pytest.approx([1, 1, 1])
    assert shares[0].tolist() == [1, 0, 0]


def test_random_labels_carry_no_information() -> None:
    assert soft_labels(np.array([[3, 0]]), Fraction(1, 2)).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("epsilon", "classes", "text"),
    [
        (0.0, 10, "must be a finite number above 0"),
        (math.inf, 10, "must be a finite number above 0"),
        (math.nan, 10, "must be a finite number above 0"),
        (1.0, 1, "needs two classes or more"),
        (1e-15, 10, "too small to tell from 0"),
    ],
)
def test_label_noise_without_sense_is_refused(epsilon: float, classes: int, text: str) -> None:
    with pytest.raises(SettingError, match=text):
        keep_fraction(epsilon, classes)


rows = arrays(np.float64, (4, 5), elements=st.floats(-10, 10))


@settings(deadline=None)
@given(rows, arrays(np.float64, (4, 5), elements=st.floats(0.01, 1)))
def test_the_projection_is_on_the_simplex_and_nothing_there_is_nearer(
    raw: np.ndarray, other: np.ndarray
) -> None:
    projected = project_to_simplex(raw)
    assert projected.min() >= 0
    assert projected.sum(1) == pytest.approx(np.ones(4))
    assert project_to_simplex(projected) == pytest.approx(projected)
    elsewhere = other / other.sum(1, keepdims=True)
    assert (((raw - projected) ** 2).sum(1) <= ((raw - elsewhere) ** 2).sum(1) + 1e-9).all()


def test_a_laplace_scale_is_reported_as_it_is_used() -> None:
    noise = laplace_noise_for(Clip("l1", 10, ONE), 3, 0.3)
    assert noise == DiscreteLaplaceNoise(Fraction(noise.facts["noise_scale"]))
    assert noise.scale >= 20 / Fraction(0.3)
