"""The paper's figures: the values in the drawn figure are those of the results."""

import inspect
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from PIL import Image

from feddig.errors import FedDigError
from feddig.files import write_tensors
from feddig.report.curve_styles import choose_styles
from feddig.report.paper.digests import DRAWS, mixing_weights, variance_in_samples, variance_in_theory
from feddig.report.paper.figures import FIGURES, draw_figure
from feddig.report.paper.style import save_figure
from feddig.report.pictures import EncodedImages, to_bytes
from feddig.report.read_run import Run, read_runs, to_toml
from folders import error_line, run_feddig
from report_folders import write_folder, write_grid

LEAVING = ["1100", "1111"]


def write_run(folder: Path, final: float, *, silos: int = 2, **facts: Any) -> Path:
    """Write a run of four rounds that ends at `final`; `settings` have keys such as data.skew."""
    settings = facts.pop("settings", {})
    write_folder(folder, [10.0, 40.0, 50.0, final], ["1100", "1111"] * (silos // 2), **facts)
    file = folder / "experiment.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    for key, value in settings.items():
        section, name = key.split(".")
        table.setdefault(section, {})[name] = value
    file.write_text(to_toml(table), encoding="utf-8")
    return folder


def write_sweep(
    folder: Path, key: str, values: Sequence[Any], finals: dict[str, float], seeds: int = 2
) -> Path:
    """Write runs whose final accuracy is the algorithm's plus the value's position plus twice the seed."""
    for place, value in enumerate(values):
        for algorithm, final in finals.items():
            for seed in range(seeds):
                write_run(
                    folder / f"{place}" / algorithm / f"seed-{seed}",
                    final + place + 2 * seed,
                    algorithm=algorithm,
                    seed=seed,
                    settings={key: value},
                )
    return folder


def bars_of(axes: Axes) -> dict[str, list[float]]:
    """Return the heights of the bars by name."""
    drawn = [each for each in axes.containers if isinstance(each, BarContainer)]
    return {str(each.get_label()): [bar.get_height() for bar in each] for each in drawn}


def spreads_of(axes: Axes) -> list[float]:
    """Return half the length of every error bar."""
    lengths = []
    for each in axes.containers:
        if isinstance(each, ErrorbarContainer):
            ((low, high),) = (segment[:, 1] for segment in each.lines[2][0].get_segments())
            lengths.append((high - low) / 2)
    return lengths


def ticks_of(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def explanation_of(figure: Figure) -> str:
    """Return the explanation under a figure in one line."""
    return " ".join(figure.get_supxlabel().split())


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a comparison of three algorithms over two seeds; tests must not change it."""
    return write_grid(tmp_path_factory.mktemp("comparison") / "grid")


def draw_from(kind: str, *folders: Path, measure: str | None = None) -> Figure:
    return draw_figure(kind, read_runs(folders), measure)


# --- curves


def test_a_curve_is_the_mean_of_its_seeds_and_its_band_their_deviation(grid: Path) -> None:
    figure = draw_from("scenario-curves", grid)
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for name, start, step in (("feddig", 50, 2), ("fedavg", 52, -1), ("frozen", 51, 0)):
        assert list(lines[name].get_ydata()) == pytest.approx([start + step * r + 0.5 for r in range(10)])
    (band,) = [each for each in axes.collections if each.get_facecolor()[0][0] == 0]  # the blue of FedDig
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(50.5 - stdev([0, 1]))
    assert heights.max() == pytest.approx(68.5 + stdev([0, 1]))
    assert axes.get_ylabel() == "test accuracy (%)"
    assert "n = 2 seeds" in explanation_of(figure)


def test_the_frozen_control_is_drawn_last_in_its_own_style(grid: Path) -> None:
    figure = draw_from("scenario-curves", grid)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["feddig", "fedavg", "frozen"]
    (line,) = [line for line in figure.axes[0].get_lines() if line.get_label() == "frozen"]
    assert line.get_color() == choose_styles(["frozen"])["frozen"].colour


def test_scenarios_are_in_the_papers_order(tmp_path: Path) -> None:
    for scenario in ("groups", "forever", "none", "arrival"):
        write_folder(tmp_path / scenario, [1.0, 2.0, 3.0, 4.0], LEAVING, scenario=scenario)
    figure = draw_from("scenario-curves", tmp_path)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["none", "forever", "groups", "arrival"]
    assert [axes.get_lines()[-1].get_ydata()[-1] for axes in shown] == [4.0] * 4


def test_the_rounds_in_which_silos_come_and_go_are_marked(tmp_path: Path) -> None:
    figure = draw_from("scenario-curves", write_folder(tmp_path / "run", [1.0] * 4, ["1101", "1111"]))
    upright = [line.get_xdata()[0] for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    assert upright == [2, 3]


# --- bars


@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [
        ("skew-bars", "data.skew", [0.1, 0.5, 1.0]),
        ("silo-count-bars", "data.silos", [4, 16, 64]),
        ("samples-per-digest-bars", "digest.samples_per_digest", [1, 2, 16]),
        ("mixing-bars", "digest.mixing", ["random", "within-class"]),
    ],
)
def test_bars_are_means_and_error_bars_deviations(
    kind: str, key: str, values: list[Any], tmp_path: Path
) -> None:
    finals = {"feddig": 70.0, "feddig+fednova": 60.0}
    # written in reverse order; numbers are sorted as numbers
    write_sweep(tmp_path, key, values[::-1], finals)
    figure = draw_from(kind, tmp_path)
    (axes,) = figure.axes
    assert ticks_of(axes) == [str(value) for value in values]
    wanted = {
        name: [final + place + 1 for place in reversed(range(len(values)))] for name, final in finals.items()
    }
    assert bars_of(axes) == wanted
    assert spreads_of(axes) == pytest.approx([stdev([0, 2])] * 2 * len(values))
    assert axes.get_ylim() == (0, 100)
    assert axes.get_ylabel() == "test accuracy (%)\nafter the last round"
    assert explanation_of(figure).startswith("Mean ± standard deviation over n = 2 seeds")


def test_bars_are_at_their_position(tmp_path: Path) -> None:
    write_sweep(tmp_path, "data.skew", [0.1, 0.5], {"feddig": 70.0, "fedavg": 50.0, "frozen": 60.0})
    (axes,) = draw_from("skew-bars", tmp_path).axes
    for container in (each for each in axes.containers if isinstance(each, BarContainer)):
        middles = [bar.get_x() + bar.get_width() / 2 for bar in container]
        assert [round(middle) for middle in middles] == [0, 1]
    assert list(bars_of(axes)) == ["feddig", "fedavg", "frozen"], "the frozen control is last"


def test_one_seed_has_no_error_bar_and_the_figure_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, "data.skew", [0.1, 0.5], {"feddig": 70.0}, seeds=1)
    figure = draw_from("skew-bars", tmp_path)
    assert spreads_of(figure.axes[0]) == []
    assert explanation_of(figure) == "One seed each, so no spread is known."


def test_bars_show_their_number_of_seeds_where_it_differs(tmp_path: Path) -> None:
    write_sweep(tmp_path, "data.skew", [0.1, 0.5], {"feddig": 70.0}, seeds=2)
    write_run(tmp_path / "third", 75.0, seed=2, settings={"data.skew": 0.5})
    figure = draw_from("skew-bars", tmp_path)
    assert {text.get_text() for text in figure.axes[0].texts} == {"71.0\nn=2", "73.0\nn=3"}
    assert "n = 2 to 3 seeds" in explanation_of(figure)


def test_scenarios_stand_side_by_side_where_there_are_several(tmp_path: Path) -> None:
    for silos in (4, 16):
        for scenario, final in (("none", 80.0), ("sequential", 77.0)):
            write_run(tmp_path / f"{silos}" / scenario, final - silos / 4, silos=silos, scenario=scenario)
    (axes,) = draw_from("silo-count-bars", tmp_path).axes
    assert bars_of(axes) == {"feddig, none": [79.0, 76.0], "feddig, sequential": [76.0, 73.0]}


def test_algorithms_without_digests_are_level_lines_where_only_digests_vary(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", "digest.samples_per_digest", [1, 4], {"feddig": 70.0})
    for seed in (0, 1):
        for copy in "ab":  # `feddig compare` repeats it for each setting with the same result
            write_run(tmp_path / copy / f"{seed}", 60.0 + 2 * seed, algorithm="frozen", seed=seed)
    figure = draw_from("samples-per-digest-bars", tmp_path)
    (axes,) = figure.axes
    assert list(bars_of(axes)) == ["feddig"]
    (line,) = [line for line in axes.get_lines() if line.get_label() == "frozen"]
    assert line.get_ydata() == [61.0, 61.0]
    assert "n = 2 seeds" in explanation_of(figure)


def test_the_papers_measure_is_shown_where_all_runs_have_it(tmp_path: Path) -> None:
    for place, skew in enumerate((0.1, 0.5)):
        write_run(
            tmp_path / f"{skew}", 50.0, settings={"data.skew": skew},
            measures={"mean_251_259": 70.0 + place, "absence_mean": 30.0 + place},
        )  # fmt: skip
    (axes,) = draw_from("skew-bars", tmp_path).axes
    assert bars_of(axes) == {"feddig": [70.0, 71.0]}
    assert axes.get_ylabel().endswith("mean of rounds 251 to 259")
    (axes,) = draw_from("skew-bars", tmp_path, measure="absence_mean").axes
    assert bars_of(axes) == {"feddig": [30.0, 31.0]}
    assert axes.get_ylabel().endswith("mean while silos were away")


def test_perturbations_are_named_by_what_hides_a_sample(tmp_path: Path) -> None:
    for place, (mixed, mechanism) in enumerate(
        [(4, "paper-laplace"), (4, "none"), (1, "paper-laplace"), (1, "none")]
    ):
        chosen = {
            "digest.samples_per_digest": mixed,
            "privacy.mechanism": mechanism,
            "privacy.epsilon": 0.005,
        }
        write_run(tmp_path / f"{place}", 70.0 + place, settings=chosen)
    (axes,) = draw_from("perturbation-bars", tmp_path).axes
    noise = "paper-laplace\nε 0.005"
    assert ticks_of(axes) == ["nothing", noise, "mixing, SpD 4", f"mixing, SpD 4\n{noise}"]
    assert bars_of(axes) == {"feddig": [73.0, 72.0, 71.0, 70.0]}


def test_data_sets_have_a_panel_each_and_a_missing_run_leaves_a_gap(tmp_path: Path) -> None:
    write_sweep(tmp_path, "data.name", ["cifar10", "fashion-mnist"], {"feddig": 70.0, "frozen": 60.0})
    write_run(tmp_path / "more", 55.0, algorithm="fedavg", settings={"data.name": "fashion-mnist"})
    figure = draw_from("dataset-bars", tmp_path)
    first, second = figure.axes
    assert (first.get_xlabel(), second.get_xlabel()) == ("fashion-mnist", "cifar10")
    assert bars_of(first) == {"feddig": [72.0], "fedavg": [55.0], "frozen": [62.0]}
    assert bars_of(second) == {"feddig": [71.0], "fedavg": [], "frozen": [61.0]}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["feddig", "fedavg", "frozen"]


def test_a_figure_says_in_what_else_its_runs_differ(tmp_path: Path) -> None:
    for skew, rate in ((0.1, 0.01), (0.5, 0.02)):
        write_run(tmp_path / f"{skew}", 70.0, settings={"data.skew": skew, "training.lr": rate})
    assert "The runs differ also in training.lr" in explanation_of(draw_from("skew-bars", tmp_path))


# --- what cannot be drawn


def test_errors_are_one_line_that_names_the_remedy(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", 70.0, settings={"data.skew": 0.1})
    again = write_run(tmp_path / "again", 71.0, settings={"data.skew": 0.1})
    other = write_run(tmp_path / "other", 71.0, seed=1, settings={"data.skew": 0.1, "training.lr": 0.5})
    even = write_run(tmp_path / "even", 72.0, settings={"data.skew": 1.0})
    plain = write_run(tmp_path / "plain", 60.0, algorithm="fedavg", settings={"data.skew": 1.0})
    begun = write_folder(tmp_path / "begun", [1.0], ["1"], finished=False)
    with pytest.raises(
        FedDigError, match=r"skew bars need results that differ in data\.skew; these all have 0\.1"
    ):
        draw_from("skew-bars", one)
    with pytest.raises(FedDigError, match=r"one: its experiment\.toml has no digest\.mixing"):
        draw_from("mixing-bars", one)
    with pytest.raises(FedDigError, match="the same run twice, seed 0; leave one out"):
        draw_from("skew-bars", one, again, even)
    with pytest.raises(FedDigError, match=r"differ in training\.lr, so they are not averaged"):
        draw_from("skew-bars", one, other, even)
    with pytest.raises(FedDigError, match="begun: the run is not finished"):
        draw_from("scenario-curves", begun)
    with pytest.raises(FedDigError, match="need results of an algorithm with digests; these have fedavg"):
        draw_from("mixing-bars", plain)
    with pytest.raises(FedDigError, match="has no after_50"):
        draw_from("skew-bars", one, even, measure="after_50")
    with pytest.raises(FedDigError, match="'finale' is not known; did you mean 'final'"):
        draw_from("skew-bars", one, even, measure="finale")
    with pytest.raises(FedDigError, match="scenario-curves shows no measure"):
        draw_from("scenario-curves", one, measure="final")
    with pytest.raises(FedDigError, match="none of these results has any"):
        draw_from("class-guidance", one)
    with pytest.raises(FedDigError, match="give it no results"):
        draw_from("mixing-variance", one)


def test_a_control_with_two_results_is_an_error(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", "digest.samples_per_digest", [1, 4], {"feddig": 70.0})
    for place in (0, 1):
        write_run(tmp_path / f"{place}", 60.0 + place, algorithm="frozen")
    with pytest.raises(FedDigError, match="with other accuracies"):
        draw_from("samples-per-digest-bars", tmp_path)


# --- guidance


def write_guidance(folder: Path, *, silos: int = 2, digests: int = 3) -> Path:
    """Write a producer that makes every pixel sigmoid(feature), and digests of one feature each."""
    layer = {"layers.0.weight": np.ones((1, 1, 2, 2), np.float32), "layers.0.bias": np.zeros(1, np.float32)}
    write_tensors(folder / "guidance.safetensors", "guidance", layer, {})
    for silo in range(silos):
        features = (10 * silo + np.arange(digests, dtype=np.float32)).reshape(digests, 1, 1, 1)
        labels = np.tile(np.array([[0.75, 0.25]], np.float32), (digests, 1))
        write_tensors(
            folder / "digests" / f"silo-{silo}.safetensors", "digest",
            {"features": features, "labels": labels}, {"facts": "{}"},
        )  # fmt: skip
    return folder


PRODUCER = {"model.guidance": "deconvolution"}


def images_of(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(each.get_array()) for axes in figure.axes for each in axes.get_images()]


def test_the_guidance_of_digests_is_what_the_producer_makes_of_them(tmp_path: Path) -> None:
    write_guidance(write_run(tmp_path / "run", 70.0, settings=PRODUCER))
    figure = draw_from("digest-guidance", tmp_path)
    found = [image.mean() for image in images_of(figure)]
    assert found == pytest.approx([1 / (1 + np.exp(-float(each))) for each in (0, 10, 1, 11, 2, 12)])
    assert [axes.get_title() for axes in figure.axes] == ["shoe 75%"] * 6


def test_rows_of_guidance_are_named_by_what_differs(tmp_path: Path) -> None:
    for mixed in (1, 4):
        write_guidance(
            write_run(tmp_path / f"{mixed}", 70.0, settings={**PRODUCER, "digest.samples_per_digest": mixed})
        )
    write_run(tmp_path / "fedavg", 50.0, algorithm="fedavg")
    figure = draw_from("digest-guidance", tmp_path)
    assert [label for axes in figure.axes if (label := axes.get_ylabel())] == ["SpD 1", "SpD 4"]


def test_class_guidance_is_below_the_class_means(tmp_path: Path) -> None:
    folder = write_guidance(write_run(tmp_path / "run", 70.0, settings=PRODUCER))
    means = np.stack([np.full((1, 2, 2), 0.25, np.float32), np.full((1, 2, 2), 0.5, np.float32)])
    without = draw_from("class-guidance", folder)
    assert len(images_of(without)) == 2
    assert "No class means in the results on fashion-mini" in explanation_of(without)
    write_tensors(folder / "class_means.safetensors", "class-means", {"means": means}, {})
    figure = draw_from("class-guidance", folder)
    assert [image.mean() for image in images_of(figure)[:2]] == [0.25, 0.5]
    assert [axes.get_title() for axes in figure.axes] == ["shoe", "bag", "", ""]


def test_guidance_of_raw_images_is_below_them(tmp_path: Path) -> None:
    for name, weight in (("one", 1.0), ("two", 2.0)):
        folder = write_guidance(
            write_run(tmp_path / name, 70.0, settings={**PRODUCER, "training.lr": weight / 10})
        )
        layer = {
            "layers.0.weight": np.full((1, 1, 2, 2), weight, np.float32),
            "layers.0.bias": np.zeros(1, np.float32),
        }
        write_tensors(folder / "guidance.safetensors", "guidance", layer, {})
    asked = []

    def samples(run: Run, count: int) -> EncodedImages:
        asked.append((run.path.name, count))
        features = np.array([0.0, 3.0], np.float32).reshape(2, 1, 1, 1)
        return EncodedImages(
            np.stack([np.full((1, 2, 2), 0.25), np.full((1, 2, 2), 0.5)]), features, np.array([1, 0])
        )

    figure = draw_figure("sample-guidance", read_runs([tmp_path]), samples=samples)
    assert asked == [("one", 10), ("two", 10)]
    wanted = [0.25, 0.5, 0.5, 1 / (1 + np.exp(-3.0)), 0.5, 1 / (1 + np.exp(-6.0))]
    assert [image.mean() for image in images_of(figure)] == pytest.approx(wanted)
    assert [title for axes in figure.axes if (title := axes.get_title())] == ["bag", "shoe"]
    rows = [label for axes in figure.axes if (label := axes.get_ylabel())]
    assert rows == ["test image\nfashion-mini", "lr 0.1", "lr 0.2"]


def test_raw_images_are_test_images_with_their_features(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from feddig import load_dataset
    from feddig.models.encoder import load_encoder
    from feddig.runs.outcome import load_samples

    write_run(tmp_path / "run", 70.0)
    raw = load_samples(tmp_path / "run", 12)
    assert raw.labels.tolist() == [*range(10), 0, 1], "the classes are in order"
    test = load_dataset("fashion-mini").test
    second = np.flatnonzero(test.labels == 1)[1]
    assert raw.images[11, 0, 2:-2, 2:-2] == pytest.approx(test.pixels[[second]][0, 0] / 255)
    with torch.no_grad():
        wanted = load_encoder("default", 1)(torch.from_numpy(raw.images)).numpy()
    assert raw.features == pytest.approx(wanted, abs=1e-6)


def test_a_users_own_producer_is_refused(tmp_path: Path) -> None:
    write_guidance(write_run(tmp_path / "run", 70.0, settings={"model.guidance": "mine:producer"}))
    for kind in ("class-guidance", "digest-guidance"):
        with pytest.raises(FedDigError, match=r"run: .*your own \(mine:producer\)"):
            draw_from(kind, tmp_path)


# --- mixing


def test_equal_weights_leave_the_least_variance_and_one_sample_alone_leaves_it_all() -> None:
    first = np.linspace(1, 0, 5)
    assert mixing_weights(first, 2).tolist() == [[1, 0], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0, 1]]
    assert variance_in_theory(mixing_weights(first, 2)).tolist() == [1, 0.625, 0.5, 0.625, 1]
    assert variance_in_theory(np.full((1, 4), 0.25)) == pytest.approx([0.25])


def test_drawn_noise_agrees_with_theory() -> None:
    """Allow four standard deviations; a sample variance of Laplace noise has one of sqrt(5/n)."""
    weights = mixing_weights(np.linspace(1, 0, 21), 4)
    off = variance_in_samples(weights) / variance_in_theory(weights) - 1
    assert np.abs(off).max() < 4 * np.sqrt(5 / DRAWS)


def test_the_figure_of_mixing_shows_both() -> None:
    (axes,) = draw_figure("mixing-variance", []).axes
    lines, dots = axes.get_lines()[0::2], axes.get_lines()[1::2]
    for mixed, line, row in zip((2, 4, 8), lines, dots, strict=True):
        assert line.get_label() == f"SpD {mixed}"
        assert min(line.get_ydata()) == pytest.approx(1 / mixed, abs=1e-3)
        assert list(row.get_ydata()) == pytest.approx(
            variance_in_samples(mixing_weights(row.get_xdata(), mixed)).tolist()
        )


def write_mixed(folder: Path, weights: list[float], **settings: Any) -> Path:
    """Write digests of two silos with very different means, whose elements have variance 4 and 1."""
    chosen = {
        "digest.samples_per_digest": len(weights),
        "digest.weights": weights,
        "digest.mixing": "random",
        "privacy.mechanism": "none",
    }
    write_run(folder, 70.0, settings=chosen | settings)
    for silo, middle in enumerate((0.0, 100.0)):
        # the sample variance of m - d, m, m + d is d squared
        features = np.array([[-2, -1], [0, 0], [2, 1]], np.float32).reshape(3, 2, 1, 1) + middle
        labels = np.full((3, 2), 0.5, np.float32)
        tensors = {"features": features.astype(np.float32), "labels": labels}
        write_tensors(folder / "digests" / f"silo-{silo}.safetensors", "digest", tensors, {"facts": "{}"})
    return folder


def test_the_noise_of_mixing_on_an_element_by_hand(tmp_path: Path) -> None:
    """With equal weights, the other samples have 3/4 of the variance; with weights 3/4 and 1/4, they have 1/10."""
    (axes,) = draw_from("element-noise", write_mixed(tmp_path / "even", [0.25] * 4)).axes
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([3.0, 0.75])
    assert axes.get_lines()[1].get_ydata() == pytest.approx([1.875, 1.875])
    (axes,) = draw_from("element-noise", write_mixed(tmp_path / "uneven", [0.75, 0.25])).axes
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([0.4, 0.1])


def test_element_noise_refuses_digests_with_other_noise(tmp_path: Path) -> None:
    noisy = write_mixed(tmp_path / "noisy", [0.5, 0.5], **{"privacy.mechanism": "paper-laplace"})
    with pytest.raises(FedDigError, match=r"needs digests with privacy\.mechanism none"):
        draw_from("element-noise", noisy)
    with pytest.raises(FedDigError, match="measured on digests, and none of these results has any"):
        draw_from("element-noise", write_run(tmp_path / "plain", 50.0, algorithm="fedavg"))


# --- styles and files


def test_no_two_of_many_names_have_the_same_style() -> None:
    scenarios = [
        f"{name}, {scenario}" for scenario in ("none", "sequential") for name in ("feddig", "frozen")
    ]
    bases = ("fedprox", "fednova", "feddyn", "adabest")
    combined = [f"feddig+{name}" for name in bases]
    styles = choose_styles(["feddig", "fedavg", *bases, *combined, "centralised", "frozen", *scenarios])
    assert len(set(styles.values())) == len(styles)
    assert styles["fedavg"] == choose_styles(["fedavg"])["fedavg"], (
        "the style does not depend on other curves"
    )
    assert styles["frozen"] == choose_styles(["frozen, none"])["frozen, none"]
    assert {styles[name].colour for name in styles if name.startswith("frozen")} == {styles["frozen"].colour}


def test_the_same_results_give_the_same_bytes(grid: Path) -> None:
    runs = read_runs([grid])
    for ending in ("png", "svg"):
        first, second = (to_bytes(draw_figure("scenario-curves", runs), ending) for _ in range(2))
        assert first == second
        assert b"feddig, format_version 1" in first
    assert b"<dc:date>" not in first


def test_a_figure_is_saved_as_png_and_svg(tmp_path: Path) -> None:
    paths = save_figure(draw_figure("mixing-variance", []), tmp_path / "out", "name")
    assert paths == [tmp_path / "out" / "name.png", tmp_path / "out" / "name.svg"]
    assert sorted(tmp_path.rglob("*.*")) == paths
    with Image.open(paths[0]) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
    assert paths[1].read_bytes().startswith(b"<?xml")


def test_the_command_writes_both_files_and_prints_their_paths(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run_feddig("figures", "scenario-curves", grid, "--out", out) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(out / "scenario-curves.png"), str(out / "scenario-curves.svg")]
    assert all(Path(line).stat().st_size > 1000 for line in printed)


def test_the_command_reports_errors_in_one_line(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, wanted in (
        (["skew-bar", grid], "'skew-bar' is no kind of figure; did you mean 'skew-bars'?"),
        (["skew-bars"], "skew-bars: is drawn from results"),
        (["skew-bars", tmp_path / "nowhere"], "nowhere: no such folder"),
    ):
        assert wanted in error_line(capsys, "figures", *words)


def test_every_function_that_returns_a_figure_is_a_kind_and_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_feddig("figures", "list") == 0
    printed = capsys.readouterr().out
    drawing = {
        name.replace("_", "-"): home
        for home in ("accuracy", "digests")
        for name, function in vars(import_module(f"feddig.report.paper.{home}")).items()
        if inspect.isfunction(function) and function.__module__.endswith(home)
        if not name.startswith("_") and inspect.signature(function).return_annotation is Figure
    }
    assert drawing == FIGURES
    for name in FIGURES:
        assert f" {name} " in printed
