"""Advice: the choice among made-up rows, and a sweep on tiny data that is kept, gone on with and refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig.advise.choose import (
    ACCURACY,
    EPSILON,
    LINKED,
    Rate,
    Row,
    Setting,
    Wanted,
    choose,
    explain,
    read_row,
)
from feddig.advise.grid import Pace, lay_grid, pace_experiment, settle
from feddig.advise.page import write_advice
from feddig.advise.sweep import Swept, sweep
from feddig.audit.findings import Effort
from feddig.cli import main
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.settings import DigestSettings, PrivacySettings

TINY = Effort(digests=20, pool=80, records=30, public=60, unmixing_work=200, largest_unmixed=4)
SHORT = Pace(rounds=2, joint_steps=3)
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


def made_up(accuracy: float, epsilon: float, linked: float, *, spd: int = 4, chance: float = 0.01) -> Row:
    """Make a row up; the interval's high end is `linked`."""
    rate = Rate(linked * 0.9, linked * 0.8, linked, chance, 100)
    return Row(Setting(spd, "random", "discrete-gaussian", 8.0), epsilon, 1e-6, rate, 25, None, accuracy)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment, Swept]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("advice") / "sweep"
    shared = pace_experiment(make_tiny_experiment(), SHORT)
    return out, shared, sweep(shared, GRID, out, effort=TINY, dataset=draw_tiny_dataset())


def test_the_most_accurate_of_those_that_meet_all_limits_is_recommended() -> None:
    rows = [made_up(90, math.inf, 0.9), made_up(60, 8, 0.04), made_up(70, 8, 0.05), made_up(80, 8, 0.051)]
    choice = choose(rows, Wanted(0.05, 8))
    assert choice.is_met
    assert choice.row is rows[2]
    assert choice.hardest is None
    assert choice.met_by == {LINKED: 2, EPSILON: 3}
    assert explain(choice, Wanted(0.05, 8), 4)[0].startswith(
        "Recommended: SpD 4, random, discrete-gaussian 8."
    )


def test_the_high_end_of_the_interval_decides_and_not_the_share() -> None:
    row = made_up(70, 1, 0.06)
    assert row.linked.share < 0.055 < row.linked.high
    assert list(Wanted(0.055, 8).excess(row)) == [LINKED]


def test_of_equally_accurate_rows_the_more_private_one_is_recommended() -> None:
    rows = [made_up(70, 8, 0.01), made_up(70, 1, 0.05), made_up(70, 1, 0.03), made_up(70, 1, 0.03, spd=2)]
    assert choose(rows, Wanted(0.05, 8)).row is rows[3]
    assert choose(rows[:3], Wanted(0.05, 8)).row is rows[2]


def test_an_infinite_epsilon_meets_no_limit_but_an_infinite_one() -> None:
    rows = [made_up(90, math.inf, 0.01), made_up(50, 8, 0.01)]
    assert choose(rows, Wanted(0.05, 1e9)).row is rows[1]
    assert choose(rows, Wanted(0.05, math.inf)).row is rows[0]
    alone = choose(rows[:1], Wanted(0.05, 1e9))
    assert not alone.is_met
    assert alone.hardest == EPSILON


def test_if_none_meets_all_the_hardest_limit_and_the_closest_row_are_named() -> None:
    rows = [made_up(90, math.inf, 0.9), made_up(60, 8, 0.2), made_up(55, 8, 0.06), made_up(20, 8, 0.01)]
    wanted = Wanted(0.05, 8, 50)
    choice = choose(rows, wanted)
    assert not choice.is_met
    assert choice.row is rows[2]
    assert choice.misses == (LINKED,)
    assert choice.met_by == {LINKED: 1, EPSILON: 3, ACCURACY: 3}
    assert choice.hardest == LINKED
    said = " ".join(explain(choice, wanted, 4))
    assert "None of the 4 settings meets all limits." in said
    assert "The hardest limit is --max-link-rate 0.05: 1 of 4 settings meet it." in said
    assert "all of them together by none" in said


def test_a_recommended_setting_that_leaks_beyond_chance_is_said_to() -> None:
    for chance, leaks in ((0.01, True), (0.035, False)):
        row = made_up(60, 8, 0.04, chance=chance)
        said = explain(choose([row], Wanted(0.05, 8)), Wanted(0.05, 8), 1)[0]
        assert ("some leak" in said) is leaks


def test_a_limit_of_zero_and_one_that_chance_exceeds_are_said_plainly() -> None:
    wanted = Wanted(0, 8)
    choice = choose([made_up(60, 8, 0.2, chance=0.1)], wanted)
    assert choice.hardest == LINKED
    assert "In 1 of 1 settings a guess by labels alone" in explain(choice, wanted, 1)[-1]


def test_a_row_survives_its_file() -> None:
    for row in (made_up(60, math.inf, 0.2), replace(made_up(60, 8, 0.2), unmixed=Rate(0, 0, 0.1, 1e-9, 9))):
        assert read_row(json.loads(json.dumps(row.as_json(), allow_nan=False))) == row


def test_the_grid_has_each_mechanism_at_its_own_epsilons() -> None:
    grid = lay_grid([4, 16], ["random"], ["none", "paper-laplace", "discrete-laplace"], [8, 1], [0.005])
    assert [str(each) for each in grid if each.samples_per_digest == 16] == [
        "SpD 16, random, none",
        "SpD 16, random, paper-laplace 0.005",
        "SpD 16, random, discrete-laplace 8",
        "SpD 16, random, discrete-laplace 1",
    ]


def test_a_settings_experiment_is_short_seeded_and_has_no_ones_leftovers() -> None:
    given = replace(
        make_tiny_experiment(),
        privacy=PrivacySettings(
            "discrete-gaussian", 3.0, delta=1e-5, adjacency="replace-one", clip_bound=60.0, label_epsilon=2.0,
            budget_epsilon=6.0, random="system",
        ),
    )  # fmt: skip
    shared = pace_experiment(given, SHORT)
    sound = settle(shared, Setting(4, "random", "discrete-gaussian", 8.0))
    assert (sound.privacy.epsilon, sound.privacy.delta, sound.privacy.clip_bound) == (6.0, 1e-5, 60.0)
    assert (sound.training.rounds, sound.moderator.joint_steps) == (2, 3)
    assert sound.privacy.random == "seeded"
    paper = settle(shared, Setting(4, "random", "paper-laplace", 0.01)).privacy
    assert paper == PrivacySettings("paper-laplace", 0.01)
    assert settle(shared, Setting(4, "random", "discrete-laplace", 8.0)).privacy.delta == 0
    with pytest.raises(SettingError, match="label_epsilon, 2"):
        settle(shared, Setting(4, "random", "discrete-gaussian", 2.0))


def test_what_cannot_be_swept_is_refused() -> None:
    tiny = make_tiny_experiment()
    with pytest.raises(SettingError, match="has no joint update"):
        pace_experiment(tiny, Pace(algorithm="fedavg"))
    with pytest.raises(SettingError, match=r"digest\.weights"):
        pace_experiment(replace(tiny, digest=DigestSettings(2, weights=(0.9, 0.1))), SHORT)
    other = pace_experiment(replace(tiny, digest=DigestSettings(encoder="mine.safetensors")), SHORT)
    with pytest.raises(SettingError, match="--clip-bound"):
        settle(other, GRID[1])


def test_a_sweep_tells_what_is_promised_found_and_learnt(swept: tuple[Path, Experiment, Swept]) -> None:
    _, _, found = swept
    assert found.failures == {}
    bare, sound, paper = found.rows
    assert [row.record_epsilon for row in found.rows] == [math.inf, 1.0, math.inf]
    assert sound.record_delta == 1e-6
    assert bare.linked.share > sound.linked.share
    assert bare.unmixed is not None
    assert bare.unmixed.share > 0.9
    assert sound.unmixed is not None
    assert sound.unmixed.share < 0.1
    assert paper.unmixed is None, "SpD 8 is above what the search is made for here"
    for row in found.rows:
        assert 0 <= row.linked.low <= row.linked.share <= row.linked.high <= 1
        assert row.linked.trials == row.digests_linked * row.setting.samples_per_digest
        assert 0 <= row.accuracy <= 100


def test_a_finished_setting_is_not_tried_again(
    swept: tuple[Path, Experiment, Swept], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, shared, found = swept

    def never(*_: object) -> Row:
        raise AssertionError("tried again")

    monkeypatch.setattr("feddig.advise.sweep.try_setting", never)
    again = sweep(shared, GRID, out, effort=TINY, dataset=draw_tiny_dataset())
    assert again.rows == found.rows
    with pytest.raises(AssertionError, match="tried again"):
        sweep(shared, [Setting(4, "random", "none")], out, effort=TINY, dataset=draw_tiny_dataset())


def test_a_foreign_folder_and_a_damaged_file_are_refused(
    swept: tuple[Path, Experiment, Swept], tmp_path: Path
) -> None:
    out, shared, _ = swept
    data = draw_tiny_dataset()
    longer = pace_experiment(make_tiny_experiment(), replace(SHORT, rounds=3))
    with pytest.raises(FedDigError, match=r"was swept with rounds = 2, now 3; choose another --out"):
        sweep(longer, GRID, out, effort=TINY, dataset=data)
    with pytest.raises(FedDigError, match="was swept with data set"):
        sweep(shared, GRID, out, effort=TINY, dataset=draw_tiny_dataset(seed=1))
    (tmp_path / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FedDigError, match=r"holds 'letter.txt', which is not ours"):
        sweep(shared, GRID, tmp_path, effort=TINY, dataset=data)
    copy = tmp_path / "copy"
    (copy / "settings").mkdir(parents=True)
    (copy / "sweep.json").write_bytes((out / "sweep.json").read_bytes())
    (copy / "settings" / "spd-2_random_none.json").write_text('{"format_version": 1}', encoding="utf-8")
    with pytest.raises(FileFormatError, match="lacks or garbles"):
        sweep(shared, GRID, copy, effort=TINY, dataset=data)


def test_a_setting_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    shared = pace_experiment(make_tiny_experiment(), SHORT)
    grid = [Setting(500, "random", "none"), GRID[0]]
    heard: list[object] = []
    found = sweep(
        shared, grid, tmp_path / "out", effort=TINY, dataset=draw_tiny_dataset(), silo=0,
        heard=lambda number, total, setting, outcome, left: heard.append(outcome),
    )  # fmt: skip
    assert [row.setting for row in found.rows] == [GRID[0]]
    assert "no 500 training samples" in found.failures["SpD 500, random, none"]
    assert heard == [found.failures["SpD 500, random, none"], found.rows[0]]
    assert found.facts["silo"] == 0
    with pytest.raises(SettingError, match="--silo: 9 is not one of the 3 silos"):
        sweep(shared, grid, tmp_path / "other", effort=TINY, dataset=draw_tiny_dataset(), silo=9)


@pytest.mark.parametrize("limit", [0.05, 0.001])
def test_the_files_say_that_attacks_failed_and_that_the_test_set_was_used(
    tmp_path: Path, limit: float
) -> None:
    rows, wanted = [made_up(90, math.inf, 0.9), made_up(60, 8, 0.02)], Wanted(limit, 8, 50)
    choice = choose(rows, wanted)
    advice = write_advice(tmp_path, rows, {"SpD 9": "too few"}, FACTS, choice, wanted)
    assert json.loads((tmp_path / "advice.json").read_text(encoding="utf-8")) == advice
    assert advice["rows"][0]["record_epsilon"] == "inf"
    assert advice["met"] is (limit == 0.05)
    page = (tmp_path / "advice.md").read_text(encoding="utf-8")
    for said in (
        "these attacks failed, on 25 to 25 digests of silo 0",
        "uses the test set",
        "here it came from a seed",
        "failed: SpD 9: too few",
    ):
        assert said in page
    for name in ("accuracy-by-linking.png", "accuracy-by-epsilon.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    again = write_advice(tmp_path / "b", rows, {"SpD 9": "too few"}, FACTS, choice, wanted)
    assert again == advice
    name = "accuracy-by-epsilon.png"
    assert (tmp_path / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_command_prints_json_goes_on_and_recommends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "advise", "--max-link-rate", "1", "--max-record-epsilon", "inf", "--out", str(tmp_path / "out"), "--quick",
        "--set", "data.limit=600", "--samples-per-digest", "4", "--mixing", "random", "--mechanisms", "none",
        "--rounds", "1", "--joint-steps", "2",
    ]  # fmt: skip
    for more in (["--json"], []):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
    told, shown = capsys.readouterr()
    report, end = json.JSONDecoder().raw_decode(told)
    assert report["recommendation"]["setting"]["samples_per_digest"] == 4
    assert "Recommended: SpD 4, random, none." in told[end:]
    assert "1 of 1  SpD 4, random, none  linked" in shown


def test_data_is_named_like_the_audits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An npz file of two classes, where the demo's set has ten."""
    draw, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 600), ("test", 100)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 2
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(SystemExit) as ended:
        main([
            "advise", "--data", str(tmp_path / "mine.npz"), "--max-link-rate", "1", "--max-record-epsilon", "inf",
            "--out", str(tmp_path / "out"), "--quick", "--samples-per-digest", "4", "--mixing", "random",
            "--mechanisms", "none", "--rounds", "1", "--joint-steps", "1", "--set", "data.skew=100", "--json",
        ])  # fmt: skip
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["sweep"]["test_images"] == 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "no-such-set"], "--data: 'no-such-set' is no data set"),
        (["--max-link-rate", "2"], "2"),
        (["--max-link-rate", "nan"], "must be numbers"),
        (["--samples-per-digest", "0"], "must be at least 1"),
        (["--mixing", "randon"], "random"),
        (["--mechanisms", "laplace"], "is not known"),
        (["--epsilons", "8,-1"], "'-1' is no finite number above 0"),
        (["--delta", "2"], "--delta"),
        (["--algorithm", "fedavg"], "has no joint update"),
        (["--set", "data.nane=x"], "data.name"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["advise", "--max-link-rate", "0.1", "--max-record-epsilon", "8", "--out", str(tmp_path), *words]
        )
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("feddig: error: ")
    assert said in line
