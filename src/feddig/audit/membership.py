"""Check 3, membership: can somebody who holds a record tell that it was used, and in which digest?"""

import numpy as np
import torch
from torch import Tensor

from feddig.attacks.linking import (
    FALSE_POSITIVES,
    Membership,
    evaluate_linking,
    evaluate_membership,
    score_records,
)
from feddig.attacks.membership import highest_scores, roc_curve
from feddig.attacks.significance import chance_of_ranks
from feddig.audit.findings import NOT_RUN, Figure, Finding, figure_of_mean, figure_of_rate
from feddig.audit.limits import Limits
from feddig.audit.subject import Subject, candidates_of, match_classes

TITLE = "Membership and linking"
LIMITS = ("membership_auc_red", "true_positives_1_red", "true_positives_01_red", "linked_red")
POINTS = 400
"""Of a curve that is drawn."""

Curves = dict[str, np.ndarray]
"""By name: [points, 2], false and true positives."""


def check_membership(subject: Subject, limits: Limits) -> tuple[Finding, Curves]:
    """Score members and strangers of the same classes, by both scores; give the curves too."""
    if not subject.has_equal_weights:
        said = "Not run: these attacks are for equal mixing weights."
        return Finding("membership", TITLE, said, least=NOT_RUN, limits=LIMITS), {}
    figures, curves, counts = _of_known_digests(subject, limits)
    more, file_curves, file_counts = _of_whole_file(subject, limits)
    figures, curves, counts = [*figures, *more], curves | file_curves, counts | file_counts
    areas = [each.value for each in figures if each.name.startswith("area")]
    links = [each for each in figures if each.name.startswith("linked")]
    best = max(links, key=lambda each: each.value)
    sentence = (
        f"Members were told from strangers of their class with an area under the curve of {max(areas):.3f} at best "
        f"(a coin has 0.5), and {best.value:.1%} of records were linked to their digest (chance: {best.chance:.2%})."
    )
    return Finding("membership", TITLE, sentence, figures, details=counts, limits=LIMITS), curves


def _of_known_digests(subject: Subject, limits: Limits) -> tuple[list[Figure], Curves, dict[str, int]]:
    count, spd = subject.groups.shape
    rows, homes = subject.groups.flatten(), torch.arange(count).repeat_interleave(spd)
    inside = candidates_of(subject, subject.members, rows)
    mine, theirs = match_classes(
        inside.labels, subject.holdout.labels, len(rows), subject.stream("strangers to known digests")
    )
    outside = candidates_of(subject, subject.holdout, theirs)
    digest, public = subject.seen(subject.digest), subject.known(candidates_of(subject, subject.public))
    members = score_records(digest, subject.known(inside), public, subject.noise).by_name()
    others = score_records(digest, subject.known(outside), public, subject.noise).by_name()
    figures, curves = [], {}
    for name, scores in members.items():
        label = f"{'some digests' if subject.of_file else 'rehearsal'}, {name}"
        found = evaluate_membership(scores[mine], others[name], inside.labels[mine], outside.labels)
        figures += _figures(label, found, limits, len(theirs))
        linked = evaluate_linking(scores, homes).linked
        figures.append(figure_of_rate(f"linked ({label})", linked, limits, limits.linked_red))
        curves[label] = _points(scores[mine].amax(1), others[name].amax(1))
    counts = {"digests": count, "linked_records": len(rows), "members": len(mine), "strangers": len(theirs)}
    return figures, curves, counts | {"public": len(public)}


def _of_whole_file(subject: Subject, limits: Limits) -> tuple[list[Figure], Curves, dict[str, int]]:
    """Ask of the file itself; who is in which of its digests is not known, but membership does not need that."""
    mine, theirs = match_classes(
        subject.members.labels,
        subject.holdout.labels,
        subject.effort.records,
        subject.stream("strangers to the file"),
    )
    inside, outside = (
        candidates_of(subject, subject.members, mine),
        candidates_of(subject, subject.holdout, theirs),
    )
    file, public = subject.seen(subject.file), subject.known(candidates_of(subject, subject.public))
    members = highest_scores(file, subject.known(inside), public, subject.noise)
    others = highest_scores(file, subject.known(outside), public, subject.noise)
    figures, curves = [], {}
    for name, scores in members.items():
        label = f"whole file, {name}"
        found = evaluate_membership(scores[:, None], others[name][:, None], inside.labels, outside.labels)
        figures += _figures(label, found, limits, len(theirs))
        curves[label] = _points(scores, others[name])
    return (
        figures,
        curves,
        {"file_digests": len(subject.file), "file_members": len(mine), "file_strangers": len(theirs)},
    )


def _figures(label: str, found: Membership, limits: Limits, others: int) -> list[Figure]:
    reds = dict(
        zip(FALSE_POSITIVES, (limits.true_positives_1_red, limits.true_positives_01_red), strict=True)
    )
    figures = [
        figure_of_mean(
            f"area within a class ({label})", found.auc_within_class, limits, limits.membership_auc_red
        )
    ]
    for share, rate in found.true_positives.items():
        exact = chance_of_ranks(rate.hits, rate.trials, others, int(share * others + 1e-9))
        figure = figure_of_rate(
            f"members found at {share:.1%} false positives ({label})", rate, limits, reds[share]
        )
        figures.append(Figure(**(vars(figure) | {"p_value": exact})))
    return figures


def _points(members: Tensor, others: Tensor) -> np.ndarray:
    false, true = roc_curve(members, others)
    kept = torch.linspace(0, len(false) - 1, min(POINTS, len(false))).round().long()
    # the left end, where false positives are rare, is what matters: it is kept point by point
    kept = torch.unique(torch.cat([kept, torch.arange(min(POINTS, len(false)))]))
    points: np.ndarray = torch.stack([false[kept], true[kept]], dim=1).numpy()
    return points
