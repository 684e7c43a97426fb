"""FedNova: updates are divided by the steps they took before they are averaged (Wang et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddig.core.algorithms.base import Memory, Plain, Round, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedNova(Plain):
    """w += tau_eff sum_i p_i D_i / a_i, where a_i counts steps as momentum weighs them."""

    # FedNova is defined with p_i = n_i / n; with equal weights a silo of few steps is scaled up without bound
    weighting: ClassVar[str] = "samples"

    def aggregate(self, round: Round, memory: Memory) -> tuple[Tensor, Memory]:
        """Average the updates per effective step, then take the mean number of effective steps."""
        shares = round.shares()
        effective = [effective_steps(reply.steps, round.momentum) for reply in round.replies]
        # tau_eff / a_i is written as 1 plus a deviation, so that equal steps give FedAvg to the last bit
        scales = [
            share * (1 + math.fsum(p * (a - own) / own for p, a in zip(shares, effective, strict=True)))
            for share, own in zip(shares, effective, strict=True)
        ]
        return round.weights + weighted_sum(scales, [reply.update for reply in round.replies]), memory


def effective_steps(steps: int, momentum: float) -> float:
    """Return a_i: how many plain gradient steps the local momentum steps amount to."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
