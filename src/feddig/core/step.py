"""One step of local training: SGD with momentum and an algorithm's correction, on one batch.

Eager and recorded training share it, so that there is one place where gradients become weights.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from feddig.core.algorithms.base import Correction
from feddig.core.samples import Source
from feddig.models.flat import FlatNetwork
from feddig.settings import TrainingSettings


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
