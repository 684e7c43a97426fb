"""Encoders trained on a public data set: their images, the facts in their file, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import draw_tiny_dataset
from feddig.data import Dataset, dataset_from_arrays
from feddig.files import read_tensors
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.train_encoder import BATCH, SHIPPED_TRAINING, make_encoder
from feddig.runs.release import training_on
from feddig.seeds import torch_stream
from folders import run_feddig


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Write grey images of 16x12 pixels, so that one side must be padded."""
    pixels, labels = dots().train.pixels, dots().train.labels
    path = tmp_path / "dots.npz"
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:4], y_test=labels[:4])
    return path


def dots() -> Dataset:
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (40, 1, 16, 12), dtype=np.uint8)
    labels = np.arange(40) % 4
    return dataset_from_arrays(pixels, labels, pixels[:4], labels[:4])


def run_encoder_make(*words: object) -> int:
    return run_feddig("encoder", "make", *words)


def test_it_learns_from_the_padded_training_images(tmp_path: Path) -> None:
    dataset = dots()
    draw = training_on(dataset).draw_images
    images = draw(200, 1, torch_stream(0, "test"))
    assert images.shape == (200, 1, 16, 16)
    assert torch.equal(images, draw(200, 1, torch_stream(0, "test")))
    assert not torch.equal(images, draw(200, 1, torch_stream(1, "test")))
    assert (images[..., :2] == 0).all()
    assert (images[..., 14:] == 0).all()
    known = {image.tobytes() for image in np.asarray(dataset.train.pixels)}
    drawn = (images[..., 2:14] * 255).round().byte().numpy()
    assert {image.tobytes() for image in drawn} == known


def test_the_file_tells_what_it_was_trained_on(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.safetensors"
    words = ["--data", "npz", "--data-path", npz.name, "--data-dir", tmp_path, "--steps", 5, "--seed", 3]
    assert run_encoder_make(*words, "--out", out, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    _, facts = read_tensors(out, "encoder")
    expected = {
        "recipe": "images of npz, noisy code",
        "data": "npz",
        "data_fingerprint": dots().fingerprint(),
        "data_images": "40",
        "channels": "1",
        "steps": "5",
        "seed": "3",
        "batch": str(BATCH),
    }
    assert {name: facts[name] for name in expected} == expected
    assert report["data"] == "npz"
    assert report["hash"] == facts["hash"] == encoder_hash(load_encoder(str(out), 1))
    # the same arguments give the same bytes; generated images give another encoder
    assert run_encoder_make(*words, "--out", tmp_path / "again.safetensors", "--quiet") == 0
    assert (tmp_path / "again.safetensors").read_bytes() == out.read_bytes()
    assert report["hash"] != encoder_hash(make_encoder(1, 3, 5))


def test_channels_follow_from_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = draw_tiny_dataset(40, 4)
    pixels = np.repeat(np.asarray(dataset.train.pixels), 3, axis=1)
    colour = tmp_path / "colour.npz"
    np.savez(colour, x_train=pixels, y_train=dataset.train.labels, x_test=pixels, y_test=dataset.train.labels)
    out = tmp_path / "mine.safetensors"
    words = ["--data", "npz", "--data-path", colour, "--steps", 5, "--quiet"]
    assert run_encoder_make(*words, "--channels", 1, "--out", out) == 2
    assert capsys.readouterr().err == (
        "feddig: error: --channels: 1 asked for, but the images of npz have 3; leave it out\n"
    )
    assert not out.exists()
    assert run_encoder_make(*words, "--out", out) == 0
    assert read_tensors(out, "encoder")[1]["channels"] == "3"


def test_a_public_set_is_found_in_a_relative_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data", "cifar100").mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 100, (20, 3074), dtype=np.uint8)
    for name in ("train.bin", "test.bin"):
        Path("data", "cifar100", name).write_bytes(records.tobytes())
    assert (
        run_encoder_make(
            "--data", "cifar100", "--data-dir", "data", "--steps", 5, "--out", "mine.safetensors"
        )
        == 0
    )
    assert read_tensors(Path("mine.safetensors"), "encoder")[1]["data"] == "cifar100"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--data-path", "here"], "--data-path: gives the place of the data that --data names"),
        (["--data", "npz"], "data.path: the data set 'npz' needs a path"),
        (["--data", "fashion-mnits"], "data.name: unknown data set 'fashion-mnits'; did you mean"),
        (["--data", "tensors"], 'data.name: "tensors" stands for arrays given in Python'),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_encoder_make(*words, "--out", tmp_path / "mine.safetensors") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith(f"feddig: error: {line}")
    assert not any(tmp_path.iterdir())


def test_help_says_that_the_data_must_be_public(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_encoder_make("--help") == 0
    assert "PUBLIC data only: everybody gets the encoder" in " ".join(
        capsys.readouterr().out.replace("│", " ").split()
    )


def test_without_data_the_images_are_generated(tmp_path: Path) -> None:
    out = tmp_path / "mine.safetensors"
    assert run_encoder_make("--channels", 3, "--steps", 2, "--seed", 4, "--out", out, "--quiet") == 0
    _, facts = read_tensors(out, "encoder")
    assert facts["hash"] == encoder_hash(make_encoder(3, 4, 2))
    assert facts["recipe"] == SHIPPED_TRAINING.name
    assert "data" not in facts
