"""What is audited: a digest file, digests with known members, and images of members, non-members and the public.

A digest file does not say which record is in which digest. To compare attacks with the truth, the audit makes trial
digests: of the same members, with the settings of the file and the same code, and a seed of its own. They are never
released.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from feddig.attacks.candidates import Candidates, Noise, apply_public_clip, read_noise
from feddig.audit.findings import AttackBudget
from feddig.core.samples import ImageSource
from feddig.digest.digest import Digest, draw_groups, make_digest_by_facts
from feddig.errors import DataError, SettingError
from feddig.privacy.clipping import received_features, sum_records
from feddig.privacy.mechanisms import Randomness, weights_of
from feddig.seeds import derive, torch_stream


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
class KnownDigests:
    """Digests, and which records are in each."""

    digest: Digest
    groups: Tensor
    """[digests, SpD] rows of the records that they were made of."""

    def some(self, count: int, draw: torch.Generator) -> "KnownDigests":
        """Return a random choice of the digests, in their order."""
        if count >= len(self.groups):
            return self
        rows = torch.randperm(len(self.groups), generator=draw)[:count].sort().values
        digest = replace(self.digest, features=self.digest.features[rows], labels=self.digest.labels[rows])
        return KnownDigests(digest, self.groups[rows])


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


def make_trial_digests(digest: Digest, features: Tensor, labels: Tensor, seed: int) -> KnownDigests:
    """Make digests of these records with the settings of the given digest."""
    seed, facts = trial_seed(seed), {**digest.facts, "random": "seeded"}
    made = make_digest_by_facts(digest.silo, features, labels, int(digest.labels.shape[1]), facts, seed)
    return KnownDigests(made, groups_from_seed(digest, labels, seed))


def trial_seed(seed: int) -> int:
    """Return the seed of the trial digests' mixing and noise."""
    return derive(seed, "rehearsal")


def find_groups(digest: Digest, labels: Tensor, seed: int) -> KnownDigests:
    """Find the records in each digest of a seeded file; raise an error if seed or members are wrong."""
    groups = groups_from_seed(digest, labels, seed)
    fits = len(groups) == len(digest)
    if fits and digest.facts.get("label_epsilon", 0) == 0:
        shares = torch.zeros_like(digest.labels)
        for member, weight in zip(groups.T, weights_of(digest.facts), strict=True):
            shares[torch.arange(len(groups)), labels[member]] += weight
        fits = bool(((shares - digest.labels).abs() < 1e-4).all())
    if not fits:
        raise SettingError(
            f"--mixing-seed: {seed} does not make these digests of --members; give digest.seed (or seed) of the "
            "experiment and exactly its members, or leave it out to attack trial digests"
        )
    return KnownDigests(digest, groups)


def groups_from_seed(digest: Digest, labels: Tensor, seed: int) -> Tensor:
    """Draw which records are mixed together, as `make_digest` does from a seed."""
    randomness = Randomness("seeded", seed, digest.silo)
    return draw_groups(labels, int(digest.labels.shape[1]), digest.facts, randomness)[0]


def mix_without_noise(digest: Digest, features: Tensor, groups: Tensor) -> Tensor:
    """Return the mixtures [digests, elements] of groups of records before the noise."""
    flat = features.flatten(1)
    clip = digest.mechanism.clip(digest.facts)
    if clip is not None:
        sums = sum_records(flat.numpy(), groups.numpy(), clip)
        return torch.from_numpy(received_features(sums, float(clip.step), groups.shape[1]))
    mixed = torch.zeros(len(groups), flat.shape[1])
    for member, weight in zip(groups.T, weights_of(digest.facts), strict=True):
        mixed.add_(flat[member], alpha=weight)
    return mixed
