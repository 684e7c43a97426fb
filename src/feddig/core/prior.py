"""The prior-corrected loss: silos with different class shares fit the same posterior.

A silo adds log(p_k(c) / p(c)) to the logits in its training loss, where p_k is its own share of class c and p the
federation's. Under pure label shift every silo then fits the federation's posterior, so a silo does not unlearn the
classes that it lacks. Evaluation uses the plain logits.
"""

import torch
from torch import Tensor

from feddig.digest.digest import Digest


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
