"""`feddig advise`: the choice between made-up results, and sweeps on tiny data that are saved, continued or refused."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig.advise.advice_files import write_advice
from feddig.advise.choose import (
    ACCURACY,
    EPSILON,
    LINKED,
    RateInterval,
    Setting,
    SettingResult,
    UserLimits,
    choose_setting,
    explain_choice,
    result_from_json,
)
from feddig.advise.sweep import SweepResult, sweep
from feddig.advise.try_setting import (
    ShortRun,
    apply_setting,
    chosen_settings,
    list_settings,
    shorten_experiment,
)
from feddig.audit.findings import AttackBudget
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import experiment_from_table
from feddig.settings import DigestSettings, PrivacySettings
from folders import error_line, run_feddig

TINY = AttackBudget(digests=20, pool=80, records=30, public=60, unmixing_work=200, largest_unmixed=4)
SHORT = ShortRun(rounds=2, joint_steps=3)
GRID = [
    Setting(2, "random", "none"),
    Setting(2, "random", "discrete-gaussian", 1.0),
    Setting(8, "within-class", "paper-laplace", 0.005),
]
FACTS = {
    "silo": 0,
    "algorithm": "digests-only",
    "rounds": 5,
    "joint_steps": 50,
    "seed": 0,
    "test_images": 1000,
}

BLOCK = "[digest]\nsamples_per_digest = 4"


def make_result(
    accuracy: float, epsilon: float, linked: float, *, spd: int = 4, chance: float = 0.01
) -> SettingResult:
    """Make up a result; `linked` is the high end of its interval."""
    rate = RateInterval(linked * 0.9, linked * 0.8, linked, chance, 100)
    return SettingResult(
        Setting(spd, "random", "discrete-gaussian", 8.0), epsilon, 1e-6, rate, 25, None, accuracy
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment, SweepResult]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("advice") / "sweep"
    shared = shorten_experiment(make_tiny_experiment(), SHORT)
    return out, shared, sweep(shared, GRID, out, budget=TINY, dataset=draw_tiny_dataset())


def test_the_most_accurate_of_those_that_meet_all_limits_is_recommended() -> None:
    results = [
        make_result(90, math.inf, 0.9),
        make_result(60, 8, 0.04),
        make_result(70, 8, 0.05),
        make_result(80, 8, 0.051),
    ]
    choice = choose_setting(results, UserLimits(0.05, 8))
    assert choice.is_met
    assert choice.result is results[2]
    assert choice.hardest is None
    assert choice.met_by == {LINKED: 2, EPSILON: 3}
    assert explain_choice(choice, UserLimits(0.05, 8), 4)[0].startswith(
        "Recommended: SpD 4, random, discrete-gaussian 8."
    )


def test_the_high_end_of_the_interval_decides_and_not_the_share() -> None:
    result = make_result(70, 1, 0.06)
    assert result.linked.share < 0.055 < result.linked.high
    assert list(UserLimits(0.055, 8).excess(result)) == [LINKED]


def test_of_equally_accurate_settings_the_more_private_one_is_recommended() -> None:
    results = [
        make_result(70, 8, 0.01),
        make_result(70, 1, 0.05),
        make_result(70, 1, 0.03),
        make_result(70, 1, 0.03, spd=2),
    ]
    assert choose_setting(results, UserLimits(0.05, 8)).result is results[3]
    assert choose_setting(results[:3], UserLimits(0.05, 8)).result is results[2]


def test_an_infinite_epsilon_meets_no_limit_but_an_infinite_one() -> None:
    results = [make_result(90, math.inf, 0.01), make_result(50, 8, 0.01)]
    assert choose_setting(results, UserLimits(0.05, 1e9)).result is results[1]
    assert choose_setting(results, UserLimits(0.05, math.inf)).result is results[0]
    alone = choose_setting(results[:1], UserLimits(0.05, 1e9))
    assert not alone.is_met
    assert alone.hardest == EPSILON


def test_if_none_meets_all_the_hardest_limit_and_the_closest_setting_are_named() -> None:
    results = [
        make_result(90, math.inf, 0.9),
        make_result(60, 8, 0.2),
        make_result(55, 8, 0.06),
        make_result(20, 8, 0.01),
    ]
    limits = UserLimits(0.05, 8, 50)
    choice = choose_setting(results, limits)
    assert not choice.is_met
    assert choice.result is results[2]
    assert choice.misses == (LINKED,)
    assert choice.met_by == {LINKED: 1, EPSILON: 3, ACCURACY: 3}
    assert choice.hardest == LINKED
    message = " ".join(explain_choice(choice, limits, 4))
    assert "None of the 4 settings meets all limits." in message
    assert "The hardest limit is --max-link-rate 0.05: 1 of 4 settings meet it." in message
    assert "no setting meets them all" in message


def test_a_recommended_setting_that_leaks_beyond_chance_is_said_to() -> None:
    for chance, leaks in ((0.01, True), (0.035, False)):
        result = make_result(60, 8, 0.04, chance=chance)
        message = explain_choice(choose_setting([result], UserLimits(0.05, 8)), UserLimits(0.05, 8), 1)[0]
        assert ("some leak" in message) is leaks


def test_a_limit_of_zero_and_one_that_chance_exceeds_are_said_plainly() -> None:
    limits = UserLimits(0, 8)
    choice = choose_setting([make_result(60, 8, 0.2, chance=0.1)], limits)
    assert choice.hardest == LINKED
    assert "In 1 of 1 settings guessing by labels alone" in explain_choice(choice, limits, 1)[-1]


def test_a_result_survives_its_file() -> None:
    for result in (
        make_result(60, math.inf, 0.2),
        replace(make_result(60, 8, 0.2), unmixed=RateInterval(0, 0, 0.1, 1e-9, 9)),
    ):
        assert result_from_json(json.loads(json.dumps(result.as_json(), allow_nan=False))) == result


def test_the_grid_has_each_mechanism_at_its_own_epsilons() -> None:
    grid = list_settings([4, 16], ["random"], ["none", "paper-laplace", "discrete-laplace"], [8, 1], [0.005])
    assert [str(each) for each in grid if each.samples_per_digest == 16] == [
        "SpD 16, random, none",
        "SpD 16, random, paper-laplace 0.005",
        "SpD 16, random, discrete-laplace 8",
        "SpD 16, random, discrete-laplace 1",
    ]


def test_a_settings_experiment_is_short_and_seeded_and_keeps_no_key_of_another_mechanism() -> None:
    given = replace(
        make_tiny_experiment(),
        privacy=PrivacySettings(
            "discrete-gaussian", 3.0, delta=1e-5, adjacency="replace-one", clip_bound=60.0, label_epsilon=2.0,
            budget_epsilon=6.0, random="system",
        ),
    )  # fmt: skip
    shared = shorten_experiment(given, SHORT)
    sound = apply_setting(shared, Setting(4, "random", "discrete-gaussian", 8.0))
    assert (sound.privacy.epsilon, sound.privacy.delta, sound.privacy.clip_bound) == (6.0, 1e-5, 60.0)
    assert (sound.training.rounds, sound.moderator.joint_steps) == (2, 3)
    assert sound.privacy.random == "seeded"
    paper = apply_setting(shared, Setting(4, "random", "paper-laplace", 0.01)).privacy
    assert paper == PrivacySettings("paper-laplace", 0.01)
    assert apply_setting(shared, Setting(4, "random", "discrete-laplace", 8.0)).privacy.delta == 0
    pasted = experiment_from_table(
        tomllib.loads(chosen_settings(shared, Setting(4, "random", "discrete-gaussian", 8.0)))
    )
    assert pasted.privacy == replace(sound.privacy, random="system"), (
        "the settings to paste are those that were tried"
    )
    assert pasted.digest.samples_per_digest == 4
    with pytest.raises(SettingError, match="label_epsilon, 2"):
        apply_setting(shared, Setting(4, "random", "discrete-gaussian", 2.0))


def test_what_cannot_be_swept_is_refused() -> None:
    tiny = make_tiny_experiment()
    with pytest.raises(SettingError, match="has no joint update"):
        shorten_experiment(tiny, ShortRun(algorithm="fedavg"))
    with pytest.raises(SettingError, match=r"digest\.weights"):
        shorten_experiment(replace(tiny, digest=DigestSettings(2, weights=(0.9, 0.1))), SHORT)
    other = shorten_experiment(replace(tiny, digest=DigestSettings(encoder="mine.safetensors")), SHORT)
    with pytest.raises(SettingError, match="--clip-bound"):
        apply_setting(other, GRID[1])


def test_a_sweep_reports_promises_findings_and_accuracy(swept: tuple[Path, Experiment, SweepResult]) -> None:
    _, _, found = swept
    assert found.failures == {}
    bare, sound, paper = found.results
    assert [result.record_epsilon for result in found.results] == [math.inf, 1.0, math.inf]
    assert sound.record_delta == 1e-6
    assert bare.linked.share > sound.linked.share
    assert bare.unmixed is not None
    assert bare.unmixed.share > 0.9
    assert sound.unmixed is not None
    assert sound.unmixed.share < 0.1
    assert paper.unmixed is None, "unmixing is not run at SpD 8 here"
    for result in found.results:
        assert 0 <= result.linked.low <= result.linked.share <= result.linked.high <= 1
        assert result.linked.trials == result.digests_linked * result.setting.samples_per_digest
        assert 0 <= result.accuracy <= 100


def test_a_finished_setting_is_not_tried_again(
    swept: tuple[Path, Experiment, SweepResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, shared, found = swept

    def never(*_: object) -> SettingResult:
        raise AssertionError("tried again")

    monkeypatch.setattr("feddig.advise.sweep.try_setting", never)
    again = sweep(shared, GRID, out, budget=TINY, dataset=draw_tiny_dataset())
    assert again.results == found.results
    with pytest.raises(AssertionError, match="tried again"):
        sweep(shared, [Setting(4, "random", "none")], out, budget=TINY, dataset=draw_tiny_dataset())


def test_a_foreign_folder_and_a_damaged_file_are_refused(
    swept: tuple[Path, Experiment, SweepResult], tmp_path: Path
) -> None:
    out, shared, _ = swept
    data = draw_tiny_dataset()
    longer = shorten_experiment(make_tiny_experiment(), replace(SHORT, rounds=3))
    with pytest.raises(FedDigError, match=r"was swept with rounds = 2, now 3; choose another --out"):
        sweep(longer, GRID, out, budget=TINY, dataset=data)
    with pytest.raises(FedDigError, match="was swept with data set"):
        sweep(shared, GRID, out, budget=TINY, dataset=draw_tiny_dataset(seed=1))
    (tmp_path / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FedDigError, match=r"contains 'letter.txt', which is not of a sweep"):
        sweep(shared, GRID, tmp_path, budget=TINY, dataset=data)
    copy = tmp_path / "copy"
    (copy / "settings").mkdir(parents=True)
    (copy / "sweep.json").write_bytes((out / "sweep.json").read_bytes())
    (copy / "settings" / "spd-2_random_none.json").write_text('{"format_version": 1}', encoding="utf-8")
    with pytest.raises(FileFormatError, match="is missing or damaged"):
        sweep(shared, GRID, copy, budget=TINY, dataset=data)


def test_a_setting_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    shared = shorten_experiment(make_tiny_experiment(), SHORT)
    grid = [Setting(500, "random", "none"), GRID[0]]
    outcomes: list[object] = []
    found = sweep(
        shared, grid, tmp_path / "out", budget=TINY, dataset=draw_tiny_dataset(), silo=0,
        on_done=lambda number, total, setting, outcome, left: outcomes.append(outcome),
    )  # fmt: skip
    assert [result.setting for result in found.results] == [GRID[0]]
    assert "no 500 training samples" in found.failures["SpD 500, random, none"]
    assert outcomes == [found.failures["SpD 500, random, none"], found.results[0]]
    assert found.facts["silo"] == 0
    with pytest.raises(SettingError, match="--silo: 9 is not one of the 3 silos"):
        sweep(shared, grid, tmp_path / "other", budget=TINY, dataset=draw_tiny_dataset(), silo=9)


@pytest.mark.parametrize("limit", [0.05, 0.001])
def test_the_files_say_that_attacks_failed_and_that_the_test_set_was_used(
    tmp_path: Path, limit: float
) -> None:
    results, limits = [make_result(90, math.inf, 0.9), make_result(60, 8, 0.02)], UserLimits(limit, 8, 50)
    choice = choose_setting(results, limits)
    advice = write_advice(tmp_path, results, {"SpD 9": "too few"}, FACTS, choice, limits, BLOCK)
    assert json.loads((tmp_path / "advice.json").read_text(encoding="utf-8")) == advice
    assert advice["rows"][0]["record_epsilon"] == "inf"
    assert advice["met"] is (limit == 0.05)
    page = (tmp_path / "advice.md").read_text(encoding="utf-8")
    for message in (
        "these attacks failed, on 25 to 25 digests of silo 0",
        "uses the test set",
        "here it came from a seed",
        "failed: SpD 9: too few",
        f"```toml\n{BLOCK}\n```",
    ):
        assert message in page
    pictures = [tmp_path / "accuracy-by-linking.png", tmp_path / "accuracy-by-epsilon.png"]
    drawn = [each.read_bytes() for each in pictures]
    assert all(each.startswith(b"\x89PNG") for each in drawn)
    if advice["met"]:
        assert write_advice(tmp_path, results, {"SpD 9": "too few"}, FACTS, choice, limits, BLOCK) == advice
        assert [each.read_bytes() for each in pictures] == drawn


def test_the_command_prints_json_continues_and_recommends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use an npz file of two classes; the demo's set has ten."""
    draw, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 600), ("test", 100)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 2
    np.savez(tmp_path / "mine.npz", **arrays)
    words = [
        "advise", "--data", str(tmp_path / "mine.npz"), "--max-link-rate", "1", "--max-record-epsilon", "inf",
        "--out", str(tmp_path / "out"), "--quick", "--samples-per-digest", "4", "--mixing", "random",
        "--mechanisms", "none", "--rounds", "1", "--joint-steps", "2", "--set", "data.skew=100",
        "--set", "data.limit=400",
    ]  # fmt: skip
    for more in (["--json"], []):
        assert run_feddig(*words, *more) == 0
    printed, shown = capsys.readouterr()
    report, end = json.JSONDecoder().raw_decode(printed)
    assert report["recommendation"]["setting"]["samples_per_digest"] == 4
    assert report["sweep"]["test_images"] == 100
    assert "Recommended: SpD 4, random, none." in printed[end:]
    assert '[privacy]\nmechanism = "none"\nrandom = "system"\n' in printed[end:]
    assert printed.endswith(
        "next    feddig digest make experiment.toml --all-data --out digest.safetensors\n"
    )
    assert "1 of 1  SpD 4, random, none  linked" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "no-such-set"], "--data: 'no-such-set' is no data set"),
        (["--max-link-rate", "2"], "2"),
        (["--max-link-rate", "nan"], "must be numbers"),
        (["--samples-per-digest", "0"], "must be at least 1"),
        (["--mixing", "randon"], "random"),
        (["--mechanisms", "laplace"], "is not known"),
        (["--epsilons", "8,-1"], "'-1' is not a finite number above 0"),
        (["--delta", "2"], "--delta"),
        (["--algorithm", "fedavg"], "has no joint update"),
        (["--set", "data.nane=x"], "data.name"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    limits = ["--max-link-rate", "0.1", "--max-record-epsilon", "8"]
    assert message in error_line(capsys, "advise", *limits, "--out", tmp_path, *words)
