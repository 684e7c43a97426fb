"""The base algorithms, one file each; to add one, write its file and name it here."""

from feddig.algorithms.adabest import AdaBest
from feddig.algorithms.base import Algorithm, Correction, Memory, Round
from feddig.algorithms.fedavg import FedAvg
from feddig.algorithms.feddyn import FedDyn
from feddig.algorithms.fednova import FedNova
from feddig.algorithms.fedprox import FedProx

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
