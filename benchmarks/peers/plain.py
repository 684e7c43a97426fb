"""The work of every peer, and a plain PyTorch loop for it. Needs only torch and numpy."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SILOS, CLASSES, SHAPE = 4, 62, (1, 32, 32)
BATCH, LEARNING_RATE, MOMENTUM = 256, 0.001, 0.9
THREADS = 2


@dataclass(frozen=True)
class Work:
    """Each silo's images and labels, their order in each round, and the initial weights."""

    images: Tensor
    """[silo, image, channel, height, width], floats in [0, 1]."""
    labels: Tensor
    orders: Tensor
    """[round, silo, image]: batches are consecutive parts of it."""
    initial: Sequence[Tensor]

    @property
    def rounds(self) -> int:
        """The number of rounds for which there are orders."""
        return len(self.orders)


@cache
def read_work(folder: Path) -> Work:
    """Read the work that benchmarks/peers.py wrote, once in each process."""
    with np.load(folder / "work.npz") as file:
        images = torch.from_numpy(file["pixels"]).float() / 255
        labels, orders = torch.from_numpy(file["labels"]), torch.from_numpy(file["orders"])
    return Work(images, labels, orders, read_weights(folder / "initial.npz"))


def build_model() -> nn.Sequential:
    """Build the size-matched model in the usual way: convolution, ReLU, pool."""
    return nn.Sequential(
        nn.Conv2d(SHAPE[0], 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def load(model: nn.Module, weights: Sequence[Tensor]) -> None:
    """Load weights into a model by position, because names differ between peers."""
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))


def train(model: nn.Module, images: Tensor, labels: Tensor, order: Tensor) -> float:
    """Train one epoch at one silo and return its mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for batch in torch.split(order, BATCH):
        optimiser.zero_grad()
        loss = cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


class PlainLoop:
    """FedAvg without any library: each silo trains a copy, and the state dicts are averaged."""

    def __init__(self, work: Work, *, channels_last: bool = False) -> None:
        self._work, self._round = work, 0
        self._model = build_model()
        load(self._model, work.initial)
        if channels_last:
            self._model.to(memory_format=torch.channels_last)
        self.losses: list[float] = []
        """The mean over all steps of each round."""

    def train_round(self) -> None:
        """Train the next round."""
        start = copy.deepcopy(self._model.state_dict())
        states, losses = [], []
        for silo, order in enumerate(self._work.orders[self._round]):
            self._model.load_state_dict(start)
            losses.append(train(self._model, self._work.images[silo], self._work.labels[silo], order))
            states.append(copy.deepcopy(self._model.state_dict()))
        average = {name: torch.stack([state[name] for state in states]).mean(0) for name in start}
        self._model.load_state_dict(average)
        self._round += 1
        self.losses.append(sum(losses) / len(losses))

    def weights(self) -> list[Tensor]:
        """Return the current weights."""
        return [tensor.clone() for tensor in self._model.state_dict().values()]


def read_weights(file: Path) -> list[Tensor]:
    """Read weights in the order of the model's layers."""
    with np.load(file) as arrays:
        return [torch.from_numpy(arrays[name]) for name in arrays.files]


def write_weights(file: Path, weights: Sequence[Tensor]) -> None:
    """Write weights for read_weights."""
    np.savez(file, *(tensor.numpy() for tensor in weights))


def write_result(
    folder: Path, name: str, seconds: Sequence[float], weights: Sequence[Tensor], version: str
) -> None:
    """Write the result of a peer in another environment for benchmarks/peers.py."""
    load(build_model(), weights)  # fails if some are missing
    write_weights(folder / f"{name}.npz", weights)
    result = {"seconds": seconds, "versions": {name: version, "torch": torch.__version__}}
    (folder / f"{name}.json").write_text(json.dumps(result))
