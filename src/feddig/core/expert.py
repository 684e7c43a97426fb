"""Train the digest expert E of FedDig+ on all held digests, whenever a digest arrives.

Each time it starts from the same first weights, so it follows from the digests and the seed alone. Each pass mixes
every digest with a random other one, features and labels alike. Digests are mixtures already, and without this E learns
the noise of single digests.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feddig.core.local import Trained
from feddig.core.prior import count_in_digest
from feddig.digest.denoising import denoise
from feddig.digest.digest import Digest
from feddig.errors import DivergenceError
from feddig.models.flat import FlatNetwork
from feddig.seeds import derive, torch_stream

PASSES, LEAST_STEPS = 40, 1000
BATCH = 256
RATE, MOMENTUM, DECAY = 0.1, 0.9, 2e-4
"""SGD's first learning rate, which falls to zero along a cosine, its momentum and its weight decay."""
HALF_LEARNED = 20
"""Rounds of training after which half of a silo's data counts as learned."""


def train_expert(expert: FlatNetwork, digests: Sequence[Digest], *, noise_aware: bool, seed: int) -> Trained:
    """Train E from its first weights on these digests."""
    features = torch.cat([digest.features for digest in digests])
    features = (denoise(digests, features) if noise_aware else features).flatten(1)
    labels = torch.cat([digest.labels for digest in digests])
    middle, spread = features.mean(0), (features - features.mean(0)).std(correction=0)
    if float(spread) <= 1e-6 * float(
        features.abs().max()
    ):  # equal digests teach nothing but their classes' shares
        spread = torch.ones_like(spread)
    features = (features - middle) / spread
    _draw_first_weights(expert, seed)
    per_pass = -(-len(features) // BATCH)
    passes = max(PASSES, -(-LEAST_STEPS // per_pass))
    steps, total = passes * per_pass, torch.zeros((), device=expert.device)
    optimiser = torch.optim.SGD(expert.parameters, RATE, MOMENTUM, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    stream = torch_stream(seed, "expert")
    for _ in range(passes):
        order, other = (
            torch.randperm(len(features), generator=stream).to(expert.device) for _ in ("order", "other")
        )
        share = torch.rand(len(features), 1, generator=stream).to(expert.device)
        for own, partner, part in zip(*(torch.split(of, BATCH) for of in (order, other, share)), strict=True):
            logits = expert.module(torch.lerp(features[partner], features[own], part))
            loss = cross_entropy(logits, torch.lerp(labels[partner], labels[own], part))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += loss.detach()
    mean_loss = float(total) / steps
    if not math.isfinite(mean_loss):
        raise DivergenceError(
            "digest expert: training diverged; look at the digests with `feddig digest show`"
        )
    _take_plain_features(expert, middle, spread)
    return Trained(steps, mean_loss)


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
