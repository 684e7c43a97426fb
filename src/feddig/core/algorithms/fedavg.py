"""FedAvg: the next model is the old one plus the mean of the updates (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddig.core.algorithms.base import Memory, Plain, Round, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedAvg(Plain):
    """w += sum_i p_i D_i, with p renormalised over those who replied."""

    def aggregate(self, round: Round, memory: Memory) -> tuple[Tensor, Memory]:
        """Average the updates."""
        mean = weighted_sum(round.shares(), [reply.update for reply in round.replies])
        return round.weights + mean, memory
