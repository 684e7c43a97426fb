"""Checks of what digests promise: 1 the accountant, 2 canaries, 6 label leakage, 7 the lattice and the noise."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feddig.attacks.promise import (
    check_lattice,
    draw_pairs,
    evaluate_guesses,
    evaluate_labels,
    evaluate_noise,
    prove_epsilon,
    read_labels,
    score_coins,
)
from feddig.attacks.statistics import Estimate, p_value_of_mean
from feddig.audit.audited import (
    AuditedDigests,
    count_records,
    features_of,
    groups_from_seed,
    make_trial_digests,
    mix_without_noise,
    trial_seed,
)
from feddig.audit.findings import (
    AMBER,
    GREEN,
    NOT_RUN,
    RED,
    Figure,
    Finding,
    Limits,
    figure_of_rate,
    percent,
)
from feddig.digest.digest import Digest
from feddig.privacy.mechanisms import weights_of
from feddig.seeds import derive

LABELS_TITLE = "What labels reveal"
LABELS_LIMITS = ("label_records_red",)
FEWEST_CANARIES = 20_000
"""More than a small claim needs: noise that is a little too weak takes many guesses to notice."""
MARGIN = 0.5
"""How much above the claim the canaries can refute, if the budget allows."""
AT_ONCE = 2**14
"""Records of one release of canaries: as many as fit in little memory."""
MOST_RECORDS = 2**20
"""Records of all such releases, where a digest has room for more than one canary."""
LAPLACE_TAILS = 3.0
"""The excess kurtosis of Laplace noise."""


def claimed_epsilon(digest: Digest) -> float:
    """Return the claimed epsilon: the paper's own, the record's or group's, or infinity if nothing is claimed."""
    if digest.mechanism.epsilon_is == "paper":
        return float(str(digest.facts["epsilon"]))
    return digest.promise.epsilon


def check_accountant(digest: Digest, limits: Limits) -> Finding:
    """Compare the proved epsilon with the limits; this looks at no data."""
    promise, claim = digest.promise, claimed_epsilon(digest)
    seeded = digest.facts["random"] == "seeded"
    # with a delta of 1 over the number of records, a mechanism may publish one record and keep its promise
    largest_delta = min(limits.record_delta_red, 1 / count_records(digest))
    verdict = GREEN
    if promise.epsilon > limits.record_epsilon_amber or promise.delta > limits.record_delta_amber or seeded:
        verdict = AMBER
    if (
        promise.epsilon > limits.record_epsilon_red
        or promise.delta > largest_delta
        or (seeded and limits.seeded_is_red)
    ):
        verdict = RED
    claimed = "no epsilon" if math.isinf(claim) else f"epsilon {claim:g}"
    proved = "no epsilon (it is infinite)" if math.isinf(promise.epsilon) else f"epsilon {promise.epsilon:g}"
    sentence = f"Mechanism {promise.mechanism} claims {claimed}; for a single record, {proved} is proved."
    if promise.delta:
        sentence += f" This may fail with probability {promise.delta:g} (delta)"
        sentence += f", more than {largest_delta:g}." if promise.delta > largest_delta else "."
    sentence += (
        " Mixing and noise come from a seed: anyone who knows it can remove the noise. Do not send these digests."
        if seeded
        else " Mixing and noise come from the system's entropy, which nobody can draw again."
    )
    return Finding(
        "accountant",
        "What the noise promises",
        sentence,
        [Figure("record epsilon", promise.epsilon), Figure("record delta", promise.delta)],
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
        limits=(
            "record_epsilon_amber",
            "record_epsilon_red",
            "record_delta_amber",
            "record_delta_red",
            "seeded_is_red",
        ),
    )


def check_canaries(audited: AuditedDigests, limits: Limits) -> Finding:
    """Plant canaries in trial digests, guess them, and compare the proved epsilon with the claimed one.

    The two records of a pair have the same label, so the claim that is tested is that for the features. Where epsilon
    is promised to groups of k records, a canary is one record, and its share of the claim is the k-th part.
    """
    promise, level = audited.file.promise, limits.family_level
    records = int(str(audited.file.facts.get("group_limit", 1)))
    claim = (claimed_epsilon(audited.file) - promise.label_epsilon) / records
    plan = _plan_canaries(audited, claim, limits)
    scores, coins = _plant_canaries(audited, plan)
    found = evaluate_guesses(scores, coins, promise.delta, level)
    verdict = GREEN
    if found.epsilon > limits.canary_epsilon_amber or claim >= found.most:
        verdict = AMBER
    exceeded = found.epsilon > claim
    if exceeded or (math.isinf(claim) and found.epsilon > limits.canary_epsilon_red):
        verdict = RED
    if math.isinf(claim):
        compared = "none is claimed"
    else:
        compared = f"{'more than' if exceeded else 'within'} the claimed {claim:g}"
        if promise.delta:
            compared += f" with delta {promise.delta:g}"
        if records > 1:
            compared += f", a record's share of what is claimed for a group of {records}"
    everyone = found.right["all"]
    said = (
        f"An attacker guessed {percent(everyone.share)} of {everyone.trials:,} planted records right (chance: 50 %). "
        f"The surest guesses prove an epsilon of at least {found.epsilon:.2f} ({compared}). This test could have "
        f"refuted claims up to {found.most:.2f}."
    )
    if claim >= found.most and math.isfinite(claim):
        said += " That is too little for this claim: raise --canaries, or lower the claim."
    return Finding(
        "canaries",
        "Planted records",
        said,
        [
            replace(figure_of_rate(f"planted records guessed right ({name})", rate, limits), p_value=None)
            for name, rate in found.right.items()
        ],
        minimum=verdict,
        details={
            "lower_bound_epsilon": found.epsilon,
            "could_have_refuted": found.most,
            "level": level,
            "claimed_epsilon": claim,
            "delta": promise.delta,
            "canaries": len(coins),
            "canaries_per_digest": plan.per_digest,
            "attacker": "knows everything about a digest except which of two records was planted",
            "planted": "in trial digests, made by the code that makes a release and never released",
        },
        limits=("family_level", "canary_epsilon_amber", "canary_epsilon_red"),
    )


@dataclass(frozen=True)
class _CanaryPlan:
    """How many canaries there are, how many of them share a digest, and what each raises."""

    canaries: int
    per_digest: int
    width: int
    """Elements that a canary raises."""
    height: float


def _plan_canaries(audited: AuditedDigests, claim: float, limits: Limits) -> _CanaryPlan:
    """Choose enough canaries to refute the claim, and pairs that are as far apart as the clip allows.

    A single raised element reaches the clip's L1 and L2 bounds, so as many canaries as there are records, each with
    two elements of its own, share a digest at full sensitivity. Where distance counts in another norm than the clip
    bounds, or each element has a bound of its own, only a canary that raises half of all elements gets there.
    """
    file, elements = audited.file, math.prod(audited.file.features.shape[1:])
    spd, level = len(weights_of(file.facts)), limits.family_level
    target = MARGIN + (
        limits.canary_epsilon_red if math.isinf(claim) else min(claim, limits.record_epsilon_red)
    )
    count, delta = FEWEST_CANARIES, file.promise.delta
    # beyond that delta, no number of canaries refutes the target
    if delta < math.exp(-target):
        while (
            count < audited.budget.canaries and prove_epsilon([(count, count)], count, delta, level) < target
        ):
            count += count // 4
    count = min(count, audited.budget.canaries)
    clip = file.mechanism.clip(file.facts)
    most = max(1, min(spd, elements // 2))
    if clip is not None and (clip.norm == "l1" or (clip.norm == "l2" and file.promise.norm == "L2")):
        return _CanaryPlan(count, most, 1, float(clip.bound * clip.step))
    per_digest = min(most, max(1, count * spd // MOST_RECORDS))
    width = max(1, elements // (2 * per_digest))
    if clip is None:
        return _CanaryPlan(count, per_digest, width, float(features_of(audited.images.members).abs().max()))
    # rounded down, because a record that rounding made longer than the clip would be shortened
    steps = clip.bound if clip.norm == "box" else math.isqrt(clip.bound**2 // width)
    return _CanaryPlan(count, per_digest, width, float(steps * clip.step))


def _plant_canaries(audited: AuditedDigests, plan: _CanaryPlan) -> tuple[Tensor, Tensor]:
    """Release digests with canaries until there are enough; return the attacker's scores, and the coins."""
    file, members, draw = audited.file, features_of(audited.images.members), audited.stream("canaries")
    weights = torch.tensor(weights_of(file.facts))
    # the records with the largest weights change a digest most
    places = weights.argsort(descending=True, stable=True)[: plan.per_digest]
    scores: list[Tensor] = []
    coins: list[Tensor] = []
    left = plan.canaries
    while left > 0:
        seed = derive(audited.seed, "canaries", len(scores))
        # randomised labels spread records over the classes, and within each some fill no group
        fewest = 1 if audited.has_true_labels else 2 * int(file.labels.shape[1])
        digests = max(fewest, min(-(-left // plan.per_digest), AT_ONCE // len(weights)))
        # all of one class, so that every way of mixing makes digests of them
        labels = torch.zeros(digests * len(weights), dtype=torch.long)
        groups = groups_from_seed(file, labels, trial_seed(seed))
        planted = groups[:, places]
        features = members[torch.randint(len(members), labels.shape, generator=draw)]
        pairs = draw_pairs(plan.per_digest, features[0].numel(), plan.width, draw)
        coin = torch.randint(2, planted.shape, generator=draw)
        records = torch.zeros(plan.per_digest, 2, features[0].numel()).scatter_(2, pairs, plan.height)
        features[planted] = 0
        known = mix_without_noise(file, features, groups)
        chosen = records[torch.arange(plan.per_digest), coin]
        features[planted] = chosen.view(*planted.shape, *features.shape[1:])
        released = make_trial_digests(file, features, labels, seed)
        assert torch.equal(released.groups, groups)
        rest = released.digest.features.flatten(1) - known
        scores.append(score_coins(rest, pairs, plan.height * weights[places], audited.noise).flatten())
        coins.append(coin.flatten())
        left -= coin.numel()
    return torch.cat(scores)[: plan.canaries], torch.cat(coins)[: plan.canaries]


def check_labels(audited: AuditedDigests, limits: Limits) -> Finding:
    """Read classes from the labels, and count what is true."""
    if not audited.has_equal_weights:
        said = "Not run: this attack needs equal mixing weights; unequal ones reveal more."
        return Finding("labels", LABELS_TITLE, said, minimum=NOT_RUN, limits=LABELS_LIMITS)
    adjacency = audited.file.promise.adjacency
    truth = audited.images.members.labels[audited.groups]
    leak = evaluate_labels(read_labels(audited.digest), truth, adjacency)
    sentence = (
        f"The labels revealed all classes of {percent(leak.digests.share, 0)} of digests, and the class of "
        f"{percent(leak.records.share, 0)} of records (chance: {percent(leak.records.chance, 0)}); {leak.meaning}."
    )
    return Finding(
        "labels",
        LABELS_TITLE,
        sentence,
        [
            figure_of_rate("records whose class was found", leak.records, limits, limits.label_records_red),
            figure_of_rate("digests whose classes were all read", leak.digests, limits),
        ],
        is_declared=audited.file.facts.get("adjacency") == "same-label",
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
            found = _noise_of_file(audited, deviation)
            figures.append(_figure_of_ratio("noise variance over the contract's (file)", found, limits))
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


def _noise_of_file(audited: AuditedDigests, deviation: float) -> Estimate:
    """Return the variance of the file's noise, divided by the contract's, without knowing which record is where.

    Which records were mixed is not known, but what mixing can do is: the trial digests' mixtures spread as the file's
    do. Mixtures hardly differ in some directions, because members do not; there a digest varies by its noise alone.
    Directions are the principal ones of the members, and each counts by how well it shows the noise.
    """
    file, known = audited.file, audited.known
    members = audited.candidates(audited.images.members)
    mixed = mix_without_noise(file, features_of(audited.images.members), known.groups).double()
    released, features = file.features.flatten(1).double(), members.features.double()
    if audited.has_true_labels:
        # what labels tell about a mixture is no noise
        classes = torch.nn.functional.one_hot(members.labels, file.labels.shape[1]).double()
        means = classes.T @ features / classes.sum(0).clamp(min=1)[:, None]
        features = features - means[members.labels]
        released = released - file.labels.double() @ means
        mixed = mixed - known.digest.labels.double() @ means
    else:
        mean = features.mean(0)
        features, released, mixed = features - mean, released - mean, mixed - mean
    spread, directions = torch.linalg.eigh(features.T @ features / len(features))
    mixing = spread.clamp(min=0) * sum(weight**2 for weight in weights_of(file.facts))
    counts = 1 / (mixing + deviation**2).square()
    shown = (directions * counts) @ directions.T
    tails = LAPLACE_TAILS if audited.noise.heavy_tails else 0.0
    by_noise = deviation**4 * (2 * shown.square().sum() + tails * shown.diagonal().square().sum())
    by_mixing = ((mixed @ shown) * mixed).sum(1)
    both = 4 * deviation**2 * (counts.square() * mixing).sum()
    # of a normal distribution where there are too few mixtures to tell
    of_mixing = max(float(by_mixing.var(correction=0)), 2 * float((counts * mixing).square().sum()))
    variance = (float(by_noise + both) + of_mixing) / len(file) + of_mixing / len(mixed)
    total = float(((released @ shown) * released).sum(1).mean() - by_mixing.mean())
    unit = deviation**2 * float(counts.sum())
    return Estimate(total / unit, math.sqrt(variance) / unit, 1.0)


def _figure_of_ratio(name: str, ratio: Estimate, limits: Limits) -> Figure:
    """Test whether a ratio is below 1: noise weaker than agreed is always red."""
    low = Estimate(-ratio.value, ratio.error, -1.0)
    return Figure(
        name, ratio.value, ratio.interval(limits.interval_level), 1.0, p_value_of_mean(low), -math.inf
    )
