"""Checks of what digests promise: 1 the accountant, 2 canaries, 6 label leakage, 7 the lattice and the noise."""

import math
from typing import Any

import torch
from torch import Tensor

from feddig.attacks.canaries import draw_pairs, evaluate_guesses, guess_coins
from feddig.attacks.labels import evaluate_labels, read_labels
from feddig.attacks.lattice import check_lattice, evaluate_noise
from feddig.attacks.statistics import Estimate, mean_estimate, p_value_of_mean
from feddig.audit.audited import AuditedDigests, features_of
from feddig.audit.findings import (
    AMBER,
    GREEN,
    NOT_RUN,
    RED,
    Figure,
    Finding,
    Limits,
    figure_of_rate,
    worst_verdict,
)
from feddig.audit.trial_digests import groups_from_seed, make_trial_digests, mix_without_noise, trial_seed
from feddig.digest.digest import Digest
from feddig.privacy.mechanisms import weights_of
from feddig.seeds import derive

LABELS_TITLE = "What labels reveal"
LABELS_LIMITS = ("label_records_red",)


def claimed_epsilon(digest: Digest) -> float:
    """Return the claimed epsilon: the paper's own, the record's, or infinity if nothing is claimed."""
    if digest.mechanism.epsilon_is == "paper":
        return float(str(digest.facts["epsilon"]))
    return digest.promise.epsilon


def check_accountant(digest: Digest, limits: Limits) -> Finding:
    """Compare the proved epsilon with the limits; this looks at no data."""
    promise, claim = digest.promise, claimed_epsilon(digest)
    seeded = digest.facts["random"] == "seeded"
    verdict = GREEN
    if promise.epsilon > limits.record_epsilon_amber:
        verdict = AMBER
    if promise.epsilon > limits.record_epsilon_red or (seeded and limits.seeded_is_red):
        verdict = RED
    elif seeded:
        verdict = worst_verdict([verdict, AMBER])
    claimed = "no epsilon" if math.isinf(claim) else f"epsilon {claim:g}"
    proved = "no epsilon (it is infinite)" if math.isinf(promise.epsilon) else f"epsilon {promise.epsilon:g}"
    sentence = f"Mechanism {promise.mechanism} claims {claimed}; for a single record, {proved} is proved."
    if promise.delta:
        sentence += f" This may fail with probability {promise.delta:g} (delta)."
    sentence += (
        " Mixing and noise come from a seed: anyone who knows it can remove the noise. Do not send these digests."
        if seeded
        else " Mixing and noise come from the system's entropy, which nobody can draw again."
    )
    return Finding(
        "accountant",
        "What the noise promises",
        sentence,
        [Figure("record epsilon", promise.epsilon)],
        minimum=verdict,
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
            "randomness": "a seed, for simulation only" if seeded else "the system's entropy",
            "assumptions": [each for each in promise.assumptions if "seed" not in each],
        },
        limits=("record_epsilon_amber", "record_epsilon_red", "seeded_is_red"),
    )


def check_canaries(audited: AuditedDigests, limits: Limits) -> Finding:
    """Plant canaries in trial digests, guess them, and compare the proved epsilon with the claimed one."""
    claim = claimed_epsilon(audited.file)
    digest, coins, expected = _plant_canaries(audited)
    # larger exponents would overflow a float, and their probability rounds to 1 anyway
    chance = 1 / (1 + math.exp(-min(claim, 700.0))) if math.isfinite(claim) else 0.5
    guesses = guess_coins(digest, expected, audited.noise)
    found = evaluate_guesses(guesses, coins, chance, limits.interval_level)
    verdict = GREEN
    if found.epsilon > limits.canary_epsilon_amber:
        verdict = AMBER
    exceeded = found.epsilon > claim
    if exceeded or (math.isinf(claim) and found.epsilon > limits.canary_epsilon_red):
        verdict = RED
    if math.isinf(claim):
        compared = "; none is claimed"
    else:
        compared = f", {'more than' if exceeded else 'within'} the claimed {claim:g}"
    return Finding(
        "canaries",
        "Planted records",
        f"{found.right.hits} of {found.right.trials} planted records were identified; this proves an epsilon of at "
        f"least {found.epsilon:.4f}{compared}.",
        [figure_of_rate("canaries identified", found.right, limits)],
        minimum=verdict,
        details={
            "lower_bound_epsilon": found.epsilon,
            "level": limits.interval_level,
            "claimed_epsilon": claim,
            "delta": 0.0,
            "canaries": found.right.trials,
            "right": found.right.hits,
            "attacker": "knows everything about a digest except which of two records was planted",
            "planted": "in trial digests made for this check, which are never released",
        },
        limits=("interval_level", "canary_epsilon_amber", "canary_epsilon_red"),
    )


def _plant_canaries(audited: AuditedDigests) -> tuple[Digest, Tensor, Tensor]:
    """Make digests with one canary each; return them, the coins, and both mixtures [digests, 2, elements]."""
    file, seed = audited.file, derive(audited.seed, "canaries")
    features, labels = features_of(audited.images.members), audited.images.members.labels
    some = torch.randperm(len(labels), generator=audited.stream("canaries' neighbours"))
    some = some[: audited.budget.canaries * len(weights_of(file.facts))].sort().values
    height = _canary_height(file, float(features.abs().max()))
    features, labels = features[some].clone(), labels[some]
    groups = groups_from_seed(file, labels, trial_seed(seed))
    # the record with the largest weight changes a digest most
    places = groups[:, int(torch.tensor(weights_of(file.facts)).argmax())]
    pairs = draw_pairs(len(groups), features[0].numel(), height, audited.stream("canaries"))
    coins = torch.randint(2, (len(groups),), generator=audited.stream("coins"))
    expected = []
    for side in (0, 1):
        features[places] = pairs[:, side].view(-1, *features.shape[1:])
        expected.append(mix_without_noise(file, features, groups))
    features[places] = pairs[torch.arange(len(groups)), coins].view(-1, *features.shape[1:])
    planted = make_trial_digests(file, features, labels, seed)
    assert torch.equal(planted.groups, groups)
    return planted.digest, coins, torch.stack(expected, dim=1)


def _canary_height(digest: Digest, largest: float) -> float:
    """Return the value of a canary's raised half: as large as the public clip allows, or as the members' largest."""
    clip = digest.mechanism.clip(digest.facts)
    if clip is None:
        return largest
    bound, raised = float(clip.bound * clip.step), -(-math.prod(digest.features.shape[1:]) // 2)
    return {"l1": bound / raised, "l2": bound / math.sqrt(raised), "box": bound}[clip.norm]


def check_labels(audited: AuditedDigests, limits: Limits) -> Finding:
    """Read classes from the labels, and count what is true."""
    if not audited.has_equal_weights:
        said = "Not run: this attack needs equal mixing weights; unequal ones reveal more."
        return Finding("labels", LABELS_TITLE, said, minimum=NOT_RUN, limits=LABELS_LIMITS)
    adjacency = audited.file.promise.adjacency
    truth = audited.images.members.labels[audited.groups]
    leak = evaluate_labels(read_labels(audited.digest), truth, adjacency)
    sentence = (
        f"The labels revealed all classes of {leak.digests.share:.0%} of digests, and the class of "
        f"{leak.records.share:.0%} of records (chance: {leak.records.chance:.0%}); {leak.meaning}."
    )
    return Finding(
        "labels",
        LABELS_TITLE,
        sentence,
        [
            figure_of_rate("records whose class was found", leak.records, limits, limits.label_records_red),
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


def check_numbers(audited: AuditedDigests, limits: Limits) -> Finding:
    """Compare the file's numbers with the lattice, and its noise with the contract's."""
    verdict, sentence, details = _check_lattice(audited.file)
    figures = []
    deviation = _contract_deviation(audited)
    if deviation:
        mixed = mix_without_noise(audited.file, features_of(audited.images.members), audited.groups)
        found = evaluate_noise(audited.digest.features.flatten(1), mixed, deviation)
        whose = "file" if audited.from_file else "trial digests"
        figures.append(_figure_of_ratio(f"noise variance over the contract's ({whose})", found, limits))
    if not audited.from_file:
        spread = _spread_ratio(audited.file, audited.known.digest)
        figures.append(_figure_of_ratio("the file's spread over that of the trial digests", spread, limits))
    if figures:
        measured = "; ".join(f"{each.name} is {each.value:.3f}" for each in figures)
        sentence += f" {measured[0].upper()}{measured[1:]} (1 is as agreed)."
    return Finding(
        "lattice",
        "Whole numbers, and the contract's noise",
        sentence,
        figures,
        minimum=verdict,
        details=details | {"contract_deviation": deviation},
    )


def _check_lattice(digest: Digest) -> tuple[str, str, dict[str, Any]]:
    """Check the multiples, as everyone who has the file can; return verdict, sentence and details."""
    clip = digest.mechanism.clip(digest.facts)
    if clip is None:
        said = (
            "These are floating-point numbers without an agreed step: their last digits may reveal the noise."
        )
        return RED, said, {"step": None}
    step = float(clip.step) / len(weights_of(digest.facts))
    lattice = check_lattice(digest.features, step)
    details = {"step": step, **vars(lattice)}
    if lattice.off:
        said = f"{lattice.off:,} of {lattice.numbers:,} numbers are no whole multiples of the public step."
        return RED, said, details
    if lattice.undecided:
        # sums beyond the type's whole numbers are rounded after the noise, which reveals nothing
        said = (
            f"All numbers that can be checked are whole multiples of the public step; {lattice.undecided:,} are too "
            "large to check."
        )
        return GREEN, said, details
    return GREEN, f"All {lattice.numbers:,} numbers are whole multiples of the public step.", details


def _contract_deviation(audited: AuditedDigests) -> float:
    """Return the agreed standard deviation of the noise; tau is the members' own, which the evaluator knows."""
    tau = float(features_of(audited.images.members).abs().max())
    return audited.file.mechanism.noise_deviation(audited.file.facts, tau) or 0.0


def _spread_ratio(file: Digest, trial: Digest) -> Estimate:
    """Compare the variance of the file's digests with that of the trial digests: less means less noise."""
    spreads = []
    for digest in (file, trial):
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


def _figure_of_ratio(name: str, ratio: Estimate, limits: Limits) -> Figure:
    """Test whether a ratio is below 1: noise weaker than agreed is always red."""
    low = Estimate(-ratio.value, ratio.error, -1.0)
    return Figure(
        name, ratio.value, ratio.interval(limits.interval_level), 1.0, p_value_of_mean(low), -math.inf
    )
