"""Check 1, the accountant: what is claimed, what is true, and on which assumptions. It looks at no data.

Check 2, canaries: does a planted record show more than the claimed epsilon allows?

Digests are made anew from members and one canary each: this tests the mechanism as it is built, without a release.

Check 7, the lattice: are the released numbers whole multiples of a public step, and is the noise the contract's?

Check 6, label leakage: what do the soft labels tell about classes?
"""

import math
from typing import Any

import torch
from torch import Tensor

from feddig.attacks.canaries import draw_pairs, evaluate_coins, guess_coins
from feddig.attacks.labels import evaluate_labels, read_labels
from feddig.attacks.lattice import check_lattice, evaluate_noise
from feddig.attacks.statistics import Estimate, chance_of_mean, mean_estimate
from feddig.audit.findings import AMBER, GREEN, NOT_RUN, RED, Figure, Finding, Limits, figure_of_rate, worst
from feddig.audit.rehearsal import (
    groups_from_seed,
    mix_without_noise,
    rehearsal_seed,
    rehearse,
    weights_of,
)
from feddig.audit.subject import Subject, features_of
from feddig.digest.digest import Digest
from feddig.seeds import derive


def claimed_epsilon(digest: Digest) -> float:
    """Give the epsilon that is claimed: the paper's own, the record's, or infinity where nothing is."""
    if digest.mechanism.epsilon_is == "paper":
        return float(str(digest.facts["epsilon"]))
    return digest.promise.epsilon


def check_accountant(digest: Digest, limits: Limits) -> Finding:
    """Hold the real epsilon against the limits."""
    promise, claim = digest.promise, claimed_epsilon(digest)
    seeded = digest.facts["random"] == "seeded"
    light = GREEN
    if promise.epsilon > limits.record_epsilon_amber:
        light = AMBER
    if promise.epsilon > limits.record_epsilon_red or (seeded and limits.seeded_is_red):
        light = RED
    elif seeded:
        light = worst([light, AMBER])
    real = (
        "nothing at all (infinite epsilon)" if math.isinf(promise.epsilon) else f"epsilon {promise.epsilon:g}"
    )
    claimed = "nothing is claimed" if math.isinf(claim) else f"epsilon {claim:g} is claimed"
    sentence = f"With {promise.mechanism} {claimed}; what a single record is really promised is {real}."
    if promise.delta:
        sentence += f" This may fail with probability {promise.delta:g} (delta)."
    sentence += (
        " Mixing and noise come from a seed: whoever knows it takes the noise off. Do not send this."
        if seeded
        else " Mixing and noise come from the system's entropy, which nobody can draw again."
    )
    assumptions = [each for each in promise.assumptions if "seed" not in each]
    drawn = "a seed, for simulation only" if seeded else "the system's entropy"
    return Finding(
        "accountant",
        "What the noise promises",
        sentence,
        [Figure("record epsilon", promise.epsilon)],
        least=light,
        details={
            "claimed_epsilon": claim,
            "record_epsilon": promise.epsilon,
            "record_epsilon_if_bound_public": promise.epsilon_if_bound_public,
            "record_delta": promise.delta,
            "label_epsilon": promise.label_epsilon,
            "adjacency": promise.adjacency,
            "sensitivity": promise.sensitivity,
            "sensitivity_norm": promise.norm,
            "noise_scale": promise.noise_scale,
            "unit": promise.unit,
            "randomness": drawn,
            "assumptions": assumptions,
        },
        limits=("record_epsilon_amber", "record_epsilon_red", "seeded_is_red"),
    )


def check_canaries(subject: Subject, limits: Limits) -> Finding:
    """Plant, release to ourselves, guess, and compare the proved epsilon with the claimed one."""
    claim = claimed_epsilon(subject.file)
    digest, coins, expected = plant_canaries(subject)
    # a longer number than a float's exponent holds is as good as certain
    chance = 1 / (1 + math.exp(-min(claim, 700.0))) if math.isfinite(claim) else 0.5
    found = evaluate_coins(guess_coins(digest, expected, subject.noise), coins, chance, limits.interval_level)
    light = GREEN
    if found.epsilon > limits.canary_epsilon_amber:
        light = AMBER
    exceeded = found.epsilon > claim
    if exceeded or (math.isinf(claim) and found.epsilon > limits.canary_epsilon_red):
        light = RED
    share = f"{found.right.hits} of {found.right.trials} planted records were told from their doubles"
    if exceeded:
        verdict = f"that proves an epsilon of {found.epsilon:.4f} at least, more than the {claim:g} claimed"
    elif math.isinf(claim):
        verdict = f"that proves an epsilon of {found.epsilon:.4f} at least; none is claimed"
    else:
        verdict = f"that proves an epsilon of {found.epsilon:.4f} at least, within the {claim:g} claimed"
    return Finding(
        "canaries",
        "Planted records",
        f"{share}; {verdict}.",
        [figure_of_rate("canaries told right", found.right, limits)],
        least=light,
        details={
            "lower_bound_epsilon": found.epsilon,
            "level": limits.interval_level,
            "claimed_epsilon": claim,
            "delta": 0.0,
            "canaries": found.right.trials,
            "right": found.right.hits,
            "attacker": "knows all of a digest but which of two records was planted",
            "planted": "in digests made anew for this check; nothing of them is released",
        },
        limits=("interval_level", "canary_epsilon_amber", "canary_epsilon_red"),
    )


def plant_canaries(subject: Subject) -> tuple[Digest, Tensor, Tensor]:
    """Make digests with a canary each; give them, the coins, and both mixtures [digests, 2, elements] without noise."""
    file, seed = subject.file, derive(subject.seed, "canaries")
    features, labels = features_of(subject.members), subject.members.labels
    some = torch.randperm(len(labels), generator=subject.stream("canaries' neighbours"))
    some = some[: subject.effort.canaries * len(weights_of(file))].sort().values
    height = canary_height(file, float(features.abs().max()))
    features, labels = features[some].clone(), labels[some]
    groups = groups_from_seed(file, labels, rehearsal_seed(seed))
    # the heaviest place moves a digest most
    weights = torch.tensor(weights_of(file))
    places = groups[:, int(weights.argmax())]
    pairs = draw_pairs(len(groups), features[0].numel(), height, subject.stream("canaries"))
    coins = torch.randint(2, (len(groups),), generator=subject.stream("coins"))
    expected = []
    for side in (0, 1):
        features[places] = pairs[:, side].view(-1, *features.shape[1:])
        expected.append(mix_without_noise(file, features, groups))
    features[places] = pairs[torch.arange(len(groups)), coins].view(-1, *features.shape[1:])
    planted = rehearse(file, features, labels, seed)
    assert torch.equal(planted.groups, groups)
    return planted.digest, coins, torch.stack(expected, dim=1)


def canary_height(digest: Digest, largest: float) -> float:
    """Give the value of a canary's raised half: as large as the public clip allows, or as the members' own largest."""
    clip = digest.mechanism.clip(digest.facts)
    if clip is None:
        return largest
    bound, raised = float(clip.bound * clip.step), -(-math.prod(digest.features.shape[1:]) // 2)
    return {"l1": bound / raised, "l2": bound / math.sqrt(raised), "box": bound}[clip.norm]


LATTICE_TITLE = "Whole numbers, and the contract's noise"


def check_numbers(subject: Subject, limits: Limits) -> Finding:
    """Hold the file's numbers against the lattice, and noise against what was agreed on."""
    light, said, details = _lattice(subject.file)
    figures = []
    deviation = _contract_deviation(subject)
    if deviation:
        mixed = mix_without_noise(subject.file, features_of(subject.members), subject.groups)
        found = evaluate_noise(subject.digest.features.flatten(1), mixed, deviation)
        whose = "file" if subject.of_file else "rehearsal"
        figures.append(_weaker(f"noise variance over the contract's ({whose})", found, limits))
    if not subject.of_file:
        figures.append(_weaker("the file's spread over the rehearsal's", _spread_ratio(subject), limits))
    details["contract_deviation"] = deviation
    spelled = "; ".join(f"{each.name} is {each.value:.3f}" for each in figures)
    sentence = f"{said} {spelled[:1].upper()}{spelled[1:]} (1 is as agreed)." if spelled else said
    return Finding("lattice", LATTICE_TITLE, sentence, figures, least=light, details=details)


def _lattice(digest: Digest) -> tuple[str, str, dict[str, Any]]:
    """Ask what anybody can ask who holds the file."""
    clip = digest.mechanism.clip(digest.facts)
    if clip is None:
        said = "No lattice is agreed on: these are floating-point numbers, whose last digits may give the noise away."
        return RED, said, {"step": None}
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
    tau = float(features_of(subject.members).abs().max())
    return subject.file.mechanism.noise_deviation(subject.file.facts, tau) or 0.0


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


LABELS_TITLE = "What labels give away"
LABELS_LIMITS = ("label_records_red",)


def check_labels(subject: Subject, limits: Limits) -> Finding:
    """Read classes off the labels, and count what is true."""
    if not subject.has_equal_weights:
        said = "Not run: the reading is for equal mixing weights; unequal ones give away more."
        return Finding("labels", LABELS_TITLE, said, least=NOT_RUN, limits=LABELS_LIMITS)
    adjacency = subject.file.promise.adjacency
    truth = subject.members.labels[subject.groups]
    leak = evaluate_labels(read_labels(subject.digest), truth, adjacency)
    sentence = (
        f"From the labels {leak.digests.share:.0%} of digests gave away all their classes, and "
        f"{leak.records.share:.0%} of records their own (chance: {leak.records.chance:.0%}); {leak.meaning}."
    )
    return Finding(
        "labels",
        LABELS_TITLE,
        sentence,
        [
            figure_of_rate("records whose class was told", leak.records, limits, limits.label_records_red),
            figure_of_rate("digests whose classes were all read", leak.digests, limits),
        ],
        details={
            "adjacency": adjacency,
            "histogram_distance": leak.histogram_distance,
            "histogram_chance": leak.histogram_chance,
            "meaning": leak.meaning,
        },
        limits=LABELS_LIMITS,
    )
