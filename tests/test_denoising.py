"""Denoising digests: differences that labels explain stay, and variance that the noise explains is removed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddig import Digest
from feddig.core.samples import DigestSource
from feddig.digest.digest import denoise, without_noise

CENTRES = torch.tensor([[9.0, 1.0, 4.0, 5.0], [2.0, 8.0, 5.0, 3.0]])
"""Centres of two classes, far above zero, so that nothing is clipped at zero."""


def draw(count: int, *, deviation: float, samples: int, spread: float = 0.0) -> tuple[Tensor, Tensor]:
    """Draw digests of one class each: the class centre, a spread in the last element, and noise in all elements."""
    stream = np.random.default_rng(0)
    classes = torch.arange(count) % 2
    features = CENTRES[classes].double().numpy().copy()
    features[:, 3] += stream.normal(0, spread / np.sqrt(samples), count)
    features += stream.normal(0, deviation, features.shape)
    return torch.from_numpy(features).float(), nn.functional.one_hot(classes, 2).float()


def digest(silo: int, features: Tensor, labels: Tensor, **facts: str | int | float) -> Digest:
    made = {"samples_per_digest": 4, "mixing": "within-class", "mechanism": "discrete-gaussian"}
    return Digest(silo, features, labels, {**made, **facts})


def test_where_only_noise_shows_what_labels_explain_is_left() -> None:
    features, labels = draw(4000, deviation=1.0, samples=4)
    clear = without_noise(features, labels, 1.0, 4)
    assert clear.dtype == torch.float32
    for row in range(2):
        own = clear[row::2]
        assert torch.allclose(own, CENTRES[row].expand_as(own), atol=6 / 2000**0.5)
        assert torch.allclose(own, features[row::2].mean(0).expand_as(own), atol=1e-5)


def test_where_more_shows_it_gets_the_spread_of_single_samples() -> None:
    """A spread of 2 in single samples is 1 in the mean of four; the noise is .5."""
    features, labels = draw(5_000, deviation=0.5, samples=4, spread=2.0)
    rest = without_noise(features, labels, 0.5, 4) - labels @ CENTRES
    assert rest[:, 3].std().item() == pytest.approx(2.0, rel=0.05)
    assert rest[:, :3].std(dim=0).max() < 0.1
    assert np.corrcoef(rest[:, 3], (features - labels @ CENTRES)[:, 3])[0, 1] > 0.99


def test_digests_of_many_classes_keep_the_spread_of_digests() -> None:
    """The spread is 1 without noise; the best estimate is slightly smaller (Wiener): 1 / 1.25."""
    features, labels = draw(5_000, deviation=0.5, samples=4, spread=2.0)
    rest = without_noise(features, labels, 0.5) - labels @ CENTRES
    assert rest[:, 3].std().item() == pytest.approx((1 / 1.25) ** 0.5, rel=0.05)
    mixed = digest(0, features, labels, noise_deviation=0.5, mixing="random")
    assert torch.equal(denoise([mixed], features), without_noise(features, labels, 0.5))


def test_soft_labels_explain_mixtures() -> None:
    stream = torch.Generator().manual_seed(0)
    labels = torch.rand(5000, 1, generator=stream)
    labels = torch.cat([labels, 1 - labels], dim=1)
    features = labels @ CENTRES + torch.randn(5000, 4, generator=stream)
    assert torch.allclose(without_noise(features, labels, 1.0, 4), labels @ CENTRES, atol=0.2)


def test_nothing_falls_below_zero() -> None:
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(50, 4, generator=stream) * 10
    assert without_noise(features, torch.ones(50, 1), 10.0, 2).min() >= 0


def test_fewer_digests_than_classes_are_left_alone() -> None:
    features, labels = torch.randn(2, 3), torch.eye(2)
    assert torch.equal(without_noise(features, labels, 1.0, 4), features)


def test_only_digests_with_known_noise_change() -> None:
    features, labels = draw(40, deviation=1.0, samples=4)
    halves = features[:20], features[20:]
    known = digest(0, halves[0], labels[:20], noise_deviation=1.0)
    unknown = digest(1, halves[1], labels[20:])
    clear = denoise([known, unknown], features)
    assert torch.equal(clear[20:], features[20:])
    assert torch.equal(clear[:20], without_noise(halves[0], labels[:20], 1.0, 4))
    assert not torch.equal(clear[:20], features[:20])
    assert denoise([unknown], halves[1]) is halves[1]
    for silly in (0.0, -1.0, float("nan"), float("inf")):
        assert denoise([digest(0, features, labels, noise_deviation=silly)], features) is features


def test_digests_under_one_contract_are_seen_together_and_others_apart() -> None:
    features, labels = draw(60, deviation=1.0, samples=4)
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    digests = [digest(i, features[part], labels[part], noise_deviation=1.0) for i, part in enumerate(parts)]
    digests[1] = replace(digests[1], facts={**digests[1].facts, "noise_deviation": 2.0})
    clear = denoise(digests, features)
    outer = torch.cat([features[parts[0]], features[parts[2]]])
    outer_labels = torch.cat([labels[parts[0]], labels[parts[2]]])
    seen = without_noise(outer, outer_labels, 1.0, 4)
    assert torch.equal(torch.cat([clear[parts[0]], clear[parts[2]]]), seen)
    assert torch.equal(clear[parts[1]], without_noise(features[parts[1]], labels[parts[1]], 2.0, 4))


@pytest.mark.parametrize("aware", [False, True])
def test_training_sees_clear_features_and_the_digests_stay_as_they_were_sent(aware: bool) -> None:
    features, labels = draw(40, deviation=1.0, samples=4)
    sent = digest(3, features, labels, noise_deviation=1.0)
    source = DigestSource([sent], nn.Identity(), noise_aware=aware)
    seen = source.inputs(torch.arange(40))[1]
    assert torch.equal(seen, without_noise(features, labels, 1.0, 4) if aware else features)
    assert source.digests()[3].hash == sent.hash
    assert torch.equal(source.targets(torch.arange(40)), labels)
