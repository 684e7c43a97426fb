"""Guidance pictures, one for each class, drawn from a results folder without torch."""

import json
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from feddig.errors import FileFormatError
from feddig.files import read_tensors

MOST_DIGESTS = 4000
"""Digests that class means are estimated from: more change no picture."""


@dataclass(frozen=True)
class Pictures:
    """Images in [0, 1], class x channels x height x width; None where there are none, and why."""

    guidance: np.ndarray | None
    means: np.ndarray | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class ShownSamples:
    """Raw images in [0, 1], the features that an encoder gives them, and their classes; a row each."""

    images: np.ndarray
    features: np.ndarray
    labels: np.ndarray


def read_pictures(folder: Path, producer: str) -> Pictures:
    """Paint what the guidance producer makes of each class, and read class means if they are stored.

    `producer` is the setting model.guidance: only the one that comes with FedDig can be painted here.
    """
    missing = []
    means = _read_means(folder / "class_means.safetensors")
    if means is None:
        missing.append("The mean image of each class is not in the folder (class_means.safetensors).")
    guidance = None
    if not (folder / "guidance.safetensors").exists():
        missing.append("There is no guidance producer in the folder (guidance.safetensors).")
    elif producer != "deconvolution":
        missing.append(f"The guidance producer is your own ({producer}), which a report cannot run.")
    else:
        features = _class_features(folder / "digests")
        if features is None:
            missing.append("Guidance is painted from digests, and the folder holds none.")
        else:
            guidance = _paint(folder / "guidance.safetensors", features)
            if guidance is None:
                missing.append("guidance.safetensors is damaged or of another shape than FedDig's own.")
    return Pictures(guidance, means, tuple(missing))


def paint_digests(folder: Path, producer: str, count: int) -> tuple[np.ndarray, np.ndarray] | str:
    """Paint the guidance of single digests as they were sent, and give their soft labels too; or say why not.

    They are taken from the silos in turn, so that every silo shows something.
    """
    silos = read_digests(folder / "digests")
    turns = [(silo, place) for place in range(count) for silo in silos if place < len(silo[0])][:count]
    if not turns:
        return "guidance is painted from digests, and the folder holds none"
    guidance = paint_features(folder, producer, np.stack([silo[0][place] for silo, place in turns]))
    if isinstance(guidance, str):
        return guidance
    return guidance, np.stack([silo[1][place] for silo, place in turns])


def paint_features(folder: Path, producer: str, features: np.ndarray) -> np.ndarray | str:
    """Paint what a run's guidance producer makes of features; or say why not."""
    if producer != "deconvolution":
        return f"the guidance producer is your own ({producer}), which cannot be run here"
    guidance = _paint(folder / "guidance.safetensors", features)
    if guidance is None:
        return "guidance.safetensors is missing, damaged or of another shape than FedDig's own"
    return guidance


def as_address(image: np.ndarray) -> str:
    """Spell an image as a data: address of a PNG."""
    pixels = (255 * image.clip(0, 1)).round().astype(np.uint8)
    array = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
    stream = BytesIO()
    Image.fromarray(array).save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"


def _read_means(file: Path) -> np.ndarray | None:
    try:
        means = read_tensors(file, "class-means")[0]["means"]
    except (FileFormatError, KeyError):
        return None
    return means if means.ndim == 4 and means.shape[1] in (1, 3) and np.isfinite(means).all() else None


def _class_features(folder: Path) -> np.ndarray | None:
    """Estimate each class's mean feature by least squares: a digest is about its labels times these means."""
    found = read_digests(folder)
    features, labels = [pair[0] for pair in found], [pair[1] for pair in found]
    if not features or len({each.shape[1:] for each in features + labels}) != 2:
        return None
    mixed, shares = np.concatenate(features), np.concatenate(labels)
    kept = np.linspace(0, len(mixed) - 1, min(len(mixed), MOST_DIGESTS)).round().astype(int)
    means = np.linalg.lstsq(shares[kept], mixed[kept].reshape(len(kept), -1), rcond=None)[0]
    # features are ReLU's, never below zero
    features_of: np.ndarray = np.maximum(means, 0).reshape(-1, *mixed.shape[1:]).astype(np.float32)
    return features_of


def read_digests(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read features and soft labels of each silo's digest; a damaged one is left out: the others show something."""
    found = []
    for file in sorted(folder.glob("silo-*.safetensors")):
        with suppress(FileFormatError, KeyError, ValueError, TypeError):
            tensors, head = read_tensors(file, "digest")
            found.append((_divided(tensors["features"], head), tensors["labels"]))
    return found


def _divided(features: np.ndarray, head: Mapping[str, str]) -> np.ndarray:
    """Turn the integer sums that a discrete mechanism sends into means, as every receiver does."""
    if features.dtype.kind != "i":
        return features
    facts = json.loads(head["facts"])
    means: np.ndarray = features * (float(facts["step"]) / int(facts["samples_per_digest"]))
    return means.astype(np.float32)


def _paint(file: Path, features: np.ndarray) -> np.ndarray | None:
    """Run the guidance producer: transposed convolutions that tile, ReLU between them, a sigmoid at the end."""
    try:
        layers = _layers(read_tensors(file, "guidance")[0])
        for place, (weight, bias) in enumerate(layers):
            batch, _, height, width = features.shape
            tiles = np.einsum("bchw,coij->bohiwj", features, weight)
            features = tiles.reshape(batch, -1, height * weight.shape[2], width * weight.shape[3])
            features = features + bias[:, None, None]
            is_last = place == len(layers) - 1
            features = 1 / (1 + np.exp(-features)) if is_last else np.maximum(features, 0)
    except (FileFormatError, KeyError, ValueError, IndexError, StopIteration):
        return None
    return features if features.shape[1] in (1, 3) else None


def _layers(tensors: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    places = sorted({int(name.split(".")[-2]) for name in tensors})
    prefix = next(iter(tensors)).rsplit(".", 2)[0]
    return [(tensors[f"{prefix}.{place}.weight"], tensors[f"{prefix}.{place}.bias"]) for place in places]
