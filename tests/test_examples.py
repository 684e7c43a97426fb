"""The examples: minimal.py reaches the same weights as the library, and each example runs by itself."""

import ast
import copy
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from feddig import Comparison, Dataset, Experiment, Result, dataset_from_arrays, read_digest
from feddig.core.samples import accuracy
from feddig.core.training import run_rounds
from feddig.digest.digest import make_digest
from feddig.experiment.toml import experiment_from_table
from feddig.files import read_tensors
from feddig.models.encoder import load_encoder
from feddig.models.flat import FlatNetwork
from feddig.privacy.mechanisms.paper_laplace import laplace_scale
from feddig.runs.build import Simulation, build_simulation
from feddig.seeds import seeded_uniforms, torch_stream
from feddig.settings import DigestSettings, PrivacySettings
from folders import run_script

EXAMPLES = Path(__file__).parents[1] / "examples"
SEED = 7
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

SEQUENTIAL = ("110000", "111000", "111100", "111110")
JOINS_AND_RETURNS = ("110011", "001011", "101010")
"""Silo 1 joins in round 2, silos 0 and 2 leave and return, and in round 3 no silo is present."""


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    return load_example("minimal")


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_example(name: str, *arguments: str, folder: Path) -> str:
    return run_script(EXAMPLES / f"{name}.py", *arguments, folder=folder, TMPDIR=str(folder))


# --- the same federation in the library and in minimal.py


def draw_dataset(minimal: ModuleType) -> Dataset:
    stream = torch.Generator().manual_seed(SEED)
    parts: list[torch.Tensor] = []
    for count in (231, 40):
        labels = torch.arange(count) % len(minimal.SHAPES)
        parts += [minimal.draw_shapes(labels, stream), labels]
    return dataset_from_arrays(*parts)


def make_experiment(minimal: ModuleType, table: tuple[str, ...], folder: Path, algorithm: str) -> Experiment:
    """Return the library's experiment with minimal.py's settings and this table of present silos."""
    availability = folder / "availability.csv"
    availability.write_text("\n".join(",".join(row) for row in table) + "\n")
    return experiment_from_table(
        {
            "seed": SEED,
            "data": {"name": "tensors", "silos": len(table), "skew": 0.5, "min_samples": 30},
            "absence": {"scenario": "file", "file": str(availability)},
            "algorithm": {"name": algorithm},
            "digest": {"samples_per_digest": minimal.SAMPLES_PER_DIGEST},
            "privacy": {"epsilon": minimal.EPSILON, "scale_size": minimal.SCALE_SIZE},
            "model": {"classifier": "small"},
            "training": {
                "rounds": len(table[0]),
                "batch": minimal.BATCH,
                "lr": minimal.LEARNING_RATE,
                "momentum": minimal.MOMENTUM,
                "threads": 1,
            },
        }
    )


def silo_samples(minimal: ModuleType, simulation: Simulation) -> list[object]:
    taken = []
    for silo in simulation.silos:
        every, labels, features = torch.arange(len(silo.samples)), silo.samples.labels, silo.samples.features
        images = silo.samples.images(every)
        taken.append(minimal.Samples(images, features if features is not None else images, labels))
    return taken


def weights(network: nn.Module) -> torch.Tensor:
    return parameters_to_vector(network.parameters()).detach().clone()


def in_torch_order(vector: torch.Tensor, network: nn.Module) -> torch.Tensor:
    """Reorder the library's vector, which stores channels last, to the order in which torch flattens this network."""
    flat = FlatNetwork(copy.deepcopy(network))
    flat.load(vector)
    return torch.cat([tensor.flatten() for tensor in flat.tensors().values()])


def build(minimal: ModuleType, table: tuple[str, ...], folder: Path, algorithm: str = "feddig") -> Simulation:
    setting = make_experiment(minimal, table, folder, algorithm)
    return build_simulation(setting, device="cpu", dataset=draw_dataset(minimal))


def copy_classifier(minimal: ModuleType, simulation: Simulation) -> nn.Module:
    """Build minimal.py's classifier with the library's initial weights."""
    sees_features = simulation.experiment.recipe.sees_features
    model: nn.Module = minimal.Classifier(simulation.dataset.classes, sees_features=sees_features)
    vector_to_parameters(in_torch_order(simulation.moderator.weights, model), model.parameters())
    return model


@dataclass(frozen=True)
class AfterRound:
    """Weights of M and P_G in minimal.py and in the library; in FedAvg, P_G's do not change."""

    model: torch.Tensor
    guidance: torch.Tensor
    library_model: torch.Tensor
    library_guidance: torch.Tensor


def train_both(
    minimal: ModuleType, table: tuple[str, ...], folder: Path, algorithm: str = "feddig"
) -> Iterator[AfterRound]:
    """Train both round by round, from the same weights, with the same data, digests and batch orders."""
    simulation = build(minimal, table, folder, algorithm)
    moderator, recipe = simulation.moderator, simulation.experiment.recipe
    model, guidance_producer = copy_classifier(minimal, simulation), minimal.build_guidance_producer()
    library_guidance = moderator.guidance_producer
    if library_guidance is not None:
        first = in_torch_order(library_guidance.weights(), guidance_producer)
        vector_to_parameters(first, guidance_producer.parameters())

    def digest_of(silo: int) -> object:
        digest = simulation.make_digest(simulation.silos[silo])
        return minimal.Digest(digest.features, digest.labels)

    theirs = run_rounds(moderator, simulation.engine(simulation.make_digest), recipe, range(len(table[0])))
    ours = minimal.train_rounds(
        model,
        guidance_producer,
        silo_samples(minimal, simulation),
        [[cell == "1" for cell in row] for row in table],
        digest_of if recipe.collects_digests else None,
        partial(torch_stream, SEED),
    )
    for result, (present, recalled) in zip(theirs, ours, strict=True):
        assert present == [reply.silo for reply in result.replies]
        assert recalled == [reply.silo for reply in result.stand_ins]
        guidance = weights(guidance_producer)
        their_guidance = guidance
        if library_guidance is not None:
            their_guidance = in_torch_order(library_guidance.weights(), guidance_producer)
        yield AfterRound(weights(model), guidance, in_torch_order(moderator.weights, model), their_guidance)


@pytest.mark.parametrize("table", [SEQUENTIAL, JOINS_AND_RETURNS], ids=["sequential", "joins and returns"])
def test_one_file_trains_to_the_librarys_weights(
    minimal: ModuleType, table: tuple[str, ...], tmp_path: Path
) -> None:
    before = None
    for after in train_both(minimal, table, tmp_path):
        torch.testing.assert_close(after.model, after.library_model, **CLOSE)
        torch.testing.assert_close(after.guidance, after.library_guidance, **CLOSE)
        if before is not None:  # every round trains both models, also the round without silos
            assert not torch.equal(after.model, before.model)
            assert not torch.equal(after.guidance, before.guidance)
        before = after


def test_one_file_without_digests_is_the_librarys_fedavg(minimal: ModuleType, tmp_path: Path) -> None:
    rounds = list(train_both(minimal, JOINS_AND_RETURNS, tmp_path, "fedavg"))
    for after in rounds:
        torch.testing.assert_close(after.model, after.library_model, **CLOSE)
    assert torch.equal(rounds[3].model, rounds[2].model)  # no silo was present
    assert not torch.equal(rounds[4].model, rounds[3].model)


def test_one_file_measures_the_librarys_accuracy(minimal: ModuleType, tmp_path: Path) -> None:
    simulation = build(minimal, SEQUENTIAL, tmp_path)
    model = copy_classifier(minimal, simulation)
    everything = torch.arange(len(simulation.test))
    samples = minimal.Samples(
        simulation.test.images(everything), simulation.test.features, simulation.test.labels
    )
    assert minimal.measure_accuracy(model, samples) == pytest.approx(
        accuracy(simulation.network, simulation.test)
    )


def test_one_file_has_the_librarys_encoder(minimal: ModuleType) -> None:
    shipped, encoder = load_encoder("default", minimal.CHANNELS), minimal.build_encoder()
    weights = torch.cat([parameter.flatten() for parameter in shipped.parameters()])
    vector_to_parameters(weights, encoder.parameters())
    images = minimal.draw_shapes(torch.arange(8), torch.Generator().manual_seed(SEED))
    torch.testing.assert_close(encoder(images), shipped(images), **CLOSE)


# --- the digest


def draw_samples(minimal: ModuleType, count: int = 102) -> tuple[object, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(SEED)
    features = torch.rand(count, 4, 8, 8, generator=stream)
    labels = torch.randint(5, (count,), generator=stream)
    return minimal.Samples(torch.zeros(count, 3, 32, 32), features, labels), features, labels


def test_digest_is_the_librarys_when_noise_is_off(minimal: ModuleType) -> None:
    samples, features, labels = draw_samples(minimal)
    theirs = make_digest(
        3, features, labels, 5,
        settings=DigestSettings(minimal.SAMPLES_PER_DIGEST, seed=SEED),
        privacy=PrivacySettings("none"),
        encoder="",
    )  # fmt: skip
    uniforms = seeded_uniforms(SEED, "mixing", 3)
    order = torch.from_numpy(np.argsort(uniforms(len(labels)), kind="stable"))
    ours = minimal.make_digest(samples, 5, order, math.inf, torch.Generator())
    assert len(ours.features) == 25  # two of 102 samples are left out
    torch.testing.assert_close(ours.features, theirs.features, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=0)


def test_digest_noise_is_laplace_of_the_librarys_scale(minimal: ModuleType) -> None:
    samples, features, labels = draw_samples(minimal, 2000)
    order = torch.arange(len(labels))
    clean = minimal.make_digest(samples, 5, order, math.inf, torch.Generator())
    noised = minimal.make_digest(samples, 5, order, 0.01, torch.Generator().manual_seed(SEED))
    scale = laplace_scale(float(features.max()), 0.01, minimal.SCALE_SIZE)
    sizes = (noised.features - clean.features) / scale
    assert torch.equal(noised.labels, clean.labels)
    assert sizes.mean() == pytest.approx(0, abs=0.02)
    assert sizes.abs().mean() == pytest.approx(1, abs=0.02)
    # a normal variable of that mean size would have 1.57
    assert sizes.square().mean() == pytest.approx(2, abs=0.06)


# --- the notebook

NOTEBOOK = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))


def execute_cells(cells: list[str]) -> list[object]:
    """Execute code cells in one namespace; return the value of each cell's last line, which a notebook shows."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        tree, name = ast.parse(cell), f"code cell {number}"
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        value = None if last is None else ast.Expression(last.value)
        shown.append(value and eval(compile(value, name, "eval"), namespace))
    return shown


def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    shown = dict(zip(cells, execute_cells(cells), strict=True))
    result, comparison = (
        next(value for value in shown.values() if isinstance(value, kind)) for kind in (Result, Comparison)
    )
    assert result.accuracy > 90
    assert f"<td>{result.accuracy:.1f} %</td>" in result._repr_html_()
    assert len(comparison.results) == 4
    figures = [value._repr_png_() for value in shown.values() if isinstance(value, Figure)]
    assert [figure[:8] for figure in figures] == 2 * [b"\x89PNG\r\n\x1a\n"]
    assert re.findall(r"^silo (\d): +(\d+) rounds, \d+ %$", capsys.readouterr().out, flags=re.MULTILINE) == [
        (str(silo), str(sum(result.history[f"present_silo_{silo}"]))) for silo in range(4)
    ]
    assert shown[cells[-1]] == result["privacy"]


def test_the_notebook_is_stored_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


# --- the files themselves


def test_one_file_is_short_and_imports_torch_and_the_standard_library_only() -> None:
    text = (EXAMPLES / "minimal.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    roots = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            roots |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").partition(".")[0])
    assert roots - sys.stdlib_module_names == {"torch"}


@pytest.mark.slow
def test_one_file_runs_by_itself(tmp_path: Path) -> None:
    heading, *rows, end = run_example("minimal", "6", "40", folder=tmp_path).splitlines()
    assert heading.split()[:6] == ["round", "here", "recalled", "FedAvg", "frozen", "FedDig"]
    here_and_recalled = [(row[7:14].strip(), row[16:24].strip()) for row in rows]
    all_present, all_recalled = ("0 1 2 3", "-"), ("-", "0 1 2 3")
    assert here_and_recalled == [
        all_present,
        all_present,
        ("1 2 3", "0"),
        ("2 3", "0 1"),
        ("3", "0 1 2"),
        all_recalled,
    ]
    fedavg, frozen, feddig = zip(*(map(float, row[24:].split()) for row in rows), strict=True)
    assert frozen == (fedavg[0], *[fedavg[1]] * 5)
    assert fedavg[5] == fedavg[4]  # no silo is left to train it
    assert end == f"in the end: FedAvg {fedavg[-1]} %, frozen {frozen[-1]} %, FedDig {feddig[-1]} %"


def report_of(printed: str) -> str:
    """Read the report page that an example writes."""
    last = printed.splitlines()[-1]
    assert last.startswith("report: ")
    return Path(last.removeprefix("report: ")).read_text(encoding="utf-8")


def accuracies(printed: str, pattern: str) -> list[float]:
    found = [float(number) for number in re.findall(pattern, printed, flags=re.MULTILINE)]
    assert all(0 <= number <= 100 for number in found)
    return found


@pytest.mark.slow
def test_own_data_draws_a_folder_and_lets_the_silo_that_matters_leave(tmp_path: Path) -> None:
    printed = run_example("own_data", "--rounds", "4", "--out", str(tmp_path / "results"), folder=tmp_path)
    assert re.search(r"^images of each class: silo 0 \[\d+, \d+, \d+, \d+\] silo 1 ", printed)
    rows = re.findall(r"^(\w+) +(stays|leaves) +[\d.]+$", printed, flags=re.MULTILINE)
    assert rows == [("fedavg", "stays"), ("fedavg", "leaves"), ("frozen", "leaves"), ("feddig", "leaves")]
    assert len(accuracies(printed, r"(?:stays|leaves) +([\d.]+)$")) == 4
    assert len(list(tmp_path.rglob("images/*/*/*.png"))) == 600
    present = np.loadtxt(tmp_path / "results" / "availability.csv", delimiter=",")
    assert present.shape == (4, 4)
    assert present.sum() == 14  # one silo is absent for two rounds
    assert "stripes" in report_of(printed)


@pytest.mark.slow
def test_own_data_takes_the_folder_that_it_is_given(tmp_path: Path) -> None:
    images = load_example("own_data").draw_folder(tmp_path / "photos")
    printed = run_example(
        "own_data",
        str(images),
        "--rounds",
        "2",
        "--leaver",
        "3",
        "--out",
        str(tmp_path / "results"),
        folder=tmp_path,
    )
    assert f"{images}: test accuracy" in printed
    assert "silo 3   at the end" in printed
    present = np.loadtxt(tmp_path / "results" / "availability.csv", delimiter=",")
    assert present.tolist() == [[1, 1], [1, 1], [1, 1], [1, 0]]


@pytest.mark.slow
def test_own_model_shows_a_misfit_and_trains_what_fits(tmp_path: Path) -> None:
    printed = run_example("own_model", "--rounds", "3", "--out", str(tmp_path / "results"), folder=tmp_path)
    assert printed.startswith(
        "a misfit: model.guidance: gives (1, 16, 16) for a code of (3, 8, 8), but images are "
    )
    assert re.findall(r"^(\w+): test accuracy", printed, flags=re.MULTILINE) == ["fedavg", "feddig"]
    assert len(accuracies(printed, r"test accuracy ([\d.]+) %")) == 2
    assert "feddig" in report_of(printed)


@pytest.mark.slow
def test_own_model_can_replace_the_extractor_alone(tmp_path: Path) -> None:
    out = tmp_path / "results"
    printed = run_example(
        "own_model", "--replace", "extractor", "--rounds", "12", "--out", str(out), folder=tmp_path
    )
    fedavg, feddig = accuracies(printed, r"test accuracy ([\d.]+) %")
    assert min(fedavg, feddig) > 25
    tensors = read_tensors(next((out / "feddig").rglob("model.safetensors")), "model")[0]
    assert any("refine" in name for name in tensors), "the model holds our extractor"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rounds", "seeds"), [("breast-cancer", 12, 1), ("wine", 6, 2)])
def test_tabular_runs_on_tables(name: str, rounds: int, seeds: int, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn of the extra dev is not installed")
    chosen = ("--set", name, "--rounds", str(rounds), "--seeds", str(seeds))
    printed = run_example("tabular", *chosen, "--out", str(tmp_path / "results"), folder=tmp_path)
    assert printed.startswith(f"{name}: test accuracy in percent after {rounds} rounds, {seeds} seed(s)")
    first, *others = accuracies(printed, r"^(?:F|f).{25} +([\d.]+)")
    assert len(others) == 3
    if name == "breast-cancer":
        assert first > 80  # FedAvg without absence
    assert printed.count("±") == (4 if seeds > 1 else 0)
    digest = next((tmp_path / "results" / "feddig").rglob("silo-*.safetensors"))
    assert read_digest(digest).features.shape[1:] == (16,)
    assert "frozen" in report_of(printed)
