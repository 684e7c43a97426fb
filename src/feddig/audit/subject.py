"""What is audited: a digest file, digests whose truth is known, and the images of members and others."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from feddig.attacks.candidates import Candidates, Noise, assumed_noise, clip_as_agreed
from feddig.audit.findings import Effort
from feddig.audit.rehearsal import Rehearsed, are_equal, recall_groups, rehearse, weights_of
from feddig.core.samples import ImageSource
from feddig.digest.digest import Digest
from feddig.errors import DataError, SettingError
from feddig.seeds import torch_stream


@dataclass(frozen=True)
class Subject:
    """What the evaluator knows; attacks are given only digests, public networks and candidates of it."""

    file: Digest
    """The digests that are to be sent, all of them."""
    attacked: Rehearsed
    """Digests whose members are known: some of the file's, or of a rehearsal with its settings."""
    whole: Rehearsed
    """Those that they were drawn from."""
    of_file: bool
    """Whether those are the file's own."""
    members: ImageSource
    holdout: ImageSource
    public: ImageSource
    encoder: nn.Module
    effort: Effort
    seed: int

    @property
    def digest(self) -> Digest:
        """The attacked digests."""
        return self.attacked.digest

    @property
    def groups(self) -> Tensor:
        """Who is in each of them: [digests, SpD] rows of the members."""
        return self.attacked.groups

    @property
    def has_equal_weights(self) -> bool:
        """Whether the attacks that need equal weights can be made."""
        return are_equal(weights_of(self.file))

    @property
    def has_true_labels(self) -> bool:
        """Whether labels are exact; attackers had better not heed randomised ones, which rule the right classes out."""
        return not self.file.facts.get("label_epsilon", 0)

    def seen(self, digest: Digest) -> Digest:
        """Give a digest as attackers use it: without its labels, where these are randomised."""
        return digest if self.has_true_labels else replace(digest, labels=torch.ones(len(digest), 1))

    def known(self, candidates: Candidates) -> Candidates:
        """Give candidates as attackers use them: without classes, where labels are randomised."""
        return candidates if self.has_true_labels else candidates.without_labels()

    @cached_property
    def noise(self) -> Noise:
        """What an attacker takes the noise for; tau is guessed from public images."""
        return assumed_noise(self.file, float(features_of(self.public).abs().max()))

    def stream(self, name: str) -> torch.Generator:
        """Open a random stream of the audit's for one purpose."""
        return torch_stream(self.seed, "audit", name)


def prepare_subject(
    file: Digest,
    members: ImageSource,
    holdout: ImageSource,
    public: ImageSource,
    encoder: nn.Module,
    effort: Effort,
    *,
    seed: int,
    mixing_seed: int | None,
) -> Subject:
    """Check that everything fits together, and find or make digests whose members are known."""
    features = features_of(members)
    if tuple(file.features.shape[1:]) != tuple(features.shape[1:]):
        raise SettingError(
            f"--members: the encoder makes features of shape {tuple(features.shape[1:])} of these images, but the "
            f"digests have {tuple(file.features.shape[1:])}; give the images that they were made of"
        )
    spd, classes = len(weights_of(file)), int(file.labels.shape[1])
    for name, source in (("--members", members), ("--holdout", holdout), ("--public", public)):
        if len(source) == 0:
            raise DataError(f"{name}: no images are left; give more")
        if int(source.labels.max()) >= classes:
            raise DataError(
                f"{name}: has class {int(source.labels.max())}, but the digests have {classes} classes, counted from "
                "0; give data with the federation's classes"
            )
    told = (
        (file.labels > 0).any(0)
        if not file.facts.get("label_epsilon", 0)
        else torch.zeros(classes, dtype=torch.bool)
    )
    missing = told & (torch.bincount(public.labels, minlength=classes) == 0)
    if bool(missing.any()):
        raise DataError(
            f"--public: has no image of class {int(missing.long().argmax())}, which digests have; give more images, or "
            "a larger --holdout if half of that is public"
        )
    if mixing_seed is not None:
        known = recall_groups(file, members.labels, mixing_seed)
    else:
        left_out = file.facts["left_out"]
        assert isinstance(left_out, int)
        if len(file) * spd + left_out != len(members):
            raise DataError(
                f"--members: {len(members)} images, but the digests were made of {len(file) * spd + left_out}; give "
                "exactly those that they were made of"
            )
        known = rehearse(file, features, members.labels, seed)
    some = known.some(effort.digests, torch_stream(seed, "audit", "digests"))
    return Subject(
        file, some, known, mixing_seed is not None, members, holdout, public, encoder, effort, seed
    )


def features_of(source: ImageSource) -> Tensor:
    """Give the encoded images."""
    features = source.features
    assert features is not None
    return features


def candidates_of(subject: Subject, source: ImageSource, rows: Tensor | None = None) -> Candidates:
    """Give images, or some of them, as an attacker's candidates, who knows the public clip."""
    features = clip_as_agreed(features_of(source).flatten(1), subject.file)
    return (
        Candidates(features, source.labels)
        if rows is None
        else Candidates(features[rows], source.labels[rows])
    )


def match_classes(labels: Tensor, others: Tensor, most: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw places of both, equally many of each class, so that classes alone tell nobody apart."""
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


def image_shape(source: ImageSource) -> tuple[int, int, int]:
    """Give the shape of an image as networks see it, padded."""
    channels, height, width = source.images(torch.tensor([0])).shape[1:]
    return channels, height, width
