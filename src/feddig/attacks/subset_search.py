"""The search for a set of candidates, one of each given class, whose sum explains a target best.

A beam search fills in one class after another, each time with those candidates that leave the most credible rest.
Then single members are exchanged for any candidate of their class as long as that helps.
"""

import torch
from torch import Tensor

from feddig.attacks.candidates import Backgrounds, Candidates
from feddig.attacks.noise import Noise

BEAM = 100
"""Sets that survive each class."""
ORDERS = 4
"""Orders of the classes that are tried, at most."""
POLISHED = 5
"""Sets whose members are exchanged."""
PASSES = 8
"""Exchanges of every member, at most."""


def search_set(
    target: Tensor,
    classes: tuple[int, ...],
    pool: Candidates,
    backgrounds: Backgrounds,
    noise: Noise,
    beam: int,
) -> tuple[Tensor, Tensor]:
    """Search with the classes in several orders, until two of them agree, and give the best set and its misfit."""
    # the class whose samples differ most tells most, so it goes first
    order = sorted(classes, key=backgrounds.scatter.__getitem__, reverse=True)
    finds: list[tuple[Tensor, Tensor]] = []
    for turn in _turns(order)[:ORDERS]:
        sets = _beam_search(target, turn, pool, backgrounds, beam)
        best = noise.misfit(target - pool.features[sets].sum(1)).argsort()[:POLISHED]
        members, misfit = _polish(target, sets[best], pool, noise)
        agreed = any(torch.equal(members, other) for other, _ in finds)
        finds.append((members, misfit))
        if agreed:
            break
    return min(finds, key=lambda find: float(find[1]))


def _turns(order: list[int]) -> list[list[int]]:
    """Give the order of the classes and others that start elsewhere in it, no two alike."""
    turns = [order[start:] + order[:start] for start in range(len(order))]
    return [list(turn) for turn in dict.fromkeys(map(tuple, [*turns, *(turn[::-1] for turn in turns)]))]


def _beam_search(
    target: Tensor, order: list[int], pool: Candidates, backgrounds: Backgrounds, beam: int
) -> Tensor:
    """Fill in a candidate for each class in this order: [sets, SpD] rows of the pool, best first."""
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
        kept = misfits.flatten().topk(min(beam * len(order), misfits.numel()), largest=False)
        kept_at = kept.indices[kept.values.isfinite()]
        grown = torch.cat([sets[kept_at // len(rows)], rows[kept_at % len(rows)][:, None]], dim=1)
        sets = _distinct(grown)[:beam]
    return sets


def _polish(target: Tensor, sets: Tensor, pool: Candidates, noise: Noise) -> tuple[Tensor, Tensor]:
    """Exchange members one by one, each for the best of its class, and give the best set with its misfit."""
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
    """Forbid a candidate that is in the set already: each sample is mixed once."""
    for taken in sets.T:
        misfits.masked_fill_(taken[:, None] == rows, float("inf"))


def _distinct(sets: Tensor) -> Tensor:
    """Drop sets that an earlier one equals but for the order."""
    groups = torch.unique(sets.sort(1).values, dim=0, return_inverse=True)[1]
    first = torch.full((int(groups.max()) + 1,), len(groups))
    first.scatter_reduce_(0, groups, torch.arange(len(groups)), "amin")
    return sets[first.sort().values]
