"""Trial digests: digests with known members, made with the settings of the audited file.

A digest file does not say which record is in which digest. To compare attacks with the truth, the audit makes digests
of the same members with the same code and a seed of its own. They are never released.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddig.digest.digest import Digest, draw_groups, make_digest_by_facts
from feddig.errors import SettingError
from feddig.privacy.clipping import received_features, sum_records
from feddig.privacy.mechanisms import Randomness, weights_of
from feddig.seeds import derive


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
