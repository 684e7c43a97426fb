"""Build the privacy section of a page: what the digests promise, and what audits found."""

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from feddig.privacy.accounting import guess_digest
from feddig.privacy.mechanisms import mechanism_of
from feddig.report.html_parts import rating_mark
from feddig.report.read_run import Run

UPDATES = "Silos send an update in every round; nothing on this page bounds what updates reveal."


def privacy_section(run: Run) -> str:
    """Return what a run's digests promise, and the audits in its folder."""
    facts = _digest_facts(run)
    if not facts:
        why = "No digests were sent" if run.finished else "There are no facts about digests yet"
        return f"<p>{why}. {escape(_promise(run))}</p>{_audits(run)}"
    samples = facts.get("samples_per_digest")
    delta = f"{_number(facts.get('delta')):g}" if "delta" in facts else ""
    rows = [
        ("paper’s ε", _paper_epsilon(facts), "the setting of the noise; by itself it bounds nothing"),
        ("real ε of a record", _record_epsilon(facts), str(run.summary.get("privacy") or "")),
        ("δ of a record", delta, "from the digests’ own facts"),
        ("P_crt", *_guess(samples, _elements_per_digest(run.path / "digests"))),
    ]
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd><b>{value}</b><span>{escape(meaning)}</span></dd></div>"
        for name, value, meaning in rows
        if value
    )
    source = (
        "the system’s entropy"
        if facts.get("random") == "system"
        else "a seed (simulation only: anyone who knows the seed can remove the noise)"
    )
    mixing = "within their class" if facts.get("mixing") == "within-class" else "at random"
    noise = f"Noise is {facts.get('mechanism', 'unknown')}, from {source}"
    if facts.get("mechanism") == "none":
        noise = "Digests have no noise"
    made = f"{noise}; {samples} samples are mixed {mixing} into each digest"
    return f"<p>{escape(_promise(run))} {escape(made)}.</p><dl class=facts>{shown}</dl>{_audits(run)}"


def _promise(run: Run) -> str:
    return str(run.summary.get("promise") or UPDATES)


def _digest_facts(run: Run) -> Mapping[str, Any]:
    digests = run.summary.get("digests")
    if not isinstance(digests, Mapping) or not digests:
        return {}
    first = next(iter(digests.values()))
    return first if isinstance(first, Mapping) else {}


def _paper_epsilon(facts: Mapping[str, Any]) -> str:
    return f"{_number(facts.get('epsilon')):g}" if mechanism_of(facts).epsilon_is == "paper" else ""


def _record_epsilon(facts: Mapping[str, Any]) -> str:
    if mechanism_of(facts).epsilon_is == "record":
        return f"{_number(facts.get('epsilon')) + _number(facts.get('label_epsilon')):g}"
    return "infinite"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _guess(samples: Any, elements: int | None) -> tuple[str, str]:
    """Return P_crt, the chance of a blind guess, counted in three ways, and its meaning."""
    if not isinstance(samples, int) or samples < 1 or elements is None:
        return "not known", "the folder has no digest to take the number of elements from"
    guess = guess_digest(samples, elements)
    counts = {"paper’s bound": guess.paper, "ordered count": guess.ordered, "uniform count": guess.uniform}
    powers = "; ".join(
        f"{name} {'none' if power is None else f'10<sup>{power:,.0f}</sup>'.replace('-', '−')}"
        for name, power in counts.items()
    )
    meaning = f"chance that a blind guess unmixes a digest of {elements:,} numbers. {guess.assumptions[0]}"
    return powers, f"{guess.without_bound}. {meaning}" if guess.without_bound else meaning


def _elements_per_digest(folder: Path) -> int | None:
    """Return how many numbers a digest has, from the header of the first readable file."""
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
        return '<p class="faint">The folder has no audit of these digests; <code>feddig audit</code> makes one.</p>'
    return "".join(_audit(audit, run) for audit in run.audits)


def _audit(audit: Mapping[str, Any], run: Run) -> str:
    about = audit.get("bound_to")
    about = about if isinstance(about, Mapping) else {}
    digests = run.summary.get("digests")
    hashes = [each.get("hash") for each in digests.values()] if isinstance(digests, Mapping) else []
    other = "" if about.get("digest_hash") in hashes else " It is about other digests than those of this run."
    items = "".join(
        f"<li>{rating_mark(check.get('light'))} <b>{escape(str(check.get('title', '')))}</b> "
        f"{escape(str(check.get('sentence', '')))}</li>"
        for check in audit["checks"]
        if isinstance(check, Mapping)
    )
    return (
        f"<h4>Audit of silo {escape(str(about.get('silo', '?')))} {rating_mark(audit.get('light'))}</h4>"
        f"<p>{escape(str(audit.get('meaning', '')))}{other}</p><ul class=plain>{items}</ul>"
    )
