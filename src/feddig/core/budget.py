"""Which digests a pass of the joint update sees when it may not see all: drawn anew each time, and fairly."""

import numpy as np
import torch
from torch import Tensor


def draw_fairly(silos: np.ndarray, classes: np.ndarray, budget: int, stream: torch.Generator) -> Tensor:
    """Draw so many digests, in random order: as many from each silo, and within a silo as many of each class.

    Silos or classes that have fewer give all they have. A digest's class is the one with the largest share in it.
    """
    shuffled = torch.randperm(len(silos), generator=stream).numpy()
    kinds = np.unique(np.stack([silos, classes]), axis=1, return_inverse=True)[1].reshape(-1)
    turn_in_class = _turns(kinds[shuffled])
    by_class = np.argsort(turn_in_class, kind="stable")
    turn_in_silo = np.empty_like(turn_in_class)
    turn_in_silo[by_class] = _turns(silos[shuffled][by_class])
    chosen = np.argsort(turn_in_silo, kind="stable")[:budget]
    return torch.from_numpy(shuffled[np.sort(chosen)])


def _turns(groups: np.ndarray) -> np.ndarray:
    """Number the members of each group in the order in which they stand: 0, 1, 2 and on."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(groups)), 0))
    turns = np.empty(len(groups), dtype=np.int64)
    turns[order] = np.arange(len(groups)) - first
    return turns
