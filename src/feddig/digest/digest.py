"""A silo's data digest: make it from encoded samples by mixing and noise, and remove known noise before training.

Each sample is used at most once. The digest contains neither the samples, nor which of them were mixed, nor the seed
of the noise.

Denoising is post-processing, which costs no privacy. A digest's features D_R are the mean of its samples' features,
plus noise. What the label D_y explains of them is an average over many digests and stays as it is. What is left has a
covariance W = V + s^2 I, where s is the noise's known standard deviation: along each direction in which W exceeds what
noise alone would show it is scaled down from W to V, and along all others it is dropped.

Digests of one class stand for single samples, on which a classifier is tested, and these have SpD times the variance
of means of SpD. So there what is left is scaled from W to SpD V.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from feddig.errors import DataError, FileFormatError
from feddig.files import content_hash
from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms import (
    Fact,
    Mechanism,
    Randomness,
    Samples,
    mechanism_of,
    promise_of,
    public_facts,
    weights_of,
)
from feddig.seeds import Uniforms
from feddig.settings import DigestSettings, PrivacySettings

log = logging.getLogger("feddig")

LABEL_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Digest:
    """The digest D = (D_R, D_y) of one silo."""

    silo: int
    """The number of its silo."""
    features: Tensor
    """D_R, [digests, *feature shape], float32: mixed and noised."""
    labels: Tensor
    """D_y, [digests, classes], float32: each row sums to 1."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """How it was made, as far as a receiver needs to know."""

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that its facts name."""
        return mechanism_of(self.facts)

    @property
    def promise(self) -> Promise:
        """What it promises each record in it."""
        return promise_of(self.facts, math.prod(self.features.shape[1:]))

    @property
    def samples(self) -> int:
        """How many samples went into it."""
        return len(self) * int(self.facts["samples_per_digest"])  # type: ignore[arg-type]

    @cached_property
    def hash(self) -> str:
        """Name this digest by its content."""
        return content_hash(
            json.dumps({"silo": self.silo, **self.facts}, sort_keys=True).encode(),
            _bytes(self.features),
            _bytes(self.labels),
        )

    @property
    def size(self) -> int:
        """Bytes that a silo sends once."""
        return (self.features.numel() + self.labels.numel()) * 4

    def to(self, device: torch.device) -> "Digest":
        """Move the tensors to a device."""
        return replace(self, features=self.features.to(device), labels=self.labels.to(device))


def mix_groups(labels: Tensor, samples_per_digest: int, mixing: str, uniforms: Uniforms) -> Tensor:
    """Return which samples are mixed: [digests, SpD] indices, none of them twice."""
    shuffled = torch.from_numpy(np.argsort(uniforms(len(labels)), kind="stable"))
    rows = [shuffled]
    if mixing == "within-class":
        rows = [shuffled[labels[shuffled] == label] for label in torch.unique(labels)]
    whole = [row[: len(row) - len(row) % samples_per_digest].view(-1, samples_per_digest) for row in rows]
    return torch.cat(whole) if whole else shuffled.view(-1, samples_per_digest)


def check_mixable(silo: int, labels: Tensor, settings: DigestSettings) -> None:
    """Check that a silo has enough samples for a single digest; without one it could not be recalled."""
    counts = torch.bincount(labels) if settings.mixing == "within-class" else torch.tensor([len(labels)])
    if not bool((counts >= settings.samples_per_digest).any()):
        raise _too_few(silo, labels, settings.samples_per_digest, settings.mixing)


def make_digest(
    silo: int,
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    settings: DigestSettings,
    privacy: PrivacySettings,
    encoder: str,
    groups: Tensor | None = None,
) -> Digest:
    """Make a silo's digest from its encoded training samples r and their labels.

    `encoder` is P_R's hash; `groups` says which samples belong together, for a promise to groups.
    """
    facts = public_facts(privacy, settings, math.prod(features.shape[1:]), classes, encoder)
    if privacy.unit == "record":
        return make_digest_by_facts(silo, features, labels, classes, facts, settings.seed or 0)
    if groups is None:
        raise DataError(
            f"silo {silo}: privacy.unit is group, but the data names no groups; put the images of each into a folder "
            "below its class, or give an .npz file with g_train and g_test, or a data.partition_file with group"
        )
    uniforms = Randomness(privacy.random, settings.seed or 0, silo).uniforms("members of groups")
    kept = limit_groups(groups, privacy.group_limit, uniforms)
    rows = kept.to(features.device)
    digest = make_digest_by_facts(
        silo, features[rows], labels.cpu()[kept], classes, facts, settings.seed or 0
    )
    left_out = int(str(digest.facts["left_out"])) + len(labels) - len(kept)
    return replace(digest, facts={**digest.facts, "left_out": left_out})


def limit_groups(groups: Tensor, limit: int, uniforms: Uniforms) -> Tensor:
    """Return the rows, in order, of at most `limit` members of each group, drawn at random."""
    shuffled = torch.from_numpy(np.argsort(uniforms(len(groups)), kind="stable"))
    by_group = shuffled[torch.argsort(groups[shuffled], stable=True)]
    counts = torch.unique_consecutive(groups[by_group], return_counts=True)[1]
    rank = torch.arange(len(groups)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return by_group[rank < limit].sort().values


def make_digest_by_facts(
    silo: int, features: Tensor, labels: Tensor, classes: int, facts: Mapping[str, Fact], seed: int
) -> Digest:
    """Make a silo's digest with the given facts, for example those of another digest."""
    features, labels = features.float(), labels.cpu()
    if len(labels) and not bool(torch.isfinite(features).all()):
        raise DataError(
            f"silo {silo}: the encoder gives values that are not finite numbers; check its images"
        )
    mechanism = mechanism_of(facts)
    randomness = Randomness(str(facts["random"]), seed, silo, torch.get_num_threads())
    groups, labels = draw_groups(labels, classes, facts, randomness)
    if not len(groups):
        raise _too_few(silo, labels, int(str(facts["samples_per_digest"])), str(facts["mixing"]))
    facts = {**facts, "left_out": len(labels) - groups.numel()}

    def mix() -> tuple[np.ndarray, np.ndarray]:
        mixed, shares = _mix(features, labels, groups, weights_of(facts), classes)
        return mixed.cpu().numpy(), shares.numpy()

    samples = Samples(features.cpu().numpy(), labels.numpy(), groups.numpy(), classes, mix)
    sent, shares = mechanism.release(samples, facts, randomness)
    if not bool(np.isfinite(sent).all()):
        raise DataError(f"silo {silo}: the noise is too large for a float32 number; raise privacy.epsilon")
    # the deviation may follow from the silo's largest feature, so it goes to the log and not into the digest
    deviation = mechanism.noise_deviation(facts, float(features.abs().max()))
    log.info("silo %d: noise of standard deviation %.6g on its digest", silo, deviation or 0.0)
    device = features.device
    return Digest(silo, torch.from_numpy(sent).to(device), torch.from_numpy(shares).to(device), facts)


def draw_groups(
    labels: Tensor, classes: int, facts: Mapping[str, Fact], randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """Return which samples are mixed, and the labels as the mechanism has randomised them."""
    # first, because groups may depend on randomised labels, never on true ones
    seen = mechanism_of(facts).randomise_labels(labels.numpy(), classes, facts, randomness)
    labels = torch.from_numpy(seen)
    groups = mix_groups(
        labels, int(str(facts["samples_per_digest"])), str(facts["mixing"]), randomness.uniforms("mixing")
    )
    return groups, labels


def _too_few(silo: int, labels: Tensor, mixed: int, mixing: str) -> DataError:
    within = " of one class" if mixing == "within-class" else ""
    return DataError(
        f"silo {silo}: no {mixed} training samples{within} to mix among its {len(labels)}; "
        "lower digest.samples_per_digest or raise data.min_samples"
    )


def _mix(
    features: Tensor, labels: Tensor, groups: Tensor, weights: Sequence[float], classes: int
) -> tuple[Tensor, Tensor]:
    """Add up each group's features and one-hot labels with the weights, one member at a time to save memory."""
    mixed = features.new_zeros((len(groups), *features.shape[1:]))
    soft_labels = torch.zeros(len(groups), classes)
    for member, weight in zip(groups.T, weights, strict=True):
        mixed.add_(features[member.to(features.device)], alpha=weight)
        soft_labels[torch.arange(len(groups)), labels[member]] += weight
    return mixed, soft_labels


def check_digest(digest: Digest, source: str) -> None:
    """Check what any receiver must check: shapes, finite numbers, labels that are shares."""
    features, labels = digest.features, digest.labels
    if digest.silo < 0:
        raise FileFormatError(
            f"{source}: is of silo {digest.silo}, but silos count from 0; make the digest again"
        )
    sizes_fit = labels.ndim == 2 and features.ndim >= 2 and len(features) == len(labels)
    if not sizes_fit or not features.numel() or not labels.numel():
        raise FileFormatError(
            f"{source}: features {tuple(features.shape)} and labels {tuple(labels.shape)} do not fit together"
        )
    for name, tensor in (("features", features), ("labels", labels)):
        if not bool(torch.isfinite(tensor).all()):
            raise FileFormatError(f"{source}: {name} hold NaN or infinity; make the digest again")
    if bool((labels < 0).any()) or bool(((labels.sum(1) - 1).abs() > LABEL_TOLERANCE).any()):
        row = int(((labels.sum(1) - 1).abs() + (labels < 0).any(1)).argmax())
        raise FileFormatError(
            f"{source}: label row {row} is not a set of shares that sum to 1; make the digest again"
        )


def _bytes(tensor: Tensor) -> bytes:
    return str(tuple(tensor.shape)).encode() + tensor.detach().cpu().contiguous().numpy().tobytes()


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
