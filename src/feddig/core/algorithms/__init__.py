"""The base algorithms, one file each; to add one, write its file and name it here."""

from feddig.core.algorithms.adabest import AdaBest
from feddig.core.algorithms.base import Algorithm, Correction, Memory, Round
from feddig.core.algorithms.fedavg import FedAvg
from feddig.core.algorithms.feddyn import FedDyn
from feddig.core.algorithms.fednova import FedNova
from feddig.core.algorithms.fedprox import FedProx

BASES: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "adabest": AdaBest,
}

__all__ = [
    "BASES", "AdaBest", "Algorithm", "Correction", "FedAvg", "FedDyn", "FedNova", "FedProx", "Memory", "Round",
]  # fmt: skip
