"""The one local training loop, its step and its loss. Silos, recall models and the joint update all run it.

A step is SGD with momentum and an algorithm's correction, on one batch. Eager and recorded training share it, so that
there is one place where gradients become weights.

With the prior-corrected loss, silos with different class shares fit the same posterior. A silo adds log(p_k(c) / p(c))
to the logits in its training loss, where p_k is its own share of class c and p the federation's. Under pure label shift
every silo then fits the federation's posterior, so a silo does not unlearn the classes that it lacks. Evaluation uses
the plain logits.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from feddig.core.algorithms.base import Correction
from feddig.core.samples import Samples, Source
from feddig.digest.digest import Digest
from feddig.errors import DivergenceError
from feddig.models.flat import FlatNetwork
from feddig.seeds import derive, torch_stream
from feddig.settings import TrainingSettings

if TYPE_CHECKING:
    from feddig.core.cuda_graphs import Recorder


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


_GLOBAL_STREAM = threading.Lock()
"""Held while torch's global stream on the CPU is ours.

Two threads would draw from each other's stream. They could also stop for ever: torch locks the stream while it copies
its state, and waits for Python's own lock if that copy makes Python collect garbage.
"""


@contextmanager
def _dropout(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global stream for networks with dropout, and restore it afterwards.

    On a GPU all workers share one stream, so there it is left alone.
    """
    if device.type != "cpu":
        yield
        return
    with _GLOBAL_STREAM, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also changes the streams of GPUs
        yield


@dataclass(frozen=True)
class Trainee:
    """A network in training and its learning rate eta."""

    network: FlatNetwork
    lr: float


class Step:
    """Trains a classifier, and companions whose outputs it consumes, one batch at a time."""

    def __init__(
        self,
        trainees: Sequence[Trainee],
        source: Source,
        training: TrainingSettings,
        correction: Correction,
        prior: Tensor | None = None,
    ) -> None:
        self.trainees, self.source, self._training = trainees, source, training
        self._classifier = trainees[0].network
        self._buffers = [torch.zeros_like(trainee.network.vector) for trainee in trainees]
        self._pull = correction.pull
        self._start = torch.empty_like(self._classifier.vector) if correction.pull else None
        self._shift = None if correction.shift is None else torch.empty_like(self._classifier.vector)
        self._prior = None if prior is None else torch.empty_like(prior)
        self.total = torch.zeros((), device=self._classifier.device)
        """The sum of the losses since the beginning."""

    def begin(self, correction: Correction, prior: Tensor | None = None) -> None:
        """Start a local training from the networks' present weights, with zero momentum."""
        for buffer in self._buffers:
            buffer.zero_()
        self.total.zero_()
        if self._start is not None:
            self._start.copy_(self._classifier.vector)
        if self._shift is not None and correction.shift is not None:
            self._shift.copy_(correction.shift)
        if self._prior is not None and prior is not None:
            self._prior.copy_(prior)

    def run(self, rows: Tensor, size: int) -> int:
        """Take a step for each batch of a pass, also for a shorter last one; return the number of steps."""
        batches = torch.split(rows, size)
        for batch in batches:
            self.take(batch)
        return len(batches)

    def take(self, rows: Tensor, counted: Tensor | None = None) -> None:
        """Take one step on a batch; rows where `counted` is false are ignored."""
        loss, gradients = self.differentiate(rows, counted)
        with torch.no_grad():
            for trainee, buffer, own in zip(self.trainees, self._buffers, gradients, strict=True):
                trainee.network.collect(own)
                self._descend(trainee, buffer)
            self.total += loss.detach()

    def differentiate(
        self, rows: Tensor, counted: Tensor | None = None
    ) -> tuple[Tensor, list[Sequence[Tensor]]]:
        """Return a batch's loss and, for each network in training, its gradients."""
        loss = self._loss(rows, counted)
        every = [trainee.network.parameters for trainee in self.trainees]
        gradients = iter(
            torch.autograd.grad(
                loss, [p for own in every for p in own], allow_unused=True, materialize_grads=True
            )
        )
        return loss, [list(itertools.islice(gradients, len(own))) for own in every]

    def _loss(self, rows: Tensor, counted: Tensor | None) -> Tensor:
        bf16 = self._training.precision == "bf16"
        with torch.autocast(self._classifier.device.type, torch.bfloat16, enabled=bf16):
            logits = self._classifier.module(*self.source.inputs(rows)).float()
        if self._prior is not None:
            logits = logits + self._prior
        if counted is None:
            return cross_entropy(logits, self.source.targets(rows))
        losses = cross_entropy(logits, self.source.targets(rows), reduction="none")
        return torch.where(counted, losses, 0).sum() / counted.sum()

    def _descend(self, trainee: Trainee, buffer: Tensor) -> None:
        """Update one network by SGD with momentum."""
        network, training = trainee.network, self._training
        gradient = network.gradient.float()
        if network is self._classifier:
            self._correct(gradient)
        if training.clip_norm:
            gradient.mul_(torch.clamp(training.clip_norm / (gradient.norm() + 1e-12), max=1.0))
        if training.weight_decay:
            gradient.add_(network.vector, alpha=training.weight_decay)
        torch.add(gradient, buffer, alpha=training.momentum, out=buffer)
        network.vector.add_(buffer, alpha=-trainee.lr)
        network.publish()

    def _correct(self, gradient: Tensor) -> None:
        """Add the algorithm's correction to the gradient."""
        if self._start is not None:
            gradient.add_(self._classifier.vector - self._start, alpha=self._pull)
        if self._shift is not None:
            gradient.add_(self._shift)


def count_classes(labels: Tensor, classes: int) -> Tensor:
    """Count the samples of each class."""
    return torch.bincount(labels, minlength=classes).float()


def count_in_digest(digest: Digest) -> Tensor:
    """Return how many of a digest's samples are of each class, from its soft labels."""
    return digest.labels.sum(0) * (digest.samples / len(digest))


def log_prior_ratio(own: Tensor, federation: Tensor) -> Tensor:
    """Return log(p_k / p) of class counts; each class counts one sample more, so that no share is zero."""
    return _log_shares(own) - _log_shares(federation)


def _log_shares(counts: Tensor) -> Tensor:
    smoothed = counts + 1
    return (smoothed / smoothed.sum()).log()
