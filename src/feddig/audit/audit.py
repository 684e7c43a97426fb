"""Run the seven checks of an audit, and build its report and pictures."""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddig._version import __version__
from feddig.audit.attack_checks import Unmixed, check_membership, check_unmixing
from feddig.audit.audited import AuditedDigests
from feddig.audit.findings import (
    GREEN,
    MEANING,
    PUBLIC,
    Finding,
    Limits,
    count_tests,
    family_threshold,
    finite,
    judge,
    overall_verdict,
    worst_verdict,
)
from feddig.audit.inversion_check import check_inversion
from feddig.audit.next_steps import next_steps
from feddig.audit.promise_checks import check_accountant, check_canaries, check_labels, check_numbers
from feddig.core.samples import ImageSource
from feddig.digest.denoising import denoise
from feddig.files import FORMAT_VERSION, content_hash

SHOWN, SHOWN_MEMBERS = 8, 4
"""Digests in the picture, and members of each."""
FINGERPRINTED = 1000
"""Images that identify a source."""


@dataclass(frozen=True)
class Audit:
    """The report, which contains no image, and the pictures, which do."""

    report: dict[str, Any]
    curves: dict[str, np.ndarray]
    """By name: [points, 2], false and true positives."""
    pictures: dict[str, np.ndarray]
    """By name: [digests, images of it, channels, height, width] in [0, 1]."""


def run_audit(
    audited: AuditedDigests,
    limits: Limits,
    *,
    names: dict[str, str],
    guidance: Mapping[str, nn.Module] | None = None,
    report: Callable[[str], None],
) -> Audit:
    """Run the seven checks; `names` are the inputs as the user gave them, `report` receives the progress.

    Guidance producers, by a name that says where each is from, are only used for pictures.
    """

    def report_unmixing(done: int, total: int) -> None:
        if done % 50 == 0:
            report(f"4 of 7, unmixing {done} of {total}")

    report("1 of 7, accountant")
    accountant = check_accountant(audited.file, limits)
    report("2 of 7, canaries")
    canaries = check_canaries(audited, limits)
    report("3 of 7, membership")
    membership, curves = check_membership(audited, limits)
    report("4 of 7, unmixing")
    unmixing, unmixed = check_unmixing(audited, limits, report_unmixing)
    report("5 of 7, inversion")
    inversion, recovered = check_inversion(audited, limits, lambda name: report(f"5 of 7, inversion: {name}"))
    report("6 of 7, labels")
    labels = check_labels(audited, limits)
    report("7 of 7, lattice")
    lattice = check_numbers(audited, limits)
    findings = [accountant, canaries, membership, unmixing, inversion, labels, lattice]
    return Audit(
        _build_report(audited, limits, findings, names),
        curves,
        _build_pictures(audited, unmixed, recovered, guidance or {}),
    )


def _build_report(
    audited: AuditedDigests, limits: Limits, findings: list[Finding], names: dict[str, str]
) -> dict[str, Any]:
    checks = judge(findings, limits)
    body = {
        "format_version": FORMAT_VERSION,
        "meaning": MEANING,
        "light": overall_verdict([check["light"] for check in checks]),
        "reason": _reason(checks),
        "next_steps": next_steps(audited.file, checks, limits, names),
        "attacked": (
            "digests of the file itself, whose mixing was drawn again from its seed"
            if audited.from_file
            else "trial digests, made from the members with the file's settings, because the file does not say which "
            "record is in which digest; membership and numbers were also checked in the file itself"
        ),
        "tests": {
            "one_sided_tests": count_tests(findings),
            "family_level": limits.family_level,
            "p_value_below": finite(family_threshold(findings, limits)),
            "intervals": f"Clopper-Pearson for shares, DeLong or normal for means, level {limits.interval_level:g}",
        },
        "checks": checks,
        "bound_to": _describe_inputs(audited, limits, names),
    }
    sealed = content_hash(json.dumps(body, sort_keys=True).encode())
    return body | {"hash": sealed, "made": datetime.now(UTC).isoformat(timespec="seconds")}


def _reason(checks: list[dict[str, Any]]) -> str:
    """Return the sentence of the first check that decides the verdict, and name the others."""
    worst = worst_verdict([check["light"] for check in checks])
    if worst in (GREEN, PUBLIC):
        return "No figure of any check is beyond chance, and every promise is within its limit."
    first, *others = [check for check in checks if check["light"] == worst]
    also = "; ".join(check["title"].lower() for check in others)
    return f"{first['title']}: {first['sentence']}" + (f" Also {worst}: {also}." if also else "")


def _describe_inputs(audited: AuditedDigests, limits: Limits, names: dict[str, str]) -> dict[str, Any]:
    """Return everything that decides the report, so that it is valid for these digests and settings only."""
    file, images = audited.file, audited.images
    settings = {
        "effort": asdict(audited.budget),
        "limits": asdict(limits),
        "seed": audited.seed,
        "facts": finite(file.facts),
    }
    sources = {"members": images.members, "holdout": images.holdout, "public": images.public}
    return {
        "digest_hash": file.hash,
        "digests": len(file),
        "silo": file.silo,
        **settings,
        "settings_hash": content_hash(json.dumps(settings, sort_keys=True).encode()),
        "data": {
            name: {"given": names.get(name, ""), "images": len(source), "fingerprint": _fingerprint(source)}
            for name, source in sources.items()
        },
        "versions": {
            "feddig": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
    }


def _fingerprint(source: ImageSource) -> str:
    """Hash the labels and a thousand images."""
    rows = torch.linspace(0, len(source) - 1, min(len(source), FINGERPRINTED)).long()
    return content_hash(source.labels.numpy().tobytes(), source.images(rows).numpy().tobytes())


@torch.no_grad()
def _build_pictures(
    audited: AuditedDigests,
    unmixed: Unmixed | None,
    recovered: dict[str, Tensor],
    guidance: Mapping[str, nn.Module],
) -> dict[str, np.ndarray]:
    """Collect members and what each attack recovered from the same digests."""
    count = min(SHOWN, *(len(images) for images in recovered.values()))
    if unmixed is not None:
        count = min(count, len(unmixed.found))
    rows = audited.groups[:count, :SHOWN_MEMBERS]
    pictures = {"members": torch.stack([audited.images.members.images(own) for own in rows])}
    if unmixed is not None:
        found = _align(unmixed.found[:count], unmixed.pool.members[:count])
        pictures["found by unmixing"] = unmixed.pool.images(found[:, :SHOWN_MEMBERS], audited)
    for name, images in recovered.items():
        pictures[name] = images[:count, None]
    for name, producer in guidance.items():
        pictures[name] = producer(_as_moderated(audited, count))[:, None]
    return {name: each.clamp(0, 1).numpy() for name, each in pictures.items()}


def _as_moderated(audited: AuditedDigests, count: int) -> Tensor:
    """Return the first attacked digests as the moderator sees them, denoised where the noise level is public."""
    known = audited.known
    # no record is in two digests, so the first record identifies its digest
    rows = [int((known.groups[:, 0] == first).nonzero()) for first in audited.groups[:count, 0]]
    return denoise([known.digest], known.digest.features)[rows]


def _align(found: Tensor, truth: Tensor) -> Tensor:
    """Move each member that was found to its true place, and wrong ones to the remaining places."""
    rows = []
    for own, true in zip(found.tolist(), truth.tolist(), strict=True):
        wrong = iter([each for each in own if each not in true])
        rows.append([each if each in own else next(wrong) for each in true])
    return torch.tensor(rows)
