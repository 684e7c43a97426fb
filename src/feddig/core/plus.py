"""FedDig+: votes of absent silos, the digest expert E, and the model in which E and the classifier M decide together.

Votes. Each absent silo votes with the last model that it returned. A vote keeps the model where it still serves the
absent silo. But an old vote also holds back what others have learned since, so it follows the model, the faster the
more of the federation's training it has missed:

    rate = present share * (missed share)^2

The missed share is the mean, over all silos that ever trained, of the share of a silo's rounds that came after the
vote. A vote of a silo that leaves a long-trained federation hardly moves; one from the first rounds, or from before
half of the silos joined, soon follows.

The expert. The moderator trains E on all held digests, whenever a digest arrives. Each time it starts from the same
first weights, so it follows from the digests and the seed alone. Each pass mixes every digest with a random other one,
features and labels alike. Digests are mixtures already, and without this E learns the noise of single digests.

The model. M sees the image, E its encoded feature. A class c is covered by q_c in 0..1: the share of its samples that M
has learned from. An image is either of the kind that M knows, with the chance that E gives to covered classes, or it is
not, and then E alone decides:

    P(c) = (1 - q_c) E(c) + sum_k(q_k E(k)) * P_M(c),    P_M = softmax(M + log q + advice * log E)

Where all classes are covered, P is P_M: M, advised by E. Where silos have sent digests and never trained, E decides.
E has learned from means, which differ less than single samples do, so it is too sure of a single sample. The more
samples a digest mixes, the less its advice counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from feddig.core.local import Trained, count_in_digest
from feddig.core.messages import Reply
from feddig.digest.digest import Digest, denoise
from feddig.errors import DivergenceError
from feddig.models.flat import FlatNetwork
from feddig.seeds import derive, torch_stream

POWER = 2


@dataclass(frozen=True)
class Vote:
    """The model that a silo votes for."""

    reply: Reply
    """The silo's last reply, with the model that it returned in the update's place."""
    seen: Tensor
    """Rounds of each silo's training that went into this model."""


class Votes:
    """The last models that silos returned, and in how many rounds each silo has trained."""

    def __init__(self, silos: int, *, keep: bool) -> None:
        self.rounds = torch.zeros(silos, dtype=torch.float64)
        self._keep = keep
        self._votes: dict[int, Vote] = {}

    def of_absent(self, replies: Sequence[Reply], weights: Tensor) -> dict[int, Reply]:
        """Return for each absent silo that once replied an update towards its vote."""
        present = {reply.silo for reply in replies}
        return {
            silo: replace(vote.reply, update=vote.reply.update - weights)
            for silo, vote in self._votes.items()
            if silo not in present
        }

    def take(self, replies: Sequence[Reply], before: Tensor) -> None:
        """Count these silos' rounds, and keep the models that they returned for the model `before`."""
        for reply in replies:
            self.rounds[reply.silo] += 1
        for reply in replies if self._keep else ():
            self._votes[reply.silo] = Vote(replace(reply, update=before + reply.update), self.rounds.clone())

    def follow(self, replies: Sequence[Reply], weights: Tensor) -> None:
        """Move the absent silos' votes towards the new model."""
        present, trained = {reply.silo for reply in replies}, self.rounds > 0
        if not present:
            return
        for silo, vote in self._votes.items():
            if silo in present:
                continue
            missed = float((1 - vote.seen[trained] / self.rounds[trained]).mean())
            rate = len(present) / int(trained.sum()) * missed**POWER
            self._votes[silo] = Vote(
                replace(vote.reply, update=torch.lerp(vote.reply.update, weights, rate)),
                torch.lerp(vote.seen, self.rounds, rate),
            )

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors."""
        state = {"rounds_trained": self.rounds.clone()}
        for silo, vote in self._votes.items():
            state[f"returned.{silo}"] = vote.reply.update
            state[f"returned.{silo}.facts"] = torch.tensor([vote.reply.steps, vote.reply.samples])
            state[f"returned.{silo}.seen"] = vote.seen
        return state

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Load such a state; silos that have joined the federation since have not trained."""
        silos = len(self.rounds)
        self.rounds = _padded(state["rounds_trained"], silos)
        for silo in range(len(self.rounds)):
            if f"returned.{silo}" in state:
                steps, samples = (int(number) for number in state[f"returned.{silo}.facts"])
                model = state[f"returned.{silo}"].to(device)
                last = Reply(silo, 0, model, steps, samples, loss=0.0)
                self._votes[silo] = Vote(last, _padded(state[f"returned.{silo}.seen"], silos))

    def forget(self, silo: int) -> None:
        """Drop a silo's vote, and the count of its rounds."""
        self._votes.pop(silo, None)
        self.rounds[silo] = 0


def _padded(rounds: Tensor, silos: int) -> Tensor:
    rounds = rounds.cpu()
    return torch.cat([rounds, rounds.new_zeros(silos - len(rounds))])


PASSES, LEAST_STEPS = 40, 1000
BATCH = 256
RATE, MOMENTUM, DECAY = 0.1, 0.9, 2e-4
"""SGD's first learning rate, which falls to zero along a cosine, its momentum and its weight decay."""
HALF_LEARNED = 20
"""Rounds of training after which half of a silo's data counts as learned."""


def expert_steps(digests: int) -> tuple[int, int]:
    """Return how many steps E takes in a pass over this number of digests, and how many passes it is trained for."""
    per_pass = -(-digests // BATCH)
    return per_pass, max(PASSES, -(-LEAST_STEPS // per_pass))


def train_expert(
    expert: FlatNetwork, digests: Sequence[Digest], *, noise_aware: bool, seed: int, passes: int | None = None
) -> Trained:
    """Train E from its first weights on these digests, for as many passes as they need unless that is given."""
    features = torch.cat([digest.features for digest in digests])
    if noise_aware:  # half of the noise stays: E learns from it not to trust small differences
        features = (features + denoise(digests, features)) / 2
    features = features.flatten(1)
    labels = torch.cat([digest.labels for digest in digests])
    middle, spread = features.mean(0), (features - features.mean(0)).std(correction=0)
    if float(spread) <= 1e-6 * float(
        features.abs().max()
    ):  # equal digests teach nothing but their classes' shares
        spread = torch.ones_like(spread)
    features = (features - middle) / spread
    _draw_first_weights(expert, seed)
    per_pass, needed = expert_steps(len(features))
    passes = needed if passes is None else passes
    steps, total = passes * per_pass, torch.zeros((), device=expert.device)
    # torch.optim would take a second to import, as long as the training of a small federation's expert takes
    rates, buffer = _falling_rates(steps), torch.zeros_like(expert.vector)
    stream = torch_stream(seed, "expert")
    for _ in range(passes):
        order, other = (
            torch.randperm(len(features), generator=stream).to(expert.device) for _ in ("order", "other")
        )
        share = torch.rand(len(features), 1, generator=stream).to(expert.device)
        for own, partner, part in zip(*(torch.split(of, BATCH) for of in (order, other, share)), strict=True):
            logits = expert.module(torch.lerp(features[partner], features[own], part))
            loss = cross_entropy(logits, torch.lerp(labels[partner], labels[own], part))
            expert.collect(torch.autograd.grad(loss, expert.parameters))
            expert.gradient.add_(expert.vector, alpha=DECAY)
            buffer.mul_(MOMENTUM).add_(expert.gradient)
            expert.vector.add_(buffer, alpha=-next(rates))
            expert.publish()
            total += loss.detach()
    mean_loss = float(total) / steps
    if not math.isfinite(mean_loss):
        raise DivergenceError(
            "digest expert: training diverged; look at the digests with `feddig digest show`"
        )
    _take_plain_features(expert, middle, spread)
    return Trained(steps, mean_loss)


def _falling_rates(steps: int) -> Iterator[float]:
    """Yield the learning rate of each step: it falls to zero along a cosine."""
    rate = RATE
    for step in range(1, steps + 1):
        yield rate
        rate *= (1 + math.cos(math.pi * step / steps)) / (1 + math.cos(math.pi * (step - 1) / steps))


def coverage(digests: Sequence[Digest], rounds: Sequence[float]) -> Tensor:
    """Return for each class the share of its samples that M has learned from.

    `rounds` counts in how many rounds each silo has trained. A class that no digest has is covered.
    """
    counts = torch.stack([count_in_digest(digest) for digest in digests])
    trained = torch.tensor([rounds[digest.silo] for digest in digests]).to(counts)
    learned = (trained / (trained + HALF_LEARNED)) @ counts
    return torch.where(counts.sum(0) > 0, learned / counts.sum(0), 1.0)


def _draw_first_weights(expert: FlatNetwork, seed: int) -> None:
    """Draw weights as torch does for new layers, on the CPU."""
    layers = [layer for layer in expert.module.modules() if isinstance(layer, nn.Linear)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "initial weights", "expert"))
        drawn = [nn.Linear(layer.in_features, layer.out_features) for layer in layers]
    weights = [tensor.detach().flatten() for layer in drawn for tensor in (layer.weight, layer.bias)]
    expert.load(torch.cat(weights).to(expert.device))


@torch.no_grad()
def _take_plain_features(expert: FlatNetwork, middle: Tensor, spread: Tensor) -> None:
    """Change the first layer so that it takes features as they are, where it took standardised ones."""
    weight, bias = expert.parameters[:2]
    weight.div_(spread)
    bias.sub_(weight @ middle)


ADVICE, MIXED = 0.5, 4
"""How much E's opinion counts beside M's where M knows the class, if a digest mixes that many samples or fewer."""
WIDTH = 256
"""Numbers in each of the expert's hidden layers."""
LEAST = 1e-6


def build_expert(feature_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build E: a feature to the logits of its class."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(feature_shape), WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, classes),
    )


class ImageClassifier(nn.Module):
    """M as silos train it: it is given the image's feature too and ignores it."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.classifier(images)
        return logits


class Committee(nn.Module):
    """M and E decide together; until E is trained and classes are counted, M decides alone."""

    def __init__(
        self, classifier: nn.Module, expert: nn.Module, classes: int, samples_per_digest: int
    ) -> None:
        super().__init__()
        self.classifier, self.expert = classifier, expert
        self.advice = ADVICE * min(1, MIXED / samples_per_digest)
        self.coverage = nn.Parameter(torch.ones(classes))
        """q, one number for each class. A parameter, so that it travels and is saved with the others."""

    def forward(self, images: Tensor, features: Tensor) -> Tensor:
        """Return the logarithm of the probability of each class."""
        covered = self.coverage.clamp(LEAST, 1)
        expert: Tensor = log_softmax(self.expert(features), 1)
        advised: Tensor = (self.classifier(images) + covered.log() + self.advice * expert).softmax(1)
        known = (covered * expert.exp()).sum(1, keepdim=True)
        chances = (1 - covered) * expert.exp() + known * advised
        return chances.clamp_min(torch.finfo(torch.float32).tiny).log()
