"""Checks 3 to 5, by attack: membership and linking of records, unmixing with a pool of candidates, and inversion.

Inversion asks whether images that are recovered from digests are closer to members than to non-members.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from feddig.attacks.candidates import Candidates, ClippedEncoder, apply_public_clip
from feddig.attacks.inversion import (
    IMITATED,
    apply_in_batches,
    evaluate_inversion,
    imitate_digests,
    optimise_images,
    train_decoder,
    train_denoiser,
)
from feddig.attacks.membership import (
    FALSE_POSITIVES,
    evaluate_linking,
    evaluate_membership,
    highest_scores,
    roc_curve,
    score_records,
)
from feddig.attacks.statistics import p_value_of_ranks
from feddig.attacks.unmixing import evaluate_unmixing, unmix
from feddig.audit.audited import AuditedDigests, KnownDigests, features_of, image_shape, match_classes
from feddig.audit.findings import NOT_RUN, Figure, Finding, Limits, figure_of_mean, figure_of_rate, percent
from feddig.privacy.accounting import guess_digest

MEMBERSHIP_TITLE = "Membership and linking"
MEMBERSHIP_LIMITS = ("membership_auc_red", "true_positives_1_red", "true_positives_01_red", "linked_red")
UNMIXING_TITLE = "Unmixing with a pool of candidates"
UNMIXING_LIMITS = ("unmixed_digests_red", "unmixed_members_red")
POINTS = 400
"""Of a curve that is drawn."""
FEWEST = 10
"""Digests that are unmixed however large their SpD is, if the pool has room."""

Curves = dict[str, np.ndarray]
"""By name: [points, 2], false and true positives."""


def check_membership(audited: AuditedDigests, limits: Limits) -> tuple[Finding, Curves]:
    """Score members and non-members of the same classes by both scores; return the curves too."""
    if not audited.has_equal_weights:
        said = "Not run: these attacks need equal mixing weights."
        return Finding("membership", MEMBERSHIP_TITLE, said, minimum=NOT_RUN, limits=MEMBERSHIP_LIMITS), {}
    figures, curves, counts = _attack_known_digests(audited, limits)
    file_figures, file_curves, file_counts = _attack_whole_file(audited, limits)
    figures += file_figures
    area = max(each.value for each in figures if each.name.startswith("area"))
    linked = max((each for each in figures if each.name.startswith("linked")), key=lambda each: each.value)
    sentence = (
        f"The best attack ranked a member above a non-member of its class {percent(area)} of the time (chance: 50 %). "
        f"It linked {percent(linked.value)} of records to their digest (chance: {percent(linked.chance)}; non-members "
        f"of the same class in their place: {percent(linked.baseline)})."
    )
    finding = Finding(
        "membership",
        MEMBERSHIP_TITLE,
        sentence,
        figures,
        details=counts | file_counts,
        limits=MEMBERSHIP_LIMITS,
    )
    return finding, curves | file_curves


def _attack_known_digests(
    audited: AuditedDigests, limits: Limits
) -> tuple[list[Figure], Curves, dict[str, int]]:
    """Test records of digests with known members for membership and for the digest they are in."""
    images = audited.images
    count, spd = audited.groups.shape
    rows, homes = audited.groups.flatten(), torch.arange(count).repeat_interleave(spd)
    inside = audited.candidates(images.members, rows)
    mine, theirs = match_classes(
        inside.labels, images.holdout.labels, len(rows), audited.stream("strangers to known digests")
    )
    outside = audited.candidates(images.holdout, theirs)
    digest, public = (
        audited.hide_labels(audited.digest),
        audited.hide_classes(audited.candidates(images.public)),
    )
    members = score_records(digest, audited.hide_classes(inside), public, audited.noise).by_name()
    others = score_records(digest, audited.hide_classes(outside), public, audited.noise).by_name()
    figures: list[Figure] = []
    curves = {}
    for name, scores in members.items():
        label = f"{'digests of the file' if audited.from_file else 'trial digests'}, {name}"
        own, other = scores[mine].amax(1), others[name].amax(1)
        figures += _membership_figures(label, own, other, inside.labels[mine], outside.labels, limits)
        linked = evaluate_linking(scores, homes)
        # each non-member stands in for the member of its class in the same place
        stand_ins = float((others[name].argmax(1) == homes[mine]).double().mean())
        rate = figure_of_rate(f"linked ({label})", linked, limits, limits.linked_red)
        figures.append(replace(rate, baseline=stand_ins))
        curves[label] = _curve(own, other)
    counts = {"digests": count, "linked_records": len(rows), "members": len(mine), "strangers": len(theirs)}
    return figures, curves, counts | {"public": len(public)}


def _attack_whole_file(
    audited: AuditedDigests, limits: Limits
) -> tuple[list[Figure], Curves, dict[str, int]]:
    """Test records for membership in the file itself, which does not require knowing their digests."""
    images = audited.images
    mine, theirs = match_classes(
        images.members.labels,
        images.holdout.labels,
        audited.budget.records,
        audited.stream("strangers to the file"),
    )
    inside, outside = (
        audited.candidates(images.members, mine),
        audited.candidates(images.holdout, theirs),
    )
    file, public = (
        audited.hide_labels(audited.file),
        audited.hide_classes(audited.candidates(images.public)),
    )
    members = highest_scores(file, audited.hide_classes(inside), public, audited.noise)
    others = highest_scores(file, audited.hide_classes(outside), public, audited.noise)
    figures: list[Figure] = []
    curves = {}
    for name, scores in members.items():
        label = f"whole file, {name}"
        figures += _membership_figures(label, scores, others[name], inside.labels, outside.labels, limits)
        curves[label] = _curve(scores, others[name])
    counts = {"file_digests": len(audited.file), "file_members": len(mine), "file_strangers": len(theirs)}
    return figures, curves, counts


def _membership_figures(
    label: str, members: Tensor, others: Tensor, labels: Tensor, other_labels: Tensor, limits: Limits
) -> list[Figure]:
    found = evaluate_membership(members, others, labels, other_labels)
    name = f"area within a class ({label})"
    area = figure_of_mean(name, found.auc_within_class, limits, limits.membership_auc_red)
    figures = [replace(area, is_share=True)]
    reds = (limits.true_positives_1_red, limits.true_positives_01_red)
    for share, red in zip(FALSE_POSITIVES, reds, strict=True):
        name, rate = (
            f"members found at {percent(share)} false positives ({label})",
            found.true_positives[share],
        )
        exact = p_value_of_ranks(rate.hits, rate.trials, len(others), int(share * len(others) + 1e-9))
        figures.append(replace(figure_of_rate(name, rate, limits, red), p_value=exact))
    return figures


def _curve(members: Tensor, others: Tensor) -> np.ndarray:
    false, true = roc_curve(members, others)
    kept = torch.linspace(0, len(false) - 1, min(POINTS, len(false))).round().long()
    # the left end, where false positives are rare, matters most: all of its points are kept
    kept = torch.unique(torch.cat([kept, torch.arange(min(POINTS, len(false)))]))
    points: np.ndarray = torch.stack([false[kept], true[kept]], dim=1).numpy()
    return points


@dataclass(frozen=True)
class Pool:
    """Candidates in random order, and the image behind each."""

    candidates: Candidates
    members: Tensor
    """[digests, SpD] rows of the candidates: the truth."""
    image_rows: Tensor
    """For each candidate its row among all images: members, then holdout, then public ones."""

    def images(self, rows: Tensor, audited: AuditedDigests) -> Tensor:
        """Return the images of candidates, given by their rows in the pool."""
        sources = (audited.images.members, audited.images.holdout, audited.images.public)
        images = []
        for row in self.image_rows[rows.flatten()].tolist():
            for source in sources:
                if row < len(source):
                    images.append(source.images(torch.tensor([row])))
                    break
                row -= len(source)
        return torch.cat(images).view(*rows.shape, *images[0].shape[1:])


@dataclass(frozen=True)
class Unmixed:
    """What the search found, for pictures."""

    pool: Pool
    found: Tensor
    """[digests, SpD] rows of the pool."""


def check_unmixing(
    audited: AuditedDigests, limits: Limits, report: Callable[[int, int], None] | None = None
) -> tuple[Finding, Unmixed | None]:
    """Search for each digest's members in a pool that contains them; `report` receives how many of all are done."""
    spd, largest = audited.groups.shape[1], audited.budget.largest_unmixed
    if not audited.has_equal_weights or spd > largest:
        needs = f"SpD up to {largest}" if audited.has_equal_weights else "equal mixing weights"
        said = f"Not run: the search needs {needs}."
        return Finding("unmixing", UNMIXING_TITLE, said, minimum=NOT_RUN, limits=UNMIXING_LIMITS), None
    known = _choose_digests(audited)
    pool = _gather_pool(audited, known.groups)
    total = len(known.groups)
    found = unmix(
        known.digest,
        pool.candidates,
        audited.noise,
        None if report is None else lambda done: report(done, total),
    )
    result = evaluate_unmixing(found, known.digest, pool.candidates, pool.members, audited.noise)
    figures = [
        figure_of_rate("digests unmixed whole", result.digests, limits, limits.unmixed_digests_red),
        figure_of_rate("members found", result.members, limits, limits.unmixed_members_red),
    ]
    sentence = (
        f"With {len(pool.candidates):,} candidates, all members were found in {percent(result.digests.share)} of "
        f"{total} digests, and {percent(result.members.share)} of single members (chance: "
        f"{percent(result.members.chance, 2)})."
    )
    if result.gave_up or result.hidden:
        sentence += (
            f" Of the other digests, noise hid the members of {result.hidden}, and the search gave up too early "
            f"on {result.gave_up}."
        )
    details = {
        "pool": len(pool.candidates),
        "digests": total,
        "samples_per_digest": spd,
        "search_gave_up": result.gave_up,
        "noise_hid_it": result.hidden,
        "mean_found_residual": float(result.found_residuals.mean()),
        "mean_true_residual": float(result.true_residuals.mean()),
        "log10_p_crt_paper": guess_digest(spd, math.prod(audited.file.features.shape[1:])).paper,
    }
    finding = Finding("unmixing", UNMIXING_TITLE, sentence, figures, details=details, limits=UNMIXING_LIMITS)
    return finding, Unmixed(pool, found)


def _choose_digests(audited: AuditedDigests) -> KnownDigests:
    """Keep as many digests as the search has time and the pool has room for."""
    spd = audited.groups.shape[1]
    in_time = max(FEWEST, audited.budget.unmixing_work // spd**2)
    # at least as many non-members as members
    with_room = max(1, audited.budget.pool // (2 * spd))
    count = min(in_time, with_room, len(audited.groups))
    digest = audited.digest
    some = replace(digest, features=digest.features[:count], labels=digest.labels[:count])
    return KnownDigests(audited.hide_labels(some), audited.groups[:count])


def _gather_pool(audited: AuditedDigests, groups: Tensor) -> Pool:
    """Shuffle the digests' members among other members, holdout and public images."""
    images, taken = audited.images, groups.flatten()
    draw = audited.stream("pool")
    sources = [audited.candidates(each) for each in (images.members, images.holdout, images.public)]
    untaken = torch.ones(sum(len(each) for each in sources), dtype=torch.bool)
    untaken[taken] = False
    others = torch.nonzero(untaken)[:, 0]
    others = others[torch.randperm(len(others), generator=draw)][: max(0, audited.budget.pool - len(taken))]
    everybody = torch.cat([taken, others])
    order = torch.randperm(len(everybody), generator=draw)
    chosen = everybody[order]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    features = torch.cat([each.features for each in sources])[chosen]
    labels = torch.cat([each.labels for each in sources])[chosen]
    return Pool(
        audited.hide_classes(Candidates(features, labels)), places[: len(taken)].view_as(groups), chosen
    )


COMPARED = 16
"""Members of a digest that an image is compared with, at most."""
OPTIMISED = 512
"""Imitated digests that the optimiser's denoiser is trained on: each takes as long as a real one."""


def check_inversion(
    audited: AuditedDigests, limits: Limits, report: Callable[[str], None]
) -> tuple[Finding, dict[str, Tensor]]:
    """Recover images by a decoder and by optimisation, each also denoised; return them by the attack's name."""
    budget, count = audited.budget, min(audited.budget.inverted, len(audited.groups))
    recovered = _recover_images(audited, audited.digest.features[:count], report)
    compared = audited.groups[:count, :COMPARED]
    images = audited.images
    members = images.members.images(compared.flatten()).view(*compared.shape, *image_shape(images.public))
    nonmembers = _draw_nonmembers(audited, compared)
    results = {name: evaluate_inversion(each, members, nonmembers) for name, each in recovered.items()}
    figures: list[Figure] = []
    for name, result in results.items():
        figures += [
            figure_of_rate(f"closer to a member ({name})", result.closer, limits, limits.inversion_red),
            figure_of_mean(f"SSIM ({name})", result.ssim, limits, tested=False),
            figure_of_mean(f"PSNR in dB ({name})", result.psnr, limits, tested=False),
        ]
    name, best = max(results.items(), key=lambda each: each[1].closer.share)
    sentence = (
        f"The image recovered from a digest ({name}) was closer to one of its members than to non-members of the "
        f"same classes in {percent(best.closer.share, 0)} of {count} digests (chance: 50 %); SSIM "
        f"{best.ssim.value:.3f}, for non-members {best.ssim.chance:.3f}."
    )
    details = {
        "digests": count,
        "compared_members": compared.shape[1],
        "training_steps": budget.training_steps,
        "changes": budget.changes,
        "public": len(images.public),
        "baseline": "as many non-members of the same classes, from the holdout",
    }
    finding = Finding(
        "inversion", "Inversion into images", sentence, figures, details=details, limits=("inversion_red",)
    )
    return finding, recovered


def _recover_images(
    audited: AuditedDigests, features: Tensor, report: Callable[[str], None]
) -> dict[str, Tensor]:
    budget, seed, shape = audited.budget, audited.seed, image_shape(audited.images.public)
    public = audited.images.public.images(torch.arange(len(audited.images.public)))
    codes = apply_public_clip(features_of(audited.images.public), audited.file)
    encoder = ClippedEncoder(audited.images.encoder, audited.file)
    report("training the pseudo-inverse")
    decoder = train_decoder(encoder, public, seed=seed, steps=budget.training_steps)

    def decode(codes: Tensor) -> Tensor:
        return apply_in_batches(decoder, codes)

    def optimise(codes: Tensor) -> Tensor:
        parts = torch.split(codes, 256)
        return torch.cat([optimise_images(encoder, part, shape, changes=budget.changes) for part in parts])

    recovered: dict[str, Tensor] = {}
    for name, attack, imitations in (
        ("pseudo-inverse", decode, IMITATED),
        ("optimisation", optimise, OPTIMISED),
    ):
        report(name)
        recovered[name] = attack(features)
        report(f"{name}, denoised")
        imitated, clean = imitate_digests(
            codes,
            public,
            audited.groups.shape[1],
            audited.noise,
            seed=seed,
            count=min(imitations, 4 * budget.training_steps),
        )
        denoiser = train_denoiser(attack(imitated), clean, seed=seed, steps=budget.training_steps)
        recovered[f"{name}, denoised"] = apply_in_batches(denoiser, recovered[name])
    return recovered


def _draw_nonmembers(audited: AuditedDigests, compared: Tensor) -> Tensor:
    """Draw for each member a non-member of its class from the holdout, if possible none twice for one digest."""
    holdout, draw = audited.images.holdout, audited.stream("strangers to paintings")
    labels = audited.images.members.labels[compared]
    chosen = torch.empty_like(compared)
    everybody = torch.arange(len(holdout))
    for label in torch.unique(labels):
        rows = everybody[holdout.labels == label]
        # if no non-member has the class, any of them is drawn
        rows = rows if len(rows) else everybody
        for digest, own in enumerate(labels == label):
            needed = int(own.sum())
            if needed:
                order = torch.randperm(len(rows), generator=draw)
                chosen[digest, own] = rows[order.repeat(-(-needed // len(rows)))[:needed]]
    return holdout.images(chosen.flatten()).view(*compared.shape, *image_shape(audited.images.public))
