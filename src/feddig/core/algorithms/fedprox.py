"""FedProx: FedAvg whose silos are held near the global model (Li et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddig.core.algorithms.base import Correction
from feddig.core.algorithms.fedavg import FedAvg
from feddig.core.messages import State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Adds the penalty mu/2 |w_i - w|^2 to each silo's loss."""

    mu: float = 0.01

    def correction(self, weights: Tensor, state: State) -> Correction | None:
        """Return the penalty's gradient, mu (w_i - w)."""
        return Correction(pull=self.mu)
