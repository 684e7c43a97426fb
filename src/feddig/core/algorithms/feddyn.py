"""FedDyn: each silo carries a dual variable that aligns its optimum with the global one (Acar et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from feddig.core.algorithms.base import Correction, Memory, Plain, Round, shares, weighted_sum
from feddig.core.messages import State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedDyn(Plain):
    """Local gradient + alpha (w_i - w) + alpha lambda_i; then lambda_i += D_i; w = mean w_i + mean lambda."""

    alpha: float | None = None
    """Strength of the regulariser; left out, (1 - rho) / (K eta), which suits momentum."""

    def prepared(self, *, steps: float, lr: float, momentum: float) -> Self:
        """Choose alpha by the size of a round's local movement, unless the user did."""
        return self if self.alpha is not None else replace(self, alpha=(1 - momentum) / (steps * lr))

    def start(self, weights: Tensor, silos: int) -> Memory:
        """Start every dual variable at zero."""
        return Memory(
            shared={}, silos=tuple({"dual": weights.new_zeros(weights.shape)} for _ in range(silos))
        )

    def correction(self, weights: Tensor, state: State) -> Correction | None:
        """Return the gradient of the dynamic regulariser."""
        if self.alpha is None:
            raise ValueError("FedDyn.alpha is not set; call prepared() first")
        return Correction(pull=self.alpha, shift=self.alpha * state["dual"])

    def aggregate(self, round: Round, memory: Memory) -> tuple[Tensor, Memory]:
        """Move the duals of those who replied, then add the mean dual of all n silos to the mean model."""
        silos = list(memory.silos)
        for reply in round.replies:
            silos[reply.silo] = {"dual": silos[reply.silo]["dual"] + reply.update}
        mean_update = weighted_sum(round.shares(), [reply.update for reply in round.replies])
        mean_dual = weighted_sum(shares(round.importance), [state["dual"] for state in silos])
        return round.weights + mean_update + mean_dual, Memory(memory.shared, tuple(silos))
