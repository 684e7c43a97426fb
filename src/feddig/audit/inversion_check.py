"""Check 5, inversion: what images can be painted from digests, and are they liker to members than to strangers?"""

from collections.abc import Callable

import torch
from torch import Tensor

from feddig.attacks.candidates import AgreedEncoder, clip_as_agreed
from feddig.attacks.inversion import (
    Inversion,
    denoise,
    evaluate_inversion,
    imitate_digests,
    optimise_images,
    paint,
    train_denoiser,
    train_pseudo_inverse,
)
from feddig.attacks.statistics import Estimate
from feddig.audit.findings import Figure, Finding, Limits, figure_of_mean, figure_of_rate
from feddig.audit.subject import Subject, features_of, image_shape

TITLE = "Inversion into images"
LIMITS = ("inversion_red",)
COMPARED = 16
"""Members of a digest that a painting is compared with, at most."""
OPTIMISED = 512
"""Imitated digests that the denoiser behind the optimiser learns from: each takes as long as a real one."""


def check_inversion(
    subject: Subject, limits: Limits, report: Callable[[str], None] | None = None
) -> tuple[Finding, dict[str, Tensor]]:
    """Paint by a trained pseudo-inverse and by optimisation, each also denoised, and compare; give the images too."""
    effort, count = subject.effort, min(subject.effort.inverted, len(subject.groups))
    features, groups = subject.digest.features[:count], subject.groups[:count]
    painted = _paint(subject, features, report or (lambda name: None))
    shown = groups[:, : min(COMPARED, groups.shape[1])]
    members = subject.members.images(shown.flatten()).view(*shown.shape, *image_shape(subject.public))
    strangers = _strangers(subject, shown)
    figures: list[Figure] = []
    closest: tuple[str, Inversion] | None = None
    for name, images in painted.items():
        result = evaluate_inversion(images, members, strangers)
        figures += _figures(name, result, limits)
        if closest is None or result.closer.share > closest[1].closer.share:
            closest = name, result
    assert closest is not None
    name, result = closest
    sentence = (
        f"The image recovered from a digest ({name}) was liker to one of its members than to strangers of the same "
        f"classes in {result.closer.share:.0%} of {count} digests (chance: 50 %); SSIM {result.ssim.value:.3f} against "
        f"{result.ssim.chance:.3f} for strangers."
    )
    details = {
        "digests": count,
        "compared_members": shown.shape[1],
        "training_steps": effort.training_steps,
        "changes": effort.changes,
        "public": len(subject.public),
        "baseline": "as many strangers of the same classes, from the holdout",
    }
    return Finding("inversion", TITLE, sentence, figures, details=details, limits=LIMITS), painted


def _paint(subject: Subject, features: Tensor, report: Callable[[str], None]) -> dict[str, Tensor]:
    effort, seed, shape = subject.effort, subject.seed, image_shape(subject.public)
    public = subject.public.images(torch.arange(len(subject.public)))
    codes, spd = clip_as_agreed(features_of(subject.public), subject.file), subject.groups.shape[1]
    encoder = AgreedEncoder(subject.encoder, subject.file)
    images: dict[str, Tensor] = {}
    report("training the pseudo-inverse")
    decoder = train_pseudo_inverse(encoder, public, seed=seed, steps=effort.training_steps)

    def decode(codes: Tensor) -> Tensor:
        return paint(decoder, codes)

    def optimise(codes: Tensor) -> Tensor:
        parts = torch.split(codes, 256)
        return torch.cat([optimise_images(encoder, part, shape, changes=effort.changes) for part in parts])

    for name, attack, imitations in (("pseudo-inverse", decode, 2000), ("optimisation", optimise, OPTIMISED)):
        report(name)
        images[name] = attack(features)
        report(f"{name}, denoised")
        imitated, clean = imitate_digests(
            codes, public, spd, subject.noise, seed=seed, count=min(imitations, 4 * effort.training_steps)
        )
        denoiser = train_denoiser(attack(imitated), clean, seed=seed, steps=effort.training_steps)
        images[f"{name}, denoised"] = denoise(denoiser, images[name])
    return images


def _figures(name: str, result: Inversion, limits: Limits) -> list[Figure]:
    def likeness(measure: str, estimate: Estimate) -> Figure:
        return figure_of_mean(f"{measure} ({name})", estimate, limits, tested=False)

    return [
        figure_of_rate(f"liker to a member ({name})", result.closer, limits, limits.inversion_red),
        likeness("SSIM", result.ssim),
        likeness("PSNR in dB", result.psnr),
    ]


def _strangers(subject: Subject, shown: Tensor) -> Tensor:
    """Draw for every member a stranger of the same class from the holdout, none twice for one digest if possible."""
    draw = subject.stream("strangers to paintings")
    labels = subject.members.labels[shown]
    chosen = torch.empty_like(shown)
    everybody = torch.arange(len(subject.holdout))
    for label in torch.unique(labels):
        rows = everybody[subject.holdout.labels == label]
        # a class that no stranger has is played by any
        rows = rows if len(rows) else everybody
        for digest, own in enumerate(labels == label):
            needed = int(own.sum())
            if needed:
                order = torch.randperm(len(rows), generator=draw)
                chosen[digest, own] = rows[order.repeat(-(-needed // len(rows)))[:needed]]
    return subject.holdout.images(chosen.flatten()).view(*shown.shape, *image_shape(subject.public))
