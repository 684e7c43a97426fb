"""What a federated algorithm must supply: a local correction and an aggregation, nothing else.

An algorithm is a frozen dataclass; its fields are its settings, and the keys under [algorithm.NAME]
in an experiment. It holds no state of its own: what it remembers goes in and comes out as tensors,
so that any engine can carry it and any round can be checkpointed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from feddig.core.messages import Reply, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """Added to each local gradient: pull * (local - global) + shift."""

    pull: float = 0.0
    shift: Tensor | None = None


@dataclass(frozen=True)
class Memory:
    """What an algorithm remembers between rounds."""

    shared: State
    """Of the federation."""
    silos: tuple[State, ...]
    """Of each silo, in order: the moderator's mirror of what the silo itself would keep."""


@dataclass(frozen=True)
class Round:
    """What an algorithm knows when it aggregates; there is at least one reply."""

    number: int
    weights: Tensor
    """The model w that was sent out."""
    replies: Sequence[Reply]
    importance: Sequence[float]
    """Of every silo, present or not: 1 each, or its number of samples. Need not sum to 1."""
    momentum: float
    """rho of the local optimiser."""

    def shares(self) -> list[float]:
        """Return the aggregation weights p_i of the replies, which sum to 1."""
        return shares([self.importance[reply.silo] for reply in self.replies])


class Algorithm(Protocol):
    """Everything that differs between federated algorithms."""

    weighting: ClassVar[str]
    """How silos weigh unless the experiment says so: "equal" or "samples"."""

    def planned(self, rounds: int) -> Self:
        """Fill in settings that follow from the number of rounds."""
        ...

    def prepared(self, *, steps: float, lr: float, momentum: float) -> Self:
        """Fill in settings that follow from the training: mean local steps K, eta and rho."""
        ...

    def start(self, weights: Tensor, silos: int) -> Memory:
        """Return the memory before the first round."""
        ...

    def correction(self, weights: Tensor, state: State) -> Correction | None:
        """Return what a silo with this state adds to its gradients when it starts from these weights."""
        ...

    def aggregate(self, round: Round, memory: Memory) -> tuple[Tensor, Memory]:
        """Turn a round's replies into the next weights and the next memory."""
        ...

    def advice_on_growth(self) -> str | None:
        """Say what to change when the model's norm grows a lot; None if that is no sign of trouble."""
        ...


class Plain:
    """Defaults that most algorithms keep: equal weights, no state, no correction, nothing to prepare."""

    weighting: ClassVar[str] = "equal"

    def planned(self, rounds: int) -> Self:
        """Keep the settings as they are."""
        return self

    def prepared(self, *, steps: float, lr: float, momentum: float) -> Self:
        """Keep the settings as they are."""
        return self

    def start(self, weights: Tensor, silos: int) -> Memory:
        """Remember nothing."""
        return Memory(shared={}, silos=({},) * silos)

    def correction(self, weights: Tensor, state: State) -> Correction | None:
        """Leave the local gradients alone."""
        return None

    def advice_on_growth(self) -> str | None:
        """Say nothing."""
        return None


def shares(importance: Sequence[float]) -> list[float]:
    """Scale importances so that they sum to 1."""
    total = math.fsum(importance)
    return [value / total for value in importance]


def weighted_sum(coefficients: Sequence[float], vectors: Sequence[Tensor]) -> Tensor:
    """Add vectors up with coefficients, always in the order given so that the bytes repeat."""
    total = vectors[0].new_zeros(vectors[0].shape)
    for coefficient, vector in zip(coefficients, vectors, strict=True):
        total.add_(vector, alpha=coefficient)
    return total
