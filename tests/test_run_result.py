"""The results of runs and comparisons, as Python and notebooks use them."""

import csv
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import feddig
from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import Comparison, FedDigError, Result, compare, read_result, resume, run
from feddig.commands.compare import compare_command
from feddig.report.pictures import to_bytes
from feddig.runs.compare import Outcome
from folders import rows, run_feddig
from report_folders import write_folder, write_grid

PNG = b"\x89PNG\r\n\x1a\n"
PRESENT = ["1100", "1111"]


def write_known(folder: Path, **options: object) -> Path:
    """Write a run of four rounds, in which silo 0 leaves after two."""
    measures = {"frozen_own": 30.0, "frozen_own_mean_10": 25.5}
    return write_folder(folder, [20.0, 30.0, 40.0, 50.25], PRESENT, measures=measures, **options)


# --- of one run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(make_tiny_experiment(), tmp_path_factory.mktemp("a") / "run", dataset=draw_tiny_dataset())


def test_a_result_is_the_dictionary_of_the_summary(finished: Result) -> None:
    stored = json.loads((finished.path / "summary.json").read_text(encoding="utf-8"))
    assert finished == stored == finished.summary
    assert type(finished.summary) is dict
    assert json.loads(json.dumps(finished)) == json.loads(json.dumps(dict(finished))) == stored
    assert finished["accuracy"]["final"] == finished.accuracy == rows(finished.path)[-1]["test_accuracy"]


def test_a_result_says_which_run_it_is_of(finished: Result) -> None:
    assert (finished.algorithm, finished.scenario, finished.seed) == ("feddig", "sequential", 0)
    assert finished.finished
    assert finished.page == finished.path / "report.html"
    assert "<html" in finished.page.read_text(encoding="utf-8")
    assert finished.before_first_leave == finished["accuracy"]["frozen_own_mean_10"] > 0
    assert repr(finished) == (
        f"<Result {finished.path}: feddig, sequential, seed 0, {finished.accuracy:.1f} %>"
    )


def test_the_history_has_a_column_for_each_number_and_an_entry_for_each_round(finished: Result) -> None:
    written, history = rows(finished.path), finished.history
    assert {len(column) for column in history.values()} == {8}
    scalars = {type(entry) for column in history.values() for entry in column}
    assert scalars == {int, float, bool, type(None)}, "a DataFrame takes it as it is"
    assert history["round"] == list(range(8))
    assert history["test_accuracy"] == [row["test_accuracy"] for row in written]
    assert history["validation_silo_2"] == [row["validation_accuracy"][2] for row in written]
    assert history["loss_silo_0"] == [row["losses"]["silos"].get("0") for row in written]
    assert history["loss_recall_silo_0"] == [row["losses"]["recall"].get("0") for row in written]
    assert None in history["loss_silo_0"]
    assert history["loss_joint"] == [row["losses"]["joint"] for row in written]
    assert history["present_silo_0"] == [0 in row["present"] for row in written]
    assert history["recalled_silo_0"] == [not present for present in history["present_silo_0"]]
    assert "format_version" not in history


def test_lists_and_tables_that_the_history_does_not_know_get_a_column_for_each_entry(tmp_path: Path) -> None:
    file = write_known(tmp_path / "run") / "metrics.jsonl"
    new = [
        {"class_accuracy": [10.0, None], "intervals": {"macro_f1": None}},
        {"intervals": {"macro_f1": [8.0, 12.0]}},
        {"class_accuracy": [30.0, 40.0], "auc": {"shoe": 0.5}},
        {},
    ]
    lines = [json.dumps(old | more) + "\n" for old, more in zip(rows(tmp_path / "run"), new, strict=True)]
    file.write_text("".join(lines), encoding="utf-8")
    history = read_result(tmp_path / "run").history
    assert history["class_accuracy_0"] == [10.0, None, 30.0, None]
    assert history["class_accuracy_1"] == [None, None, 40.0, None]
    assert history["auc_shoe"] == [None, None, 0.5, None]
    assert history["intervals_macro_f1_1"] == [None, 12.0, None, None]
    assert "intervals_macro_f1" not in history


@pytest.mark.usefixtures("pictures")
def test_the_plot_is_the_runs_picture(tmp_path: Path) -> None:
    result = run(make_tiny_experiment(), tmp_path / "run", dataset=draw_tiny_dataset())
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert to_bytes(figure, dpi=120) == (tmp_path / "run" / "curves.png").read_bytes()


def test_a_notebook_shows_a_plot_without_pyplot(tmp_path: Path) -> None:
    assert read_result(write_known(tmp_path / "run")).plot()._repr_png_().startswith(PNG)


def test_a_notebook_shows_a_table_with_the_earlier_model_and_a_link(tmp_path: Path) -> None:
    folder = write_known(tmp_path / "a <b> & c", algorithm="feddig+<i>", seed=3)
    (folder / "report.html").touch()
    shown = read_result(folder)._repr_html_()
    assert "<td>feddig+&lt;i&gt;</td><td>sequential</td><td>3</td><td>50.2 %</td><td>25.5 %</td>" in shown
    assert "own model before the first leave" in shown
    assert 'a%20%3Cb%3E%20%26%20c/report.html" target="_blank">' in shown
    assert "a &lt;b&gt; &amp; c/report.html</a>" in shown
    assert not re.search("<script|<style|https?:", shown)


def test_where_nobody_leaves_there_is_no_earlier_model(tmp_path: Path) -> None:
    result = read_result(write_folder(tmp_path / "run", [20.0, 30.0], ["11"], scenario="none"))
    assert result.before_first_leave is None
    assert "<td>30.0 %</td><td>–</td>" in result._repr_html_()


# --- of a folder that is already there


def test_a_folder_is_read_without_torch(finished: Result) -> None:
    program = (
        "import sys, feddig\nresult = feddig.read_result(sys.argv[1])\nresult.plot()\n"
        "print(len(result.history['round']), result.accuracy, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(finished.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"8 {finished.accuracy} False\n"
    assert read_result(str(finished.path)) == finished


def test_an_interrupted_run_has_a_result_of_its_rounds_so_far(tmp_path: Path) -> None:
    dataset = draw_tiny_dataset()
    begun = run(make_tiny_experiment(), tmp_path / "run", dataset=dataset, until=5)
    assert (begun == {}, begun.finished, begun.summary, begun.page) == (True, False, {}, None)
    assert (begun.algorithm, begun.scenario, begun.seed) == ("feddig", "sequential", 0)
    accuracies = [row["test_accuracy"] for row in rows(tmp_path / "run")]
    assert begun.accuracy == accuracies[4]
    assert begun.before_first_leave == accuracies[2], "the first silo leaves in round 3"
    assert f"{begun.accuracy:.1f} % after 5 of 8 rounds" in begun._repr_html_()
    assert begun.plot().axes[0].get_title() == "feddig, sequential, seed 0, 5 of 8 rounds"
    ended = resume(tmp_path / "run", dataset=dataset)
    assert ended.finished
    assert len(ended.history["round"]) == 8
    assert begun.history["test_accuracy"] == accuracies, "it still describes the rounds of its time"
    assert begun.accuracy == accuracies[4]


def test_a_run_without_a_finished_round_has_a_result_too(tmp_path: Path) -> None:
    begun = run(make_tiny_experiment(), tmp_path / "run", dataset=draw_tiny_dataset(), until=0)
    assert (begun.accuracy, begun.before_first_leave, begun.history) == (None, None, {})
    assert repr(begun).endswith("seed 0, – after 0 of 8 rounds>")
    with pytest.raises(FedDigError, match=r"run: no round is finished yet, so there is nothing to plot$"):
        begun.plot()


def test_a_line_that_a_killed_process_wrote_in_part_is_left_out(tmp_path: Path) -> None:
    file = write_known(tmp_path / "run", finished=False) / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    assert read_result(tmp_path / "run").history["round"] == [0, 1, 2]


def test_rounds_that_a_finished_run_was_given_later_are_not_in_its_result(tmp_path: Path) -> None:
    folder = write_known(tmp_path / "run")
    stored = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    (folder / "summary.json").write_text(json.dumps(stored | {"rounds": 3}), encoding="utf-8")
    assert read_result(folder).history["round"] == [0, 1, 2]


@pytest.mark.parametrize("name", ["experiment.toml", "metrics.jsonl", "summary.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    folder = write_known(tmp_path / "run")
    (folder / name).write_text("{\n{\n", encoding="utf-8")
    with pytest.raises(FedDigError, match=name.replace(".", r"\.")) as raised:
        read_result(folder).history  # noqa: B018
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    write_grid(tmp_path / "grid", seeds=1)
    for folder in (tmp_path / "nowhere", tmp_path, tmp_path / "grid"):
        with pytest.raises(FedDigError, match=r"holds no run; give the folder of one"):
            read_result(folder)


# --- of several runs


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(
        make_tiny_experiment(training={"rounds": 3}),
        ["fedavg", "feddig", "fedavg"],
        ["sequential"],
        range(2),
        tmp_path_factory.mktemp("b") / "grid",
        dataset=draw_tiny_dataset(),
    )


def test_a_comparison_writes_the_files_of_the_command(compared: Comparison) -> None:
    names = {path.name for path in compared.path.iterdir()}
    assert names == {"fedavg", "feddig", "table.csv", "table.md", "curves-sequential.png", "report.html"}
    assert compared.page == compared.path / "report.html"
    assert list(compared.pictures) == [compared.path / "curves-sequential.png"]


def test_a_comparisons_table_has_the_columns_of_its_file(compared: Comparison) -> None:
    _, *lines = (compared.path / "table.csv").read_text(encoding="utf-8").splitlines()
    head, *cells = csv.reader(lines)
    assert list(compared.table) == head
    assert compared.table["algorithm"] == ["fedavg", "feddig"], "one that is repeated counts once"
    assert compared.table["seeds"] == [2, 2]
    finals = [result.accuracy for result in compared.results if result.algorithm == "feddig"]
    assert compared.table["final_mean"][1] == pytest.approx(sum(finals) / 2)
    assert compared.table["final_sd"][1] == pytest.approx(abs(finals[0] - finals[1]) / 2**0.5)
    place = head.index("final_sd")
    assert [f"{value:.4f}" for value in compared.table["final_sd"]] == [line[place] for line in cells]
    assert compared.table["after_200_mean"] == [None, None]


def test_a_comparisons_results_are_those_of_its_runs(compared: Comparison) -> None:
    paths = [Path(name, "sequential", f"seed-{seed}") for seed in (0, 1) for name in ("fedavg", "feddig")]
    assert [result.path for result in compared.results] == [compared.path / path for path in paths]
    assert compared.results == [read_result(compared.path / path) for path in paths]
    assert compared.failures == {}
    assert repr(compared) == f"<Comparison {compared.path}: 4 runs, 0 failed>"


def test_a_comparisons_accuracy_and_history_are_those_of_its_runs(compared: Comparison) -> None:
    of_seeds: dict[tuple[str, str], list[float]] = {}
    for result in compared.results:
        of_seeds.setdefault((result.algorithm, result.scenario), []).append(result["accuracy"]["final"])
    assert compared.accuracy == {
        key: pytest.approx(sum(values) / len(values)) for key, values in of_seeds.items()
    }
    found, start = compared.history, 0
    assert {len(column) for column in found.values()} == {len(found["round"])}
    for result in compared.results:
        end = start + len(result.history["round"])
        assert set(found["algorithm"][start:end]) == {result.algorithm}
        assert set(found["seed"][start:end]) == {result.seed}
        for name, column in found.items():
            if name not in ("algorithm", "scenario", "seed"):
                assert column[start:end] == result.history.get(name, [None] * (end - start)), name
        start = end
    assert start == len(found["round"])


def test_a_comparisons_plot_is_the_picture_of_the_scenario(compared: Comparison) -> None:
    figures = [compared.plot(), compared.plot("sequential")]
    (picture,) = compared.pictures
    assert {to_bytes(figure, dpi=120) for figure in figures} == {picture.read_bytes()}
    assert figures[0]._repr_png_().startswith(PNG)
    with pytest.raises(FedDigError, match=r"plot\(\) needs one of its scenarios: sequential$"):
        compared.plot("none")


def test_a_notebook_shows_the_table_of_a_comparison_with_a_link(compared: Comparison) -> None:
    shown = compared._repr_html_()
    table = (compared.path / "table.md").read_text(encoding="utf-8")
    cells = [cell.strip() for line in table.splitlines()[2:4] for cell in line.strip("|").split("|")]
    assert all(f"<td>{cell}</td>" in shown for cell in cells)
    assert f'<a href="{compared.page}"' in shown


def test_a_run_that_fails_is_told_and_stops_no_other(tmp_path: Path) -> None:
    experiment = make_tiny_experiment(
        training={"rounds": 3}, algorithm={"name": "fedavg", "fedprox": {"mu": 1e12}}
    )
    found = compare(
        experiment, ["fedprox", "fedavg"], ["none"], [0], tmp_path / "grid", dataset=draw_tiny_dataset()
    )
    ((path, why),) = found.failures.items()
    assert path == tmp_path / "grid" / "fedprox" / "none" / "seed-0"
    assert "diverged" in why
    assert why in found._repr_html_()
    assert [result.algorithm for result in found.results] == ["fedavg"]
    assert (found.table["failed"], found.table["final_mean"][0]) == ([1, 0], None)


def test_a_comparison_without_a_finished_run_cannot_be_plotted(tmp_path: Path) -> None:
    failed = Outcome(cell=None, summary=None, failure="diverged")  # type: ignore[arg-type]
    with pytest.raises(FedDigError, match="no run is finished, so there is nothing to plot"):
        Comparison(tmp_path, [failed], [], [], None).plot()


def test_what_a_comparison_is_given_is_checked_first(tmp_path: Path) -> None:
    data = draw_tiny_dataset()
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").touch()
    for wrong, said in (
        ({"algorithms": "feddig"}, r"algorithms: 'feddig' is not a list .* such as \['feddig'\]$"),
        ({"algorithms": ["feddigg"]}, r"unknown algorithm 'feddigg'; did you mean 'feddig'\?$"),
        ({"scenarios": ["sequental"]}, r"'sequental' is not known; did you mean 'sequential'\?$"),
        ({"seeds": 3}, r"seeds: 3 is not a list with at least one entry, such as \[0\]$"),
        ({"seeds": []}, r"seeds: \[\] is not a list"),
        ({"out": tmp_path / "file"}, r"file: is a file; give a new folder$"),
        ({"out": tmp_path / "run"}, r"run: holds a run; give another folder for the comparison$"),
    ):
        with pytest.raises(FedDigError, match=said):
            compare(make_tiny_experiment(), dataset=data, **{"out": tmp_path / "grid", **wrong})
    assert not (tmp_path / "grid").exists()


def test_the_function_and_the_command_have_the_same_defaults() -> None:
    function, command = (inspect.signature(each).parameters for each in (compare, compare_command))
    for name in ("algorithms", "scenarios", "seeds"):
        assert function[name].default is command[name].default is None
    assert Path(function["out"].default) == command["out"].default


def test_a_comparison_is_of_the_experiments_own_scenario_seed_and_algorithm(tmp_path: Path) -> None:
    experiment = make_tiny_experiment(
        seed=3, training={"rounds": 1}, absence={"scenario": "none"}, algorithm={"name": "fedprox"}
    )
    found = compare(experiment, out=tmp_path / "grid", dataset=draw_tiny_dataset())
    names = ("fedavg", "frozen", "feddig", "feddig-plus", "fedprox")
    assert [outcome.cell.path for outcome in found.outcomes] == [
        tmp_path / "grid" / name / "none" / "seed-3" for name in names
    ]


def test_the_command_goes_on_with_a_comparison_that_python_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["data.limit=400", "data.min_samples=16", "training.rounds=1"]
    begun = compare(feddig.demo_experiment(small), ["fedavg"], ["none"], out="grid", device="cpu")
    words = [word for key in small for word in ("--set", key)]
    assert run_feddig(
        "compare", *words, "--algorithms", "fedavg,frozen", "--scenarios", "none", "--out", "grid",
        "--device", "cpu", "--json", "--quiet",
    ) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)["runs"]
    assert [each["algorithm"] for each in told] == ["fedavg", "frozen"]
    assert told[0]["summary"] == begun.results[0], "a finished run is kept"
