"""A silo's data digest: encode, mix, perturb.

Each sample is used at most once. Neither the samples, nor which of them were mixed, nor the seed of
the noise is in the digest.
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
from feddig.privacy.clipping import Contract
from feddig.privacy.labels import randomise_labels
from feddig.privacy.mechanism import DISCRETE, add_noise
from feddig.privacy.samplers import SeededSource, Source, SystemSource
from feddig.privacy.sound import contract_for, promised_facts, release_groups
from feddig.seeds import Uniforms, seeded_uniforms, system_uniforms
from feddig.settings import DigestSettings, PrivacySettings

log = logging.getLogger("feddig")

Facts = dict[str, str | int | float | list[float]]

LABEL_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Digest:
    """The digest D = (D_R, D_y) of one silo."""

    silo: int
    features: Tensor
    """D_R, [digests, *feature shape], float32: mixed and noised."""
    labels: Tensor
    """D_y, [digests, classes], float32: each row sums to 1."""
    facts: Mapping[str, str | int | float | list[float]] = field(default_factory=dict)
    """How it was made: what FACTS names and, with integer noise, what SOUND_FACTS does."""

    def __len__(self) -> int:
        return int(self.features.shape[0])

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
    """Choose which samples are mixed with which: [digests, SpD] indices, none of them twice."""
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
        within = " of one class" if settings.mixing == "within-class" else ""
        raise DataError(
            f"silo {silo}: no {settings.samples_per_digest} training samples{within} to mix among its {len(labels)}; "
            "lower digest.samples_per_digest or raise data.min_samples"
        )


def make_digest(
    silo: int,
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    settings: DigestSettings,
    privacy: PrivacySettings,
    encoder: str,
) -> Digest:
    """Make a silo's digest from its encoded training samples r and their labels; `encoder` is P_R's hash."""
    features, labels = features.float(), labels.cpu()
    if len(labels) and not bool(torch.isfinite(features).all()):
        raise DataError(
            f"silo {silo}: the encoder gives values that are not finite numbers; check its images"
        )
    contract = None
    if privacy.mechanism in DISCRETE:
        contract = contract_for(privacy, settings, math.prod(features.shape[1:]), classes)
        # before anything else: what samples are mixed with may follow from randomised labels, never from true ones
        words = _words("labels", silo, settings, privacy)
        labels = torch.from_numpy(randomise_labels(labels.numpy(), classes, contract.label_keep, words))
    check_mixable(silo, labels, settings)
    groups = mix_groups(
        labels, settings.samples_per_digest, settings.mixing, _uniforms("mixing", silo, settings, privacy)
    )
    weights = list(settings.weights or [1 / settings.samples_per_digest] * settings.samples_per_digest)
    facts: Facts = {
        "samples_per_digest": settings.samples_per_digest,
        "mixing": settings.mixing,
        "weights": weights,
        "left_out": len(labels) - groups.numel(),
        "mechanism": privacy.mechanism,
        "epsilon": privacy.epsilon,
        "scale_size": privacy.scale_size,
        "random": privacy.random,
        "encoder": encoder,
    }
    if contract is not None:
        source = _words("noise", silo, settings, privacy)
        digest = _sum_and_perturb(silo, features, labels, groups, contract, classes, settings.mixing, source)
        return replace(digest, facts=facts | promised_facts(contract, privacy))
    mixed, soft_labels = _mix(features, labels, groups, weights, classes)
    perturbed = add_noise(
        mixed,
        mechanism=privacy.mechanism,
        largest=float(features.abs().max()),
        epsilon=privacy.epsilon,
        scale_size=privacy.scale_size,
        uniforms=_uniforms("noise", silo, settings, privacy),
    )
    if not bool(torch.isfinite(perturbed.features).all()):
        raise DataError(f"silo {silo}: the noise is beyond all numbers; raise privacy.epsilon")
    # the scale gives tau away, which is the silo's own business: it goes to the log and not into the digest
    log.info("silo %d: noise scale %.6g on its digest", silo, perturbed.scale)
    return Digest(silo, perturbed.features, soft_labels, facts)


def _sum_and_perturb(
    silo: int,
    features: Tensor,
    labels: Tensor,
    groups: Tensor,
    contract: Contract,
    classes: int,
    mixing: str,
    source: Source,
) -> Digest:
    """Sum clipped integers group by group, with integer noise, and divide as a receiver does."""
    release = release_groups(
        features.cpu().numpy(),
        labels.numpy(),
        groups.numpy(),
        contract,
        classes=classes,
        mixing=mixing,
        source=source,
        # they change the time that it takes and nothing else
        threads=torch.get_num_threads(),
    )
    received, shares = torch.from_numpy(release.features), torch.from_numpy(release.labels)
    return Digest(silo, received.to(features.device), shares.to(features.device))


def _mix(
    features: Tensor, labels: Tensor, groups: Tensor, weights: Sequence[float], classes: int
) -> tuple[Tensor, Tensor]:
    """Add up each group's features and one-hot labels with the weights, one member at a time to save memory."""
    mixed = features.new_zeros((len(groups), *features.shape[1:]))
    soft_labels = torch.zeros(len(groups), classes)
    for member, weight in zip(groups.T, weights, strict=True):
        mixed.add_(features[member.to(features.device)], alpha=weight)
        soft_labels[torch.arange(len(groups)), labels[member]] += weight
    return mixed, soft_labels.to(features.device)


def _uniforms(purpose: str, silo: int, settings: DigestSettings, privacy: PrivacySettings) -> Uniforms:
    """Open the source of mixing or noise: a seed in a simulation, the system's entropy otherwise."""
    if privacy.random == "system":
        return system_uniforms
    return seeded_uniforms(settings.seed or 0, purpose, silo)


def _words(purpose: str, silo: int, settings: DigestSettings, privacy: PrivacySettings) -> Source:
    """Open the source of exact noise, by the same rule."""
    return SystemSource() if privacy.random == "system" else SeededSource(settings.seed or 0, purpose, silo)


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
