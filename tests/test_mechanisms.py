"""A privacy mechanism is one class and one line in a table: a toy mechanism is used from an experiment to a ledger."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from feddig import read_digest, read_experiment, run
from feddig.attacks.candidates import read_noise
from feddig.audit.findings import Limits
from feddig.audit.promise_checks import check_accountant
from feddig.errors import SettingError
from feddig.privacy.accounting import Promise
from feddig.privacy.ledger import Ledger
from feddig.privacy.mechanisms import MECHANISMS, Fact, Facts, Mechanism, Randomness, Samples
from feddig.settings import DigestSettings, PrivacySettings
from folders import run_feddig


class Toy(Mechanism):
    """Hold each feature between 0 and a public bound, and add Gaussian noise of half that bound; claim epsilon."""

    uses = frozenset({"epsilon", "clip_bound", "budget_epsilon"})
    epsilon_is = "record"
    fact_types: ClassVar[Mapping[str, type]] = {"clip_bound": float, "toy_sigma": float}

    def facts(
        self, privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None
    ) -> Facts:
        assert privacy.clip_bound is not None
        return {"clip_bound": privacy.clip_bound, "toy_sigma": privacy.clip_bound / 2}

    def release(
        self, samples: Samples, facts: Mapping[str, Fact], randomness: Randomness
    ) -> tuple[np.ndarray, np.ndarray]:
        _, labels = samples.mix()
        clipped = samples.features.clip(0, facts["clip_bound"])[samples.groups].mean(1)  # type: ignore[call-overload]
        one, other = (randomness.uniforms("noise")(clipped.size) for _ in range(2))
        noise = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * math.pi * other) * facts["toy_sigma"]
        return (clipped + noise.reshape(clipped.shape)).astype(np.float32), labels

    def noise_deviation(self, facts: Mapping[str, Fact], largest: float | None = None) -> float | None:
        return float(str(facts["toy_sigma"]))

    def promise(self, facts: Mapping[str, Fact], elements: int) -> Promise:
        epsilon, bound = float(str(facts["epsilon"])), float(str(facts["clip_bound"]))
        return Promise(
            mechanism=str(facts["mechanism"]), adjacency="same-label", epsilon=epsilon, delta=1e-5,
            epsilon_if_bound_public=epsilon, sensitivity=bound * math.sqrt(elements), norm="L2",
            noise_scale=bound / 2, unit="feature", assumptions=("Toys are honest.",), random=str(facts["random"]),
            sentence=f"a toy promises {epsilon:g}",
        )  # fmt: skip


FILE = """
[data]
limit = 400
min_samples = 20
[training]
rounds = 2
[digest]
samples_per_digest = 4
[privacy]
mechanism = "toy"
epsilon = 3.0
clip_bound = 20.0
budget_epsilon = 5.0
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(MECHANISMS, "toy", Toy())
    monkeypatch.chdir(tmp_path)
    Path("toy.toml").write_text(FILE, encoding="utf-8")
    return Path("toy.toml")


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def command(*words: object, code: int = 0) -> str:
        assert run_feddig(*words) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return command


def test_a_toy_goes_from_an_experiments_file_to_a_ledger(toy: Path, invoke: Callable[..., str]) -> None:
    printed = invoke("privacy", toy)
    for line in (
        "mechanism          toy, adjacency same-label",
        "record epsilon     3",
        "- Toys are honest.",
    ):
        assert line in printed.splitlines()
    assert json.loads(invoke("privacy", toy, "--json"))["paper_epsilon"] is None

    invoke("digest", "make", toy, "--out", "toy.digest", "--ledger", "toy.ledger")
    digest = read_digest("toy.digest")
    assert digest.facts["toy_sigma"] == 10.0
    assert isinstance(digest.mechanism, Toy)
    shown = json.loads(invoke("digest", "show", "toy.digest", "--json"))
    assert (shown["mechanism"], shown["toy_sigma"], shown["promise"]) == ("toy", 10.0, "a toy promises 3")

    (entry,) = json.loads(invoke("ledger", "show", "toy.ledger", "--json"))
    assert (entry["mechanism"], entry["record_epsilon"], entry["composed_epsilon"]) == ("toy", 3.0, 3.0)
    again = invoke("digest", "make", toy, "--out", "again.digest", "--ledger", "toy.ledger", code=2)
    assert "would then be charged epsilon 6 and delta 2e-05 in all and its budget is epsilon 5" in again
    assert Ledger("toy.ledger").entries()[0].promise.rho is None

    accountant = check_accountant(digest, Limits())
    assert accountant.details["record_epsilon"] == accountant.details["claimed_epsilon"] == 3.0
    assert "Mechanism toy claims epsilon 3" in accountant.sentence
    assert read_noise(digest, 1.0).deviation == 10.0


def test_a_run_with_a_toy_tells_its_promise_and_its_report_names_it(toy: Path) -> None:
    summary = run(read_experiment(toy), "run", device="cpu")
    assert summary["privacy"] == "a toy promises 3"
    assert {facts["mechanism"] for facts in summary["digests"].values()} == {"toy"}
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Noise is toy, from a seed" in page
    assert "<dt>real ε of a record</dt><dd><b>3</b>" in page


def test_what_a_toy_does_not_use_is_refused_and_a_misspelt_one_is_named(toy: Path) -> None:
    with pytest.raises(SettingError, match=r"privacy\.delta: toy does not use it; .* to discrete-gaussian"):
        read_experiment(toy, ["privacy.delta=1e-6"])
    with pytest.raises(SettingError, match="'toys' is not known; did you mean 'toy'"):
        read_experiment(toy, ["privacy.mechanism=toys"])
