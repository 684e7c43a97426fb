"""The privacy box of the page: what digests promise and do not, and what an audit found."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from feddig.privacy.guessing import guess_digest
from feddig.report.figures import show_light
from feddig.report.read_run import Run

UPDATES = "Updates are sent in every round besides the digest; nothing on this page bounds what they reveal."


def privacy_box(run: Run) -> str:
    """Tell what a run's digests promise; a run without digests promises nothing."""
    facts = _facts(run)
    if not facts:
        why = "No digests were sent" if run.finished else "There are no facts about digests yet"
        return f"<p>{why}. {escape(UPDATES)}</p>{_audits(run)}"
    samples = facts.get("samples_per_digest")
    elements = _elements(run.path / "digests")
    rows = [
        ("paper’s ε", _paper_epsilon(facts), "the noise’s own setting; it bounds nothing by itself"),
        ("real ε of a record", _record_epsilon(facts), str(run.summary.get("privacy") or "")),
        (
            "δ of a record",
            f"{_float(facts.get('delta')):g}" if "delta" in facts else "",
            "as the digests say",
        ),
        *_guesses(samples, elements),
    ]
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd><b>{value}</b><span>{escape(says)}</span></dd></div>"
        for name, value, says in rows
        if value
    )
    made = (
        f"Noise is {facts.get('mechanism', 'unknown')}, from {_source(facts)}; {samples} samples are mixed "
        f"{'within their class' if facts.get('mixing') == 'within-class' else 'at random'} into each digest"
    )
    return f"<p>{escape(made)}. {escape(UPDATES)}</p><dl class=facts>{shown}</dl>{_audits(run)}"


def _facts(run: Run) -> Mapping[str, Any]:
    digests = run.summary.get("digests")
    if not isinstance(digests, Mapping) or not digests:
        return {}
    first = next(iter(digests.values()))
    return first if isinstance(first, Mapping) else {}


def _source(facts: Mapping[str, Any]) -> str:
    if facts.get("random") == "system":
        return "the system’s entropy"
    return "a seed (a simulation: whoever knows it takes the noise off)"


def _paper_epsilon(facts: Mapping[str, Any]) -> str:
    return f"{_float(facts.get('epsilon')):g}" if facts.get("mechanism") == "paper-laplace" else ""


def _record_epsilon(facts: Mapping[str, Any]) -> str:
    if str(facts.get("mechanism")).startswith("discrete-"):
        return f"{_float(facts.get('epsilon')) + _float(facts.get('label_epsilon')):g}"
    return "infinite"


def _guesses(samples: Any, elements: int | None) -> list[tuple[str, str, str]]:
    """Give P_crt, the chance of a blind guess, by its three counts."""
    if not isinstance(samples, int) or samples < 1 or elements is None:
        return [("P_crt", "not known", "the folder holds no digest to take the number of elements from")]
    guess = guess_digest(samples, elements)
    kinds = (
        ("paper’s bound", guess.paper),
        ("ordered count", guess.ordered),
        ("uniform count", guess.uniform),
    )
    powers = "; ".join(
        f"{name} {'none' if power is None else f'10<sup>{power:,.0f}</sup>'.replace('-', '−')}"
        for name, power in kinds
    )
    says = f"chance that a blind guess unmixes a digest of {elements:,} numbers. {guess.assumptions[0]}"
    return [("P_crt", powers, f"{guess.without_bound}. {says}" if guess.without_bound else says)]


def _elements(folder: Path) -> int | None:
    """Read how many numbers a digest has, from the head of the first file."""
    for file in sorted(folder.glob("silo-*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                shape: list[int] = opened.get_slice("features").get_shape()
                return math.prod(shape[1:])
        except (SafetensorError, OSError):
            continue
    return None


def _audits(run: Run) -> str:
    if not run.audits:
        return '<p class="faint">The folder holds no audit of these digests: <code>feddig audit</code> makes one.</p>'
    return "".join(_audit(audit, run) for audit in run.audits)


def _audit(audit: Mapping[str, Any], run: Run) -> str:
    bound = audit.get("bound_to")
    bound = bound if isinstance(bound, Mapping) else {}
    sent = run.summary.get("digests")
    hashes = [each.get("hash") for each in sent.values()] if isinstance(sent, Mapping) else []
    other = "" if bound.get("digest_hash") in hashes else " It is of other digests than this run sent."
    checks: Sequence[Any] = audit["checks"]
    items = "".join(
        f"<li>{show_light(check.get('light'))} <b>{escape(str(check.get('title', '')))}</b> "
        f"{escape(str(check.get('sentence', '')))}</li>"
        for check in checks
        if isinstance(check, Mapping)
    )
    return (
        f"<h4>Audit of silo {escape(str(bound.get('silo', '?')))} {show_light(audit.get('light'))}</h4>"
        f"<p>{escape(str(audit.get('meaning', '')))}{other}</p><ul class=plain>{items}</ul>"
    )


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
