"""What an attacker knows: the noise and the clip of a digest, candidate images, and statistics of their sums."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from feddig.digest.digest import Digest
from feddig.errors import DataError

OWN_COVARIANCES = 8
"""Larger mixtures of several classes use the average covariance: their own sum hardly differs from it."""
CACHE_BYTES = 2**28
"""Size of the inverse covariances that are kept for other digests of the same classes."""
MIN_DEVIATION = 0.03
"""As a share of the candidates' spread: with less noise a covariance's inverse would overflow."""


@dataclass(frozen=True)
class Noise:
    """The distribution of the noise on each element, as far as an attack uses it."""

    deviation: float
    """Standard deviation, in units of a feature."""
    heavy_tails: bool = False
    """Whether it is Laplace noise, whose likelihood depends on absolute and not on squared differences."""

    def misfit(self, differences: Tensor) -> Tensor:
        """Return how badly differences [..., elements] fit the noise: the mean size, or the root mean square."""
        if self.heavy_tails:
            return differences.abs().mean(-1)
        return differences.square().mean(-1).sqrt()

    def draw(self, shape: torch.Size, stream: torch.Generator) -> Tensor:
        """Draw such noise, for an attacker who imitates a silo."""
        if not self.heavy_tails:
            return self.deviation * torch.randn(shape, generator=stream)
        sizes = torch.empty(shape).exponential_(generator=stream) * (self.deviation / math.sqrt(2))
        return torch.where(torch.rand(shape, generator=stream) < 0.5, -sizes, sizes)


def read_noise(digest: Digest, largest: float) -> Noise:
    """Return the noise that a digest states; `largest`, of the candidates, stands in for the silo's own tau."""
    deviation = digest.mechanism.noise_deviation(digest.facts, largest)
    if deviation is None:
        raise ValueError(f"{digest.facts['mechanism']}: the digest does not state its noise")
    return Noise(deviation, digest.mechanism.heavy_tails)


def apply_public_clip(features: Tensor, digest: Digest) -> Tensor:
    """Clip features [samples, ...] as the digest states, without rounding to its grid, which is too fine to matter."""
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


class ClippedEncoder(nn.Module):
    """The public encoder followed by the public clip."""

    def __init__(self, encoder: nn.Module, digest: Digest) -> None:
        super().__init__()
        self.encoder, self._digest = encoder, digest

    def forward(self, images: Tensor) -> Tensor:
        """Encode and clip."""
        return apply_public_clip(cast(Tensor, self.encoder(images)), self._digest)


def read_classes(digest: Digest) -> list[tuple[int, ...]]:
    """Read from the soft labels the classes in each digest, one for each of its SpD equal weights."""
    spd, weights = digest.facts["samples_per_digest"], digest.facts["weights"]
    assert isinstance(spd, int)
    assert isinstance(weights, list)
    if max(weights) - min(weights) > 1e-6:
        raise ValueError(f"weights {weights}: this attack is for equal ones")
    counts = (digest.labels * spd + 1e-3).floor()
    # noised labels do not add up to whole samples: the largest remainders get the missing ones
    ranks = (digest.labels * spd - counts).argsort(1, descending=True).argsort(1)
    counts += ranks < (spd - counts.sum(1, keepdim=True))
    return [tuple(torch.arange(len(row)).repeat_interleave(row).tolist()) for row in counts.long().cpu()]


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
        """Return the same candidates for an attacker who knows no classes."""
        return Candidates(self.features, torch.zeros_like(self.labels))


@dataclass(frozen=True)
class Background:
    """A sum of unknown samples and noise: its mean, inverse covariance and the covariance's log-determinant."""

    mean: Tensor
    precision: Tensor
    log_determinant: float


class Backgrounds:
    """Statistics of sums of unknown samples of given classes, estimated from candidates."""

    def __init__(self, pool: Candidates, sum_deviation: float) -> None:
        self._noise = max(sum_deviation, MIN_DEVIATION * pool.spread, 1e-12) ** 2
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
        # fewer samples than elements leave most directions unknown: the average of all classes fills them in
        self._covariances = {
            label: torch.lerp(own[label], self._average, elements / (elements + size))
            for label, size in sizes.items()
        }
        self._inverses: dict[tuple[int, ...] | int, tuple[Tensor, float]] = {}

    def of(self, classes: Iterable[int]) -> Background:
        """Describe the sum of the noise and one unknown sample of each of these classes."""
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
            if (len(self._inverses) + 1) * self._average.nbytes > CACHE_BYTES and self._inverses:
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
