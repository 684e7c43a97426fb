"""Membership and linking: was a record mixed into one of these digests, and into which one?

A whitened matched filter searches a digest for the record's difference from its class mean; the other samples and the
noise are modelled as one normal background. The plain score is the likelihood ratio of "this record is in the digest"
to "another of its class is"; the normalised score is the filter's output in standard deviations. Neither is better
everywhere, so both are reported.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddig.attacks.candidates import Background, Backgrounds, Candidates, Noise, read_classes
from feddig.attacks.statistics import Auc, SuccessRate, area_under_curve, true_positives
from feddig.digest.digest import Digest

AT_ONCE = 2000
"""Digests that are scored at once: the scores of a large file would not fit into memory."""
FALSE_POSITIVES = (0.01, 0.001)


@dataclass(frozen=True)
class Scores:
    """Scores [records, digests]; minus infinity where the digest has none of the record's class."""

    likelihood_ratio: Tensor
    normalised: Tensor

    def by_name(self) -> dict[str, Tensor]:
        """Return both scores by their names."""
        return {"likelihood ratio": self.likelihood_ratio, "normalised": self.normalised}


@dataclass(frozen=True)
class Membership:
    """How well a score separates members from non-members."""

    auc_within_class: Auc
    """Among records of one class: what a difference in classes alone cannot explain."""
    true_positives: dict[float, SuccessRate]
    """By the share of non-members that are taken for members, which is also chance."""


def score_records(digest: Digest, records: Candidates, public: Candidates, noise: Noise) -> Scores:
    """Score each record against each digest; statistics of a class come from public images."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, classes in enumerate(read_classes(digest)):
        alike.setdefault(classes, []).append(place)
    spd = len(next(iter(alike)))
    sums = digest.features.flatten(1) * spd
    backgrounds = Backgrounds(public, spd * noise.deviation)
    ratios = torch.full((len(records), len(digest)), float("-inf"))
    normalised = ratios.clone()
    for classes, places in alike.items():
        whole = backgrounds.of(classes)
        seen = sums[places] - whole.mean
        unexplained = _energy(seen, whole) + whole.log_determinant
        for label in set(classes) & set(records.rows):
            others = list(classes)
            others.remove(label)
            rest, rows = backgrounds.of(others), records.rows[label]
            own = records.features[rows] - backgrounds.means[label]
            at = rows[:, None], torch.tensor(places)[None]
            left = _energy(seen, rest) - 2 * own @ rest.precision @ seen.T + _energy(own, rest)[:, None]
            ratios[at] = (unexplained - left - rest.log_determinant) / 2
            deviation = _energy(own, whole).clamp(min=1e-12).sqrt()
            normalised[at] = own @ whole.precision @ seen.T / deviation[:, None]
    return Scores(ratios, normalised)


def _energy(rows: Tensor, background: Background) -> Tensor:
    """Return the squared length of each row after whitening by a background."""
    return ((rows @ background.precision) * rows).sum(1)


def highest_scores(
    digest: Digest, records: Candidates, public: Candidates, noise: Noise
) -> dict[str, Tensor]:
    """Return, by the score's name, each record's highest score over all digests."""
    best: dict[str, Tensor] = {}
    for rows in torch.split(torch.arange(len(digest)), AT_ONCE):
        part = replace(digest, features=digest.features[rows], labels=digest.labels[rows])
        for name, scores in score_records(part, records, public, noise).by_name().items():
            highest = scores.amax(1)
            best[name] = torch.maximum(best[name], highest) if name in best else highest
    return best


def evaluate_membership(
    members: Tensor, others: Tensor, member_labels: Tensor, other_labels: Tensor
) -> Membership:
    """Compare the highest scores of members with those of non-members."""
    inside, outside = _finite(members), _finite(others)
    return Membership(
        _within_class(inside, outside, member_labels, other_labels),
        {share: true_positives(inside, outside, share) for share in FALSE_POSITIVES},
    )


def _finite(scores: Tensor) -> Tensor:
    """Replace minus infinity by the lowest finite number, which can be ranked."""
    return scores.clamp(min=torch.finfo(scores.dtype).min)


def _within_class(inside: Tensor, outside: Tensor, inside_labels: Tensor, outside_labels: Tensor) -> Auc:
    """Average the classes' areas, weighted by the members of each class that also has non-members."""
    shared = [label for label in torch.unique(inside_labels) if bool((outside_labels == label).any())]
    if not shared:
        raise ValueError("no class has both members and non-members")
    areas = [area_under_curve(inside[inside_labels == at], outside[outside_labels == at]) for at in shared]
    sizes = torch.tensor([float((inside_labels == at).sum()) for at in shared], dtype=torch.double)
    weights = sizes / sizes.sum()
    value = float((weights * torch.tensor([area.value for area in areas], dtype=torch.double)).sum())
    errors = torch.tensor([area.error for area in areas], dtype=torch.double)
    return Auc(value, float((weights * errors).square().sum().sqrt()), 0.5, sum(area.pairs for area in areas))


def evaluate_linking(members: Tensor, homes: Tensor) -> SuccessRate:
    """Count members whose highest score [records, digests] is that of the digest they are in, their home.

    Chance picks among the digests that the record's class does not rule out.
    """
    possible = members.isfinite().sum(1).clamp(min=1)
    hits = int((members.argmax(1) == homes).sum())
    return SuccessRate(hits, len(homes), float((1 / possible).mean()))


def roc_curve(members: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of others and of members above each threshold, from none to all."""
    scores = torch.cat([members, others]).double()
    inside = torch.cat([torch.ones(len(members)), torch.zeros(len(others))])
    order = scores.argsort(descending=True, stable=True)
    ranked, inside = scores[order], inside[order]
    # equal scores pass a threshold together
    last = torch.cat([ranked[1:] != ranked[:-1], torch.tensor([True])])
    true, false = inside.cumsum(0)[last], (1 - inside).cumsum(0)[last]
    start = torch.zeros(1)
    return (
        torch.cat([start, false / max(1, len(others))]),
        torch.cat([start, true / max(1, len(members))]),
    )
