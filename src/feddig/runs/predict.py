"""Use a trained model: classify images, or measure it on images with labels."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddig.attacks.statistics import area_under_curve, clopper_pearson
from feddig.audit.inputs import NAMED, find_place
from feddig.core.samples import classify
from feddig.data.dataset import Images
from feddig.data.load import load_dataset
from feddig.data.npz import load_arrays
from feddig.errors import DataError, SettingError, nearest
from feddig.files import FORMAT_VERSION
from feddig.report.measures import class_measures
from feddig.runs.model_file import TrainedModel


def predict(model: TrainedModel, place: Path) -> tuple[str, int]:
    """Classify the images of a folder, an image file or an .npz file; return a table as CSV, and how many they are."""
    names, images = _load_unlabelled(model, place)
    logits = _classify(model, images, place)
    guesses, chances = logits.argmax(1).tolist(), torch.softmax(logits.double(), 1).numpy()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    kind = "row" if place.suffix == ".npz" else "file"
    table.writerow([kind, "class", "probability", *(f"p_{name}" for name in model.classes)])
    for name, best, row in zip(names, guesses, chances, strict=True):
        table.writerow([name, model.classes[best], f"{row[best]:.6f}", *(f"{chance:.6f}" for chance in row)])
    return text.getvalue(), len(names)


def evaluate(model: TrainedModel, place: str, data_dir: Path | None = None) -> dict[str, Any]:
    """Measure a model on images with labels; return what evaluation.json holds."""
    images = _load_labelled(model, place, data_dir)
    logits, labels = _classify(model, images, place), torch.from_numpy(images.labels)
    classes = len(model.classes)
    pairs = labels * classes + logits.argmax(1)
    confusion = torch.bincount(pairs, minlength=classes**2).view(classes, classes).numpy()
    measures = class_measures(confusion)
    low, high = clopper_pearson(int(np.trace(confusion)), len(images))
    area = None
    if classes == 2 and 0 < int(labels.sum()) < len(labels):
        scores = logits[:, 1].double() - logits[:, 0].double()
        area = area_under_curve(scores[labels == 1], scores[labels == 0])
    per_class = zip(model.classes, *(measures.pop(key) for key in PER_CLASS[1:]), strict=True)
    return {
        "format_version": FORMAT_VERSION,
        "model": str(model.path),
        "algorithm": model.facts.get("algorithm"),
        "data": place,
        "images": len(images),
        "accuracy": measures.pop("accuracy"),
        "accuracy_interval": [100 * low, 100 * high],
        **measures,
        "auc": None if area is None else area.value,
        "auc_interval": None if area is None else list(area.interval()),
        "classes": [dict(zip(PER_CLASS, row, strict=True)) for row in per_class],
        "confusion": confusion.tolist(),
    }


PER_CLASS = ("class", "count", "precision", "recall", "f1")
"""The keys of each entry of `classes` in evaluation.json."""


def _load_unlabelled(model: TrainedModel, place: Path) -> tuple[list[str], Images]:
    """Load images and what they are called: paths within the folder, or numbers of rows."""
    if place.suffix == ".npz":
        images = load_arrays(place, labelled=False)
        return [str(row) for row in range(len(images))], images
    # imported only here, because Pillow takes time to load
    from feddig.data.decode import ENDINGS
    from feddig.data.folder import list_images, read_images

    if not place.exists():
        raise DataError(f"{place}: no such folder or file; give a folder of images, an image or an .npz file")
    paths = list_images(place) if place.is_dir() else [place]
    if not paths or paths[0].suffix.lower() not in ENDINGS:
        raise DataError(f"{place}: no images; files must end in {', '.join(ENDINGS)}, or in .npz")
    names = [path.relative_to(place).as_posix() if place.is_dir() else path.name for path in paths]
    return names, read_images(paths, [0] * len(paths), model.image_shape)


def _load_labelled(model: TrainedModel, place: str, data_dir: Path | None) -> Images:
    """Load images with labels that are numbered as the model's classes."""
    try:
        name, path = find_place("DATA", place, data_dir)
    except SettingError:
        raise DataError(
            f"{place}: is no data set, .npz file or folder with a folder per class; {nearest(place, NAMED)}"
        ) from None
    if name == "npz" and path is not None:
        return _with_known_labels(model, load_arrays(path, labelled=True), place)
    if name == "folder" and path is not None:
        from feddig.data.folder import list_labelled, read_images

        paths, labels, classes = list_labelled(path)
        _check_classes(model, classes, place)
        return _renumbered(model, read_images(paths, labels, model.image_shape), classes)
    dataset = load_dataset(name, path, data_dir=data_dir)
    if name not in NAMED:  # IDX files have numbers of classes only
        return _with_known_labels(model, dataset.test, place)
    present = [dataset.class_names[label] for label in np.unique(dataset.test.labels)]
    _check_classes(model, present, place)
    return _renumbered(model, dataset.test, list(dataset.class_names))


def _check_classes(model: TrainedModel, classes: list[str], place: str) -> None:
    for name in classes:
        if name not in model.classes:
            raise DataError(f"{place}: the class {name!r} is not the model's; {nearest(name, model.classes)}")


def _renumbered(model: TrainedModel, images: Images, classes: list[str]) -> Images:
    """Number labels as the model does; classes without images may be unknown to it."""
    numbers = np.array([model.classes.index(name) if name in model.classes else 0 for name in classes])
    return replace(images, labels=numbers[images.labels])


def _with_known_labels(model: TrainedModel, images: Images, place: str) -> Images:
    largest = int(images.labels.max())
    if largest >= len(model.classes):
        raise DataError(
            f"{place}: there is a label {largest}, but the model has only the classes 0 to {len(model.classes) - 1} "
            f"({', '.join(model.classes[:10])}{', ...' if len(model.classes) > 10 else ''}); number them so"
        )
    return images


def _classify(model: TrainedModel, images: Images, place: object) -> Tensor:
    shape = tuple(images.pixels.shape[1:])
    if shape != model.image_shape:
        raise DataError(
            f"{place}: images are {list(shape)} (channels, height, width), but the model takes "
            f"{list(model.image_shape)}; convert them"
        )
    return classify(model.network, model.samples(images))
