"""The promises of a release: the noise follows the published bound, which is checked by exact sums; costs add up."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from feddig.privacy.accounting import Promise, compose, concentrated_epsilon
from feddig.privacy.clipping import clip_for
from feddig.privacy.mechanisms import promise_for, promise_of, public_facts
from feddig.privacy.mechanisms.discrete_gaussian import smallest_sigma
from feddig.settings import DigestSettings, PrivacySettings


def sound(
    mechanism: str = "discrete-gaussian", spd: int = 4, classes: int | None = 10, **keys: object
) -> Promise:
    delta = 1e-6 if mechanism == "discrete-gaussian" else 0.0
    settings: dict[str, object] = {"epsilon": 1.0, "delta": delta, "clip_bound": 60.0, "random": "system"}
    privacy = PrivacySettings(mechanism=mechanism, **(settings | keys))  # type: ignore[arg-type]
    return promise_for(privacy, DigestSettings(samples_per_digest=spd), 256, classes)


# --- how much a record can change a digest


def test_the_heaviest_weight_decides() -> None:
    """The paper's mechanism accepts any weights: each of 256 elements can change by w tau."""
    for weights, moved in (((), 64.0), ((0.7, 0.1, 0.1, 0.1), 179.2)):
        found = promise_for(PrivacySettings(), DigestSettings(samples_per_digest=4, weights=weights), 256)
        assert found.sensitivity == pytest.approx(moved)
        assert found.epsilon_if_bound_public == pytest.approx(100 * moved)


# --- Gaussian noise


def published_delta(epsilon: float, rho: float) -> float:
    """Return the delta for rho and epsilon by Canonne, Kamath and Steinke, Proposition 12, over many orders."""
    orders = 1 + np.geomspace(1e-3, 1e6, 100_000)
    logs = (orders - 1) * (orders * rho - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    return float(np.exp(logs.min()))


def test_sigma_at_delta_one_in_a_million() -> None:
    sigmas = [f"{smallest_sigma(epsilon, 1e-6):.4f}" for epsilon in (1.0, 2.0, 4.0, 8.0, 32.0)]
    assert sigmas == ["4.5309", "2.3816", "1.2678", "0.6893", "0.2248"]


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_sigma_is_the_smallest_that_the_published_bound_allows(epsilon: float, delta: float) -> None:
    sigma = smallest_sigma(epsilon, delta)
    assert concentrated_epsilon(1 / (2 * sigma**2), delta) == pytest.approx(epsilon, rel=1e-12)
    assert published_delta(epsilon, 1 / (2 * sigma**2)) == pytest.approx(delta, rel=1e-6)
    assert published_delta(epsilon, 1 / (2 * (0.999 * sigma) ** 2)) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-6), (1e-2, 0.5), (1e4, 1e-6), (1e9, 1e-300)])
def test_sigma_is_found_far_from_one(epsilon: float, delta: float) -> None:
    sigma = smallest_sigma(epsilon, delta)
    assert concentrated_epsilon(1 / (2 * sigma**2), delta) == pytest.approx(epsilon, rel=1e-12)


def test_more_privacy_takes_more_noise() -> None:
    for sigmas in (
        [smallest_sigma(epsilon, 1e-6) for epsilon in (0.01, 0.1, 1.0, 2.0, 8.0, 64.0)],
        [smallest_sigma(1.0, delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3)],
    ):
        assert sigmas == sorted(sigmas, reverse=True)
        assert len(set(sigmas)) == len(sigmas)


def test_enough_noise_costs_no_epsilon_at_all() -> None:
    assert concentrated_epsilon(1e-6, 0.5) == 0.0


def exact_delta(epsilon: float, shift: Sequence[int], sigmas: Sequence[float]) -> float:
    """Sum (P(x) - e^epsilon P(x - shift))+ over the grid; P is discrete Gaussian with one sigma per element."""
    one, other = np.ones(1), np.ones(1)
    for moved, sigma in zip(shift, sigmas, strict=True):
        reach = np.arange(-math.ceil(9 * sigma) - moved, math.ceil(9 * sigma) + moved + 1)
        weights, shifted = (np.exp(-((reach - at) ** 2) / (2 * sigma**2)) for at in (0, moved))
        one = np.multiply.outer(one, weights / weights.sum()).ravel()
        other = np.multiply.outer(other, shifted / shifted.sum()).ravel()
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


LINE_AND_PLANE = [(1,), (2,), (5,), (20,), (100,), (1, 1), (3, 4), (7, 1)]
SPACE = [(1, 1, 1), (3, 2, 1)]


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
@pytest.mark.parametrize(
    ("epsilon", "shift"),
    [
        *itertools.product([0.5, 1.0, 4.0, 8.0], LINE_AND_PLANE),
        *itertools.product([4.0, 8.0, 32.0], SPACE),
    ],
    ids=str,
)
def test_integers_keep_the_delta_that_is_claimed(
    epsilon: float, delta: float, shift: tuple[int, ...]
) -> None:
    """Sum over every point of small grids, also where sigma is below one step."""
    sigma = smallest_sigma(epsilon, delta) * math.hypot(*shift)
    assert exact_delta(epsilon, shift, (sigma,) * len(shift)) <= delta


@pytest.mark.parametrize("sigmas", [(2.0, 5.0), (3.0, 2.5), (0.7, 0.6)])
@pytest.mark.parametrize("shift", [(1, 1), (4, 2), (2, 9), (5, 5)])
def test_two_releases_keep_the_delta_that_is_claimed(
    shift: tuple[int, ...], sigmas: tuple[float, ...]
) -> None:
    rho = math.fsum((moved / sigma) ** 2 / 2 for moved, sigma in zip(shift, sigmas, strict=True))
    for delta in (1e-2, 1e-5):
        assert exact_delta(concentrated_epsilon(rho, delta), shift, sigmas) <= delta


@pytest.mark.parametrize("clip_norm", ["l1", "l2", "box"])
@pytest.mark.parametrize("clip_bound", [0.7, 60.0, 350.0, 1024.0])
@pytest.mark.parametrize("epsilon", [1.0, 8.0, 32.0])
def test_the_noise_that_is_drawn_keeps_what_is_asked_for(
    epsilon: float, clip_bound: float, clip_norm: str
) -> None:
    """Use the variance of the integers that are drawn and the sensitivity of the integers that are summed."""
    keys = {"clip_norm": clip_norm, "clip_bound": clip_bound}
    privacy = PrivacySettings("discrete-gaussian", epsilon, delta=1e-6, **keys)  # type: ignore[arg-type]
    facts = public_facts(privacy, DigestSettings(), 256, 10)
    squared = clip_for(clip_norm, clip_bound).squared_l2_sensitivity(256)
    rho = float(squared / Fraction(str(facts["noise_variance"])) / 2)
    assert published_delta(epsilon, rho) == pytest.approx(1e-6, rel=1e-6)
    promise = promise_of(facts, 256)
    assert (promise.epsilon, promise.rho) == (epsilon, pytest.approx(rho))
    assert promise.noise_scale / promise.sensitivity == pytest.approx(smallest_sigma(epsilon, 1e-6))


def test_a_digest_whose_noise_is_too_weak_for_its_epsilon_is_not_believed() -> None:
    privacy = PrivacySettings("discrete-gaussian", 8.0, delta=1e-6, clip_bound=350.0)
    facts = public_facts(privacy, DigestSettings(), 256, 10)
    weaker = {**facts, "noise_variance": str(Fraction(str(facts["noise_variance"])) / 4)}
    assert promise_of(weaker, 256).epsilon == pytest.approx(
        concentrated_epsilon(4 * promise_of(facts, 256).rho, 1e-6)
    )  # type: ignore[operator]


# --- what is promised


def test_the_papers_mechanism_promises_nothing() -> None:
    found = promise_for(PrivacySettings(), DigestSettings(), 256)
    assert (found.epsilon, found.delta, found.epsilon_if_bound_public) == (math.inf, 0.0, 6400)
    assert (found.sensitivity, found.unit) == (64, "tau")
    assert found.noise_scale == pytest.approx(0.01)
    assert found.sensitivity / found.noise_scale == pytest.approx(6400)
    assert any("infinite" in sentence for sentence in found.assumptions)
    assert any("units of tau" in sentence for sentence in found.assumptions)


def test_no_noise_promises_nothing() -> None:
    found = promise_for(PrivacySettings(mechanism="none"), DigestSettings(), 256)
    assert (found.epsilon, found.epsilon_if_bound_public, found.noise_scale) == (math.inf, math.inf, 0.0)


def test_laplace_noise_is_sensitivity_over_epsilon() -> None:
    found = sound("discrete-laplace", clip_norm="l1", epsilon=0.5)
    assert (found.epsilon, found.delta, found.norm) == (0.5, 0.0, "L1")
    assert (found.sensitivity, found.noise_scale) == (30, 60)


def test_gaussian_noise_is_sigma_for_sensitivity_one_times_the_sensitivity() -> None:
    found = sound(epsilon=8.0)
    assert (found.epsilon, found.delta, found.norm) == (8.0, 1e-6, "L2")
    assert found.sensitivity == pytest.approx(60 * math.sqrt(2) / 4)
    assert found.noise_scale == pytest.approx(0.6892920154 * found.sensitivity)


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "discrete-gaussian"])
def test_more_samples_in_a_digest_need_less_noise(mechanism: str) -> None:
    assert sound(mechanism, spd=16).noise_scale == pytest.approx(sound(mechanism, spd=4).noise_scale / 4)


def test_labels_cost_only_where_they_may_change() -> None:
    assert (sound().label_epsilon, sound().keep_probability) == (0.0, None)
    other = sound(adjacency="replace-one", label_epsilon=2.0)
    assert (other.epsilon, other.label_epsilon) == (3.0, 2.0)
    assert other.keep_probability == pytest.approx(math.exp(2) / (math.exp(2) + 9))
    assert other.noise_scale == sound().noise_scale
    assert sound(classes=None, adjacency="replace-one", label_epsilon=2.0).keep_probability is None


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "Labels are public"),
        ({}, "another of its class"),
        ({"adjacency": "replace-one", "label_epsilon": 1.0}, "any other"),
        ({"adjacency": "replace-one", "label_epsilon": 1.0}, "added to the 1 of the features"),
        ({"clip_norm": "box"}, "each to at most 60"),
        ({"random": "seeded"}, "anyone who knows the seed can remove the noise"),
        ({"random": "system"}, "system's entropy"),
        ({}, "updates in every round are not covered"),
        ({}, "released once"),
        ({}, "published proofs: Canonne, Kamath and Steinke"),
    ],
)
def test_a_promise_states_its_assumptions(keys: dict[str, object], sentence: str) -> None:
    assert sentence in " ".join(sound(**keys).assumptions)  # type: ignore[arg-type]


def test_laplace_noise_needs_no_curve() -> None:
    assert "Gaussian" not in " ".join(sound("discrete-laplace").assumptions)


# --- several releases


def test_costs_add_up() -> None:
    together = compose([sound("discrete-laplace", epsilon=0.5), sound("discrete-laplace"), sound()])
    assert (together.epsilon, together.delta) == (2.5, 1e-6)
    assert together.assumptions[0].startswith("Every release draws noise of its own")
    assert not any("released once" in sentence for sentence in together.assumptions)
    assert len(set(together.assumptions)) == len(together.assumptions)


def test_nothing_released_costs_nothing() -> None:
    assert (compose([]).epsilon, compose([]).delta) == (0.0, 0.0)


def test_an_infinite_cost_stays_infinite() -> None:
    endless = promise_for(PrivacySettings(), DigestSettings(), 256)
    assert compose([sound(), endless]).epsilon == math.inf


def test_gaussian_releases_together_cost_less_than_their_sum() -> None:
    """Four equal releases cost four times rho."""
    together = compose([sound()] * 4)
    assert together.delta == 4e-6
    assert together.epsilon == pytest.approx(concentrated_epsilon(2 / smallest_sigma(1.0, 1e-6) ** 2, 4e-6))
    assert together.epsilon < 4
    assert compose([sound()]).epsilon == 1.0


def test_labels_are_charged_at_every_release() -> None:
    plain, labelled = sound(), sound(adjacency="replace-one", label_epsilon=2.0)
    assert compose([labelled] * 3).epsilon == pytest.approx(compose([plain] * 3).epsilon + 6)


def test_delta_can_be_chosen_for_gaussian_noise_only() -> None:
    stricter = compose([sound()] * 2, delta=1e-9)
    assert stricter.delta == 1e-9
    assert stricter.epsilon > compose([sound()] * 2).epsilon
    with pytest.raises(ValueError, match="Gaussian"):
        compose([sound("discrete-laplace")], delta=1e-9)


# --- compared with another accountant


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("releases", [(1.0,), (1.0,) * 5, (0.5, 1.0, 4.0)], ids=str)
def test_gaussian_releases_cost_what_dp_accounting_says(releases: tuple[float, ...]) -> None:
    """The same as its accountant of the same bound, and slightly more than the exact cost for real numbers."""
    oracle = pytest.importorskip("dp_accounting")
    pld, rdp = pytest.importorskip("dp_accounting.pld"), pytest.importorskip("dp_accounting.rdp")
    promises = [sound(epsilon=epsilon) for epsilon in releases]
    bounded = rdp.RdpAccountant(1 + np.geomspace(0.01, 1000, 5000))
    exact = pld.PLDAccountant()
    for each in promises:
        bounded.compose(oracle.ZCDpEvent(each.rho))
        exact.compose(oracle.GaussianDpEvent(each.noise_scale / each.sensitivity))
    charged = compose(promises, delta=1e-6).epsilon
    assert charged == pytest.approx(bounded.get_epsilon(1e-6), rel=1e-5)
    assert charged <= bounded.get_epsilon(1e-6)
    assert 1 < charged / exact.get_epsilon(1e-6) < 1.1


@pytest.mark.filterwarnings("ignore")
def test_laplace_noise_agrees_with_dp_accounting() -> None:
    oracle = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    found = sound("discrete-laplace", epsilon=0.7)
    accountant = pld.PLDAccountant().compose(oracle.LaplaceDpEvent(found.noise_scale / found.sensitivity))
    assert accountant.get_epsilon(1e-9) == pytest.approx(found.epsilon, rel=1e-3)
