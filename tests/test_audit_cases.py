"""Audit eight prepared files: four leak in different ways, four are sound."""

import tomllib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from feddig.audit.audited import features_of, groups_from_seed, mix_without_noise
from feddig.audit.findings import AttackBudget
from feddig.digest.digest import Digest
from feddig.experiment.toml import experiment_from_table
from feddig.privacy.integer_noise import IntegerNoise
from feddig.settings import PrivacySettings
from test_audit import SMALL, SOUND, Bench, verdicts

BUDGET = replace(SMALL, canaries=AttackBudget().canaries)
AT_8 = replace(SOUND, epsilon=8.0)
LAPLACE = replace(SOUND, mechanism="discrete-laplace", delta=0.0, clip_norm="l1")
PRIVATE_LABELS = replace(SOUND, epsilon=0.5, adjacency="replace-one", label_epsilon=0.5)
Case = tuple[int, Callable[[Bench, int], Digest], str, set[str]]
"""The number of members, a function that makes the file of a seed, the verdict, and the red checks."""


def released(bench: Bench, privacy: PrivacySettings, spd: int, mixing: str, seed: int) -> Digest:
    """Make a digest whose facts say that its noise comes from the system's entropy, as in files that are sent."""
    digest = bench.digest(privacy, spd, mixing, seed=seed)
    return replace(digest, facts={**digest.facts, "random": "system"})


def without_noise(bench: Bench, seed: int) -> Digest:
    """Make a file without noise that claims epsilon 8; most of its variance is between classes."""
    digest, members = released(bench, AT_8, 256, "within-class", seed), bench.images.members
    mixed = mix_without_noise(digest, features_of(members), groups_from_seed(digest, members.labels, seed))
    return replace(digest, features=mixed.view_as(digest.features))


LEAKING: dict[str, Case] = {
    "the paper's noise": (
        240,
        lambda bench, seed: released(bench, PrivacySettings(), 2, "random", seed),
        "red",
        {"accountant", "canaries", "membership", "unmixing", "lattice"},
    ),
    "a file without noise": (5120, without_noise, "red", {"lattice"}),
    "code with a quarter of the noise": (
        240,
        lambda bench, seed: released(bench, SOUND, 4, "random", seed),
        "red",
        {"canaries", "lattice"},
    ),
    "a delta of 0.1": (
        240,
        lambda bench, seed: released(bench, replace(SOUND, delta=0.1), 4, "random", seed),
        "red",
        {"accountant"},
    ),
}
SOUND_FILES: dict[str, Case] = {
    "Gaussian noise at 1": (
        240,
        lambda bench, seed: released(bench, SOUND, 4, "random", seed),
        "green",
        set(),
    ),
    "Laplace noise at 1": (
        240,
        lambda bench, seed: released(bench, LAPLACE, 4, "within-class", seed),
        "green",
        set(),
    ),
    "private labels": (
        240,
        lambda bench, seed: released(bench, PRIVATE_LABELS, 4, "random", seed),
        "green",
        set(),
    ),
    # epsilon is above 1, and unmixing is not run at this SpD
    "Gaussian noise at 8": (
        2560,
        lambda bench, seed: released(bench, AT_8, 256, "random", seed),
        "amber",
        set(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", [*LEAKING, *SOUND_FILES])
def test_each_file_gets_the_right_verdict(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    members, make, verdict, red = (LEAKING | SOUND_FILES)[name]
    if name == "code with a quarter of the noise":
        honest = IntegerNoise.draw
        monkeypatch.setattr(IntegerNoise, "draw", lambda *given: honest(*given) // 4)
    bench = Bench(members)
    file = make(bench, seed)
    report = bench.audit(file, BUDGET, seed)
    found = verdicts(report)
    assert report.report["light"] == verdict, found
    inverted = {"inversion"} if name == "the paper's noise" else set()
    assert {check for check, light in found.items() if light == "red"} - inverted == red
    details = {check["name"]: check["details"] for check in report.report["checks"]}
    if name != "a delta of 0.1":
        assert details["canaries"]["could_have_refuted"] > details["canaries"]["claimed_epsilon"]
    steps = report.report["next_steps"]
    settings = experiment_from_table(tomllib.loads(steps["settings"]))
    if name == "the paper's noise":
        assert (settings.privacy.mechanism, settings.digest.samples_per_digest) == ("discrete-gaussian", 8)
    elif name == "a delta of 0.1":
        assert settings.privacy == replace(SOUND, random="system"), "only delta is changed"
    else:
        assert steps["settings"] == ""
    again = "digest show" if verdict != "red" else "digest make"
    assert steps["next"].startswith(f"feddig {again} ")
