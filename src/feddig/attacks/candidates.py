"""An attacker's candidates: encoded images with labels, and what a mixture of unknown ones looks like."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from feddig.digest.digest import Digest
from feddig.errors import DataError

AT_ONCE = 1024
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


@torch.no_grad()
def encode_candidates(encoder: nn.Module, images: Tensor, labels: Tensor) -> Candidates:
    """Encode images [candidates, channels, height, width] in [0, 1] with the public encoder."""
    features = torch.cat([encoder(batch).flatten(1) for batch in torch.split(images, AT_ONCE)])
    return Candidates(features, labels)


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
