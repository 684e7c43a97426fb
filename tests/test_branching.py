"""Comparisons: shared rounds are trained once, and every cell equals a run of its own."""

import itertools
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import Dataset, Experiment, FedDigError, demo_experiment, grid, resume, run, run_grid
from feddig.core.moderator import Moderator
from feddig.core.silo import Silo
from feddig.report.page import write_comparison
from feddig.runs.compare import Cell, Outcome
from feddig.runs.progress import GridLines, GridProgress, spell_seconds
from folders import contents, rows, run_feddig, snapshot, start_feddig

ALGORITHMS = ["fedavg", "frozen", "feddig", "feddig-no-recall"]
SCENARIOS = ["none", "sequential", "temporary"]
SEEDS = [0, 1]
CELLS = list(itertools.product(ALGORITHMS, SCENARIOS, SEEDS))


def smaller_dataset() -> Dataset:
    """Draw half of the tiny data set, because a grid is many runs."""
    return draw_tiny_dataset(120, 40)


@pytest.fixture
def tiny_dataset() -> Dataset:
    return smaller_dataset()


@contextmanager
def quick() -> Iterator[Counter[str]]:
    """Skip pictures and fsync; count the trained rounds and the silos in them."""
    done: Counter[str] = Counter()

    def count(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            done[name] += 1
            return real(*arguments)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feddig.runs.outcome.draw_run", lambda path: None)
        patch.setattr("os.fsync", lambda handle: None)
        # the moderator sends its model once in a trained round and never in a frozen one
        patch.setattr(Moderator, "push", count("rounds", Moderator.push))
        patch.setattr(Silo, "train", count("silos", Silo.train))
        yield done


@pytest.fixture
def counted() -> Iterator[Counter[str]]:
    with quick() as done:
        yield done


def tiny_grid(
    out: Path,
    algorithms: list[str] = ALGORITHMS,
    scenarios: list[str] = SCENARIOS,
    seeds: list[int] = SEEDS,
    **sections: dict[str, object],
) -> list[Cell]:
    training = {"batch": 32, **sections.pop("training", {})}
    return grid(make_tiny_experiment(training=training, **sections), algorithms, scenarios, seeds, out)


def finished(outcomes: list[Outcome]) -> bool:
    return all(outcome.summary is not None for outcome in outcomes)


# --- a branch is exact


class Compared:
    """A whole grid and each of its cells run alone, with the work of both."""

    def __init__(self, folder: Path) -> None:
        dataset = smaller_dataset()
        self.branched, self.alone = folder / "branched", folder / "alone"
        with quick() as self.work_branched:
            assert finished(run_grid(tiny_grid(self.branched), dataset=dataset))
        with quick() as self.work_alone:
            for cell in tiny_grid(self.alone):
                run(cell.experiment, cell.path, dataset=dataset)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return Compared(tmp_path_factory.mktemp("compared"))


@pytest.mark.parametrize(("algorithm", "scenario", "seed"), CELLS)
def test_every_cell_equals_a_run_of_its_own(
    algorithm: str, scenario: str, seed: int, compared: Compared
) -> None:
    place = Path(algorithm, scenario, f"seed-{seed}")
    alone = contents(compared.alone / place)
    assert len(alone) == (9 if algorithm.startswith("feddig") else 5)
    assert contents(compared.branched / place) == alone


def test_shared_rounds_are_trained_once(compared: Compared) -> None:
    """Eight rounds; in "sequential" the first leave is in round 3, in "temporary" in round 1.

    Alone: fedavg, feddig and feddig-no-recall train 8 rounds in each scenario, frozen 8, 3 and 1.
    Together: fedavg and feddig train 8, then 5 and 7 more; feddig-no-recall equals feddig until a silo is absent
    and repeats only its last round in "none"; so does frozen, which elsewhere trains nothing of its own.
    """
    alone = 3 * (3 * 8) + (8 + 3 + 1)
    together = 2 * (8 + 5 + 7) + (1 + 5 + 7) + (1 + 0 + 0)
    assert compared.work_alone["rounds"] == len(SEEDS) * alone
    assert compared.work_branched["rounds"] == len(SEEDS) * together
    assert compared.work_branched["silos"] < 0.7 * compared.work_alone["silos"]


def test_a_branch_records_its_origin(compared: Compared) -> None:
    log = (compared.branched / "frozen" / "sequential" / "seed-1" / "log.txt").read_text(encoding="utf-8")
    parent = compared.branched / "fedavg" / "none" / "seed-1"
    assert log.splitlines()[0] == f"branched from {parent} after 3 rounds"


@pytest.mark.parametrize("order", [["feddig-no-recall", "feddig"], ["frozen", "fedavg"]])
def test_it_does_not_matter_which_cell_comes_first(
    order: list[str], compared: Compared, tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    cells = tiny_grid(tmp_path, order, ["sequential", "none"], [0])
    assert finished(run_grid(cells, dataset=tiny_dataset))
    for cell in cells:
        assert contents(cell.path) == contents(compared.alone / cell.path.relative_to(tmp_path))


@pytest.mark.parametrize(
    ("algorithms", "scenarios", "sections"),
    [
        (["feddyn", "frozen+feddyn"], ["none", "forever"], {"algorithm": {"weighting": "samples"}}),
        (["feddig+adabest", "feddig-no-joint+adabest"], ["temporary", "none"], {}),
        (["feddig", "fedavg-large", "digests-only"], ["none", "groups"], {}),
        (["centralised", "fedavg"], ["none", "random"], {"absence": {"leave": 0.3}}),
        (["fedavg", "frozen"], ["none", "sequential"], {"training": {"rounds": 1}}),
    ],
)
def test_other_grids_branch_exactly_too(
    algorithms: list[str],
    scenarios: list[str],
    sections: dict[str, dict[str, object]],
    tmp_path: Path,
    tiny_dataset: Dataset,
    counted: Counter[str],
) -> None:
    sections = {"training": {"rounds": 4}, **sections}
    assert finished(
        run_grid(
            tiny_grid(tmp_path / "branched", algorithms, scenarios, [0], **sections), dataset=tiny_dataset
        )
    )
    for cell in tiny_grid(tmp_path / "alone", algorithms, scenarios, [0], **sections):
        run(cell.experiment, cell.path, dataset=tiny_dataset)
        place = cell.path.relative_to(tmp_path / "alone")
        assert contents(tmp_path / "branched" / place) == contents(cell.path), place


def test_extended_runs_branch_as_runs_of_their_own_and_are_recognised(
    compared: Compared, tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    """Scenarios drawn for 8 rounds, then 2 rounds more: the grid shares as many rounds as with 8."""
    more = {"training": {"rounds": 10}, "absence": {"rounds": 8}}
    cells = tiny_grid(tmp_path, ["fedavg", "frozen"], ["none", "sequential"], [0], **more)
    assert finished(run_grid(cells, dataset=tiny_dataset))
    assert counted["rounds"] == 10 + (10 - 3) + 1
    alone = tmp_path / "alone"
    shutil.copytree(compared.alone / "frozen" / "sequential" / "seed-0", alone)
    resume(alone, dataset=tiny_dataset, rounds=10)
    assert contents(cells[3].path) == contents(alone)
    shutil.rmtree(cells[3].path)
    alone.rename(cells[3].path)
    before = snapshot(tmp_path)
    assert finished(run_grid(cells, dataset=tiny_dataset))
    assert snapshot(tmp_path) == before, "an extended run is the cell with these settings"
    fewer = tiny_grid(tmp_path, ["frozen"], ["sequential"], [0])
    with pytest.raises(FedDigError, match=r"absence\.rounds = 8, now None; choose another --out"):
        run_grid(fewer, dataset=tiny_dataset)


def test_runs_that_differ_in_more_than_absence_share_nothing(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    """FedAvg and its large form have other networks; two seeds have nothing in common."""
    cells = tiny_grid(tmp_path, ["fedavg", "fedavg-large"], ["none"], [0, 1], training={"rounds": 2})
    assert finished(run_grid(cells, dataset=tiny_dataset))
    assert counted["rounds"] == 4 * 2


# --- what is shown


def shown_of(cells: list[Cell], dataset: Dataset, **console: bool) -> list[str]:
    """Run a grid and return the lines that it shows."""
    text = StringIO()
    run_grid(cells, dataset=dataset, progress=GridLines(Console(file=text, width=200, **console)))
    return text.getvalue().splitlines()


LINE = re.compile(r"run (\d+) of (\d+): (\S+, \S+, seed \d+): (.*)")
LEFT = r"(, about \d+ s left in all)?"


def test_a_comparison_shows_one_line_for_each_event(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    cells = tiny_grid(tmp_path, ["fedavg", "frozen"], ["temporary", "none"], [0])
    run(cells[2].experiment, cells[2].path, dataset=tiny_dataset, until=2)
    found = [LINE.fullmatch(line) for line in shown_of(cells, tiny_dataset)]
    assert all(found)
    assert [(match[1], match[2], match[3]) for match in found] == [
        *[("1", "4", "fedavg, temporary, seed 0")] * 4,
        *[("2", "4", "frozen, temporary, seed 0")] * 4,
        *[("3", "4", "fedavg, none, seed 0")] * 2,
        *[("4", "4", "frozen, none, seed 0")] * 2,
    ]
    accuracy = r"accuracy \d+\.\d %"
    leaves = rf"round 2 of 8: silo \d leaves; {accuracy}{LEFT}"
    returns = rf"round 4 of 8: silo \d returns; {accuracy}{LEFT}"
    expected = [
        "started; 8 rounds in all", leaves, returns, rf"finished; {accuracy}{LEFT}",
        f"branched from {re.escape(str(cells[0].path))} after 1 round; 8 rounds in all",
        leaves, returns, rf"finished; {accuracy}{LEFT}",
        "resumed after 2 rounds; 8 rounds in all", rf"finished; {accuracy}{LEFT}",
        f"branched from {re.escape(str(cells[2].path))} after 7 rounds; 8 rounds in all",
        rf"finished; {accuracy}",
    ]  # fmt: skip
    for match, line in zip(found, expected, strict=True):
        assert re.fullmatch(line, match[4]), match[0]
    assert shown_of(cells, tiny_dataset) == [], "what is finished is not run again"


def test_a_failure_and_an_absence_that_never_comes_are_lines_too(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    short = shown_of(
        tiny_grid(tmp_path, ["fedavg"], ["temporary", "forever"], [0], training={"rounds": 1}), tiny_dataset
    )
    assert "every silo stays: temporary has no absence in 1 round" in short[1]
    assert re.search(r"forever, seed 0: silo \d is absent in the only round$", short[4])
    diverging = {"algorithm": {"feddyn": {"alpha": 1e9}}}
    _, *events, last = shown_of(
        tiny_grid(tmp_path / "other", ["feddyn"], ["none"], [0], **diverging), tiny_dataset
    )
    assert re.match(r"run 1 of 1: feddyn, none, seed 0: failed; .*diverged", last)
    assert events == []
    assert not [record for record in caplog.records if record.levelname == "WARNING"], "it is said once"


class Recorded(GridProgress):
    """Keeps how many rounds were announced, and how many came."""

    def plan(self, trained: Sequence[range]) -> None:
        self.announced = [list(rounds) for rounds in trained]
        self.number, self.came = 0, [list[int]() for _ in trained]

    def begin(self, number: int, experiment: Experiment, origin: str) -> None:
        self.number = number

    def round(self, row: Mapping[str, Any]) -> None:
        self.came[self.number].append(row["round"])


def test_the_rounds_that_are_announced_are_those_that_are_trained(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    """Finished, copied and frozen rounds do not count, nor does a branch whose parent is already further."""
    cells = tiny_grid(tmp_path, ["fedavg", "frozen", "feddig"], seeds=[0])
    run(cells[1].experiment, cells[1].path, dataset=tiny_dataset)
    run(cells[3].experiment, cells[3].path, dataset=tiny_dataset, until=5)
    run(cells[8].experiment, cells[8].path, dataset=tiny_dataset, until=6)
    counted.clear()
    recorded = Recorded()
    assert finished(run_grid(cells, dataset=tiny_dataset, progress=recorded))
    assert sum(map(len, recorded.announced)) == counted["rounds"]
    for announced, came in zip(recorded.announced, recorded.came, strict=True):
        assert came[: len(announced)] == announced
    recorded = Recorded()
    run_grid(cells, dataset=tiny_dataset, progress=recorded)
    assert sum(map(len, recorded.announced)) == 0


def test_the_time_left_is_that_of_all_runs_at_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of 4 rounds, the second copied up to round 2, and 10 s a round: after the first round 50 s are left."""
    now = [0.0]
    monkeypatch.setattr("feddig.runs.progress.time.perf_counter", lambda: now[0])
    text, experiment = StringIO(), make_tiny_experiment(training={"rounds": 4})
    shown = GridLines(Console(file=text, width=200))
    shown.plan([range(4), range(2, 4)])
    shown.begin(0, experiment, "started")
    events = [f"round {number}: silo {number} leaves" for number in range(1, 5)]
    shown.start(experiment, 0, 4, events)
    for number in range(4):
        now[0] += 15.0
        row = {
            "round": number,
            "test_accuracy": 50.0,
            "seconds_preparing": 5.0,
            "present": [],
            "recalled": [],
        }
        shown.round(row)
    shown.finish(50.0)
    found = re.findall(r"about (.*) left in all", text.getvalue())
    assert found == ["50 s", "40 s", "30 s", "20 s", "20 s"]


@pytest.mark.parametrize(
    ("seconds", "spelt"), [(99, "99 s"), (100, "2 min"), (5940, "99 min"), (9000, "2.5 h")]
)
def test_times_are_spelt_for_people(seconds: float, spelt: str) -> None:
    assert spell_seconds(seconds) == spelt


def test_in_a_terminal_a_bar_shows_the_run_and_the_time_left(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    cells = tiny_grid(tmp_path, ["fedavg", "frozen"], ["sequential"], [0])
    shown = shown_of(cells, tiny_dataset, force_terminal=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", "\n".join(shown))
    assert re.search(r"run 1 of 2  fedavg, sequential, seed 0 .* 8/8 +\d+\.\d % .*here: ", plain)
    assert re.search(r"run 2 of 2  frozen, sequential, seed 0 .* 8/8 ", plain)
    ends = [line for line in plain.splitlines() if LINE.search(line)]
    assert [LINE.search(line)[4].split(";")[0] for line in ends] == ["finished", "finished"]


# --- continuing a comparison


def test_finished_cells_are_skipped_and_not_touched(
    compared: Compared, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    before = snapshot(compared.branched)
    outcomes = run_grid(tiny_grid(compared.branched), dataset=tiny_dataset)
    assert finished(outcomes)
    assert [outcome.summary["seed"] for outcome in outcomes] == [0] * 12 + [1] * 12
    assert snapshot(compared.branched) == before
    assert counted == {}


def test_a_grid_may_grow(
    compared: Compared, tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    """A cell whose parent has passed the branching round is run from its first round."""
    run_grid(tiny_grid(tmp_path, ["fedavg"], ["none"], [0]), dataset=tiny_dataset)
    before = snapshot(tmp_path)
    run_grid(tiny_grid(tmp_path, ["fedavg"], ["none", "sequential"], [0]), dataset=tiny_dataset)
    assert counted["rounds"] == 8 + 8
    assert before.items() <= snapshot(tmp_path).items()
    place = Path("fedavg", "sequential", "seed-0")
    assert contents(tmp_path / place) == contents(compared.alone / place)


class Crash(BaseException):
    """Simulates a power cut."""


@pytest.mark.parametrize("number", [9, 16, 19, 22])
def test_a_comparison_that_crashes_and_is_repeated_ends_with_the_same_bytes(
    number: int,
    compared: Compared,
    tmp_path: Path,
    tiny_dataset: Dataset,
    counted: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this grid files are replaced 60 times; branches are copied between the 15th and the 24th."""
    cells = tiny_grid(tmp_path, ["feddig", "feddig-no-recall"], ["none", "sequential"], [0])
    real, calls = os.replace, itertools.count(1)

    def crashing(part: str, path: Path) -> None:
        if next(calls) == number:
            raise Crash
        real(part, path)

    monkeypatch.setattr("os.replace", crashing)
    with pytest.raises(Crash):
        run_grid(cells, dataset=tiny_dataset)
    assert finished(run_grid(cells, dataset=tiny_dataset))
    for cell in cells:
        assert contents(cell.path) == contents(compared.alone / cell.path.relative_to(tmp_path))


KILLED = ["--set", "data.limit=1000", "--set", "data.skew=1.0", "--set", "training.rounds=4",
          "--set", "training.threads=1", "--set", "training.batch=64"]  # fmt: skip


@pytest.mark.slow
def test_a_comparison_killed_in_the_middle_and_repeated_ends_with_the_same_bytes(tmp_path: Path) -> None:
    command = ["compare", *KILLED, "--algorithms", "feddig", "--scenarios", "none,sequential", "--seeds", "0",
               "--quiet", "--device", "cpu", "--out", tmp_path / "killed"]  # fmt: skip
    process = start_feddig(command)
    for _ in range(20_000):
        if (tmp_path / "killed" / "feddig" / "sequential" / "seed-0" / "experiment.toml").exists():
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.003)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "table.md").exists()

    assert run_feddig(*command) == 0
    settings = [text for flag, text in itertools.pairwise(KILLED) if flag == "--set"]
    for cell in grid(demo_experiment(settings), ["feddig"], ["none", "sequential"], [0], tmp_path / "calm"):
        run(cell.experiment, cell.path, device="cpu")
        place = cell.path.relative_to(tmp_path / "calm")
        assert contents(tmp_path / "killed" / place) == contents(cell.path)


# --- what is refused, and what fails


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"lr": 0.04}}, "training.lr = 0.05, now 0.04"),
        ({"data": {"skew": 5.0}}, "data.skew = 0.5, now 5.0"),
        ({"algorithm": {"weighting": "samples"}}, "algorithm.weighting = 'equal', now 'samples'"),
        ({"algorithm": {"fedprox": {"mu": 0.7}}}, "algorithm.fedprox.mu = 0.3, now 0.7"),
        ({"model": {"classifier": "size-matched"}}, "model.classifier = 'small', now 'size-matched'"),
    ],
)
def test_other_settings_in_an_existing_comparison_are_refused_by_their_key(
    sections: dict[str, dict[str, object]],
    message: str,
    tmp_path: Path,
    tiny_dataset: Dataset,
    counted: Counter[str],
) -> None:
    begun = {"algorithm": {"fedprox": {"mu": 0.3}}, "training": {"rounds": 1}}
    run_grid(tiny_grid(tmp_path, ["fedprox"], ["none"], [0], **begun), dataset=tiny_dataset)
    before = snapshot(tmp_path)
    merged = {name: {**begun.get(name, {}), **sections.get(name, {})} for name in {*begun, *sections}}
    with pytest.raises(FedDigError) as caught:
        run_grid(tiny_grid(tmp_path, ["fedprox"], ["none"], [0], **merged), dataset=tiny_dataset)
    assert message in str(caught.value)
    assert "choose another --out" in str(caught.value)
    assert snapshot(tmp_path) == before


def test_an_algorithms_own_key_that_is_no_longer_given_is_refused_too(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    begun = {"algorithm": {"fedprox": {"mu": 0.3}}, "training": {"rounds": 1}}
    run_grid(tiny_grid(tmp_path, ["fedprox"], ["none"], [0], **begun), dataset=tiny_dataset)
    with pytest.raises(FedDigError, match=r"algorithm\.fedprox\.mu = 0\.3, now 0\.01"):
        run_grid(
            tiny_grid(tmp_path, ["fedprox"], ["none"], [0], training={"rounds": 1}), dataset=tiny_dataset
        )


def test_settings_that_follow_from_the_data_are_not_taken_for_changes(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    """FedDyn's alpha is only in the folder's experiment.toml."""
    cells = tiny_grid(tmp_path, ["feddyn"], ["none"], [0], training={"rounds": 2})
    run(cells[0].experiment, cells[0].path, dataset=tiny_dataset, until=1)
    assert finished(run_grid(cells, dataset=tiny_dataset))


def test_a_cell_that_fails_does_not_stop_the_others(
    compared: Compared, tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    cells = tiny_grid(
        tmp_path, ["feddyn", "fedavg"], ["none", "sequential"], [0], algorithm={"feddyn": {"alpha": 1e9}}
    )
    outcomes = run_grid(cells, dataset=tiny_dataset)
    assert [outcome.summary is None for outcome in outcomes] == [True, False, True, False]
    assert all("diverged" in outcome.failure for outcome in outcomes if outcome.summary is None)
    for scenario in ("none", "sequential"):
        place = Path("fedavg", scenario, "seed-0")
        alone = contents(compared.alone / place)
        # every cell's experiment contains FedDyn's setting
        assert {**contents(tmp_path / place), "experiment.toml": alone["experiment.toml"]} == alone
    summaries = [
        (each.cell.experiment.algorithm.name, each.cell.experiment.absence.scenario, each.summary)
        for each in outcomes
    ]
    write_comparison(tmp_path, summaries, [each.cell.path for each in outcomes if each.summary])
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert table[2] == "| feddyn | none | 0 (1 failed) | - | - | - | - |"
    assert table[3].startswith("| fedavg | none | 1 | ")


def test_on_the_command_line_a_failure_ends_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counted: Counter[str]
) -> None:
    command = ["compare", "--set", "data.limit=300", "--set", "data.skew=10", "--set", "training.rounds=2",
               "--set", "training.threads=1", "--set", "algorithm.feddyn.alpha=1e9", "--algorithms",
               "fedavg,feddyn", "--seeds", "0,1", "--quiet", "--out", str(tmp_path)]  # fmt: skip
    assert run_feddig(*command) == 2
    printed = capsys.readouterr()
    last = printed.err.splitlines()[-1]
    assert last.startswith(
        f"feddig: error: 2 of 4 runs failed; the first: {tmp_path}/feddyn/sequential/seed-0: "
    )
    assert "Traceback" not in printed.err
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| feddyn | sequential | 0 (2 failed) | - | - | - | - |" in table
    assert "| fedavg | sequential | 2 | " in table
    assert (tmp_path / "curves-sequential.png").exists(), "of those that did not fail"


def test_a_cell_whose_folder_is_taken_does_not_spoil_its_parent(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    cells = tiny_grid(tmp_path, ["fedavg", "frozen"], ["none"], [0], training={"rounds": 2})
    cells[1].path.mkdir(parents=True)
    (cells[1].path / "thesis.tex").write_text("years of work", encoding="utf-8")
    outcomes = run_grid(cells, dataset=tiny_dataset)
    assert [outcome.summary is not None for outcome in outcomes] == [True, False]
    assert (cells[1].path / "thesis.tex").exists()


def written_by_hand(path: Path) -> dict[str, object]:
    path.write_text("1,1,0,0\n1,1,1,1\n1,1,1,1\n", encoding="utf-8")
    return {"scenario": "file", "file": str(path)}


def test_a_scenario_from_a_file_can_be_compared_with_a_preset(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    absence = written_by_hand(tmp_path / "mine.csv")
    cells = tiny_grid(
        tmp_path / "out", ["fedavg"], ["none", "file"], [0], absence=absence, training={"rounds": 4}
    )
    assert finished(run_grid(cells, dataset=tiny_dataset))


def test_a_scenario_from_a_file_can_be_compared_by_itself(
    tmp_path: Path, tiny_dataset: Dataset, counted: Counter[str]
) -> None:
    absence = written_by_hand(tmp_path / "mine.csv")
    cells = tiny_grid(
        tmp_path / "out", ["fedavg", "frozen"], ["file"], [0], absence=absence, training={"rounds": 4}
    )
    assert finished(run_grid(cells, dataset=tiny_dataset))
    assert [row["present"] for row in rows(cells[1].path)] == [[0, 1, 2]] * 2 + [[1, 2]] * 2


def test_the_grid_is_laid_out_by_algorithm_scenario_and_seed(tmp_path: Path) -> None:
    experiment: Experiment = make_tiny_experiment()
    cells = grid(experiment, ["fedavg", "feddig+fednova"], ["none", "groups"], [3, 5], tmp_path)
    assert len(cells) == len({cell.path for cell in cells}) == 8
    assert cells[-1].path == tmp_path / "feddig+fednova" / "groups" / "seed-5"
    last = cells[-1].experiment
    assert (last.algorithm.name, last.absence.scenario, last.seed) == ("feddig+fednova", "groups", 5)
    assert last == replace(experiment, seed=5, algorithm=last.algorithm, absence=last.absence)
