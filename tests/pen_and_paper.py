"""A federation that can be computed by hand: a model of one weight w, and samples that are numbers x.

The loss of a sample is (w - x)^2 / 2, so its gradient is w - x.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from feddig.core.algorithms import Algorithm, FedAvg, Memory, Round
from feddig.core.messages import Reply, Request
from feddig.core.moderator import Moderator
from feddig.core.workers import Worker, WorkerPool
from feddig.digest.digest import Digest
from feddig.models.flat import FlatNetwork
from feddig.settings import ModeratorSettings, TrainingSettings

HALF_WAY = TrainingSettings(batch=100, lr=0.5, momentum=0.0)
"""One step, which moves w half the way to the mean x: w becomes w - (w - x) / 2."""


class OneWeight(nn.Module):
    """A model of one weight w; the cross-entropy of its logits with class 0 is (w - x)^2 / 2, unless w = x."""

    def __init__(self, weight: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]))

    def forward(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        loss = (self.weight - images.flatten(1)).square().sum(1) / 2
        # the probability of class 0 is exp(-loss), that of class 1 is the rest
        return torch.stack([-loss, torch.log(-torch.expm1(-loss))], dim=1)


class Scale(nn.Module):
    """A guidance producer of one weight g, initially 1; it maps the features x to g x."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.0]))

    def forward(self, features: Tensor) -> Tensor:
        return self.factor * features


class NumberSamples:
    """Samples of a silo, each a single number."""

    def __init__(self, *values: float) -> None:
        self.values = torch.tensor(values)

    def __len__(self) -> int:
        return len(self.values)

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        return (self.values[indices, None],)

    def targets(self, indices: Tensor) -> Tensor:
        return torch.zeros_like(indices)


def digest_of(silo: int, *values: float, samples_per_digest: int = 4) -> Digest:
    """Make a digest whose features are these numbers."""
    labels = torch.tensor([[1.0, 0.0]]).repeat(len(values), 1)
    return Digest(silo, torch.tensor(values)[:, None], labels, {"samples_per_digest": samples_per_digest})


def reply_of(
    silo: int, update: float | Tensor, *, round: int = 0, steps: int = 1, samples: int = 10
) -> Reply:
    """Make a silo's reply."""
    return Reply(silo, round, torch.as_tensor(update).reshape(-1), steps, samples, loss=0.0)


def round_of(
    weights: float | Tensor,
    replies: Sequence[Reply],
    *,
    number: int = 0,
    importance: Sequence[float] = (1, 1),
    momentum: float = 0.0,
) -> Round:
    """Make the input of an algorithm's aggregation."""
    return Round(number, torch.as_tensor(weights).reshape(-1), replies, importance, momentum)


def numbers(memory: Memory, name: str) -> list[float]:
    """List one state of every silo, for a model of one weight."""
    return [float(state[name]) for state in memory.silos]


def paper_moderator(
    algorithm: Algorithm | None = None,
    *,
    silos: int = 2,
    weight: float = 0.0,
    training: TrainingSettings = HALF_WAY,
    settings: ModeratorSettings | None = None,
    weighting: str | None = "equal",
    digests: Sequence[Digest] = (),
    prior_correction: bool = False,
) -> Moderator:
    """Build a moderator that holds these digests."""
    moderator = Moderator(
        silos=silos,
        algorithm=algorithm or FedAvg(),
        workers=WorkerPool([Worker(FlatNetwork(OneWeight(weight)))]),
        guidance_producer=FlatNetwork(Scale()),
        training=training,
        settings=settings or ModeratorSettings(),
        weighting=weighting,
        seed=0,
        prior_correction=prior_correction,
    )
    moderator.hold(digests)
    return moderator


class ScriptedEngine:
    """An engine with fixed replies: for each round, the silos that are present and their updates."""

    def __init__(self, digests: Sequence[Digest], rounds: Sequence[Mapping[int, float]]) -> None:
        self._digests, self._rounds = {digest.silo: digest for digest in digests}, rounds
        self.asked: list[list[int]] = []
        """The silos that were asked for a digest, by round."""
        self.requests: list[list[Request]] = []
        """The requests that were sent, by exchange."""

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        return []

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        self.asked.append(list(silos))
        return [self._digests[silo] for silo in silos if silo in self._rounds[round]]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        self.requests.append(list(requests))
        updates = self._rounds[requests[0].round]
        return [
            reply_of(request.silo, updates[request.silo], round=request.round)
            for request in requests
            if request.silo in updates
        ]
