"""The paper's tables and figures: their cells, running them, and ours beside the paper's numbers."""

import itertools
import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import feddig.cli
from documented import ROOT
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.setup import choose_device, describe_device
from feddig.files import FORMAT_VERSION, attended
from feddig.runs.paper.cells import (
    Cell,
    PaperTable,
    finished_cells,
    keep,
    read_lines,
    read_table,
    read_tables,
    remaining_seconds,
)
from feddig.runs.paper.picture import draw_table
from feddig.runs.paper.runner import Runner
from feddig.runs.paper.table import heads_and_cells, tabulate, to_markdown

FOLDER = ROOT / "experiments" / "paper"
METHODS = ["fedavg", "fedprox", "fednova", "feddyn", "adabest", "feddig", "feddig-plus"]
BASELINES = ["fedavg", "fedprox", "fednova"]


def facts(table: PaperTable, *keys: str) -> list[tuple[Any, ...]]:
    """List the values of these settings, cell by cell."""
    found = []
    for cell in table.cells:
        values = []
        for key in keys:
            section, _, name = key.partition(".")
            section_of = cell.experiment if not name else getattr(cell.experiment, section)
            values.append(getattr(section_of, name or section))
        found.append(tuple(values))
    return found


def grid(*axes: Iterable[Any]) -> set[tuple[Any, ...]]:
    return set(itertools.product(*axes))


# --- the files


def test_the_tables_and_figures_are_all_there() -> None:
    tables = {table.name: table for table in read_tables(FOLDER)}
    assert {name: len(table.cells) for name, table in tables.items()} == {
        "bases": 18, "datasets": 15, "mixing": 2, "perturbation": 3, "pilot": 3, "samples-per-digest": 4, "silos": 10,
        "skew": 12, "table-1": 68, "table-2": 4, "weights": 4,
    }  # fmt: skip
    for table in tables.values():
        assert table.title
        assert table.about


def test_table_one_has_every_method_in_every_scenario_and_the_controls() -> None:
    found = facts(read_table(FOLDER, "table-1"), "algorithm.name", "absence.scenario", "seed")
    controls = ["digests-only", "feddig-no-recall", "feddig-no-joint", "fedavg-large"]
    assert set(found) == (
        grid(METHODS, ["none", "sequential"], [0, 1, 2])
        | grid(METHODS, ["temporary", "forever", "groups"], [0])
        | grid(controls, ["sequential"], [0])
        | {("centralised", "none", 0)}
    )
    assert [seed for _, _, seed in found[:42]] == [0] * 14 + [1] * 14 + [2] * 14
    assert {row[0] for row in facts(read_table(FOLDER, "table-1"), "data.name")} == {"emnist-byclass"}


def test_a_setting_that_is_left_out_is_in_no_key() -> None:
    """Result files know their cells by these keys, so a new optional setting must not change them."""
    cell = read_table(FOLDER, "table-1").cells[0]
    assert cell.experiment.absence.rounds is None
    assert "rounds" not in cell.settings["absence"]


def test_the_other_files_list_their_cells() -> None:
    pilot = read_table(FOLDER, "pilot")
    assert set(
        facts(
            pilot, "algorithm.name", "data.name", "absence.scenario", "training.batch", "privacy.scale_size"
        )
    ) == grid(BASELINES, ["cifar10"], ["temporary"], [32], [10_000])
    assert set(facts(read_table(FOLDER, "skew"), "algorithm.name", "data.skew")) == grid(
        [*BASELINES, "feddig"], [0.1, 0.5, 1.0]
    )
    silos = read_table(FOLDER, "silos")
    assert set(facts(silos, "data.silos", "absence.scenario", "algorithm.name")) == grid(
        [4, 8, 16, 32, 64], ["none", "sequential"], ["feddig"]
    )
    for count, share in facts(silos, "data.silos", "data.min_share"):
        assert share == (0.1 if count == 4 else pytest.approx(0.2 / count))
    bases = [*BASELINES, *("feddig" if base == "fedavg" else f"feddig+{base}" for base in BASELINES)]
    assert set(facts(read_table(FOLDER, "bases"), "algorithm.name", "seed")) == grid(bases, [0, 1, 2])
    digests = ("digest.samples_per_digest", "digest.mixing", "digest.weights", "privacy.mechanism")
    spd = facts(read_table(FOLDER, "samples-per-digest"), *digests)
    assert spd == [(number, "random", (), "paper-laplace") for number in (1, 2, 4, 8)]
    assert facts(read_table(FOLDER, "mixing"), *digests)[1] == (4, "within-class", (), "paper-laplace")
    assert [(row[0], row[3]) for row in facts(read_table(FOLDER, "perturbation"), *digests)] == [
        (1, "paper-laplace"), (4, "none"), (4, "paper-laplace"),
    ]  # fmt: skip
    assert {sum(row[2]) for row in facts(read_table(FOLDER, "weights"), *digests)} == {1.0, 0}


def test_other_data_sets_are_trained_as_the_paper_says() -> None:
    table = read_table(FOLDER, "datasets")
    found = facts(
        table, "data.name", "algorithm.name", "training.batch", "model.classifier", "digest.encoder"
    )
    own, mobilenet = "size-matched", "results/mobilenet.safetensors"
    assert set(found) == (
        grid(["fashion-mnist"], [*BASELINES, "feddig"], [256], [own], ["default"])
        | grid(["cifar10"], [*BASELINES, "feddig"], [32], [own], ["default"])
        | {("cifar100", "feddig", 32, own, mobilenet)}
        | grid(["cifar100"], BASELINES, [32], [mobilenet, "mobilenet-v2"], ["default"])
    )


def test_a_run_that_tables_share_is_one_cell() -> None:
    tables = {table.name: {cell.key for cell in table.cells} for table in read_tables(FOLDER)}
    assert tables["table-2"] < tables["table-1"]
    assert tables["bases"] - tables["table-1"] == {
        cell.key for cell in read_table(FOLDER, "bases").cells if "+" in cell.experiment.algorithm.name
    }
    assert len(tables["skew"] & tables["table-1"]) == 4
    one = tables["mixing"] & tables["silos"] & tables["samples-per-digest"] & tables["perturbation"]
    assert len(one) == 1
    assert one < tables["table-1"]
    assert len(set.union(*tables.values())) == 116


def test_fednova_weighs_by_samples_in_the_papers_runs() -> None:
    cells = read_table(FOLDER, "bases").cells
    weightings = {
        cell.experiment.recipe.base: cell.experiment.resolved().algorithm.weighting for cell in cells
    }
    assert weightings == {"fedavg": "equal", "fedprox": "equal", "fednova": "samples"}


def test_a_cell_is_the_same_wherever_its_files_lie_and_on_any_machine(tmp_path: Path) -> None:
    cell = read_table(FOLDER, "datasets").cells[0]
    experiment = replace(
        cell.experiment,
        data=replace(cell.experiment.data, path=str(tmp_path)),
        training=replace(cell.experiment.training, precision="bf16", threads=3),
    )
    assert Cell(experiment).key == cell.key
    assert cell.with_seed(1).key != cell.key


# --- running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables of tiny cells, which share one; with an empty report page, which takes most of a tiny run's time."""
    monkeypatch.setattr("feddig.runs.outcome.write_page", lambda path: (path / "report.html").touch())
    (tmp_path / "paper.toml").write_text(
        '[data]\nname = "fashion-mini"\nlimit = 160\nmin_samples = 8\nskew = 1.0\n'
        '[training]\nrounds = 6\nbatch = 32\nlr = 0.01\n[model]\nclassifier = "small"\n',
        encoding="utf-8",
    )
    head = 'title = "Table 0"\nabout = "tiny"\nkind = "{}"\nrows = ["algorithm.name"]\n'
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "first.toml").write_text(
        head.format("silos") + '[[cells]]\nalgorithm.name = ["fedavg", "feddig"]\n'
        "[published]\nsequential = { fedavg = [50.0, 2.0] }\n",
        encoding="utf-8",
    )
    (tmp_path / "paper" / "second.toml").write_text(
        head.format("costs")
        + '[[cells]]\nalgorithm.name = "feddig"\n[published]\nseconds = { feddig = 44.9 }\n',
        encoding="utf-8",
    )
    return tmp_path


def runner_of(folder: Path, name: str = "first", **more: Any) -> Runner:
    table = read_table(folder / "paper", name)
    return Runner(table, folder / "results", folder / "work", device="cpu", **more)


def test_finished_cells_are_kept_and_not_run_again(folder: Path) -> None:
    said: list[str] = []
    assert runner_of(folder).run(said.append) == []
    assert [text.split(",")[0] for text in said[::2]] == ["finished: fedavg", "finished: feddig"]
    pages = [Path(text.removeprefix("page     ")) for text in said[1::2]]
    assert [page.name for page in pages if page.is_file()] == ["report.html"] * 2
    lines = read_lines(folder / "results")
    assert len((folder / "results" / "first.jsonl").read_text("utf-8").splitlines()) == len(lines) == 2
    fedavg, feddig = lines
    assert len(fedavg["accuracy"]) == 6
    assert fedavg["measures"]["mean_250_299"] == pytest.approx(fedavg["accuracy"][5], abs=0.01)
    assert fedavg["measures"]["frozen_own"] == pytest.approx(fedavg["accuracy"][1], abs=0.01)
    assert fedavg["silos"]["leaves"] == [0]
    assert fedavg["digest_bytes"] is None
    sizes = feddig["digest_bytes"]
    assert sizes["float32"] == sum(feddig["bytes"]["digest"]) == 2 * sizes["float16"]
    assert 0 < sizes["float16_compressed"] < sizes["float16"]
    said.clear()
    assert runner_of(folder).run(said.append) == []
    assert runner_of(folder, "second").run(said.append) == []  # it shares a cell with the first
    assert said == []
    assert not (folder / "results" / "second.jsonl").exists()


def test_a_cell_that_is_cut_goes_on_and_ends_as_if_it_had_not_been(folder: Path) -> None:
    until = time.monotonic() + 0.2

    class Slow:
        """Makes the time be over in the first round."""

        def start(self, *_: Any) -> None: ...
        def stop(self) -> None: ...
        def round(self, row: Any) -> None:
            time.sleep(max(0.0, until - time.monotonic()) + 0.01)

    said: list[str] = []
    one = runner_of(folder)
    one = replace(one, table=replace(one.table, cells=one.table.cells[:1]))
    replace(one, until=until, progress=Slow).run(said.append)
    assert said[-1].endswith("the time is over after round 1 of 6")
    assert not (folder / "results").exists()
    one.run(said.append)
    replace(one, results=folder / "again", work=folder / "elsewhere").run(said.append)
    cut, whole = (read_lines(folder / name)[0] for name in ("results", "again"))
    assert cut["accuracy"] == whole["accuracy"]


def test_two_processes_lose_no_line_of_each_other(folder: Path) -> None:
    one = runner_of(folder)
    lines = [line_of(one.table.cells[0].with_seed(seed), accuracy=[1.0]) for seed in range(24)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one._keep, lines))
    assert {line["settings"]["seed"] for line in read_lines(one.results)} == set(range(24))


def test_processes_share_a_table_and_do_not_time_rounds_beside_each_other(folder: Path) -> None:
    begun, go_on, said = threading.Event(), threading.Event(), list[str]()

    class Held:
        """Holds the first cell until the other process has ended."""

        def start(self, *_: Any) -> None:
            begun.set()
            go_on.wait(60)

        def stop(self) -> None: ...
        def round(self, row: Any) -> None: ...

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(runner_of(folder, progress=Held).run, lambda text: None)
        begun.wait(60)
        runner_of(folder).run(said.append)
        go_on.set()
        assert first.result() == []
    assert said[0] == "left out: fedavg, sequential, fashion-mini, seed 0: another process is running it"
    assert said[1].startswith("finished: feddig")
    feddig, fedavg = read_lines(folder / "results")
    assert {"accuracy", "seconds_per_round"} & feddig.keys() == {"accuracy"}
    assert {"accuracy", "seconds_per_round"} & fedavg.keys() == {"accuracy"}
    # a table of costs asks for a run of its own
    costs = runner_of(folder, "second")
    rows = tabulate(costs.table, finished_cells(read_lines(costs.results)))
    assert heads_and_cells(costs.table, rows)[1][0][-1] == "-"
    assert costs.run(said.append) == []
    (timed,) = (line for line in read_lines(costs.results) if "seconds_per_round" in line)
    assert timed["accuracy"] == feddig["accuracy"]
    assert len(list((folder / "work").rglob("metrics.jsonl"))) == 3, "it was trained again"
    (folder / "results" / "second.jsonl").unlink()
    (failure,) = costs.run(said.append)
    assert "so they were not timed; remove " in failure


def test_rounds_are_not_timed_beside_other_cells(folder: Path) -> None:
    with attended(folder / "work" / ".running"), pytest.raises(FedDigError, match="time it without them"):
        runner_of(folder).time(lambda text: None)


def line_of(cell: Cell, **more: Any) -> dict[str, Any]:
    """Write a result by hand."""
    return {"settings": cell.settings, **more}


def test_a_cell_that_does_not_fit_is_not_begun(folder: Path) -> None:
    runner = runner_of(folder, until=time.monotonic() + 60)
    device = describe_device(choose_device("cpu"))
    keep(runner.results, "first", line_of(runner.table.cells[0], device=device, seconds_per_round=100.0))
    said: list[str] = []
    assert runner.run(said.append) == []
    assert len(said) == 1
    assert said[0].startswith("stopped: fedavg, sequential, fashion-mini, seed 0: it takes about 600 s, and ")
    assert not list((folder / "work").rglob("log.txt"))


def test_time_is_measured_once_and_no_cell_is_finished_by_it(folder: Path) -> None:
    runner, said = runner_of(folder), list[str]()
    runner.time(said.append)
    runner.time(said.append)
    assert [text.split(",")[0] for text in said] == ["timed: fedavg", "timed: feddig"]
    lines = read_lines(runner.results)
    left, costs = remaining_seconds(runner.table, lines)
    assert len(left) == 2
    ((seconds, unknown),) = costs.values()
    assert seconds == pytest.approx(6 * sum(line["seconds_per_round"] for line in lines))
    assert unknown == 0


def test_a_run_that_diverges_is_a_result_and_one_that_cannot_be_run_is_not(folder: Path) -> None:
    text = (folder / "paper" / "first.toml").read_text("utf-8")
    (folder / "paper" / "wild.toml").write_text(
        text.replace('["fedavg", "feddig"]', '"fedprox"\nalgorithm.fedprox.mu = 1e30'), encoding="utf-8"
    )
    (folder / "paper" / "away.toml").write_text(
        text.replace('["fedavg", "feddig"]', '"fedavg"\ndata.name = "npz"\ndata.path = "no.npz"'),
        encoding="utf-8",
    )
    said: list[str] = []
    assert runner_of(folder, "wild").run(said.append) == []
    assert "training diverged" in said[0]
    wild = read_table(folder / "paper", "wild")
    finished = finished_cells(read_lines(folder / "results"))
    assert heads_and_cells(wild, tabulate(wild, finished))[1][0][2] == "1 of 1 seeds diverged"
    (failure,) = runner_of(folder, "away").run(said.append)
    assert "no.npz" in failure
    assert not (folder / "results" / "away.jsonl").exists()


# --- the tables


def test_a_table_sets_ours_beside_the_papers(folder: Path) -> None:
    """Seeds 0 and 1 have 52 and 56: mean 54, deviation 2.8; FedDig has 60 and 61, so it is 8 and 5 above."""
    table = read_table(folder / "paper", "first")
    data, versions = {"name": "fashion-mini", "train": 160}, {"torch": "2.11"}
    for (place, cell), (seed, value) in itertools.product(enumerate(table.cells), enumerate((52.0, 56.0))):
        value += place * (8 - 3 * seed)
        measures = {
            "mean_251_259": value,
            "mean_250_299": 51.0,
            "absence_mean": 60.0,
            "frozen_own_mean_10": 58.0,
        }
        line = line_of(
            cell.with_seed(seed), device="GPU", precision="bf16", data=data, versions=versions,
            measures=measures, silos={"leaves": [0], "before": [80.0 + seed, 1.0], "away": [20.0, 1.0]}, accuracy=[1.0],
        )  # fmt: skip
        keep(folder / "results", "first", line)
    rows = tabulate(table, finished_cells(read_lines(folder / "results")))
    fedavg = ["54.0 ± 2.8", "+6.5 ± 2.1", "51.0 ± 0.0", "60.0 ± 0.0", "58.0 ± 0.0 (better)"]
    feddig = ["60.5 ± 0.7", "-", "51.0 ± 0.0", "60.0 ± 0.0", "58.0 ± 0.0"]
    assert heads_and_cells(table, rows)[1] == [
        ["fedavg", "50.0 ± 2.0", *fedavg, "1, 1", "80.5, 20.0", "0 1"],
        ["feddig", "-", *feddig, "-", "80.5, 20.0", "0 1"],
    ]
    text = to_markdown(table, rows)
    assert text.endswith("Finished cells: fashion-mini (160 training images), GPU, bf16, torch 2.11: 4.\n")


def test_places_are_told_once_all_methods_are_run() -> None:
    """Of these methods the paper has FedNova first and FedAvg last; ours are the other way round."""
    table = read_table(FOLDER, "bases")
    order = [cell.experiment.algorithm.name for cell in table.cells[:6]]
    lines = {
        cell.key: line_of(cell, accuracy=[1.0], measures={"mean_251_259": 100.0 - place})
        for place, cell in enumerate(table.cells[:6])
    }
    assert order == ["fedavg", "feddig", "fedprox", "feddig+fedprox", "fednova", "feddig+fednova"]
    column = heads_and_cells(table, [])[0].index("place: the paper's, ours")
    rows = tabulate(table, lines)
    found = [cells[column] for cells in heads_and_cells(table, rows)[1]]
    assert found == ["6, 1", "2, 2", "5, 3", "3, 4", "4, 5", "1, 6"]
    del lines[table.cells[0].key]
    first = heads_and_cells(table, tabulate(table, lines))[1][0]
    assert first[column] == "6, -"
    assert first[1:4] == ["fedavg", "51.6 ± 6.6", "not run"]


def test_a_table_of_costs_gives_sizes_and_seconds(folder: Path) -> None:
    table = read_table(folder / "paper", "second")
    sizes = {"digests": 9, "float32": 177_540_000, "float16": 88_770_000, "float16_compressed": 60_000_000}
    line = line_of(
        table.cells[0],
        bytes={"update": [5_774_456]},
        digest_bytes=sizes,
        seconds_per_round=0.773,
        accuracy=[1.0],
    )
    rows = tabulate(table, {table.cells[0].key: line})
    assert heads_and_cells(table, rows)[1] == [
        ["feddig", "-", "5.77", "-", "177.54", "88.77", "60.00", "44.9", "0.77"]
    ]


def test_a_figure_shows_what_the_result_files_hold(folder: Path) -> None:
    table = replace(read_table(folder / "paper", "first"), figure="scenario-curves")
    curves = {"fedavg": [10.0, 30.0, 50.0, 40.0, 30.0, 20.0], "feddig": [20.0, 40.0, 60.0, 61.0, 62.0, 63.0]}
    lines = {
        cell.key: {
            "settings": cell.settings,
            "accuracy": curves[cell.experiment.algorithm.name],
            "measures": {"final": 1.0},
        }
        for cell in table.cells
    }
    (axes,) = draw_table(table, lines).axes
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in axes.get_lines()}
    assert {name: drawn[name] for name in curves} == curves
    # silos leave in rounds 2, 3, 4 and 5 of 6
    assert sorted(line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2) == [
        2,
        3,
        4,
        5,
    ]
    with pytest.raises(FedDigError, match="first: no cell is finished; run some with feddig paper run first"):
        draw_table(table, {})
    with pytest.raises(FedDigError, match="no kind of figure fits it"):
        draw_table(replace(table, figure=""), lines)


# --- the command


def command(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        feddig.cli.main(["paper", *words])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


def test_the_command_lists_runs_and_tabulates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--experiments", str(folder / "paper"), "--results", str(folder / "results")]
    assert "0 of 2" in command("list", *places, capsys=capsys)[1]
    run = ["run", "second", *places, "--work", str(folder / "work"), "--device", "cpu", "-q"]
    code, text = command(*run, "--limit-minutes", "0", capsys=capsys)
    assert (code, "second: 0 of 1 cells are finished" in text) == (0, True)
    assert "second: 1 of 1 cells are finished" in command(*run, capsys=capsys)[1]
    assert "second: 2 of 2 cells are finished" in command(*run, "--seeds", "0-1", capsys=capsys)[1]
    text = command("list", *places, capsys=capsys)[1]
    assert "1 of 2" in text
    assert "1 of 1" in text
    code, text = command("figure", "second", *places, capsys=capsys)
    assert (code, "no kind of figure fits it" in text) == (2, True)
    code, text = command("table", "second", "--markdown", *places, capsys=capsys)
    assert (code, text.splitlines()[0]) == (0, "<!-- second -->")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "tabel-1"], "did you mean 'table-1'?"),
        (["table", "bases", "--experiments", "nowhere"], "nowhere"),
        (["list", "--experiments", "nowhere"], "give --experiments"),
        (["run", "bases", "--seeds", "x"], "--seeds: 'x' is not a whole number"),
    ],
)
def test_mistakes_end_with_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, text = command(*words, capsys=capsys)
    assert code == 2
    assert said in text
    assert len(text.splitlines()) == 1


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "paper" / "first.toml"
    text = path.read_text("utf-8")
    for old, new, said in (
        ("[[cells]]", "[cell]", "not a table of the paper"),
        ('"silos"', '"silo"', "did you mean 'silos'"),
        ("algorithm.name = [", "algorithm.nam = [", r"algorithm\.nam: unknown key"),
    ):
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(SettingError, match=f"first.toml: .*{said}"):
            read_table(folder / "paper", "first")
    results = folder / "results"
    results.mkdir()
    for line in ("{", json.dumps({"format_version": FORMAT_VERSION})):
        (results / "first.jsonl").write_text(line + "\n", encoding="utf-8")
        with pytest.raises(FileFormatError, match=r"first\.jsonl, line 1: not a finished cell"):
            read_lines(results)
