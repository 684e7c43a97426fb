"""The one local training loop. Silos, recall models and the joint update all run it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from feddig.algorithms.base import Correction
from feddig.errors import DivergenceError
from feddig.models.flat import FlatNetwork
from feddig.samples import Samples
from feddig.seeds import derive, torch_stream
from feddig.settings import TrainingSettings

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Effort:
    """How long to train: so many passes over the samples, or so many steps if that is above 0."""

    epochs: int = 1
    steps: int = 0
    at_most: int = 0
    """Samples drawn for a pass; 0: all of them."""


@dataclass(frozen=True)
class Trainee:
    """A network in training and its learning rate eta."""

    network: FlatNetwork
    lr: float


@dataclass(frozen=True)
class Trained:
    """What a local training tells about itself; the weights are in the networks."""

    steps: int
    loss: float
    """Mean over the steps."""


def train_locally(
    classifier: Trainee,
    samples: Samples,
    training: TrainingSettings,
    *,
    effort: Effort,
    stream: tuple[int, *tuple[str | int, ...]],
    correction: Correction | None = None,
    companions: Sequence[Trainee] = (),
    who: str,
) -> Trained:
    """Train the classifier (and companions whose outputs it consumes) by SGD with momentum.

    `stream` names the random stream of the batch order; `who` is what an error calls this training.
    """
    trainees = [classifier, *companions]
    buffers = [torch.zeros_like(trainee.network.vector) for trainee in trainees]
    start = classifier.network.weights()
    device = classifier.network.device
    total, steps = torch.zeros((), device=device), 0
    for trainee in trainees:
        trainee.network.module.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(*stream, "dropout"))  # for users' networks that draw while they train
        for batch in batches(len(samples), training.batch, effort, torch_stream(*stream), device):
            with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
                logits = classifier.network.module(*samples.inputs(batch))
                loss = cross_entropy(logits.float(), samples.targets(batch))
            for trainee in trainees:
                trainee.network.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                _correct(classifier.network, start, correction)
                for trainee, buffer in zip(trainees, buffers, strict=True):
                    _step(trainee, buffer, training)
                total += loss.detach()
            steps += 1
    mean_loss = float(total) / max(steps, 1)
    finite = all(bool(torch.isfinite(trainee.network.vector).all()) for trainee in trainees)
    if not finite or not math.isfinite(mean_loss):
        raise DivergenceError(
            f"{who}: training diverged (loss {mean_loss:g}); lower the learning rate or set training.clip_norm"
        )
    return Trained(steps, mean_loss)


def batches(
    count: int, size: int, effort: Effort, stream: torch.Generator, device: torch.device = CPU
) -> Iterator[Tensor]:
    """Shuffle for each pass and cut into batches; the last of a pass may be shorter, none is dropped."""
    taken, passes = 0, 0
    while taken < effort.steps if effort.steps else passes < effort.epochs:
        order = torch.randperm(count, generator=stream).to(device)  # drawn on the CPU: the same on any device
        for batch in torch.split(order[: effort.at_most] if effort.at_most else order, size):
            yield batch
            taken += 1
            if taken == effort.steps:
                return
        passes += 1


def _correct(network: FlatNetwork, start: Tensor, correction: Correction | None) -> None:
    """Add what the algorithm asks for to the gradient."""
    if correction is None:
        return
    if correction.pull:
        network.gradient.add_(network.vector - start, alpha=correction.pull)
    if correction.shift is not None:
        network.gradient.add_(correction.shift)


def _step(trainee: Trainee, buffer: Tensor, training: TrainingSettings) -> None:
    """Take one SGD step; the momentum buffer is the caller's and starts at zero each round."""
    gradient, vector = trainee.network.gradient, trainee.network.vector
    if training.clip_norm:
        gradient.mul_(torch.clamp(training.clip_norm / (gradient.norm() + 1e-12), max=1.0))
    if training.weight_decay:
        gradient.add_(vector, alpha=training.weight_decay)
    buffer.mul_(training.momentum).add_(gradient)
    vector.add_(buffer, alpha=-trainee.lr)
