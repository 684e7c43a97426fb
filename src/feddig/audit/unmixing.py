"""Check 4, unmixing: can somebody with a pool of candidates name the records in a digest?"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from feddig.attacks.candidates import Candidates
from feddig.attacks.unmixing import evaluate_unmixing, unmix
from feddig.audit.findings import NOT_RUN, Finding, figure_of_rate
from feddig.audit.limits import Limits
from feddig.audit.rehearsal import Rehearsed
from feddig.audit.subject import Subject, candidates_of
from feddig.privacy.guessing import guess_digest

TITLE = "Unmixing with a pool of candidates"
LIMITS = ("unmixed_digests_red", "unmixed_members_red")
FEWEST = 10


class Report(Protocol):
    """Hears how far a search is."""

    def __call__(self, done: int, of: int) -> None:
        """Hear that so many digests are done."""


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

    known: Rehearsed
    pool: Pool
    found: Tensor
    """[digests, SpD] rows of the pool."""


def check_unmixing(
    subject: Subject, limits: Limits, report: Report | None = None
) -> tuple[Finding, Unmixed | None]:
    """Search for each digest's members in a pool that holds them."""
    spd, largest = subject.groups.shape[1], subject.effort.largest_unmixed
    if not subject.has_equal_weights or spd > largest:
        why = (
            f"the search is for SpD up to {largest}"
            if subject.has_equal_weights
            else "it is for equal mixing weights"
        )
        return Finding("unmixing", TITLE, f"Not run: {why}.", least=NOT_RUN, limits=LIMITS), None
    known = some_digests(subject)
    pool = gather_pool(subject, known.groups)
    total = len(known.groups)
    heard = (lambda done: report(done, total)) if report is not None else None
    unmixed = unmix(known.digest, pool.candidates, subject.noise, report=heard)
    result = evaluate_unmixing(unmixed, known.digest, pool.candidates, pool.members, subject.noise)
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
    finding = Finding("unmixing", TITLE, sentence, figures, details=details, limits=LIMITS)
    return finding, Unmixed(known, pool, unmixed.members)


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
