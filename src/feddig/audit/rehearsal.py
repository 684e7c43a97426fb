"""A rehearsal: digests made anew on the silo's machine, with a digest's own settings, whose truth is known.

Who was mixed into which digest is written nowhere. So that attacks can be held against the truth, the same code makes
digests of the same members once more, from a seed of the audit's. Nothing of it is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddig.digest.digest import Digest, draw_groups, make_digest_by_facts
from feddig.errors import SettingError
from feddig.privacy.clipping import received_features, sum_records
from feddig.privacy.mechanisms import Randomness
from feddig.seeds import derive


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
    seed, classes = rehearsal_seed(seed), int(digest.labels.shape[1])
    facts = {**digest.facts, "random": "seeded"}
    made = make_digest_by_facts(digest.silo, features, labels, classes, facts, seed)
    return Rehearsed(made, groups_from_seed(digest, labels, seed))


def rehearsal_seed(seed: int) -> int:
    """Return the seed of mixing and noise in a rehearsal."""
    return derive(seed, "rehearsal")


def groups_from_seed(digest: Digest, labels: Tensor, seed: int) -> Tensor:
    """Draw again who was mixed with whom, as `make_digest` does from a seed."""
    randomness = Randomness("seeded", seed, digest.silo)
    return draw_groups(labels, int(digest.labels.shape[1]), digest.facts, randomness)[0]


def recall_groups(digest: Digest, labels: Tensor, seed: int) -> Rehearsed:
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
    clip = digest.mechanism.clip(digest.facts)
    if clip is not None:
        sums = sum_records(flat.numpy(), groups.numpy(), clip)
        return torch.from_numpy(received_features(sums, float(clip.step), groups.shape[1]))
    mixed = torch.zeros(len(groups), flat.shape[1])
    for member, weight in zip(groups.T, weights_of(digest), strict=True):
        mixed.add_(flat[member], alpha=weight)
    return mixed
