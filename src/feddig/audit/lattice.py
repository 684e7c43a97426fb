"""Check 7, the lattice: are the released numbers whole multiples of a public step, and is the noise the contract's?"""

import math
from typing import Any

from feddig.attacks.intervals import Estimate, mean_estimate
from feddig.attacks.lattice import check_lattice, evaluate_noise
from feddig.attacks.significance import chance_of_mean
from feddig.audit.findings import GREEN, RED, Figure, Finding
from feddig.audit.limits import Limits
from feddig.audit.rehearsal import clip_of, mix_without_noise, weights_of
from feddig.audit.subject import Subject, features_of
from feddig.digest.digest import Digest
from feddig.privacy.mechanism import DISCRETE, laplace_scale

TITLE = "Whole numbers, and the contract's noise"


def check_numbers(subject: Subject, limits: Limits) -> Finding:
    """Hold the file's numbers against the lattice, and noise against what was agreed on."""
    light, said, details = _lattice(subject.file)
    figures = []
    deviation = _contract_deviation(subject)
    if deviation:
        mixed = mix_without_noise(subject.file, features_of(subject.members), subject.groups)
        found = evaluate_noise(subject.digest.features.flatten(1), mixed, deviation).variance_ratio
        whose = "file" if subject.of_file else "rehearsal"
        figures.append(_weaker(f"noise variance over the contract's ({whose})", found, limits))
    if not subject.of_file:
        figures.append(_weaker("the file's spread over the rehearsal's", _spread_ratio(subject), limits))
    details["contract_deviation"] = deviation
    spelled = "; ".join(f"{each.name} is {each.value:.3f}" for each in figures)
    sentence = f"{said} {spelled[:1].upper()}{spelled[1:]} (1 is as agreed)." if spelled else said
    return Finding("lattice", TITLE, sentence, figures, least=light, details=details)


def _lattice(digest: Digest) -> tuple[str, str, dict[str, Any]]:
    """Ask what anybody can ask who holds the file."""
    if digest.facts["mechanism"] not in DISCRETE:
        said = "No lattice is agreed on: these are floating-point numbers, whose last digits may give the noise away."
        return RED, said, {"step": None}
    clip = clip_of(digest)
    step = float(clip.step) / len(weights_of(digest))
    lattice = check_lattice(digest.features, step)
    details = {
        "step": step,
        "numbers": lattice.numbers,
        "off": lattice.off,
        "undecided": lattice.undecided,
        "worst": lattice.worst,
    }
    if lattice.off:
        return (
            RED,
            f"{lattice.off:,} of {lattice.numbers:,} numbers are no whole multiples of the step.",
            details,
        )
    if lattice.undecided:
        # sums beyond the type's whole numbers are rounded after the noise, which gives nothing away
        said = f"All numbers that can be told apart are whole multiples; {lattice.undecided:,} are too large to tell."
        return GREEN, said, details
    return GREEN, f"All {lattice.numbers:,} numbers are whole multiples of the public step.", details


def _contract_deviation(subject: Subject) -> float:
    """Give the noise's standard deviation that was agreed on; tau is the members' own, which the evaluator knows."""
    facts = subject.file.facts
    if facts["mechanism"] == "none":
        return 0.0
    if facts["mechanism"] in DISCRETE:
        return float(str(facts["noise_deviation"]))
    tau = float(features_of(subject.members).abs().max())
    return math.sqrt(2) * laplace_scale(
        tau, float(str(facts["epsilon"])), int(float(str(facts["scale_size"])))
    )


def _spread_ratio(subject: Subject) -> Estimate:
    """Compare how far digests of the file lie from their mean with those of the rehearsal: less is less noise."""
    spreads = []
    for digest in (subject.file, subject.whole.digest):
        flat = digest.features.flatten(1).double()
        spreads.append(
            mean_estimate((flat - flat.mean(0)).square().mean(1) * len(flat) / max(1, len(flat) - 1), 0.0)
        )
    ours, theirs = spreads
    if theirs.value == 0:
        return Estimate(1.0, math.inf, 1.0)
    ratio = ours.value / theirs.value
    error = ratio * math.hypot(ours.error / ours.value, theirs.error / theirs.value) if ours.value else 0.0
    return Estimate(ratio, error, 1.0)


def _weaker(name: str, ratio: Estimate, limits: Limits) -> Figure:
    """Test whether a ratio is below 1: weaker noise than agreed on is red at once."""
    low = Estimate(-ratio.value, ratio.error, -1.0)
    return Figure(
        name, ratio.value, ratio.interval(limits.interval_level), 1.0, chance_of_mean(low), -math.inf
    )
