"""Compare our noise with OpenDP's figures for it, if it is installed (`pip install opendp`).

Its maps round outwards, so the last digits may differ.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from feddig.privacy.accounting import compose, concentrated_epsilon
from feddig.privacy.clipping import clip_for, keep_fraction
from feddig.privacy.integer_noise import DiscreteGaussianNoise, DiscreteLaplaceNoise
from feddig.privacy.mechanisms import promise_for
from feddig.privacy.mechanisms.discrete_gaussian import smallest_sigma
from feddig.privacy.samplers import SeededSource
from feddig.settings import DigestSettings, PrivacySettings

dp: Any = pytest.importorskip("opendp.prelude", reason="opendp is not installed: pip install opendp")
dp.enable_features("contrib")

DIGITS = 1e-9
"""The relative difference of figures that agree in nine digits."""


def laplace(scale: float) -> Any:
    return dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=scale)


def gaussian(sigma: float) -> Any:
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float), scale=sigma)


@pytest.mark.parametrize("norm", ["l1", "l2", "box"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0, 32.0])
def test_discrete_laplace_keeps_the_epsilon_that_it_was_made_for(norm: str, epsilon: float) -> None:
    clip = clip_for(norm, 350.0 if norm != "box" else 64.0)
    moved = clip.l1_sensitivity(256)
    noise = DiscreteLaplaceNoise.for_epsilon(epsilon, moved)
    assert laplace(float(noise.scale)).map(moved) == pytest.approx(epsilon, rel=DIGITS)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0, 32.0])
def test_discrete_gaussian_is_as_concentrated_as_our_ratio_says(epsilon: float) -> None:
    clip, sigma = clip_for("l2", 350.0), smallest_sigma(epsilon, 1e-6)
    noise = DiscreteGaussianNoise.for_multiplier(sigma, clip.squared_l2_sensitivity(256))
    assert gaussian(noise.size).map(clip.l2_sensitivity(256)) == pytest.approx(1 / sigma**2 / 2, rel=DIGITS)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0, 32.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-9])
def test_sigma_is_made_for_the_same_curve(epsilon: float, delta: float) -> None:
    sigma = 1000 * smallest_sigma(epsilon, delta)
    curve = dp.c.make_zCDP_to_approxDP(gaussian(sigma)).map(1000.0)
    assert curve.epsilon(delta) == pytest.approx(epsilon, rel=1e-6)


def test_two_releases_cost_what_composition_says() -> None:
    sigmas = [smallest_sigma(epsilon, 1e-6) for epsilon in (1.0, 4.0)]
    together = dp.c.make_composition([gaussian(1000 * sigma) for sigma in sigmas])
    rho = math.fsum(1 / sigma**2 / 2 for sigma in sigmas)
    assert together.map(1000.0) == pytest.approx(rho, rel=DIGITS)
    bound = dp.c.make_zCDP_to_approxDP(together).map(1000.0).epsilon(2e-6)
    assert concentrated_epsilon(rho, 2e-6) == pytest.approx(bound, rel=1e-6)

    pure = PrivacySettings(mechanism="discrete-laplace", epsilon=2.0, clip_norm="l1", clip_bound=50.0)
    promises = [promise_for(pure, DigestSettings(), 256)] * 2
    twice = dp.c.make_composition([laplace(float(DiscreteLaplaceNoise.for_epsilon(2.0, 1000).scale))] * 2)
    assert twice.map(1000) == pytest.approx(compose(promises).epsilon, rel=DIGITS)


@pytest.mark.parametrize("classes", [2, 10, 62])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_randomised_labels_cost_the_stated_epsilon(classes: int, epsilon: float) -> None:
    """Our probability is rounded down to a multiple of 2^-32, which keeps eight digits at epsilon 5 and 62 classes."""
    keep = float(keep_fraction(epsilon, classes))
    asked = dp.m.make_randomized_response([*range(classes)], prob=keep)
    assert asked.map(1) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize("scale", [3.0, 40.0])
@pytest.mark.parametrize("share", [0.3, 0.05, 0.001])
def test_the_tails_of_the_laws_agree(scale: float, share: float) -> None:
    """Compare the least size that at most this share of draws reaches, by summing our weights."""
    reach = np.arange(-int(60 * scale), int(60 * scale) + 1)
    for exponent, known in (
        (np.abs(reach) / scale, dp.discrete_laplacian_scale_to_accuracy(scale=scale, alpha=share)),
        (reach**2 / (2 * scale**2), dp.discrete_gaussian_scale_to_accuracy(scale=scale, alpha=share)),
    ):
        weights = np.exp(-exponent)
        tail = [weights[np.abs(reach) >= size].sum() / weights.sum() for size in range(int(20 * scale))]
        ours = next(size for size, mass in enumerate(tail) if mass <= share)
        assert ours == math.ceil(known - 1e-9)


@pytest.mark.parametrize(
    ("noise", "theirs"),
    [(DiscreteLaplaceNoise(Fraction(5)), laplace(5.0)), (DiscreteGaussianNoise(Fraction(49)), gaussian(7.0))],
    ids=["laplace", "gaussian"],
)
def test_both_samplers_draw_from_the_same_distribution(noise: Any, theirs: Any) -> None:
    """Compare two samples of 40,000 by size; the chi-square of their difference has one degree of freedom per size."""
    count, sizes = 40_000, 20
    own = np.bincount(np.minimum(np.abs(noise.draw(count, SeededSource(0, "oracle"))), sizes))
    other = np.bincount(np.minimum(np.abs(np.array(theirs([0] * count))), sizes))
    statistic = float(((own - other) ** 2 / (own + other)).sum())
    # OpenDP cannot be seeded; with 20 degrees about one sample in a million exceeds this
    assert statistic < 65
