"""What an attacker takes the noise of a digest for, from what the digest says about itself.

The public clip as an attacker applies it: to candidates, and behind the encoder that is to be undone.

An attacker's candidates: encoded images with labels, and what a mixture of unknown ones looks like.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from feddig.digest.digest import Digest
from feddig.errors import DataError


@dataclass(frozen=True)
class Noise:
    """The law of the noise on each element, as far as an attack uses it."""

    deviation: float
    """Standard deviation, in units of a feature."""
    heavy_tails: bool = False
    """Whether it is Laplace's, whose likelihood falls with the absolute difference and not with its square."""

    def misfit(self, differences: Tensor) -> Tensor:
        """Say how badly differences [..., elements] fit the noise: the mean size, or the root mean square."""
        if self.heavy_tails:
            return differences.abs().mean(-1)
        return differences.square().mean(-1).sqrt()

    def draw(self, shape: torch.Size, stream: torch.Generator) -> Tensor:
        """Draw noise of this law, for an attacker who imitates a silo."""
        if not self.heavy_tails:
            return self.deviation * torch.randn(shape, generator=stream)
        sizes = torch.empty(shape).exponential_(generator=stream) * (self.deviation / math.sqrt(2))
        return torch.where(torch.rand(shape, generator=stream) < 0.5, -sizes, sizes)


def assumed_noise(digest: Digest, largest: float) -> Noise:
    """Read the noise off a digest; `largest` stands in for tau, which is the silo's: that of the candidates."""
    deviation = digest.mechanism.noise_deviation(digest.facts, largest)
    if deviation is None:
        raise ValueError(
            f"{digest.facts['mechanism']}: the digest does not tell its noise; give the attack the contract's"
        )
    return Noise(deviation, digest.mechanism.heavy_tails)


def clip_as_agreed(features: Tensor, digest: Digest) -> Tensor:
    """Hold features [samples, ...] to the clip that a digest tells; the grid is too fine for an attack to matter."""
    clip = digest.mechanism.clip(digest.facts)
    if clip is None:
        return features
    norm, bound = clip.norm, float(clip.bound * clip.step)
    features = features.clamp(min=0)
    if norm == "box":
        return features.clamp(max=bound)
    lengths: Tensor = torch.linalg.vector_norm(features.flatten(1), ord=1 if norm == "l1" else 2, dim=1)
    shrink = (bound / lengths.clamp(min=1e-12)).clamp(max=1)
    return features * shrink.view(-1, *[1] * (features.dim() - 1))


class AgreedEncoder(nn.Module):
    """The public encoder with the public clip behind it: what a sample's part in a digest is made by."""

    def __init__(self, encoder: nn.Module, digest: Digest) -> None:
        super().__init__()
        self.encoder, self._digest = encoder, digest

    def forward(self, images: Tensor) -> Tensor:
        """Encode and clip."""
        return clip_as_agreed(cast(Tensor, self.encoder(images)), self._digest)


OWN_COVARIANCES = 8
"""Larger mixtures of several classes share the average covariance: the sum of many hardly differs from it."""
KEPT = 2**28
"""Bytes of backgrounds that are kept for other digests of the same classes."""
LEAST_DEVIATION = 0.03
"""Of the candidates' spread: with less noise a covariance's inverse would be too large for its type."""


@dataclass(frozen=True)
class Candidates:
    """Features [candidates, elements] of images, and their classes."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def spread(self) -> float:
        """The root mean square of the features' standard deviations."""
        return float(self.features.var(0, correction=0).mean().sqrt())

    @cached_property
    def rows(self) -> dict[int, Tensor]:
        """The rows of each class."""
        return {int(label): torch.nonzero(self.labels == label)[:, 0] for label in torch.unique(self.labels)}

    def without_labels(self) -> "Candidates":
        """Give the same candidates to an attacker who knows nobody's class."""
        return Candidates(self.features, torch.zeros_like(self.labels))


def mixed_classes(digest: Digest) -> list[tuple[int, ...]]:
    """Read off the labels which classes each digest is mixed of, one for each of its SpD equal weights."""
    spd, weights = digest.facts["samples_per_digest"], digest.facts["weights"]
    assert isinstance(spd, int)
    assert isinstance(weights, list)
    if max(weights) - min(weights) > 1e-6:
        raise ValueError(f"weights {weights}: this attack is for equal ones")
    counts = (digest.labels * spd + 1e-3).floor()
    # noised labels do not add up to whole samples: the largest remainders get those that are left
    ranks = (digest.labels * spd - counts).argsort(1, descending=True).argsort(1)
    counts += ranks < (spd - counts.sum(1, keepdim=True))
    return [tuple(torch.arange(len(row)).repeat_interleave(row).tolist()) for row in counts.long().cpu()]


@dataclass(frozen=True)
class Background:
    """A sum of unknown samples and noise: its mean, the inverse of its covariance, the logarithm of its determinant."""

    mean: Tensor
    precision: Tensor
    log_determinant: float


class Backgrounds:
    """What sums of unknown samples of given classes look like, learnt from candidates."""

    def __init__(self, pool: Candidates, sum_deviation: float) -> None:
        self._noise = max(sum_deviation, LEAST_DEVIATION * pool.spread, 1e-12) ** 2
        self.means: dict[int, Tensor] = {}
        """The mean feature of each class."""
        own: dict[int, Tensor] = {}
        for label, rows in pool.rows.items():
            features = pool.features[rows]
            self.means[label] = features.mean(0)
            deviations = features - self.means[label]
            own[label] = deviations.T @ deviations / len(rows)
        self.scatter = {label: float(covariance.trace()) for label, covariance in own.items()}
        """How much the samples of each class differ."""
        sizes = {label: len(rows) for label, rows in pool.rows.items()}
        self._average = torch.stack([own[label] * size / len(pool) for label, size in sizes.items()]).sum(0)
        elements = len(self._average)
        # fewer samples than elements say nothing about most directions: there the average of all classes helps
        self._covariances = {
            label: torch.lerp(own[label], self._average, elements / (elements + size))
            for label, size in sizes.items()
        }
        self._inverses: dict[tuple[int, ...] | int, tuple[Tensor, float]] = {}

    def of(self, classes: Iterable[int]) -> Background:
        """Describe noise and one unknown sample of each of these classes, added up."""
        classes = tuple(sorted(classes))
        missing = [label for label in classes if label not in self.means]
        if missing:
            raise DataError(f"no candidate is of class {missing[0]}, but a digest is; enlarge the pool")
        mean = torch.stack(
            [torch.zeros_like(self._average[0]), *(self.means[label] for label in classes)]
        ).sum(0)
        return Background(mean, *self._inverse(classes))

    def _inverse(self, classes: tuple[int, ...]) -> tuple[Tensor, float]:
        alike = len(classes) <= OWN_COVARIANCES or len(set(classes)) == 1
        key = classes if alike else len(classes)
        if key not in self._inverses:
            if (len(self._inverses) + 1) * self._average.nbytes > KEPT and self._inverses:
                self._inverses.pop(next(iter(self._inverses)))
            self._inverses[key] = self._invert(classes, alike)
        return self._inverses[key]

    def _invert(self, classes: tuple[int, ...], alike: bool) -> tuple[Tensor, float]:
        covariance = self._noise * torch.eye(len(self._average))
        if alike:
            for label in classes:
                covariance += self._covariances[label]
        else:
            covariance += len(classes) * self._average
        root = torch.linalg.cholesky(covariance.double())
        return torch.cholesky_inverse(root).to(covariance.dtype), 2 * float(root.diagonal().log().sum())
