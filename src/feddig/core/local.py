"""The one local training loop. Silos, recall models and the joint update all run it."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.core.algorithms.base import Correction
from feddig.core.cuda_graphs import Recorder
from feddig.core.samples import Samples
from feddig.core.step import Step, Trainee
from feddig.errors import DivergenceError
from feddig.seeds import derive, torch_stream
from feddig.settings import TrainingSettings


@dataclass(frozen=True)
class Effort:
    """How long to train: a number of passes over the samples, or a number of steps if that is above 0."""

    epochs: int = 1
    steps: int = 0
    draw: Callable[[torch.Generator], Tensor] | None = None
    """Draws the samples of a pass, in order; left out: all of them, shuffled."""


@dataclass(frozen=True)
class Trained:
    """The result of a local training; the weights are in the networks."""

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
    prior: Tensor | None = None,
    companions: Sequence[Trainee] = (),
    recorder: Recorder | None = None,
    who: str,
) -> Trained:
    """Train the classifier (and companions whose outputs it consumes) by SGD with momentum.

    `prior` is added to the logits in the loss. `stream` names the random stream of the batch order; `who` is what an
    error calls this training. With a recorder the same steps are replayed from a CUDA graph.
    """
    trainees = (classifier, *companions)
    correction = correction or Correction()
    for trainee in trainees:
        trainee.network.module.train()
    device = classifier.network.device
    make = Step if recorder is None else recorder.step
    step = make(trainees, samples.source, training, correction, prior)
    step.begin(correction, prior)
    steps = 0
    with _dropout(derive(*stream, "dropout"), device):
        for order in passes(len(samples), training.batch, effort, torch_stream(*stream)):
            steps += step.run(samples.rows_at(order.to(device)), training.batch)
    mean_loss = float(step.total) / max(steps, 1)
    finite = all(bool(torch.isfinite(trainee.network.vector).all()) for trainee in trainees)
    if not finite or not math.isfinite(mean_loss):
        raise DivergenceError(
            f"{who}: training diverged (loss {mean_loss:g}); lower the learning rate or set training.clip_norm"
        )
    return Trained(steps, mean_loss)


def passes(count: int, size: int, effort: Effort, stream: torch.Generator) -> Iterator[Tensor]:
    """Yield for each pass the order of its samples; batches are cut from it.

    The order is drawn on the CPU, so it is the same on any device.
    """
    left = effort.steps
    for number in itertools.count():
        if not (left if effort.steps else number < effort.epochs):
            return
        order = effort.draw(stream) if effort.draw else torch.randperm(count, generator=stream)
        order = order[: left * size] if effort.steps else order
        yield order
        left -= -(-len(order) // size)


@contextmanager
def _dropout(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global stream for networks with dropout, and restore it afterwards.

    On a GPU all workers share one stream, so there it is left alone.
    """
    if device.type != "cpu":
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also changes the streams of GPUs
        yield
