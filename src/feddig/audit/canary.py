"""Check 2, canaries: does a planted record show more than the claimed epsilon allows?

Digests are made anew from members and one canary each: this tests the mechanism as it is built, without a release.
"""

import math

import torch
from torch import Tensor

from feddig.attacks.canaries import draw_pairs, evaluate_coins, guess_coins
from feddig.audit.accountant import claimed_epsilon
from feddig.audit.findings import AMBER, GREEN, RED, Finding, figure_of_rate
from feddig.audit.limits import Limits
from feddig.audit.rehearsal import (
    clip_of,
    groups_from_seed,
    mix_without_noise,
    rehearse,
    settings_of,
    weights_of,
)
from feddig.audit.subject import Subject, features_of
from feddig.digest.digest import Digest
from feddig.privacy.mechanism import DISCRETE
from feddig.seeds import derive


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
    inner_seed = settings_of(file, derive(seed, "rehearsal"))[0].seed
    assert inner_seed is not None
    groups = groups_from_seed(file, labels, inner_seed)
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
    if digest.facts["mechanism"] not in DISCRETE:
        return largest
    clip = clip_of(digest)
    bound, raised = float(clip.bound * clip.step), -(-math.prod(digest.features.shape[1:]) // 2)
    return {"l1": bound / raised, "l2": bound / math.sqrt(raised), "box": bound}[clip.norm]
