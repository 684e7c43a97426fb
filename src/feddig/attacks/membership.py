"""Membership in a whole file of digests, of which nobody remembers who was mixed into which; and its curves."""

from dataclasses import replace

import torch
from torch import Tensor

from feddig.attacks.candidates import Candidates
from feddig.attacks.linking import score_records
from feddig.attacks.noise import Noise
from feddig.digest.digest import Digest

AT_ONCE = 2000
"""Digests that are scored at once: all of a large file would not fit the memory."""


def highest_scores(
    digest: Digest, records: Candidates, public: Candidates, noise: Noise | None = None
) -> dict[str, Tensor]:
    """Give, by the score's name, each record's highest score over all digests."""
    best: dict[str, Tensor] = {}
    for rows in torch.split(torch.arange(len(digest)), AT_ONCE):
        part = replace(digest, features=digest.features[rows], labels=digest.labels[rows])
        for name, scores in score_records(part, records, public, noise).by_name().items():
            highest = scores.amax(1)
            best[name] = torch.maximum(best[name], highest) if name in best else highest
    return best


def roc_curve(members: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Give shares of others and of members above each threshold, from none to all."""
    scores = torch.cat([members, others]).double()
    inside = torch.cat([torch.ones(len(members)), torch.zeros(len(others))])
    order = scores.argsort(descending=True, stable=True)
    ranked, inside = scores[order], inside[order]
    # equal scores stand or fall together
    last = torch.cat([ranked[1:] != ranked[:-1], torch.tensor([True])])
    true, false = inside.cumsum(0)[last], (1 - inside).cumsum(0)[last]
    start = torch.zeros(1)
    return (
        torch.cat([start, false / max(1, len(others))]),
        torch.cat([start, true / max(1, len(members))]),
    )
