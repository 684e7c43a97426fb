"""AdaBest: drift estimates that fade with age, at the silos and at the moderator (Varno et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from feddig.core.algorithms.base import Correction, Memory, Plain, Round, weighted_sum
from feddig.core.messages import State

if TYPE_CHECKING:
    from torch import Tensor

NEVER = -1
HALF_LIFE = 1 / 200
"""The half-life of the server momentum as a share of the rounds, where beta is left out; it is at least one round."""


@dataclass(frozen=True)
class AdaBest(Plain):
    """Local gradient - mu h_i; h_i = h_i / age + (w - w_i); w = mean w_i - beta (previous mean - mean)."""

    mu: float = 0.02
    beta: float | None = None
    """Server momentum; left out, it follows from the number of rounds."""

    def planned(self, rounds: int) -> Self:
        """Choose beta by the number of rounds, unless the user did."""
        half_life = max(1.0, HALF_LIFE * rounds)
        return self if self.beta is not None else replace(self, beta=0.5 ** (1 / half_life))

    def start(self, weights: Tensor, silos: int) -> Memory:
        """Start without drift; the previous mean is the first model."""
        fresh = {"drift": weights.new_zeros(weights.shape), "last": _number(NEVER)}
        return Memory(shared={"mean": weights.clone()}, silos=(fresh,) * silos)

    def correction(self, weights: Tensor, state: State) -> Correction | None:
        """Subtract the silo's own drift estimate."""
        return Correction(shift=-self.mu * state["drift"])

    def aggregate(self, round: Round, memory: Memory) -> tuple[Tensor, Memory]:
        """Update the drift estimates of the silos that replied, then move the model by the federation's drift."""
        silos = list(memory.silos)
        for reply in round.replies:
            old, last = silos[reply.silo]["drift"], int(silos[reply.silo]["last"])
            drift = -reply.update if last == NEVER else old / (round.number - last) - reply.update
            silos[reply.silo] = {"drift": drift, "last": _number(round.number)}
        mean = round.weights + weighted_sum(round.shares(), [reply.update for reply in round.replies])
        if self.beta is None:
            raise ValueError("AdaBest.beta is not set; call planned() first")
        # when fewer silos reply the mean jumps, and this difference contains the jump: a property of AdaBest
        weights = mean - self.beta * (memory.shared["mean"] - mean)
        return weights, Memory({"mean": mean}, tuple(silos))

    def advice_on_growth(self) -> str:
        """Name the setting that lets the model grow."""
        return f"lower algorithm.adabest.beta (now {self.beta:.3g})"


def _number(value: int) -> Tensor:
    import torch

    return torch.tensor(value)
