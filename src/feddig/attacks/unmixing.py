"""Unmixing: which of an attacker's candidates were mixed into a digest?

Soft labels tell the classes and weights are equal, so a digest times SpD is a sum of one candidate of each known
class, and noise. Found and true set are both held against the digest: where the true one fits better, the search
gave up; where it does not, noise hid it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import comb, prod

import torch
from torch import Tensor

from feddig.attacks.candidates import Backgrounds, Candidates, mixed_classes
from feddig.attacks.intervals import Rate
from feddig.attacks.noise import Noise, assumed_noise
from feddig.attacks.subset_search import BEAM, search_set
from feddig.digest.digest import Digest
from feddig.errors import DataError


@dataclass(frozen=True)
class Unmixed:
    """The set of candidates that fits each digest best."""

    members: Tensor
    """[digests, SpD] rows of the pool."""
    residuals: Tensor
    """[digests], how badly the noise explains what is left."""


@dataclass(frozen=True)
class Unmixing:
    """How much of it was right."""

    digests: Rate
    """Digests whose members were all found; chance draws candidates of the right classes."""
    members: Rate
    """Members found. The interval takes them for independent, which those of one digest are not."""
    gave_up: int
    """Digests where the truth fits better than what was found: a longer search would have found more."""
    hidden: int
    """Digests where something wrong fits as well as the truth: noise hid it."""
    found_residuals: Tensor
    true_residuals: Tensor


def unmix(
    digest: Digest,
    pool: Candidates,
    noise: Noise | None = None,
    *,
    beam: int = BEAM,
    report: Callable[[int], None] | None = None,
) -> Unmixed:
    """Find the members of each digest among the candidates; `report` hears how many are done."""
    noise = noise or assumed_noise(digest, float(pool.features.abs().max()))
    classes = mixed_classes(digest)
    _check_enough(pool, classes)
    spd = len(classes[0])
    backgrounds = Backgrounds(pool, spd * noise.deviation)
    found, residuals = [], []
    for done, (features, own) in enumerate(zip(digest.features.flatten(1), classes, strict=True), 1):
        members, residual = search_set(features * spd, own, pool, backgrounds, noise, beam)
        found.append(members)
        residuals.append(residual / spd)
        if report is not None:
            report(done)
    return Unmixed(torch.stack(found), torch.stack(residuals))


def evaluate_unmixing(
    unmixed: Unmixed, digest: Digest, pool: Candidates, members: Tensor, noise: Noise | None = None
) -> Unmixing:
    """Hold what was found against the true members [digests, SpD], given as rows of the pool."""
    noise = noise or assumed_noise(digest, float(pool.features.abs().max()))
    # added up in the same order, so that equal sets have equal residuals
    found, truth = (
        noise.misfit(digest.features.flatten(1) - pool.features[rows.sort(1).values].mean(1))
        for rows in (unmixed.members, members)
    )
    hits = (unmixed.members[:, :, None] == members[:, None, :]).any(2)
    wrong = ~hits.all(1)
    better = truth < found
    sizes = {label: len(rows) for label, rows in pool.rows.items()}
    classes = mixed_classes(digest)
    whole = [prod(1 / comb(sizes[label], own.count(label)) for label in set(own)) for own in classes]
    single = [sum(min(1, own.count(label) / sizes[label]) for label in own) / len(own) for own in classes]
    return Unmixing(
        digests=Rate(int((~wrong).sum()), len(hits), sum(whole) / len(whole)),
        members=Rate(int(hits.sum()), hits.numel(), sum(single) / len(single)),
        gave_up=int((wrong & better).sum()),
        hidden=int((wrong & ~better).sum()),
        found_residuals=found,
        true_residuals=truth,
    )


def _check_enough(pool: Candidates, classes: list[tuple[int, ...]]) -> None:
    """Check that no digest has more samples of a class than there are candidates."""
    most: Counter[int] = Counter()
    for own in classes:
        most |= Counter(own)
    for label, count in most.items():
        if count > len(pool.rows.get(label, ())):
            raise DataError(
                f"a digest has {count} sample(s) of class {label}, more than there are candidates; enlarge the pool"
            )
