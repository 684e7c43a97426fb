"""The audit from its first check to its last, and what is written down of it."""

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
from feddig.audit.attack_checks import Unmixed, check_membership, check_unmixing, images_of
from feddig.audit.findings import (
    MEANING,
    Finding,
    Limits,
    count_tests,
    family_threshold,
    finite,
    judge,
    worst,
)
from feddig.audit.inversion_check import check_inversion
from feddig.audit.promise_checks import check_accountant, check_canaries, check_labels, check_numbers
from feddig.audit.subject import Subject
from feddig.core.samples import ImageSource
from feddig.digest.denoising import denoise
from feddig.files import FORMAT_VERSION, content_hash

SHOWN, SHOWN_MEMBERS = 8, 4
"""Digests in the picture, and members of each."""
PROBED = 1000
"""Images that name a source."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """The report, which holds no image, and the pictures, which do."""

    report: dict[str, Any]
    curves: dict[str, np.ndarray]
    """By name: [points, 2], false and true positives."""
    pictures: dict[str, np.ndarray]
    """By name: [digests, images of it, channels, height, width] in [0, 1]."""


def run_audit(
    subject: Subject,
    limits: Limits,
    *,
    names: dict[str, str],
    guidance: Mapping[str, nn.Module] | None = None,
    say: Say,
) -> Audit:
    """Make the seven checks; `names` says what a user called the inputs, `say` hears what is going on.

    Guidance producers, by a name that says where each is from, paint for the pictures alone and decide nothing.
    """
    findings: list[Finding] = []
    say("1 of 7, accountant")
    findings.append(check_accountant(subject.file, limits))
    say("2 of 7, canaries")
    findings.append(check_canaries(subject, limits))
    say("3 of 7, membership")
    finding, curves = check_membership(subject, limits)
    findings.append(finding)
    say("4 of 7, unmixing")
    finding, unmixed = check_unmixing(
        subject, limits, lambda done, of: say(f"4 of 7, unmixing {done} of {of}") if done % 50 == 0 else None
    )
    findings.append(finding)
    say("5 of 7, inversion")
    finding, painted = check_inversion(subject, limits, lambda name: say(f"5 of 7, inversion: {name}"))
    findings.append(finding)
    say("6 of 7, labels")
    findings.append(check_labels(subject, limits))
    say("7 of 7, lattice")
    findings.append(check_numbers(subject, limits))
    return Audit(
        _report(subject, limits, findings, names),
        curves,
        _pictures(subject, unmixed, painted, guidance or {}),
    )


def _report(
    subject: Subject, limits: Limits, findings: list[Finding], names: dict[str, str]
) -> dict[str, Any]:
    checks = judge(findings, limits)
    body = {
        "format_version": FORMAT_VERSION,
        "meaning": MEANING,
        "light": worst([check["light"] for check in checks]),
        "attacked": (
            "digests of the file itself, whose mixing was drawn again from its seed"
            if subject.of_file
            else "a rehearsal: digests made anew from the members with the file's settings, because who is in which "
            "digest of the file is written nowhere; membership and numbers also of the file itself"
        ),
        "tests": {
            "one_sided_tests": count_tests(findings),
            "family_level": limits.family_level,
            "p_value_below": finite(family_threshold(findings, limits)),
            "intervals": f"Clopper-Pearson for shares, DeLong or normal for means, level {limits.interval_level:g}",
        },
        "checks": checks,
        "bound_to": _bound_to(subject, limits, names),
    }
    sealed = content_hash(json.dumps(body, sort_keys=True).encode())
    return body | {"hash": sealed, "made": datetime.now(UTC).isoformat(timespec="seconds")}


def _bound_to(subject: Subject, limits: Limits, names: dict[str, str]) -> dict[str, Any]:
    """Name all that decides the report, so that it stands for these digests and settings and no others."""
    effort, facts = asdict(subject.effort), finite(dict(subject.file.facts))
    settings = {"effort": effort, "limits": asdict(limits), "seed": subject.seed, "facts": facts}
    sources = {"members": subject.members, "holdout": subject.holdout, "public": subject.public}
    return {
        "digest_hash": subject.file.hash,
        "digests": len(subject.file),
        "silo": subject.file.silo,
        "facts": facts,
        "seed": subject.seed,
        "effort": effort,
        "limits": asdict(limits),
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
    """Name images by their labels and a thousand of them."""
    rows = torch.linspace(0, len(source) - 1, min(len(source), PROBED)).long()
    return content_hash(source.labels.numpy().tobytes(), source.images(rows).numpy().tobytes())


@torch.no_grad()
def _pictures(
    subject: Subject, unmixed: Unmixed | None, painted: dict[str, Tensor], guidance: Mapping[str, nn.Module]
) -> dict[str, np.ndarray]:
    """Lay members beside what each attack made of the same digest."""
    count = min(SHOWN, *(len(images) for images in painted.values()))
    if unmixed is not None:
        count = min(count, len(unmixed.found))
    rows = subject.groups[:count, :SHOWN_MEMBERS]
    images: dict[str, Tensor] = {
        "members": torch.stack([subject.members.images(own) for own in rows]),
    }
    if unmixed is not None:
        found = _beside_truth(unmixed.found[:count], unmixed.pool.members[:count])
        images["found by unmixing"] = images_of(unmixed.pool, found[:, :SHOWN_MEMBERS], subject)
    for name, recovered in painted.items():
        images[name] = recovered[:count, None]
    for name, producer in guidance.items():
        images[name] = producer(_as_moderated(subject, count))[:, None]
    return {name: each.clamp(0, 1).numpy() for name, each in images.items()}


def _as_moderated(subject: Subject, count: int) -> Tensor:
    """Give the first attacked digests as a moderator sees them, who takes noise off where its level is public."""
    whole = subject.whole
    # no record is in two digests, so the first one names its digest
    rows = [int((whole.groups[:, 0] == first).nonzero()) for first in subject.groups[:count, 0]]
    return denoise([whole.digest], whole.digest.features)[rows]


def _beside_truth(found: Tensor, truth: Tensor) -> Tensor:
    """Put each member that was found into its own place, and what is wrong into the places that are left."""
    rows = []
    for own, true in zip(found.tolist(), truth.tolist(), strict=True):
        wrong = iter([each for each in own if each not in true])
        rows.append([each if each in own else next(wrong) for each in true])
    return torch.tensor(rows)
