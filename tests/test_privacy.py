"""The paper's noise has the paper's scale, and every mechanism states its promise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from feddig import make_digest
from feddig.errors import SettingError
from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms import MECHANISMS, Randomness, Samples, promise_for, promise_of, public_facts
from feddig.privacy.mechanisms.paper_laplace import laplace_noise, laplace_scale
from feddig.seeds import Uniforms, seeded_uniforms, system_uniforms
from feddig.settings import DigestSettings, PrivacySettings

COUNT = 200_000
TOO_FAR = math.sqrt(math.log(2 / 1e-9) / 2)
"""The Kolmogorov-Smirnov distance times the root of the count that chance exceeds once in 10^9."""


def release(
    privacy: PrivacySettings, mixed: np.ndarray, largest: float, random: str = "seeded"
) -> np.ndarray:
    """Release a mixture for a silo with the given largest feature."""
    labels, features = np.ones((len(mixed), 1), np.float32), np.full((1, 1), largest, np.float32)
    samples = Samples(features, np.zeros(1, int), np.zeros((1, 1), int), 1, lambda: (mixed, labels))
    facts = public_facts(privacy, DigestSettings(samples_per_digest=1), 1, 1)
    sent, shares = MECHANISMS[privacy.mechanism].release(samples, facts, Randomness(random, 0, 0))
    assert shares is labels
    return sent


def paper(
    epsilon: float = 0.005, weights: tuple[float, ...] = (0.25,) * 4, scale_size: int = 20_000
) -> Promise:
    privacy = PrivacySettings(epsilon=epsilon, scale_size=scale_size)
    return promise_for(privacy, DigestSettings(samples_per_digest=len(weights), weights=weights), 256)


def distance_from_laplace(draws: np.ndarray, scale: float) -> float:
    """Return the Kolmogorov-Smirnov statistic sqrt(n) sup |F_n - F| for the Laplace distribution."""
    at = np.sort(draws.astype(np.float64)) / scale
    expected = np.where(at < 0, np.exp(-np.abs(at)) / 2, 1 - np.exp(-np.abs(at)) / 2)
    steps = np.arange(len(at) + 1) / len(at)
    gaps = np.maximum(steps[1:] - expected, expected - steps[:-1])
    return float(math.sqrt(len(at)) * gaps.max())


def test_the_distance_is_right_on_three_draws() -> None:
    """With scale 1, F(0) = 1/2, F(ln 2) = 3/4, F(-ln 2) = 1/4; the empirical steps are at 1/3 and 2/3."""
    draws = np.array([math.log(2), -math.log(2), 0.0])
    assert distance_from_laplace(draws, 1.0) == pytest.approx(math.sqrt(3) / 4)


@pytest.mark.parametrize("random", ["seeded", "system"])
def test_the_noise_is_laplace_of_the_paper_scale(random: str) -> None:
    """With tau 3, S 50 and epsilon .04, the scale is 3 / (50 x .04) = 1.5."""
    mixed = np.full((COUNT, 1), 7.0, np.float32)
    sent = release(PrivacySettings(epsilon=0.04, scale_size=50), mixed, 3.0, random)
    noise = (sent - mixed).ravel()
    assert sent.dtype == np.float32
    assert distance_from_laplace(noise, 1.5) < TOO_FAR
    # the variance of a Laplace draw is 2 b^2, that of its square 20 b^4; allow six standard deviations
    assert np.mean(noise.astype(float) ** 2) == pytest.approx(
        2 * 1.5**2, abs=6 * math.sqrt(20 * 1.5**4 / COUNT)
    )
    assert np.mean(noise.astype(float)) == pytest.approx(0, abs=6 * math.sqrt(2 * 1.5**2 / COUNT))


@pytest.mark.parametrize("wrong", [0.95, 1.05])
def test_a_scale_five_per_cent_off_would_be_noticed(wrong: float) -> None:
    noise = laplace_noise((COUNT,), 1.5 * wrong, seeded_uniforms(0, "noise"))
    assert distance_from_laplace(noise, 1.5) > TOO_FAR
    assert abs(np.mean(noise.astype(float) ** 2) - 4.5) > 6 * math.sqrt(20 * 1.5**4 / COUNT)


def test_normal_noise_of_the_same_variance_would_be_noticed() -> None:
    normal = np.random.default_rng(0).normal(0, math.sqrt(2) * 1.5, COUNT)
    assert distance_from_laplace(normal, 1.5) > TOO_FAR


def test_noise_by_hand() -> None:
    """The exponential's median is ln 2; a second draw below one half flips the sign."""

    draws = iter([[0.5, 0.5, 0.0], [0.49, 0.5, 0.3]])

    def uniforms(count: int) -> np.ndarray:
        assert count == 3
        return np.array(next(draws))

    noise = laplace_noise((3,), 2.0, uniforms)
    assert noise.tolist() == pytest.approx([-2 * math.log(2), 2 * math.log(2), 0.0])


def test_the_largest_uniform_number_still_gives_a_finite_draw() -> None:
    largest: Uniforms = lambda count: np.full(count, 1 - 2.0**-53)  # noqa: E731
    assert np.isfinite(laplace_noise((2,), 1.0, largest)).all()


def test_neighbouring_elements_get_independent_noise() -> None:
    noise = laplace_noise((COUNT // 2, 2), 1.0, seeded_uniforms(1))
    assert abs(np.corrcoef(noise.T)[0, 1]) < 6 / math.sqrt(COUNT // 2)


def test_no_mechanism_adds_nothing() -> None:
    mixed = np.array([[1.0, 2.0]], np.float32)
    assert release(PrivacySettings(mechanism="none"), mixed, 2.0) is mixed
    assert MECHANISMS["none"].noise_deviation({}) == 0.0


def test_an_unknown_mechanism_is_never_taken_for_none() -> None:
    settings, privacy = DigestSettings(samples_per_digest=1), PrivacySettings(mechanism="gauss")
    with pytest.raises(SettingError, match="'gauss' is not known; choose from discrete-gaussian,"):
        make_digest(
            0,
            torch.ones(1, 1),
            torch.zeros(1, dtype=torch.long),
            1,
            settings=settings,
            privacy=privacy,
            encoder="",
        )


def test_the_systems_numbers_are_uniform() -> None:
    draws = system_uniforms(COUNT)
    assert draws.shape == (COUNT,)
    assert draws.dtype == np.float64
    assert 0 <= draws.min() < 1e-3
    assert 1 - 1e-3 < draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=6 * math.sqrt(1 / 12 / COUNT))
    assert draws.var() == pytest.approx(1 / 12, abs=6 * math.sqrt(1 / 180 / COUNT))


def test_the_systems_numbers_have_53_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert system_uniforms(1).tolist() == [1 - 2.0**-53]
    monkeypatch.setattr("os.urandom", lambda count: b"\x00" * count)
    assert system_uniforms(2).tolist() == [0.0, 0.0]
    monkeypatch.setattr("os.urandom", lambda count: (b"\x00\x08" + b"\x00" * 6) * (count // 8))
    assert system_uniforms(1).tolist() == [2.0**-53]


# --- promises


def test_at_the_papers_epsilon_the_scale_is_a_hundredth_of_the_largest_feature() -> None:
    assert laplace_scale(5.0, 0.005, 20_000) == pytest.approx(0.05)
    assert laplace_scale(5.0, 0.0005, 20_000) == pytest.approx(0.5)
    assert laplace_scale(5.0, 0.005, 10_000) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("epsilon", "spd", "record"),
    [
        (0.005, 1, 25_600), (0.005, 2, 12_800), (0.005, 4, 6400), (0.005, 8, 3200),
        (0.0005, 1, 2560), (0.0005, 2, 1280), (0.0005, 4, 640), (0.0005, 8, 320),
    ],
)  # fmt: skip
def test_what_a_record_would_be_promised_if_the_rest_were_public(
    epsilon: float, spd: int, record: float
) -> None:
    """Check the table of the design notes: ell 256, S 20,000."""
    assert paper(epsilon, (1 / spd,) * spd).epsilon_if_bound_public == pytest.approx(record)


def test_uneven_weights_promise_what_the_heaviest_does() -> None:
    assert paper(weights=(0.1, 0.7, 0.2)).epsilon_if_bound_public == pytest.approx(17_920)


def test_the_papers_mechanism_says_that_its_record_epsilon_is_infinite() -> None:
    sentence = paper().sentence
    assert sentence.startswith("record epsilon is infinite (tau depends on the data and labels are exact)")
    assert sentence.endswith("if tau were public and labels known it would be 6,400")


def test_a_small_figure_keeps_its_decimals() -> None:
    assert paper(0.0005, scale_size=20).sentence.endswith("would be 0.64")


def test_no_noise_is_infinite_and_nothing_else() -> None:
    promise = promise_for(PrivacySettings(mechanism="none"), DigestSettings(), 256)
    assert promise.sentence == "no noise: record epsilon is infinite"


@pytest.mark.parametrize(("mechanism", "delta"), [("discrete-laplace", 0.0), ("discrete-gaussian", 1e-6)])
def test_integer_noise_says_what_it_promises_and_to_whom(mechanism: str, delta: float) -> None:
    privacy = PrivacySettings(mechanism, 8.0, delta=delta, clip_bound=60.0, random="system")
    assert promise_for(privacy, DigestSettings(), 256).sentence == (
        f"record epsilon is 8 and delta {delta:g} under same-label adjacency (labels are public); it covers this one "
        "release of the digest and not the updates of the model"
    )
    other = replace(privacy, adjacency="replace-one", label_epsilon=1.5, random="seeded")
    sentence = promise_for(other, DigestSettings(), 256).sentence
    assert sentence.startswith(
        f"record epsilon is 9.5 and delta {delta:g} under replace-one adjacency (8 for features and"
    )
    assert sentence.endswith("; nothing is promised against anyone who knows the seed")


def test_a_mechanism_of_another_release_is_trusted_with_nothing() -> None:
    promise = promise_of({"mechanism": "gauss", "epsilon": 0.005}, 256)
    assert (
        promise.sentence
        == "gauss is not known to this version of FedDig: take the record epsilon as infinite"
    )
    assert (promise.epsilon, promise.noise_scale) == (math.inf, 0.0)
