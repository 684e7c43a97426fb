"""`feddig predict` and `feddig evaluate`: a model's file suffices to classify images as its run did."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from conftest import make_tiny_experiment
from feddig import Experiment, Networks, run
from feddig.core.samples import AT_ONCE, classify
from feddig.data.dataset import Images
from feddig.data.public_sets import FASHION_CLASSES
from feddig.errors import DataError, FedDigError
from feddig.files import read_tensors, write_tensors
from feddig.models.encoder import EvenEncoder, save_encoder
from feddig.models.flat import FlatNetwork
from feddig.models.mobilenet import MobileNetV2
from feddig.models.train_encoder import make_encoder
from feddig.report.measures import class_measures, wilson_interval
from feddig.runs.build import Moderated, build_party, build_simulation
from feddig.runs.model_file import TrainedModel, evaluate, load_model, pack_model, predict
from feddig.runs.outcome import describe_test
from folders import error_line, rows, run_feddig, start_feddig

CLASSES = ("fig", "kiwi", "pear", "sloe")


def draw_photos(folder: Path) -> Path:
    """Draw 18x22 images whose class is the bright quarter, in folders train/CLASS and test/CLASS."""
    stream = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 12)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = stream.integers(0, 110, (22, 18), dtype=np.uint8)
                top, left = 11 * (label // 2), 9 * (label % 2)
                pixels[top : top + 11, left : left + 9] += np.uint8(60)
                Image.fromarray(pixels).save(folder / part / name / f"{name}{number}.png")
    return folder


def photo_experiment(photos: Path, algorithm: str, **sections: dict[str, object]) -> Experiment:
    """Return an experiment of two rounds on the photos, which are resized and read in colour."""
    data = {"name": "folder", "path": str(photos), "image_size": 16, "channels": 3, "min_samples": 8}
    return make_tiny_experiment(
        data=data, algorithm={"name": algorithm}, training={"rounds": 2, "batch": 16}, **sections
    )


@dataclass(frozen=True)
class Trained:
    """A finished run, and a copy of its model's file in another folder."""

    experiment: Experiment
    results: Path
    model: Path
    photos: Path

    @property
    def accuracy(self) -> float:
        return float(rows(self.results)[-1]["test_accuracy"])


@pytest.fixture(scope="module", params=["fedavg", "feddig", "feddig-plus"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    photos = draw_photos(folder / "photos")
    experiment = photo_experiment(photos, request.param)
    run(experiment, folder / "run", device="cpu")
    model = folder / "elsewhere" / "model.safetensors"
    model.parent.mkdir()
    shutil.copy(folder / "run" / "model.safetensors", model)
    return Trained(experiment, folder / "run", model, photos)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a wrong command and returns the line that it prints."""
    return partial(error_line, capsys)


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


# --- the figures


def test_the_figures_of_classes_are_those_by_hand() -> None:
    """Of four classes, the third is never predicted and the fourth has no images."""
    found = class_measures(np.array([[3, 1, 0, 0], [2, 4, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]))
    assert found["count"] == [4, 6, 2, 0]
    assert found["accuracy"] == pytest.approx(100 * 7 / 12)
    assert found["precision"] == [pytest.approx(60), pytest.approx(100 * 4 / 6), None, 0]
    assert found["recall"] == [pytest.approx(75), pytest.approx(100 * 4 / 6), 0, None]
    assert found["f1"] == [pytest.approx(100 * 6 / 9), pytest.approx(100 * 8 / 12), 0, 0]
    assert found["macro_f1"] == pytest.approx((100 * 6 / 9 + 100 * 8 / 12) / 4)
    assert found["balanced_accuracy"] == pytest.approx((75 + 100 * 4 / 6) / 3)


def test_the_figures_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn of the extra dev is not installed")
    stream = np.random.default_rng(1)
    # the last class is never predicted
    labels, guesses = (stream.integers(0, 5, 200), stream.integers(0, 4, 200))
    found = class_measures(metrics.confusion_matrix(labels, guesses))
    assert found["macro_f1"] == pytest.approx(100 * metrics.f1_score(labels, guesses, average="macro"))
    assert found["balanced_accuracy"] == pytest.approx(100 * metrics.balanced_accuracy_score(labels, guesses))


def brightness_model() -> TrainedModel:
    """Build a model that calls an image bright if its mean is above a half."""
    linear = nn.Linear(64, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.stack([torch.zeros(64), torch.ones(64) / 64]))
        linear.bias.copy_(torch.tensor([0.0, -0.5]))
    network = FlatNetwork(nn.Sequential(nn.Flatten(), linear))
    return TrainedModel(Path("m"), network, None, (1, 8, 8), ("dark", "bright"), {})


def test_two_classes_have_an_area_under_the_curve(tmp_path: Path) -> None:
    means = np.array([0.1, 0.4, 0.6, 0.9], np.float32)
    np.savez(tmp_path / "d.npz", x=np.ones((4, 8, 8), np.float32) * means[:, None, None], y=[0, 1, 0, 1])
    found = evaluate(brightness_model(), str(tmp_path / "d.npz"))
    assert found["confusion"] == [[1, 1], [1, 1]]
    # in three of the four pairs the bright image scores higher; only 0.4 is below 0.6
    assert found["auc"] == 0.75
    assert found["accuracy"] == 50
    assert found["intervals"]["accuracy"] == pytest.approx(wilson_interval(50, 4), abs=5e-4)
    np.savez(tmp_path / "one.npz", x=np.ones((1, 8, 8), np.float32), y=[1])
    assert evaluate(brightness_model(), str(tmp_path / "one.npz"))["auc"] is None, "there is no other class"


def figures_of(means: list[float], labels: list[int]) -> dict[str, Any]:
    """Return what a row of metrics.jsonl says of images with these means."""
    pixels = np.ones((len(means), 1, 8, 8), np.float32) * np.array(means, np.float32)[:, None, None, None]
    model = brightness_model()
    return describe_test(model.network, model.samples(Images(pixels, np.array(labels))), 2)


def test_a_round_of_two_classes_has_an_area_in_which_ties_count_half() -> None:
    found = figures_of([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1])
    # DeLong: each class's two images win 1 and 1/2 of their pairs, so the deviation is that of two means of a half
    assert found["intervals"]["auc"] == pytest.approx([0.75 - 1.959964 * 0.125**0.5, 1.0])
    assert [*found.pop("intervals")] == ["accuracy", "balanced_accuracy", "macro_f1", "auc"]
    assert found == {
        "test_accuracy": 50.0,
        "class_accuracy": [50.0, 50.0],
        "macro_f1": 50.0,
        "balanced_accuracy": 50.0,
        "auc": 0.75,
    }
    assert figures_of([0.7, 0.7], [0, 1])["auc"] == 0.5
    # 0.7 against 0.7 is a tie, against 0.2 a win
    assert figures_of([0.2, 0.7, 0.7], [0, 0, 1])["auc"] == 0.75


def test_a_class_without_test_images_has_no_accuracy() -> None:
    found = figures_of([0.9, 0.8, 0.1], [1, 1, 1])
    assert found["class_accuracy"] == [None, pytest.approx(66.667)]
    assert found["auc"] is found["intervals"]["auc"] is None
    assert found["balanced_accuracy"] == pytest.approx(100 * 2 / 3)


def test_a_model_that_has_diverged_has_no_area() -> None:
    found = figures_of([float("nan"), 0.1], [0, 1])
    assert found["auc"] is None
    assert found["test_accuracy"] is not None


def test_a_round_is_measured_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = brightness_model(), []
    model.network.module.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    pixels = np.zeros((AT_ONCE + 5, 1, 8, 8), np.float32)
    describe_test(model.network, model.samples(Images(pixels, np.arange(len(pixels)) % 2)), 2)
    assert seen == [AT_ONCE, 5]


def test_the_figures_of_the_last_round_are_those_of_evaluate(trained: Trained) -> None:
    found = evaluate(load_model(trained.model, device="cpu"), str(trained.photos))
    last = rows(trained.results)[-1]
    assert last["class_accuracy"] == [round(each["recall"], 3) for each in found["classes"]]
    for key in ("macro_f1", "balanced_accuracy"):
        assert last[key] == found[key], key
    assert "auc" not in last, "there are four classes"
    summary = json.loads((trained.results / "summary.json").read_text(encoding="utf-8"))
    assert summary["class_accuracy"]["final"] == last["class_accuracy"]
    assert summary["intervals"]["accuracy"] == pytest.approx(wilson_interval(trained.accuracy, 48), abs=5e-4)
    assert summary["intervals"]["class_accuracy"] == [
        pytest.approx(wilson_interval(each["recall"], 12), abs=5e-4) for each in found["classes"]
    ]


# --- the file alone


def test_the_outcome_is_the_runs_own(trained: Trained, tmp_path: Path) -> None:
    model = load_model(trained.model, device="cpu")
    assert (model.image_shape, model.classes) == ((3, 16, 16), CLASSES)
    out = tmp_path / "p.csv"
    assert run_feddig("predict", trained.model, trained.photos / "test", "--out", out, "--quiet") == 0
    table = read_table(out)
    assert list(table[0]) == ["file", "class", "probability", *(f"p_{name}" for name in CLASSES)]
    assert [row["file"] for row in table] == sorted(row["file"] for row in table)
    right = sum(row["file"].split("/")[0] == row["class"] for row in table)
    assert 100.0 * right / 48 == trained.accuracy
    for row in table:
        chances = {name: float(row[f"p_{name}"]) for name in CLASSES}
        assert row["probability"] == row[f"p_{row['class']}"]
        assert float(row["probability"]) == max(chances.values())
        assert sum(chances.values()) == pytest.approx(1, abs=3e-6)
    found = evaluate(model, str(trained.photos))
    assert found["accuracy"] == trained.accuracy
    assert [row["class"] for row in found["classes"]] == list(CLASSES)


def test_logits_have_the_same_bits_as_in_the_run(trained: Trained) -> None:
    simulation = build_simulation(trained.experiment, device="cpu")
    model = load_model(trained.results, device="cpu")
    simulation.network.load(model.network.weights())
    here = classify(model.network, model.samples(simulation.dataset.test))
    assert torch.equal(classify(simulation.network, simulation.test), here)


def test_the_file_suffices_where_nothing_else_is(trained: Trained, tmp_path: Path) -> None:
    """Use a separate process while the run and its data are moved away."""
    shutil.copy(trained.model, tmp_path / "model.safetensors")
    shutil.copytree(trained.photos / "test", tmp_path / "photos")
    away = trained.results.parent.rename(trained.results.parent.with_name("away"))
    try:
        words = ["evaluate", "model.safetensors", "photos", "--device", "cpu", "--json", "--out", "e.json"]
        done = start_feddig(words, cwd=tmp_path)
        out, err = done.communicate(timeout=120)
    finally:
        away.rename(trained.results.parent)
    assert done.returncode == 0, err
    assert json.loads(out)["accuracy"] == trained.accuracy
    assert json.loads((tmp_path / "e.json").read_text()) == json.loads(out)


def packed(experiment: Experiment, path: Path, networks: Networks | None = None) -> Moderated:
    """Write an experiment's model as it is before the first round."""

    class Built(Moderated):
        def task(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
            return (3, 30, 32), CLASSES

    experiment = experiment.resolved()
    party = build_party(experiment, (3, 32, 32), 4, device=torch.device("cpu"), networks=networks)
    built = Built(party, party.moderator(2))
    write_tensors(path, "model", *pack_model(party, *built.task()))
    return built


@pytest.mark.parametrize("encoder", ["even", "made.safetensors", "made-even.safetensors"])
def test_the_encoder_is_in_the_file(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_encoder(3, 5, 2)
    save_encoder(tmp_path / "made.safetensors", made, {})
    save_encoder(tmp_path / "made-even.safetensors", EvenEncoder(made, 3), {})
    built = packed(make_tiny_experiment(digest={"encoder": encoder}), tmp_path / "model.safetensors")
    for file in tmp_path.glob("made*"):
        file.unlink()
    model = load_model(tmp_path / "model.safetensors")
    images = torch.rand(3, 3, 32, 32)
    assert model.encoder is not None
    assert built.party.encoder is not None
    assert torch.equal(model.encoder(images), built.party.encoder(images))


def test_an_imported_mobilenet_keeps_its_padding_and_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = MobileNetV2("same", "imagenet")
    save_encoder(tmp_path / "start.safetensors", start, {})
    sections = {"model": {"classifier": "start.safetensors"}, "digest": {"encoder": "start.safetensors"}}
    built = packed(make_tiny_experiment(**sections), tmp_path / "model.safetensors")
    (tmp_path / "start.safetensors").unlink()
    model = load_model(tmp_path / "model.safetensors")
    images = torch.rand(2, 3, 32, 32)
    assert model.encoder is not None
    assert built.party.encoder is not None
    codes = model.encoder(images)
    assert torch.equal(codes, built.party.encoder(images))
    assert torch.equal(model.network.module(images, codes), built.network.module(images, codes))


OWN = """
from torch import nn
def encoder(channels):
    return nn.Sequential(nn.Conv2d(channels, 2, 3, padding=1), nn.MaxPool2d(4), nn.ReLU())
def classifier(image_shape, classes, feature_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))
"""


def test_own_code_is_imported_only_if_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_networks_here.py").write_text(OWN)
    file = tmp_path / "model.safetensors"
    sections = {
        "algorithm": {"name": "feddig-plus"},
        "model": {"classifier": "own_networks_here:classifier"},
        "digest": {"encoder": "own_networks_here:encoder"},
    }
    built = packed(make_tiny_experiment(**sections), file)
    printed = refusal("predict", file, "nowhere")
    assert "needs the code of own_networks_here:encoder for digest.encoder; say --own-code" in printed
    model = load_model(file, own_code=True)
    images = torch.rand(2, 3, 32, 32)
    assert model.encoder is not None
    assert built.party.encoder is not None
    codes = model.encoder(images)
    assert torch.equal(codes, built.party.encoder(images))
    assert torch.equal(model.network.module(images, codes), built.network.module(images, codes))


def test_a_network_given_in_python_is_not_in_the_file(tmp_path: Path, refusal: Callable[..., str]) -> None:
    mine = Networks(raw_extractor=nn.Sequential(nn.AvgPool2d(8), nn.Flatten()))
    packed(make_tiny_experiment(algorithm={"name": "fedavg"}), tmp_path / "m.safetensors", mine)
    printed = refusal("predict", tmp_path / "m.safetensors", "nowhere", "--own-code")
    assert "model.classifier was given in Python" in printed


# --- images


def test_images_are_found_at_any_depth_and_rows_are_numbered(tmp_path: Path) -> None:
    model = brightness_model()
    folder = tmp_path / "images"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name, value in (("b.png", 250), ("deep/er/a.PNG", 5), (".hidden/c.png", 5)):
        Image.new("RGB", (20, 10), (value, value, value)).save(folder / name)
    (folder / "notes.txt").write_text("not an image")
    table, count = predict(model, folder)
    assert count == 2
    bright, dark = (1 / (1 + np.exp(-abs(value / 255 - 0.5))) for value in (250, 5))
    assert table.splitlines() == [
        "file,class,probability,p_dark,p_bright",
        f"b.png,bright,{bright:.6f},{1 - bright:.6f},{bright:.6f}",
        f"deep/er/a.PNG,dark,{dark:.6f},{dark:.6f},{1 - dark:.6f}",
    ]
    assert predict(model, folder / "b.png")[0].splitlines()[1].startswith("b.png,bright")
    np.savez(tmp_path / "x.npz", x_test=np.full((3, 8, 8), 200, np.uint8))
    assert [line.split(",")[:2] for line in predict(model, tmp_path / "x.npz")[0].splitlines()] == [
        ["row", "class"], ["0", "bright"], ["1", "bright"], ["2", "bright"]
    ]  # fmt: skip


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    """The folder's first class is the model's second; the other class has no images."""
    (tmp_path / "bright").mkdir()
    for value in (10, 240):
        Image.new("L", (8, 8), value).save(tmp_path / "bright" / f"{value}.png")
    found = evaluate(brightness_model(), str(tmp_path))
    assert found["confusion"] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("part", ["", "test"])
def test_folders_of_silos_with_classes_are_read(part: str, tmp_path: Path) -> None:
    """A file may have the same name in two silos."""
    for place in ("Lyon/dark", "Lyon/bright", "Metz/bright", *(["../train/Lyon/dark"] if part else [])):
        folder = tmp_path / part / place
        folder.mkdir(parents=True)
        for value in (10, 240):
            Image.new("L", (8, 8), value).save(folder / f"{value}.png")
    found = evaluate(brightness_model(), str(tmp_path))
    assert found["confusion"] == [[1, 1], [2, 2]]
    (tmp_path / part / "Lyon" / "grey").mkdir()
    with pytest.raises(DataError, match="the class 'grey' is not the model's"):
        evaluate(brightness_model(), str(tmp_path))


def test_the_test_images_of_a_named_set_are_matched_by_name() -> None:
    """The model has the classes in reverse order and classifies every image as a bag."""
    classes = tuple(reversed(FASHION_CLASSES))
    linear = nn.Linear(32 * 32, 10)  # images are padded to 32x32
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.eye(10)[classes.index("Bag")])
    network = FlatNetwork(nn.Sequential(nn.Flatten(), linear))
    found = evaluate(TrainedModel(Path("m"), network, None, (1, 28, 28), classes, {}), "fashion-mini")
    assert (found["images"], found["accuracy"]) == (1000, 10)
    recall = {row["class"]: row["recall"] for row in found["classes"]}
    assert recall == {name: 100.0 * (name == "Bag") for name in classes}


def test_a_class_that_the_model_does_not_know_is_an_error() -> None:
    with pytest.raises(
        FedDigError, match="the class 'T-shirt/top' is not the model's; choose from bright, dark"
    ):
        evaluate(brightness_model(), "fashion-mini")


# --- what is wrong


def test_an_older_file_is_refused_with_a_remedy(
    trained: Trained, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    arrays, facts = read_tensors(trained.model, "model")
    kept = {key: facts[key] for key in ("algorithm", "seed", "feddig")}
    write_tensors(tmp_path / "old.safetensors", "model", arrays, kept)
    assert "an older FedDig wrote it" in refusal("predict", tmp_path / "old.safetensors", tmp_path)
    assert "train it again" in refusal("evaluate", tmp_path / "old.safetensors", "fashion-mini")


def test_facts_that_do_not_fit_the_tensors_are_refused(
    trained: Trained, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    arrays, facts = read_tensors(trained.model, "model")
    for wrong in (
        {"classes": '["a"]'},
        {"image_shape": "[3, 16]"},
        {"classes": "{"},
        {"classifier": "small "},
    ):
        write_tensors(tmp_path / "wrong.safetensors", "model", arrays, {**facts, **wrong})
        refusal("predict", tmp_path / "wrong.safetensors", trained.photos)


def test_mistakes_are_one_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = trained.model
    assert "no such file" in refusal("predict", "nothing.safetensors", ".")
    (tmp_path / "begun").mkdir()
    assert "give a run's results folder" in refusal("predict", "begun", ".")
    (tmp_path / "begun" / "experiment.toml").touch()
    assert "feddig run --resume begun" in refusal("predict", "begun", ".")
    assert "begun: no images" in refusal("predict", model, "begun")
    assert "nowhere: no such folder" in refusal("predict", model, "nowhere")
    (tmp_path / "bad.png").write_text("no image")
    assert "bad.png: not a readable image" in refusal("predict", model, tmp_path)
    np.savez("small.npz", x=np.zeros((2, 8, 8), np.uint8), y=[0, 1])
    assert "the model takes [3, 16, 16]" in refusal("predict", model, "small.npz")
    np.savez("train.npz", x_train=np.zeros((2, 16, 16), np.uint8), y_train=[0, 1])
    assert refusal("evaluate", model, "train.npz").endswith("save its images as x, and their labels as y")
    np.savez("many.npz", x=np.zeros((2, 16, 16, 3), np.uint8), y=[0, 4])
    assert "there is a label 4, but the model has only the classes 0 to 3" in refusal(
        "evaluate", model, "many.npz"
    )
    (tmp_path / "fruit" / "kiwis").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "fruit" / "kiwis" / "1.png")
    assert "the class 'kiwis' is not the model's; did you mean 'kiwi'?" in refusal("evaluate", model, "fruit")
    assert "is no data set, .npz file or folder" in refusal("evaluate", model, "fashion-mnis")
    assert "many.npz: exists already" in refusal("predict", model, trained.photos, "--out", "many.npz")
    assert "many.npz: exists already" in refusal("evaluate", model, trained.photos, "--out", "many.npz")


def test_the_table_on_the_console(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_feddig("evaluate", trained.results, trained.photos, "--device", "cpu") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["images", "48"]
    assert out[1].startswith(f"accuracy           {trained.accuracy:.1f} % (95 % interval ")
    assert out[5].split() == ["class", "images", "precision", "recall", "F1"]
    assert [line.split()[:2] for line in out[6:]] == [[name, "12"] for name in CLASSES]
