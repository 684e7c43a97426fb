"""What is audited: a digest file, digests with known members, and images of members, non-members and the public."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from feddig.attacks.candidates import Candidates, Noise, apply_public_clip, read_noise
from feddig.audit.findings import AttackBudget
from feddig.audit.trial_digests import KnownDigests, find_groups, make_trial_digests
from feddig.core.samples import ImageSource
from feddig.digest.digest import Digest
from feddig.errors import DataError, SettingError
from feddig.privacy.mechanisms import weights_of
from feddig.seeds import torch_stream


@dataclass(frozen=True)
class AuditImages:
    """Encoded images; no image is in two of the three sets."""

    members: ImageSource
    holdout: ImageSource
    """Non-members: images of the same kind that were not used."""
    public: ImageSource
    """Images that attackers learn from."""
    encoder: nn.Module


@dataclass(frozen=True)
class AuditedDigests:
    """What the evaluator knows; attacks receive only digests, public networks and candidates of it."""

    file: Digest
    """All digests that are to be sent."""
    attacked: KnownDigests
    """The attacked digests, a random choice of `known`."""
    known: KnownDigests
    """All digests whose members are known: the file's own, or trial digests."""
    from_file: bool
    """Whether these are the file's own."""
    images: AuditImages
    budget: AttackBudget
    seed: int

    @property
    def digest(self) -> Digest:
        """The attacked digests."""
        return self.attacked.digest

    @property
    def groups(self) -> Tensor:
        """The members of each attacked digest: [digests, SpD] rows of the members."""
        return self.attacked.groups

    @property
    def has_equal_weights(self) -> bool:
        """Whether attacks that need equal weights can run."""
        weights = weights_of(self.file.facts)
        return max(weights) - min(weights) < 1e-6

    @property
    def has_true_labels(self) -> bool:
        """Whether labels are exact; attackers ignore randomised ones, which would rule out the right classes."""
        return not self.file.facts.get("label_epsilon", 0)

    def hide_labels(self, digest: Digest) -> Digest:
        """Return a digest as attackers use it: without labels if these are randomised."""
        return digest if self.has_true_labels else replace(digest, labels=torch.ones(len(digest), 1))

    def hide_classes(self, candidates: Candidates) -> Candidates:
        """Return candidates as attackers use them: without classes if labels are randomised."""
        return candidates if self.has_true_labels else candidates.without_labels()

    def candidates(self, source: ImageSource, rows: Tensor | None = None) -> Candidates:
        """Return images, or some of them, as candidates with the public clip applied."""
        features = apply_public_clip(features_of(source).flatten(1), self.file)
        if rows is None:
            return Candidates(features, source.labels)
        return Candidates(features[rows], source.labels[rows])

    @cached_property
    def noise(self) -> Noise:
        """The noise that an attacker assumes; tau is estimated from public images."""
        return read_noise(self.file, float(features_of(self.images.public).abs().max()))

    def stream(self, name: str) -> torch.Generator:
        """Open the audit's random stream of this name; names never change, or reports could not be repeated."""
        return torch_stream(self.seed, "audit", name)


def prepare_audit(
    file: Digest, images: AuditImages, budget: AttackBudget, *, seed: int, mixing_seed: int | None
) -> AuditedDigests:
    """Check that digests and images fit together, and find or make digests with known members."""
    _check_images(file, images)
    members = images.members
    if mixing_seed is not None:
        known = find_groups(file, members.labels, mixing_seed)
    else:
        used = count_records(file)
        if used != len(members):
            raise DataError(
                f"--members: {len(members)} images, but the digests were made of {used}; give exactly the images "
                "that they were made of"
            )
        known = make_trial_digests(file, features_of(members), members.labels, seed)
    attacked = known.some(budget.digests, torch_stream(seed, "audit", "digests"))
    return AuditedDigests(file, attacked, known, mixing_seed is not None, images, budget, seed)


def count_records(file: Digest) -> int:
    """Return how many records a digest was made of, including those that filled no group."""
    left_out = file.facts["left_out"]
    assert isinstance(left_out, int)
    return len(file) * len(weights_of(file.facts)) + left_out


def _check_images(file: Digest, images: AuditImages) -> None:
    shape, expected = tuple(features_of(images.members).shape[1:]), tuple(file.features.shape[1:])
    if shape != expected:
        raise SettingError(
            f"--members: the encoder makes features of shape {shape} of these images, but the digests have "
            f"{expected}; give the images that they were made of"
        )
    classes = int(file.labels.shape[1])
    sources = {"--members": images.members, "--holdout": images.holdout, "--public": images.public}
    for name, source in sources.items():
        if len(source) == 0:
            raise DataError(f"{name}: no images are left; give more")
        if int(source.labels.max()) >= classes:
            raise DataError(
                f"{name}: has class {int(source.labels.max())}, but the digests have {classes} classes, counted from "
                "0; give data with the federation's classes"
            )
    if file.facts.get("label_epsilon", 0):
        return
    missing = (file.labels > 0).any(0) & (torch.bincount(images.public.labels, minlength=classes) == 0)
    if bool(missing.any()):
        raise DataError(
            f"--public: has no image of class {int(missing.long().argmax())}, which digests have; give more images, or "
            "a larger --holdout if half of that is public"
        )


def match_classes(labels: Tensor, others: Tensor, most: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw rows of both, equally many of each class, so that classes alone reveal no membership."""
    first, second = [], []
    share = min(1.0, most / max(1, len(labels)))
    for label in torch.unique(labels):
        mine, theirs = (torch.nonzero(each == label)[:, 0] for each in (labels, others))
        count = min(math.ceil(len(mine) * share), len(theirs))
        first.append(mine[torch.randperm(len(mine), generator=draw)[:count]])
        second.append(theirs[torch.randperm(len(theirs), generator=draw)[:count]])
    chosen = torch.cat(first), torch.cat(second)
    if not len(chosen[0]):
        raise DataError(
            "--holdout: has no image of any class that members have; give images of the same classes"
        )
    return chosen


def features_of(source: ImageSource) -> Tensor:
    """Return the encoded images."""
    features = source.features
    assert features is not None
    return features


def image_shape(source: ImageSource) -> tuple[int, int, int]:
    """Return the shape of an image as networks see it, padded."""
    channels, height, width = source.images(torch.tensor([0])).shape[1:]
    return channels, height, width
