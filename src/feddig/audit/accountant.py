"""Check 1, the accountant: what is claimed, what is true, and on which assumptions. It looks at no data."""

import math

from feddig.audit.findings import AMBER, GREEN, RED, Figure, Finding, worst
from feddig.audit.limits import Limits
from feddig.audit.rehearsal import settings_of
from feddig.digest.digest import Digest
from feddig.privacy.accounting import Promise, promise


def promised(digest: Digest) -> Promise:
    """Say what a digest promises a record, by what it says about itself."""
    settings, privacy = settings_of(digest, 0)
    return promise(privacy, settings, math.prod(digest.features.shape[1:]), int(digest.labels.shape[1]))


def claimed_epsilon(digest: Digest) -> float:
    """Give the epsilon that is claimed: the paper's own, the record's, or infinity where nothing is."""
    if digest.facts["mechanism"] == "paper-laplace":
        return float(str(digest.facts["epsilon"]))
    return promised(digest).epsilon


def check_accountant(digest: Digest, limits: Limits) -> Finding:
    """Hold the real epsilon against the limits."""
    promise, claim = promised(digest), claimed_epsilon(digest)
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
            "record_epsilon_proved": promise.epsilon,
            "record_epsilon_concentrated": promise.epsilon_concentrated,
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
