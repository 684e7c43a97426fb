"""The model of FedDig+: the classifier M that silos train, and a digest expert E that the moderator trains.

M sees the image, E its encoded feature. A class c is covered by q_c in 0..1: the share of its samples that M has
learned from. An image is either of the kind that M knows, with the chance that E gives to covered classes, or it is
not, and then E alone decides:

    P(c) = (1 - q_c) E(c) + sum_k(q_k E(k)) * P_M(c),    P_M = softmax(M + log q + WEIGHT * log E)

Where all classes are covered, P is P_M: M, advised by E. Where silos have sent digests and never trained, E decides.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

WEIGHT = 0.5
"""How much E's opinion counts beside M's, where M knows the class."""
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

    def __init__(self, classifier: nn.Module, expert: nn.Module, classes: int) -> None:
        super().__init__()
        self.classifier, self.expert = classifier, expert
        self.coverage = nn.Parameter(torch.ones(classes))
        """q, one number for each class. A parameter, so that it travels and is saved with the others."""

    def forward(self, images: Tensor, features: Tensor) -> Tensor:
        """Return the logarithm of the probability of each class."""
        covered = self.coverage.clamp(LEAST, 1)
        expert: Tensor = log_softmax(self.expert(features), 1)
        advised: Tensor = (self.classifier(images) + covered.log() + WEIGHT * expert).softmax(1)
        known = (covered * expert.exp()).sum(1, keepdim=True)
        chances = (1 - covered) * expert.exp() + known * advised
        return chances.clamp_min(torch.finfo(torch.float32).tiny).log()
