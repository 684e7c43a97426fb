"""A rehearsal: digests made anew on the silo's machine, with a digest's own settings, whose truth is known.

Who was mixed into which digest is written nowhere. So that attacks can be held against the truth, the same code makes
digests of the same members once more, from a seed of the audit's. Nothing of it is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from feddig.digest.digest import Digest, make_digest, mix_groups
from feddig.errors import SettingError
from feddig.privacy.clipping import Clip, received_features, sum_records
from feddig.privacy.labels import randomise_labels
from feddig.privacy.mechanism import DISCRETE
from feddig.privacy.samplers import SeededSource
from feddig.seeds import derive, seeded_uniforms
from feddig.settings import DigestSettings, PrivacySettings


@dataclass(frozen=True)
class Rehearsed:
    """Digests, and who is in each."""

    digest: Digest
    groups: Tensor
    """[digests, SpD] rows of the records that they were made of."""

    def some(self, count: int, draw: torch.Generator) -> "Rehearsed":
        """Keep a number of digests, drawn at random, as if only these had been sent."""
        if count >= len(self.groups):
            return self
        rows = torch.randperm(len(self.groups), generator=draw)[:count].sort().values
        digest = replace(self.digest, features=self.digest.features[rows], labels=self.digest.labels[rows])
        return Rehearsed(digest, self.groups[rows])


def settings_of(digest: Digest, seed: int) -> tuple[DigestSettings, PrivacySettings]:
    """Read off a digest with which settings it was made; the seed replaces its randomness."""
    facts = digest.facts
    weights = tuple(float(weight) for weight in weights_of(digest))
    settings = DigestSettings(
        samples_per_digest=len(weights),
        mixing=str(facts["mixing"]),
        weights=() if are_equal(weights) else weights,
        seed=seed,
    )
    privacy = PrivacySettings(
        mechanism=str(facts["mechanism"]), epsilon=_number(digest, "epsilon"), random="seeded",
        scale_size=int(_number(digest, "scale_size")),
    )  # fmt: skip
    if privacy.mechanism in DISCRETE:
        privacy = replace(
            privacy,
            delta=_number(digest, "delta"),
            adjacency=str(facts["adjacency"]),
            clip_norm=str(facts["clip_norm"]),
            clip_bound=_number(digest, "clip_bound"),
            label_epsilon=_number(digest, "label_epsilon") or None,
        )
    return settings, privacy


def weights_of(digest: Digest) -> list[float]:
    """Give the mixing weights."""
    weights = digest.facts["weights"]
    assert isinstance(weights, list)
    return weights


def are_equal(weights: Sequence[float]) -> bool:
    """Tell whether all samples of a digest weigh the same."""
    return max(weights) - min(weights) < 1e-6


def rehearse(digest: Digest, features: Tensor, labels: Tensor, seed: int) -> Rehearsed:
    """Make digests of these records as the given one was made."""
    settings, privacy = settings_of(digest, derive(seed, "rehearsal"))
    made = make_digest(
        digest.silo,
        features,
        labels,
        int(digest.labels.shape[1]),
        settings=settings,
        privacy=privacy,
        encoder=str(digest.facts["encoder"]),
    )
    assert settings.seed is not None
    return Rehearsed(made, groups_from_seed(digest, labels, settings.seed))


def groups_from_seed(digest: Digest, labels: Tensor, seed: int) -> Tensor:
    """Draw again who was mixed with whom, as `make_digest` does from a seed."""
    facts, silo = digest.facts, digest.silo
    if facts["mechanism"] in DISCRETE:
        # samples are grouped after their labels were randomised
        labels = torch.from_numpy(
            randomise_labels(
                labels.numpy(),
                int(digest.labels.shape[1]),
                Fraction(str(facts["label_keep"])),
                SeededSource(seed, "labels", silo),
            )
        )
    return mix_groups(
        labels, len(weights_of(digest)), str(facts["mixing"]), seeded_uniforms(seed, "mixing", silo)
    )


def recall_groups(digest: Digest, features: Tensor, labels: Tensor, seed: int) -> Rehearsed:
    """Find out who is in each digest of a seeded file; a wrong seed, or other members, are an error."""
    groups = groups_from_seed(digest, labels, seed)
    fits = len(groups) == len(digest)
    if fits and digest.facts.get("label_epsilon", 0) == 0:
        shares = torch.zeros_like(digest.labels)
        for member, weight in zip(groups.T, weights_of(digest), strict=True):
            shares[torch.arange(len(groups)), labels[member]] += weight
        fits = bool(((shares - digest.labels).abs() < 1e-4).all())
    if not fits:
        raise SettingError(
            f"--mixing-seed: {seed} does not make these digests of --members; give digest.seed (or seed) of the "
            "experiment and exactly its members, or leave it out to attack a rehearsal"
        )
    return Rehearsed(digest, groups)


def mix_without_noise(digest: Digest, features: Tensor, groups: Tensor) -> Tensor:
    """Give the mixtures [digests, elements] of groups of records as they are before the noise."""
    flat = features.flatten(1)
    if digest.facts["mechanism"] in DISCRETE:
        clip = clip_of(digest)
        sums = sum_records(flat.numpy(), groups.numpy(), clip)
        return torch.from_numpy(received_features(sums, float(clip.step), groups.shape[1]))
    mixed = torch.zeros(len(groups), flat.shape[1])
    for member, weight in zip(groups.T, weights_of(digest), strict=True):
        mixed.add_(flat[member], alpha=weight)
    return mixed


def clip_of(digest: Digest) -> Clip:
    """Read the public clip off a digest with integer noise."""
    facts = digest.facts
    return Clip(
        str(facts["clip_norm"]),
        int(_number(digest, "clip_steps")),
        Fraction(_number(digest, "step")),
        bool(facts.get("signed", 0)),
    )


def _number(digest: Digest, fact: str) -> float:
    value = digest.facts.get(fact)
    if not isinstance(value, int | float):
        raise SettingError(f"--digests: does not say its {fact}; make the digest again")
    return float(value)
