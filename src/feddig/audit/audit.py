"""Run the seven checks of an audit, build its report and pictures, and say what to do next.

The next steps are settings to paste, the command that searches for settings, and the next command.
"""

import json
import math
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddig._version import __version__
from feddig.audit.attack_checks import Unmixed, check_inversion, check_membership, check_unmixing
from feddig.audit.audited import AuditedDigests, count_records
from feddig.audit.findings import (
    GREEN,
    MEANING,
    PUBLIC,
    RED,
    Finding,
    Limits,
    count_tests,
    family_threshold,
    finite,
    judge,
    overall_verdict,
    worst_verdict,
)
from feddig.audit.inputs import place_of
from feddig.audit.promise_checks import check_accountant, check_canaries, check_labels, check_numbers
from feddig.core.samples import ImageSource
from feddig.digest.digest import Digest, denoise
from feddig.experiment.toml import spell_table
from feddig.files import FORMAT_VERSION, content_hash
from feddig.privacy.mechanisms import weights_of

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


EPSILON, DELTA = 8.0, 1e-6
CLIP = 350.0
"""The public bound for the shipped encoders: about the median L2 norm of the default one on generated images."""
LEAKS = ("membership", "unmixing", "inversion")
"""Checks that a stronger setting can help."""
Sections = Mapping[str, Mapping[str, Any]]


def next_steps(
    file: Digest, checks: Sequence[Mapping[str, Any]], limits: Limits, names: Mapping[str, str]
) -> dict[str, str]:
    """Say what to change, as TOML to paste, and which commands come next; `names` are the inputs as given."""
    lights = {check["name"]: check["light"] for check in checks}
    sections = suggest_settings(file, lights, limits, encoder=names.get("encoder", "default"))
    place = place_of(names.get("members", ""))
    experiment = place if place.endswith(".toml") else "experiment.toml"
    digests = Path(names.get("digests", "digest.safetensors"))
    share = ["--silo", str(file.silo)] if place.endswith(".toml") else ["--all-data"]
    again = ["digest", "make", experiment, *share]
    again += ["--out", f"{digests.stem}-2{digests.suffix}"]
    if "silo" in names:
        again = ["digest", "make", names["silo"]]
    if sections and "silo" in names:
        said = (
            "Agree on a contract with these settings, remove this digest, make it again, and audit it again."
        )
    elif sections:
        said = f"Put these settings into {experiment}, make the digests again, and audit them again."
    elif RED in lights.values():
        said = (
            "The noise is weaker than the settings say, so no setting helps. Reinstall FedDig, make the digests "
            "again, and audit them again."
        )
    else:
        said, again = "No setting has to change. Look at what the file contains before you send it.", []
        if "silo" in names:
            said, again = (
                "No setting has to change. The digest leaves when you start.",
                ["federation", "silo", names["silo"]],
            )
    place = names.get("data", place)
    data = [place] if place.endswith(".toml") else ["--data", place] if place else []
    advise = ["advise", *data, "--max-link-rate", f"{_linked_limit(checks, limits):.2g}"]
    advise += ["--max-record-epsilon", f"{limits.record_epsilon_red:g}"]
    return {
        "said": said,
        "settings": settings_block(sections, file.facts),
        "next": shlex.join(["feddig", *(again or ["digest", "show", str(digests)])]),
        "advise": shlex.join(["feddig", *advise]),
    }


def suggest_settings(file: Digest, lights: Mapping[str, str], limits: Limits, *, encoder: str) -> Sections:
    """Return settings by section that change what the red checks are about, and nothing else; none if none helps."""
    facts, promise = file.facts, file.promise
    is_leaking = any(lights.get(name) == RED for name in LEAKS)
    labels_leak = lights.get("labels") == RED and promise.label_epsilon > 0
    if not is_leaking and not labels_leak and lights.get("accountant") != RED:
        return {}
    digest: dict[str, Any] = {key: facts[key] for key in ("samples_per_digest", "mixing")}
    privacy: dict[str, Any]
    delta, target = min(DELTA, 0.1 / count_records(file)), min(EPSILON, limits.record_epsilon_red)
    if math.isinf(promise.epsilon):
        privacy = {"mechanism": "discrete-gaussian", "epsilon": target, "delta": delta, "clip_norm": "l2"}
        if encoder in ("default", "even"):
            privacy["clip_bound"] = CLIP
        if len(set(weights_of(facts))) > 1:
            digest["weights"] = []
    else:
        keys = ("mechanism", *sorted(file.mechanism.uses))
        privacy = {key: facts[key] for key in keys if facts.get(key)}
        if "group_limit" in facts:
            privacy["unit"] = "group"
        if is_leaking or promise.epsilon > limits.record_epsilon_red:
            # the parts of features and labels keep their proportion
            share = min(target, promise.epsilon / 2 if is_leaking else target) / promise.epsilon
            privacy |= {
                key: _rounded(privacy[key] * share) for key in ("epsilon", "label_epsilon") if key in privacy
            }
        if labels_leak and not is_leaking:
            privacy["label_epsilon"] = _rounded(promise.label_epsilon / 2)
        if promise.delta > min(limits.record_delta_red, 1 / count_records(file)):
            privacy["delta"] = delta
    if is_leaking:
        digest["samples_per_digest"] *= 4
    return {"digest": digest, "privacy": {**privacy, "random": "system"}}


def settings_block(sections: Sections, before: Mapping[str, Any] | None = None) -> str:
    """Return settings as TOML to paste into an experiment's file, with the values that they had before."""
    lines = []
    for name, table in sections.items():
        lines += ["", f"[{name}]"]
        for key, line in zip(table, spell_table(table), strict=True):
            was = (before or {}).get(key, table[key])
            lines.append(line if was == table[key] or key == "weights" else f"{line}  # was {was}")
        if str(table.get("mechanism")).startswith("discrete") and "clip_bound" not in table:
            lines.append("# clip_bound: choose a public bound on the length of your encoder's features")
    return "\n".join(lines[1:])


def _linked_limit(checks: Sequence[Mapping[str, Any]], limits: Limits) -> float:
    """Return the share of linked records from which on a check is red: above what chance links."""
    figures = [figure for check in checks if check["name"] == "membership" for figure in check["figures"]]
    chances = [figure["chance"] for figure in figures if figure["name"].startswith("linked")]
    return float(min(1.0, max(chances, default=0.0) + limits.linked_red))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
