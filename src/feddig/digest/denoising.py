"""Remove known noise from digests before training: post-processing, which costs no privacy.

A digest's features D_R are the mean of its samples' features, plus noise. What the label D_y explains of them is an
average over many digests and stays as it is. What is left has a covariance W = V + s^2 I, where s is the noise's known
standard deviation: along each direction in which W exceeds what noise alone would show it is scaled down from W to V,
and along all others it is dropped.

Digests of one class stand for single samples, on which a classifier is tested, and these have SpD times the variance
of means of SpD. So there what is left is scaled from W to SpD V.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from feddig.digest.digest import Digest


def denoise(digests: Sequence[Digest], features: Tensor) -> Tensor:
    """Return the digests' features, concatenated, without their noise where its level is known."""
    rows = torch.split(torch.arange(len(features)), [len(digest) for digest in digests])
    groups: dict[tuple[float, int | None], list[Tensor]] = {}
    for digest, own in zip(digests, rows, strict=True):
        deviation = digest.mechanism.noise_deviation(digest.facts)
        if deviation:
            of_one_class = digest.facts.get("mixing") == "within-class"
            samples = digest.samples // len(digest) if of_one_class else None
            groups.setdefault((deviation, samples), []).append(own)
    if not groups:
        return features
    labels, clear = torch.cat([digest.labels for digest in digests]), features.clone()
    for (deviation, samples), parts in groups.items():
        chosen = torch.cat(parts).to(features.device)
        clear[chosen] = without_noise(features[chosen], labels[chosen], deviation, samples)
    return clear


def without_noise(features: Tensor, labels: Tensor, deviation: float, samples: int | None = None) -> Tensor:
    """Remove noise of this deviation from mixed features [digests, ...].

    With `samples` they are means of that many samples of one class, and get the spread of single samples.
    """
    # on the CPU in double precision, so that every device gives the same result
    rows, shares = (tensor.detach().cpu().double().flatten(1) for tensor in (features, labels))
    explained = shares @ torch.linalg.pinv(shares) @ rows
    left = len(rows) - int(torch.linalg.matrix_rank(shares))
    if left < 1:
        return features
    rest = rows - explained
    variances, directions = torch.linalg.eigh(rest.T @ rest / left)
    # the largest variance that noise alone shows in this many digests (Marchenko and Pastur)
    edge = deviation**2 * (1 + (rows.shape[1] / left) ** 0.5) ** 2
    signal = torch.where(variances > edge, 1 - deviation**2 / variances.clamp(min=edge), 0)
    gains = signal if samples is None else (samples * signal).sqrt()
    clear: Tensor = explained + (rest @ directions * gains) @ directions.T
    # neither the encoder nor the clip gives values below zero
    return clear.clamp(min=0).to(features).view_as(features)
