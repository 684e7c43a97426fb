"""What to do after an audit: settings to paste, the command that searches for settings, and the next command."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddig.audit.audited import count_records
from feddig.audit.findings import RED, Limits
from feddig.audit.inputs import place_of
from feddig.digest.digest import Digest
from feddig.experiment.toml import spell_table
from feddig.privacy.mechanisms import weights_of

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
