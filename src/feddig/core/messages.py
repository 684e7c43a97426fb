"""What the moderator and a silo say to each other in a round: plain tensors and numbers, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

State = Mapping[str, Tensor]
"""Named tensors that an algorithm remembers between rounds, for the federation or for one silo."""


@dataclass(frozen=True)
class Request:
    """The moderator's push: train this model on your data."""

    silo: int
    round: int
    weights: Tensor
    """The model M of this round, all parameters in one vector."""
    state: State
    """What the algorithm remembers of this silo; a silo that was away gets it back with the model."""


@dataclass(frozen=True)
class Reply:
    """A silo's answer, or that of the recall model in its place: both go the same way from here."""

    silo: int
    round: int
    update: Tensor
    """Local minus global parameters (the paper's nabla M)."""
    steps: int
    """Optimiser steps taken (tau_i in FedNova)."""
    samples: int
    """Training samples behind the update; for a recall model, digests times samples_per_digest."""
    loss: float
    """Mean training loss over those steps."""
    seconds: float = 0.0
    """How long that took where it was trained."""
