"""What a release promises: sensitivities by search, noise against exact curves, costs that add up."""

import math

import numpy as np
import pytest

from feddig.privacy.accounting import Promise, compose
from feddig.privacy.gaussian import (
    concentrated_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
    joined,
)
from feddig.privacy.mechanisms import promise_for
from feddig.settings import DigestSettings, PrivacySettings


def sound(
    mechanism: str = "discrete-gaussian", spd: int = 4, classes: int | None = 10, **keys: object
) -> Promise:
    delta = 1e-6 if mechanism == "discrete-gaussian" else 0.0
    settings: dict[str, object] = {"epsilon": 1.0, "delta": delta, "clip_bound": 60.0, "random": "system"}
    privacy = PrivacySettings(mechanism=mechanism, **(settings | keys))  # type: ignore[arg-type]
    return promise_for(privacy, DigestSettings(samples_per_digest=spd), 256, classes)


# --- how far a record can move a digest


def test_the_heaviest_weight_decides() -> None:
    """The paper's mechanism takes any weights: 256 elements, each of which can move by w tau."""
    for weights, moved in (((), 64.0), ((0.7, 0.1, 0.1, 0.1), 179.2)):
        found = promise_for(PrivacySettings(), DigestSettings(samples_per_digest=4, weights=weights), 256)
        assert found.sensitivity == pytest.approx(moved)
        assert found.epsilon_if_bound_public == pytest.approx(100 * moved)


# --- Gaussian noise


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, "4.2247"), (2, "2.2305"), (4, "1.1935"), (8, "0.6529")])
def test_sigma_of_the_design(epsilon: float, sigma: str) -> None:
    assert f"{gaussian_sigma(epsilon, 1e-6):.4f}" == sigma


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 3.0])
def test_delta_is_the_mass_that_epsilon_does_not_cover(epsilon: float, ratio: float) -> None:
    """The integral of (p(x) - e^epsilon p(x + ratio))+, p normal of variance 1, by Simpson's rule."""
    edge = epsilon / ratio - ratio / 2  # below it the difference is negative
    width, count = 12.0, 20_000

    def excess(at: float) -> float:
        return (math.exp(-at * at / 2) - math.exp(epsilon - (at + ratio) ** 2 / 2)) / math.sqrt(2 * math.pi)

    start = max(edge, -width)
    step = 2 * width / count
    points = (
        excess(start + step * i) * (1 if i in (0, count) else 4 if i % 2 else 2) for i in range(count + 1)
    )
    assert gaussian_delta(epsilon, ratio) == pytest.approx(math.fsum(points) * step / 3, rel=1e-7, abs=1e-300)


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0, 10_000.0])
def test_sigma_and_epsilon_are_inverses(epsilon: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon, delta, 2.0)
    assert gaussian_delta(epsilon, 2 / sigma) == pytest.approx(delta, rel=1e-7)
    assert gaussian_epsilon(delta, 2 / sigma) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_what_concentrated_privacy_proves_is_the_least_of_its_bounds(epsilon: float, delta: float) -> None:
    ratio = 1 / gaussian_sigma(epsilon, delta)
    proved = concentrated_epsilon(delta, ratio)
    # by definition: delta of an order, for the epsilon that was found
    orders = 1 + np.geomspace(1e-3, 1e6, 100_000)
    logs = (
        (orders - 1) * (orders * ratio**2 / 2 - proved) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    )
    assert logs.min() == pytest.approx(math.log(delta), abs=1e-6)
    assert epsilon < proved < 1.25 * epsilon


def test_enough_noise_costs_no_epsilon_at_all() -> None:
    assert gaussian_epsilon(0.5, 0.1) == 0.0


def discrete_delta(epsilon: float, sigma: float, shift: int) -> float:
    """Add up (P(k) - e^epsilon P(k - shift))+ over the integers, P the discrete Gaussian."""
    reach = range(-int(40 * sigma) - shift, int(40 * sigma) + shift + 1)
    whole = math.fsum(math.exp(-k * k / (2 * sigma**2)) for k in reach)
    excess = (
        math.exp(-k * k / (2 * sigma**2)) - math.exp(epsilon - (k - shift) ** 2 / (2 * sigma**2))
        for k in reach
    )
    return math.fsum(max(0.0, each) for each in excess) / whole


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("shift", [20, 21, 50, 100])
def test_on_a_fine_grid_the_discrete_curve_is_the_continuous_one(epsilon: float, shift: int) -> None:
    sigma = gaussian_sigma(epsilon, 1e-6, shift)
    assert abs(discrete_delta(epsilon, sigma, shift) / 1e-6 - 1) < 2.5 / sigma**2


def test_on_a_coarse_grid_it_is_not() -> None:
    """Why the grid must be fine: with sigma below one step delta is three times what was promised."""
    assert discrete_delta(8.0, gaussian_sigma(8.0, 1e-6), 1) > 2.9e-6


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
    assert found.noise_scale == pytest.approx(0.6529353844 * found.sensitivity)


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
def test_a_promise_tells_what_it_rests_on(keys: dict[str, object], sentence: str) -> None:
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
    """Four equal releases are one of twice the ratio."""
    together = compose([sound()] * 4)
    assert together.delta == 4e-6
    assert together.epsilon == pytest.approx(gaussian_epsilon(4e-6, 2 / gaussian_sigma(1.0, 1e-6)))
    assert together.epsilon < 4
    assert compose([sound()]).epsilon == pytest.approx(1.0)


def test_labels_are_charged_at_every_release() -> None:
    plain, labelled = sound(), sound(adjacency="replace-one", label_epsilon=2.0)
    assert compose([labelled] * 3).epsilon == pytest.approx(compose([plain] * 3).epsilon + 6)


def test_delta_can_be_chosen_for_gaussian_noise_only() -> None:
    stricter = compose([sound()] * 2, delta=1e-9)
    assert stricter.delta == 1e-9
    assert stricter.epsilon > compose([sound()] * 2).epsilon
    with pytest.raises(ValueError, match="Gaussian"):
        compose([sound("discrete-laplace")], delta=1e-9)


def test_joined_ratios() -> None:
    assert joined([3.0, 4.0]) == 5.0


# --- against an accountant by others


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 100.0])
def test_sigma_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    oracle = pytest.importorskip("dp_accounting")
    assert gaussian_sigma(epsilon, delta) == pytest.approx(
        oracle.get_sigma_gaussian(epsilon, delta), rel=1e-8
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("releases", [1, 2, 5])
def test_repeated_gaussian_releases_agree_with_dp_accounting(releases: int) -> None:
    oracle = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    once = sound()
    event = oracle.GaussianDpEvent(once.noise_scale / once.sensitivity)
    accountant = pld.PLDAccountant().compose(oracle.SelfComposedDpEvent(event, releases))
    expected = accountant.get_epsilon(1e-6)
    assert compose([once] * releases, delta=1e-6).epsilon == pytest.approx(expected, rel=1e-3)
    assert compose([once] * releases, delta=1e-6).epsilon <= expected + 1e-9


@pytest.mark.filterwarnings("ignore")
def test_unlike_gaussian_releases_agree_with_dp_accounting() -> None:
    oracle = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    releases = [sound(epsilon=epsilon) for epsilon in (0.5, 1.0, 4.0)]
    accountant = pld.PLDAccountant()
    for each in releases:
        accountant.compose(oracle.GaussianDpEvent(each.noise_scale / each.sensitivity))
    assert compose(releases, delta=1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_laplace_noise_agrees_with_dp_accounting() -> None:
    oracle = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    found = sound("discrete-laplace", epsilon=0.7)
    accountant = pld.PLDAccountant().compose(oracle.LaplaceDpEvent(found.noise_scale / found.sensitivity))
    assert accountant.get_epsilon(1e-9) == pytest.approx(found.epsilon, rel=1e-3)
