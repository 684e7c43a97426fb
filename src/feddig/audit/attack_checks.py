"""Check 3, membership: can somebody who holds a record tell that it was used, and in which digest?

Check 4, unmixing: can somebody with a pool of candidates name the records in a digest?
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from feddig.attacks.candidates import Candidates
from feddig.attacks.membership import (
    FALSE_POSITIVES,
    Membership,
    evaluate_linking,
    evaluate_membership,
    highest_scores,
    roc_curve,
    score_records,
)
from feddig.attacks.statistics import chance_of_ranks
from feddig.attacks.unmixing import evaluate_unmixing, unmix
from feddig.audit.findings import NOT_RUN, Figure, Finding, Limits, figure_of_mean, figure_of_rate
from feddig.audit.rehearsal import Rehearsed
from feddig.audit.subject import Subject, candidates_of, match_classes
from feddig.privacy.guessing import guess_digest

MEMBERSHIP_TITLE = "Membership and linking"
MEMBERSHIP_LIMITS = ("membership_auc_red", "true_positives_1_red", "true_positives_01_red", "linked_red")
POINTS = 400
"""Of a curve that is drawn."""

Curves = dict[str, np.ndarray]
"""By name: [points, 2], false and true positives."""


def check_membership(subject: Subject, limits: Limits) -> tuple[Finding, Curves]:
    """Score members and strangers of the same classes, by both scores; give the curves too."""
    if not subject.has_equal_weights:
        said = "Not run: these attacks are for equal mixing weights."
        return Finding("membership", MEMBERSHIP_TITLE, said, least=NOT_RUN, limits=MEMBERSHIP_LIMITS), {}
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
    return Finding(
        "membership", MEMBERSHIP_TITLE, sentence, figures, details=counts, limits=MEMBERSHIP_LIMITS
    ), curves


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
        linked = evaluate_linking(scores, homes)
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


UNMIXING_TITLE = "Unmixing with a pool of candidates"
UNMIXING_LIMITS = ("unmixed_digests_red", "unmixed_members_red")
FEWEST = 10


@dataclass(frozen=True)
class Pool:
    """Candidates in random order, and where to find the image behind each."""

    candidates: Candidates
    members: Tensor
    """[digests, SpD] rows of the candidates: the truth."""
    member_rows: Tensor
    """For each candidate its row among the members, or -1 for one of the holdout or the public images."""
    other_rows: Tensor
    """For each candidate its place among holdout and then public images, or -1."""


@dataclass(frozen=True)
class Unmixed:
    """What was found, for pictures."""

    pool: Pool
    found: Tensor
    """[digests, SpD] rows of the pool."""


def check_unmixing(
    subject: Subject, limits: Limits, report: Callable[[int, int], None] | None = None
) -> tuple[Finding, Unmixed | None]:
    """Search for each digest's members in a pool that holds them."""
    spd, largest = subject.groups.shape[1], subject.effort.largest_unmixed
    if not subject.has_equal_weights or spd > largest:
        why = (
            f"the search is for SpD up to {largest}"
            if subject.has_equal_weights
            else "it is for equal mixing weights"
        )
        return Finding(
            "unmixing", UNMIXING_TITLE, f"Not run: {why}.", least=NOT_RUN, limits=UNMIXING_LIMITS
        ), None
    known = some_digests(subject)
    pool = gather_pool(subject, known.groups)
    total = len(known.groups)
    heard = (lambda done: report(done, total)) if report is not None else None
    found = unmix(known.digest, pool.candidates, subject.noise, heard)
    result = evaluate_unmixing(found, known.digest, pool.candidates, pool.members, subject.noise)
    guess = guess_digest(spd, math.prod(subject.file.features.shape[1:]))
    figures = [
        figure_of_rate("digests unmixed whole", result.digests, limits, limits.unmixed_digests_red),
        figure_of_rate("members found", result.members, limits, limits.unmixed_members_red),
    ]
    sentence = (
        f"From {len(pool.candidates):,} candidates {result.digests.share:.1%} of {total} digests were unmixed whole "
        f"and {result.members.share:.1%} of their members named (chance: {result.members.chance:.2%})."
    )
    if result.gave_up or result.hidden:
        sentence += (
            f" Of the rest, noise hid {result.hidden}, and in {result.gave_up} the search gave up too early."
        )
    details = {
        "pool": len(pool.candidates),
        "digests": total,
        "samples_per_digest": spd,
        "search_gave_up": result.gave_up,
        "noise_hid_it": result.hidden,
        "mean_found_residual": float(result.found_residuals.mean()),
        "mean_true_residual": float(result.true_residuals.mean()),
        "log10_p_crt_paper": guess.paper,
    }
    finding = Finding("unmixing", UNMIXING_TITLE, sentence, figures, details=details, limits=UNMIXING_LIMITS)
    return finding, Unmixed(pool, found)


def some_digests(subject: Subject) -> Rehearsed:
    """Keep as many digests as the search has time and the pool has room for."""
    spd = subject.groups.shape[1]
    in_time = max(FEWEST, subject.effort.unmixing_work // spd**2)
    # at least as many strangers as members
    with_room = max(1, subject.effort.pool // (2 * spd))
    count = min(in_time, with_room, len(subject.groups))
    digest = subject.digest
    some = replace(digest, features=digest.features[:count], labels=digest.labels[:count])
    return Rehearsed(subject.seen(some), subject.groups[:count])


def gather_pool(subject: Subject, groups: Tensor) -> Pool:
    """Hide the digests' members among other members, holdout and public images."""
    taken = groups.flatten()
    draw = subject.stream("pool")
    untaken = torch.ones(len(subject.members), dtype=torch.bool)
    untaken[taken] = False
    rest = torch.nonzero(untaken)[:, 0]
    strangers = len(subject.holdout) + len(subject.public)
    others = torch.cat([rest, len(subject.members) + torch.arange(strangers)])
    others = others[torch.randperm(len(others), generator=draw)][: max(0, subject.effort.pool - len(taken))]
    everybody = torch.cat([taken, others])
    order = torch.randperm(len(everybody), generator=draw)
    sources = [candidates_of(subject, each) for each in (subject.members, subject.holdout, subject.public)]
    features, labels = (
        torch.cat([each.features for each in sources]),
        torch.cat([each.labels for each in sources]),
    )
    chosen = everybody[order]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    is_member = chosen < len(subject.members)
    return Pool(
        subject.known(Candidates(features[chosen], labels[chosen])),
        places[: len(taken)].view_as(groups),
        torch.where(is_member, chosen, -1),
        torch.where(is_member, -1, chosen - len(subject.members)),
    )


def images_of(pool: Pool, rows: Tensor, subject: Subject) -> Tensor:
    """Give the images of candidates."""
    held = len(subject.holdout)
    images = []
    for row in rows.flatten().tolist():
        member, other = int(pool.member_rows[row]), int(pool.other_rows[row])
        if member >= 0:
            source, at = subject.members, member
        else:
            source, at = (subject.holdout, other) if other < held else (subject.public, other - held)
        images.append(source.images(torch.tensor([at])))
    return torch.cat(images).view(*rows.shape, *images[0].shape[1:])
