"""Tables and pictures of results folders that are written by hand, and imports of the report modules."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

import feddig.report
from feddig.errors import FileFormatError
from feddig.report import pictures
from feddig.report.measures import MEASURES
from feddig.report.page import tabulate, to_csv, to_markdown, to_rich, write_comparison
from feddig.report.pictures import draw_curves, draw_run, plot_run, to_bytes
from feddig.report.read_run import Run, read_rounds
from report_folders import write_grid


def summary(final: float, *, seconds: float = 1.0, **accuracies: float | None) -> dict[str, Any]:
    """Write a summary whose measures all equal the final accuracy, except those given."""
    return {"accuracy": dict.fromkeys(MEASURES, final) | accuracies, "seconds_per_round": seconds}


SUMMARIES = [
    ("fedavg", "none", summary(50.0, seconds=0.1, after_9=None)),
    ("feddig", "none", summary(80.0, after_9=7.0)),
    ("fedavg", "none", summary(60.0, seconds=0.3, after_9=30.0)),
    ("fedavg", "none", summary(70.0, seconds=0.2, after_9=20.0)),
    ("feddig", "groups", None),
    ("feddig", "groups", summary(90.0)),
    ("frozen", "groups", None),
]


def test_means_and_sample_deviations_by_hand() -> None:
    """The mean of 50, 60 and 70 is 60; the deviation is the root of (100 + 0 + 100) / 2, which is 10."""
    fedavg, feddig, *_ = tabulate(SUMMARIES)
    assert (fedavg.algorithm, fedavg.scenario, fedavg.seeds, fedavg.failed) == ("fedavg", "none", 3, 0)
    assert fedavg.values["final"] == pytest.approx((60.0, 10.0))
    assert fedavg.values["seconds_per_round"] == pytest.approx((0.2, 0.1))
    assert feddig.values["final"] == (80.0, None), "a single seed has no deviation"


def test_a_measure_that_one_seed_did_not_reach_has_no_mean() -> None:
    fedavg, feddig, *_ = tabulate(SUMMARIES)
    assert fedavg.values["after_9"] is None
    assert feddig.values["after_9"] == (7.0, None)


def test_a_failed_run_is_counted_and_left_out_of_the_mean() -> None:
    lines = {(line.algorithm, line.scenario): line for line in tabulate(SUMMARIES)}
    assert list(lines) == [("fedavg", "none"), ("feddig", "none"), ("feddig", "groups"), ("frozen", "groups")]
    half, none = lines["feddig", "groups"], lines["frozen", "groups"]
    assert (half.seeds, half.failed, half.values["final"]) == (1, 1, (90.0, None))
    assert (none.seeds, none.failed, none.values["final"]) == (0, 1, None)


def test_the_csv_has_every_measure_in_columns_of_its_own() -> None:
    text = to_csv(tabulate(SUMMARIES))
    first, *rest = text.splitlines(keepends=True)
    assert first == "# feddig table, format_version 1\n"
    rows = list(csv.DictReader(io.StringIO("".join(rest))))
    wanted = [f"{name}_{kind}" for name in (*MEASURES, "seconds_per_round") for kind in ("mean", "sd")]
    assert list(rows[0]) == ["algorithm", "scenario", "seeds", "failed", *wanted]
    assert (rows[0]["final_mean"], rows[0]["final_sd"]) == ("60.0000", "10.0000")
    assert (rows[0]["after_9_mean"], rows[0]["after_9_sd"]) == ("", "")
    assert (rows[1]["final_mean"], rows[1]["final_sd"]) == ("80.0000", "")
    assert (rows[3]["seeds"], rows[3]["failed"], rows[3]["final_mean"]) == ("0", "1", "")


def test_the_markdown_shows_mean_and_deviation_and_marks_failures() -> None:
    assert to_markdown(tabulate(SUMMARIES)).splitlines() == [
        "| algorithm | scenario | seeds | final | before 1st leave | absence mean | s per round |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| fedavg | none | 3 | 60.0 ± 10.0 | 60.0 ± 10.0 | 60.0 ± 10.0 | 0.20 ± 0.10 |",
        "| feddig | none | 1 | 80.0 | 80.0 | 80.0 | 1.00 |",
        "| feddig | groups | 1 (1 failed) | 90.0 | 90.0 | 90.0 | 1.00 |",
        "| frozen | groups | 0 (1 failed) | - | - | - | - |",
        "",
        "Test accuracy in percent, mean ± standard deviation over seeds.",
        "<!-- format_version 1 -->",
    ]


def test_the_table_in_a_terminal_has_the_same_values() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(to_rich(tabulate(SUMMARIES), "results/compare"))
    shown = console.file.getvalue()
    for cell in ("results/compare", "60.0 ± 10.0", "0.20 ± 0.10", "1 (1 failed)", "frozen"):
        assert cell in shown


# --- pictures of results folders


def write_run(
    folder: Path,
    accuracies: list[float],
    present: list[str],
    *,
    algorithm: str = "feddig",
    scenario: str = "file",
    seed: int = 0,
) -> Path:
    """Write the three files that pictures need; `present` has a string of 0 and 1 for each silo."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(
        f'format_version = 1\nseed = {seed}\n[algorithm]\nname = "{algorithm}"\n'
        f'[absence]\nscenario = "{scenario}"\n',
        encoding="utf-8",
    )
    head = ["silo", *map(str, range(len(accuracies)))]
    table = [head, *([str(silo), *row] for silo, row in enumerate(present))]
    lines = ["# feddig availability, format_version 1", *(",".join(row) for row in table)]
    (folder / "availability.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [{"format_version": 1, "round": r, "test_accuracy": a} for r, a in enumerate(accuracies)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def colours(png: bytes) -> set[tuple[int, int, int]]:
    """Return the colours of lines and bars; colours at the edges of letters have fewer pixels."""
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        assert picture.size == (960, 600)
        found = picture.convert("RGB").getcolors(maxcolors=1 << 20)
    assert found is not None
    return {colour for count, colour in found if count > 400}


HERE, AWAY = (0x6F, 0x8B, 0xA5), (0xE3, 0xE7, 0xEC)


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [10.0, 20.0, 30.0], ["110", "001"], seed=3)
    run = read_rounds(path)
    assert (run.algorithm, run.scenario, run.seed) == ("feddig", "file", 3)
    assert run.absence is not None
    assert run.absence.present.tolist() == [[True, True, False], [False, False, True]]
    assert run.accuracies == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("silos", [1, 16])
def test_a_run_is_drawn_for_any_number_of_silos(silos: int, tmp_path: Path) -> None:
    rows = ["1" * 6 if silo % 2 else "110011" for silo in range(silos)]
    write_run(tmp_path / "run", [10, 40, 30, 50, 60, 70], rows)
    draw_run(tmp_path / "run")
    picture = (tmp_path / "run" / "curves.png").read_bytes()
    assert colours(picture) >= {HERE, AWAY}


def test_silos_that_have_not_joined_are_not_drawn_as_away(tmp_path: Path) -> None:
    """Silo 1 joins late, silo 2 never."""
    run = read_rounds(write_run(tmp_path / "run", [1, 2, 3, 4], ["1111", "0011", "0000"]))
    picture = draw_curves([run], "late")
    assert colours(picture) & {HERE, AWAY} == {HERE}
    assert draw_curves([run], "late") == picture, "the same run gives the same bytes"


def test_silos_are_named_in_the_picture_where_they_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in other scripts and of any length are no reason to warn, and none is read as a formula."""
    drawn: list[list[str]] = []

    def keep(figure: Figure, *words: Any, **more: Any) -> bytes:
        drawn.append([label.get_text() for label in figure.axes[1].get_yticklabels()])
        return to_bytes(figure, *words, **more)

    monkeypatch.setattr("feddig.report.pictures.to_bytes", keep)
    run = write_run(tmp_path / "run", [10, 20], ["11", "10", "11"])
    draw_run(run)
    facts = {
        "format_version": 1,
        "names": ["a"],
        "silos": ["Basel", "$x$ 東京", "Geneva University Hospital"],
    }
    (run / "classes.json").write_text(json.dumps(facts), encoding="utf-8")
    draw_run(run)
    assert drawn == [["0", "1", "2"], ["Basel", "$x$ 東京", "Geneva Universi…"]]


@pytest.mark.parametrize("curve", [[50.0], [0.0, 0.0], [float(r % 90) for r in range(300)]])
def test_short_flat_and_long_curves_are_drawn(curve: list[float], tmp_path: Path) -> None:
    write_run(tmp_path / "run", curve, ["1" * len(curve)])
    draw_run(tmp_path / "run")
    assert HERE in colours((tmp_path / "run" / "curves.png").read_bytes())


def results_of(tmp_path: Path, *algorithms: str, seeds: int = 1) -> list[Run]:
    return [
        read_rounds(
            write_run(
                tmp_path / algorithm / str(seed),
                [10, 20 + place + seed],
                ["11"],
                algorithm=algorithm,
                seed=seed,
            )
        )
        for place, algorithm in enumerate(algorithms)
        for seed in range(seeds)
    ]


def test_each_algorithm_has_one_curve_over_its_seeds(tmp_path: Path) -> None:
    blue, vermillion = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
    seeds = colours(draw_curves(results_of(tmp_path / "seeds", "fedavg", seeds=3), "seeds"))
    assert vermillion in seeds
    assert blue not in seeds
    names = [f"fed{number}" for number in range(10)]
    assert {blue, vermillion} <= colours(draw_curves(results_of(tmp_path / "many", *names), "many"))


def test_no_accuracy_above_100_is_drawn(tmp_path: Path) -> None:
    for name, curve in (("flat", [100.0, 100.0]), ("rising", [20.0, 100.0])):
        plot = plot_run(read_rounds(write_run(tmp_path / name, curve, ["11"])))
        assert plot.axes[0].get_ylim()[1] < 101


@pytest.mark.parametrize(
    ("present", "title", "labels"),
    [
        ("111100", "at the end (before the first leave)", ["fedavg  25.0  (14.0)", "feddig  26.0  (15.0)"]),
        ("111111", "at the end", ["fedavg  25.0", "feddig  26.0"]),
    ],
)
def test_the_legend_has_each_models_accuracy_before_the_first_leave(
    present: str, title: str, labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        read_rounds(
            write_run(tmp_path / f"{name}{seed}", [v + up + 2 * seed for v in (10, 11, 12, 13, 20, 24)], [present],
                      algorithm=name, seed=seed)
        )
        for up, name in enumerate(("fedavg", "feddig"))
        for seed in (0, 1)
    ]  # fmt: skip
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "to_bytes", lambda figure, **_: drawn.append(figure))
    draw_curves(runs, "six rounds")
    legend = drawn[0].axes[0].get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == title
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_a_comparison_has_a_table_and_one_picture_for_each_scenario(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "fedavg" / scenario, [10, 20], ["11"], algorithm="fedavg", scenario=scenario)
        for scenario in ("none", "groups")
    ]
    summaries = [("fedavg", "none", summary(20.0)), ("fedavg", "groups", summary(20.0))]
    lines, pictures = write_comparison(tmp_path, summaries, runs)
    assert [line.scenario for line in lines] == ["none", "groups"]
    assert pictures == [tmp_path / "curves-none.png", tmp_path / "curves-groups.png"]
    assert all(HERE in colours(picture.read_bytes()) for picture in pictures)
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == to_csv(lines)
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == to_markdown(lines)


def test_a_comparison_in_which_everything_failed_is_a_table_alone(tmp_path: Path) -> None:
    _, pictures = write_comparison(tmp_path, [("fedavg", "none", None)], [])
    assert pictures == []
    assert "0 (1 failed)" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("experiment.toml", b"seed = "),
        ("experiment.toml", b"\xff\xfe"),
        ("experiment.toml", b"format_version = 0\n"),
        ("experiment.toml", None),
        ("availability.csv", None),
        ("metrics.jsonl", b'{"round": 0, '),
        ("metrics.jsonl", b'{"format_version": 1}\n'),
        ("metrics.jsonl", b'{"format_version": 0, "round": 0}\n'),
        ("metrics.jsonl", b""),
        ("metrics.jsonl", None),
        ("availability.csv", b"# feddig availability, format_version 0\nsilo,0,1\n0,1,1\n"),
    ],
)
def test_a_damaged_folder_is_an_error_that_names_the_file(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "run", [1, 2], ["11"])
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(FileFormatError) as caught:
        draw_run(path)
    assert str(caught.value).startswith(f"{path}: {name}")


def test_no_report_module_imports_torch(tmp_path: Path) -> None:
    """Import every module of feddig.report in a fresh process, then write a page and pictures."""
    grid = write_grid(tmp_path / "grid", seeds=1)
    run = grid / "feddig" / "sequential" / "seed-0"
    program = f"""
import importlib, pkgutil, sys
from pathlib import Path
import feddig.report
from feddig.cli import main

def show_unwanted(step):
    print("loaded", step, sorted({{"torch", "matplotlib.pyplot"}} & set(sys.modules)))

for module in pkgutil.walk_packages(feddig.report.__path__, "feddig.report."):
    importlib.import_module(module.name)
    show_unwanted(module.name)
sys.modules["feddig.report.pictures"].draw_run(Path({str(run)!r}))
for words in (["report", {str(grid)!r}], ["figures", "scenario-curves", {str(grid)!r}, "--out", {str(grid)!r}]):
    try:
        main(words)
    except SystemExit as ended:
        show_unwanted(f"{{words[0]}} {{ended.code}}")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert [line for line in lines if not line.endswith(" []")] == []
    assert lines[-2:] == ["loaded report 0 []", "loaded figures 0 []"]
    # all files but the package's own __init__.py
    assert len(lines) - 2 == len(list(Path(feddig.report.__path__[0]).rglob("*.py"))) - 1
    assert all(
        path.exists() for path in (run / "curves.png", grid / "report.html", grid / "scenario-curves.svg")
    )
