"""The messages of a round: requests of the moderator and replies of the silos, as plain tensors and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # torch takes seconds to import, and who reads an experiment or a contract does not need it
    from torch import Tensor

State: TypeAlias = "Mapping[str, Tensor]"
"""Named tensors that an algorithm remembers between rounds, for the federation or for one silo."""


@dataclass(frozen=True)
class Request:
    """The moderator's request to train this model."""

    silo: int
    round: int
    weights: Tensor
    """The model M of this round, all parameters in one vector."""
    state: State
    """The algorithm's state of this silo; a silo that was absent gets it back with the model."""
    class_counts: Tensor | None = None
    """The federation's samples of each class, for the prior-corrected loss; None: the plain loss."""
    wants_class_counts: bool = False
    """Whether the reply should hold the silo's samples of each class."""


@dataclass(frozen=True)
class Reply:
    """A silo's reply, or its recall model's; both are treated alike."""

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
    """Seconds that the training took."""
    class_counts: Tensor | None = None
    """The silo's samples of each class, where they were asked for."""
