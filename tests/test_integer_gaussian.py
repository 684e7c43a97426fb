"""Gaussian noise on integers: what is proved holds where every point of the grid can be added up."""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from feddig.privacy.accounting import compose
from feddig.privacy.clipping import LEAST_BOUND, clip_for
from feddig.privacy.gaussian import concentrated_epsilon, gaussian_delta, gaussian_epsilon, gaussian_sigma
from feddig.privacy.integer_gaussian import MOST_ELEMENTS, integer_delta, integer_epsilon, integer_sigma
from feddig.privacy.mechanisms import promise_for, public_facts
from feddig.settings import DigestSettings, PrivacySettings

STEPS = math.sqrt(2) * 44_800
"""The sensitivity, in steps, of an L2 clip of 350."""


def exact_delta(epsilon: float, shift: tuple[int, ...], sigmas: tuple[float, ...]) -> float:
    """Add up (P(x) - e^epsilon P(x - shift))+ over the grid, P discrete Gaussian with a sigma for each element."""
    one, other = np.ones(1), np.ones(1)
    for moved, sigma in zip(shift, sigmas, strict=True):
        reach = np.arange(-math.ceil(9 * sigma) - moved, math.ceil(9 * sigma) + moved + 1)
        weights, shifted = (np.exp(-((reach - at) ** 2) / (2 * sigma**2)) for at in (0, moved))
        one = np.multiply.outer(one, weights / weights.sum()).ravel()
        other = np.multiply.outer(other, shifted / shifted.sum()).ravel()
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def held_against(epsilon: float, shift: tuple[int, ...], sigmas: tuple[float, ...]) -> float:
    """Check the proved delta; give the share of its trifle on top of the real numbers' curve that is used up."""
    ratio = math.hypot(*(moved / sigma for moved, sigma in zip(shift, sigmas, strict=True)))
    proved = integer_delta(epsilon, ratio, min(sigmas), len(shift))
    curve, exact = gaussian_delta(epsilon, ratio), exact_delta(epsilon, shift, sigmas)
    # the last digits that adding up rounds
    assert exact <= proved + 1e-14
    return 0.0 if proved == 1 else (exact - curve) / (proved - curve)


@pytest.mark.parametrize("sigma", [2.0, 3.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
def test_no_shift_of_a_small_grid_costs_more_than_is_proved(epsilon: float, sigma: float) -> None:
    line = ((moved,) for moved in range(1, 24))
    plane = ((a, b) for a, b in itertools.product(range(10), repeat=2) if a + b)
    for shift in itertools.chain(line, plane):
        held_against(epsilon, shift, (sigma,) * len(shift))


@pytest.mark.parametrize("shift", [(1, 0, 0), (1, 1, 1), (2, 1, 0), (3, 2, 1), (4, 4, 4)])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_in_three_dimensions_too(epsilon: float, shift: tuple[int, ...]) -> None:
    held_against(epsilon, shift, (3.0,) * 3)


@pytest.mark.parametrize("sigmas", [(2.0, 5.0), (3.0, 2.5)])
@pytest.mark.parametrize("shift", [(1, 1), (4, 2), (2, 9), (5, 5)])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_two_releases_of_unlike_noise(
    epsilon: float, shift: tuple[int, ...], sigmas: tuple[float, ...]
) -> None:
    held_against(epsilon, shift, sigmas)


def test_the_trifle_is_needed() -> None:
    """A seventh of it is used up where the kink lies between two points: the curve of real numbers is not enough."""
    ratio, sigma = 5.0, 3.0
    epsilon = ratio + ratio**2 / 2  # near is 1
    used = max(held_against(epsilon + extra / 30, (15,), (sigma,)) for extra in range(60))
    assert used > 0.14


def test_where_the_argument_does_not_reach_it_proves_nothing() -> None:
    assert integer_delta(1.0, 1.0, 1e5, 256) == 1.0  # near is a half
    assert integer_delta(8.0, 1.0, 2.0, 256) == 1.0  # a coarse grid in many dimensions
    assert integer_delta(8.0, 1.0, 1e5, 256) < 1e-6


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, "4.2247"), (2, "2.2305"), (4, "1.1935"), (8, "0.6529")])
def test_the_designs_sigma_is_proved_to_all_its_digits(epsilon: float, sigma: str) -> None:
    proved = integer_sigma(epsilon, 1e-6, STEPS, 256)
    assert f"{proved:.4f}" == sigma
    assert 1 < proved / gaussian_sigma(epsilon, 1e-6) < 1 + 1e-9
    assert integer_delta(epsilon, 1 / proved, proved * STEPS, 256) <= 1e-6


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_epsilon_is_the_inverse(epsilon: float, delta: float) -> None:
    sigma = integer_sigma(epsilon, delta, STEPS, 256)
    assert integer_epsilon(delta, 1 / sigma, sigma * STEPS, 256) == pytest.approx(epsilon, rel=1e-12)
    # also where the grid is only known to be no coarser than any
    assert integer_epsilon(delta, 1 / sigma, sigma * LEAST_BOUND, MOST_ELEMENTS) == pytest.approx(
        epsilon, rel=1e-7
    )


def test_on_a_coarse_grid_concentrated_privacy_is_proved_instead() -> None:
    sigma = integer_sigma(8.0, 1e-6, 1.0, 256)
    assert concentrated_epsilon(1e-6, 1 / sigma) == pytest.approx(8.0)
    assert sigma > 1.05 * gaussian_sigma(8.0, 1e-6)
    assert integer_epsilon(1e-6, 1 / sigma, sigma, 256) == pytest.approx(8.0)


def test_next_to_no_epsilon_takes_a_little_more_noise() -> None:
    sigma = integer_sigma(0.01, 1e-3, STEPS, 256)
    assert integer_delta(0.01, 1 / sigma, sigma * STEPS, 256) <= 1e-3
    assert 1.05 < sigma / gaussian_sigma(0.01, 1e-3) < 1.1


@pytest.mark.parametrize("clip_norm", ["l1", "l2", "box"])
@pytest.mark.parametrize("clip_bound", [0.7, 60.0, 350.0, 1024.0])
@pytest.mark.parametrize("epsilon", [1.0, 8.0, 32.0])
def test_the_noise_that_is_drawn_keeps_what_is_asked_for(
    epsilon: float, clip_bound: float, clip_norm: str
) -> None:
    """By the variance of the very integers that are drawn, and the sensitivity of those that are added up."""
    privacy = PrivacySettings(
        mechanism="discrete-gaussian", epsilon=epsilon, delta=1e-6, clip_norm=clip_norm, clip_bound=clip_bound
    )
    sigma = math.sqrt(Fraction(str(public_facts(privacy, DigestSettings(), 256, 10)["noise_variance"])))
    clip = clip_for(clip_norm, clip_bound)
    ratio = math.sqrt(clip.squared_l2_sensitivity(256)) / sigma
    assert integer_delta(epsilon, ratio, sigma, 256) <= 1e-6
    assert sigma >= LEAST_BOUND / ratio
    told = promise_for(privacy, DigestSettings(), 256)
    assert told.noise_scale / told.sensitivity == pytest.approx(1 / ratio, rel=1e-9)
    assert told.epsilon == epsilon


def test_releases_together_cost_what_real_numbers_would() -> None:
    privacy = PrivacySettings(mechanism="discrete-gaussian", epsilon=8.0, delta=1e-6, clip_bound=350.0)
    once = promise_for(privacy, DigestSettings(), 256)
    ratio = math.sqrt(3) * once.sensitivity / once.noise_scale
    together = compose([once] * 3)
    assert together.epsilon == pytest.approx(gaussian_epsilon(3e-6, ratio), rel=1e-7)
    assert together.epsilon > gaussian_epsilon(3e-6, ratio)
    assert any("planned" in sentence for sentence in together.assumptions)
    assert compose([once]).epsilon == 8


def test_the_pages_table_of_what_a_proof_costs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows: list[list[str]] = [[], [], []]
    for epsilon in (1.0, 2.0, 4.0, 8.0, 32.0):
        real = gaussian_sigma(epsilon, 1e-6)
        # on a grid of one step only concentrated privacy is left
        published = integer_sigma(epsilon, 1e-6, 1.0, 256)
        rows[0].append(f"{real:.4f}")
        rows[1].append(f"{integer_sigma(epsilon, 1e-6, STEPS, 256) / real - 1:.0e}")
        rows[2].append(f"{(published / real - 1) * 100:.1f} %")
    for title, row in zip(
        (
            "sigma for real numbers, in sensitivities",
            "more of it for this proof",
            "more of it for concentrated differential privacy",
        ),
        rows,
        strict=True,
    ):
        assert f"| {title} | {' | '.join(row)} |" in page
