"""Check 5, inversion: are images recovered from digests closer to members than to non-members?"""

from collections.abc import Callable

import torch
from torch import Tensor

from feddig.attacks.candidates import ClippedEncoder, apply_public_clip
from feddig.attacks.inversion import (
    IMITATED,
    apply_in_batches,
    evaluate_inversion,
    imitate_digests,
    optimise_images,
    train_decoder,
    train_denoiser,
)
from feddig.audit.audited import AuditedDigests, features_of, image_shape
from feddig.audit.findings import Figure, Finding, Limits, figure_of_mean, figure_of_rate, percent

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
