"""Unmixing: which of an attacker's candidates were mixed into a digest?

Soft labels reveal the classes and weights are equal, so a digest times SpD is a sum of one candidate of each known
class, and noise. A beam search adds one class after another and keeps the candidates that leave the most likely rest.
Then single members are exchanged for other candidates of their class as long as that improves the fit.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import comb, prod

import torch
from torch import Tensor

from feddig.attacks.candidates import Backgrounds, Candidates, Noise, read_classes
from feddig.attacks.statistics import SuccessRate
from feddig.digest.digest import Digest
from feddig.errors import DataError

BEAM = 100
"""Sets that are kept after each class."""
ORDERS = 4
"""Orders of the classes that are tried, at most."""
POLISHED = 5
"""Sets whose members are exchanged."""
PASSES = 8
"""Exchanges of every member, at most."""


@dataclass(frozen=True)
class Unmixing:
    """How much of what an attack found is right."""

    digests: SuccessRate
    """Digests all of whose members were found; chance draws candidates of the right classes."""
    members: SuccessRate
    """Members found. The interval treats them as independent, which those of one digest are not."""
    gave_up: int
    """Digests where the truth fits better than what was found: a longer search would have found more."""
    hidden: int
    """Digests where something wrong fits as well as the truth: noise hides it."""
    found_residuals: Tensor
    true_residuals: Tensor


def unmix(
    digest: Digest,
    pool: Candidates,
    noise: Noise,
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Find the members of each digest: [digests, SpD] rows of the pool; `report` receives how many are done."""
    classes = read_classes(digest)
    _check_enough(pool, classes)
    spd = len(classes[0])
    backgrounds = Backgrounds(pool, spd * noise.deviation)
    found = []
    for done, (features, own) in enumerate(zip(digest.features.flatten(1), classes, strict=True), 1):
        found.append(_search_set(features * spd, own, pool, backgrounds, noise))
        if report is not None:
            report(done)
    return torch.stack(found)


def evaluate_unmixing(
    found: Tensor, digest: Digest, pool: Candidates, members: Tensor, noise: Noise
) -> Unmixing:
    """Compare what was found with the true members [digests, SpD], given as rows of the pool."""
    # added up in the same order, so that equal sets have equal residuals
    found_residuals, true_residuals = (
        noise.misfit(digest.features.flatten(1) - pool.features[rows.sort(1).values].mean(1))
        for rows in (found, members)
    )
    hits = (found[:, :, None] == members[:, None, :]).any(2)
    wrong = ~hits.all(1)
    better = true_residuals < found_residuals
    sizes = {label: len(rows) for label, rows in pool.rows.items()}
    classes = read_classes(digest)
    whole = [prod(1 / comb(sizes[label], own.count(label)) for label in set(own)) for own in classes]
    single = [sum(min(1, own.count(label) / sizes[label]) for label in own) / len(own) for own in classes]
    return Unmixing(
        digests=SuccessRate(int((~wrong).sum()), len(hits), sum(whole) / len(whole)),
        members=SuccessRate(int(hits.sum()), hits.numel(), sum(single) / len(single)),
        gave_up=int((wrong & better).sum()),
        hidden=int((wrong & ~better).sum()),
        found_residuals=found_residuals,
        true_residuals=true_residuals,
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


def _search_set(
    target: Tensor,
    classes: tuple[int, ...],
    pool: Candidates,
    backgrounds: Backgrounds,
    noise: Noise,
) -> Tensor:
    """Search with the classes in several orders until two of them agree, and return the best set."""
    # the class whose samples differ most is the most informative, so it comes first
    order = sorted(classes, key=backgrounds.scatter.__getitem__, reverse=True)
    finds: list[tuple[Tensor, Tensor]] = []
    for rotated in _rotations(order)[:ORDERS]:
        sets = _beam_search(target, rotated, pool, backgrounds)
        best = noise.misfit(target - pool.features[sets].sum(1)).argsort()[:POLISHED]
        members, misfit = _polish(target, sets[best], pool, noise)
        agreed = any(torch.equal(members, other) for other, _ in finds)
        finds.append((members, misfit))
        if agreed:
            break
    return min(finds, key=lambda find: float(find[1]))[0]


def _rotations(order: list[int]) -> list[list[int]]:
    """Return all distinct rotations of an order, then those of its reverse."""
    rotations = [order[start:] + order[:start] for start in range(len(order))]
    both = [*rotations, *(each[::-1] for each in rotations)]
    return [list(each) for each in dict.fromkeys(map(tuple, both))]


def _beam_search(target: Tensor, order: list[int], pool: Candidates, backgrounds: Backgrounds) -> Tensor:
    """Choose a candidate for each class in this order: [sets, SpD] rows of the pool, best first."""
    sets = torch.empty(1, 0, dtype=torch.long)
    for place, label in enumerate(order):
        rest = backgrounds.of(order[place + 1 :])
        rows = pool.rows[label]
        candidates = pool.features[rows]
        left = target - rest.mean - pool.features[sets].sum(1)
        weighted = left @ rest.precision
        own = ((candidates @ rest.precision) * candidates).sum(1)
        misfits = (weighted * left).sum(1, keepdim=True) + own - 2 * weighted @ candidates.T
        _forbid_taken(misfits, sets, rows)
        # more than the beam, because the same set comes up in several orders
        kept = misfits.flatten().topk(min(BEAM * len(order), misfits.numel()), largest=False)
        kept_at = kept.indices[kept.values.isfinite()]
        grown = torch.cat([sets[kept_at // len(rows)], rows[kept_at % len(rows)][:, None]], dim=1)
        sets = _distinct(grown)[:BEAM]
    return sets


def _polish(target: Tensor, sets: Tensor, pool: Candidates, noise: Noise) -> tuple[Tensor, Tensor]:
    """Exchange members one by one, each for the best of its class, and return the best set with its misfit."""
    sets = sets.clone()
    misfits = noise.misfit(target - pool.features[sets].sum(1))
    for _ in range(PASSES):
        before = misfits
        for place in range(sets.shape[1]):
            others = torch.cat([sets[:, :place], sets[:, place + 1 :]], dim=1)
            rows = pool.rows[int(pool.labels[sets[0, place]])]
            left = target - pool.features[others].sum(1)
            trials = noise.misfit(left[:, None] - pool.features[rows])
            _forbid_taken(trials, others, rows)
            misfits, best = trials.min(1)
            sets[:, place] = rows[best]
        if bool((misfits == before).all()):
            break
    best_set = misfits.argmin()
    return sets[best_set].sort().values, misfits[best_set]


def _forbid_taken(misfits: Tensor, sets: Tensor, rows: Tensor) -> None:
    """Forbid candidates that are in the set already: each sample is mixed once."""
    for taken in sets.T:
        misfits.masked_fill_(taken[:, None] == rows, float("inf"))


def _distinct(sets: Tensor) -> Tensor:
    """Drop sets that equal an earlier one in another order."""
    groups = torch.unique(sets.sort(1).values, dim=0, return_inverse=True)[1]
    first = torch.full((int(groups.max()) + 1,), len(groups))
    first.scatter_reduce_(0, groups, torch.arange(len(groups)), "amin")
    return sets[first.sort().values]
