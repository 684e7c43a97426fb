"""The file of a trained model, and its use without its run: classify images, or measure it on images with labels.

No experiment file and no data are needed. The file holds the network's tensors by the names of its state dict, those of
the encoder as `encoder/NAME`, and as facts what the network is built from: its parts, the shape of an image and the
names of the classes.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddig._version import __version__
from feddig.attacks.statistics import Auc, area_under_curve
from feddig.audit.inputs import NAMED, find_place
from feddig.core.plus import MIXED, Committee, build_expert
from feddig.core.samples import ImageSource, RawSamples, classify, padded
from feddig.data.arrays import load_arrays
from feddig.data.dataset import Images
from feddig.data.load import load_dataset
from feddig.errors import DataError, FileFormatError, SettingError, nearest
from feddig.experiment.setup import choose_device, prepare_device
from feddig.files import FORMAT_VERSION, read_tensors
from feddig.models.encoder import (
    ConvEncoder,
    EvenEncoder,
    encoder_hash,
    feature_shape,
    fixed,
    import_network,
    pack_encoder,
    unpack_encoder,
)
from feddig.models.flat import FlatNetwork
from feddig.models.mobilenet import NETWORK, MobileNetV2
from feddig.models.networks import SIZES, Classifier, build_classifier
from feddig.report.measures import class_measures
from feddig.runs.build import Party

ENCODER = "encoder/"
"""Before the name of each of the encoder's tensors."""
IN_PYTHON = "given in Python"
MODEL = "model.safetensors"


def pack_model(
    party: Party, image_shape: tuple[int, int, int], classes: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and facts of a trained model's file, with the weights that the party's network has."""
    experiment = party.experiment
    tensors = party.network.tensors()
    described = {
        "image_shape": json.dumps(image_shape),
        "classes": json.dumps(classes),
        "expert": json.dumps(party.expert is not None),
        "samples_per_digest": str(experiment.digest.samples_per_digest),
        "precision": str(experiment.training.precision),
        "algorithm": experiment.algorithm.name,
        "seed": str(experiment.seed),
        "feddig": __version__,
        **_describe_classifier(party),
    }
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if party.encoder is not None:
        encoder, described["encoder"] = _describe_encoder(party, party.encoder)
        arrays |= {ENCODER + name: array for name, array in encoder.items()}
    return arrays, described


def _describe_classifier(party: Party) -> dict[str, str]:
    if party.given.classifier is not None or party.given.raw_extractor is not None:
        return {"classifier": IN_PYTHON}
    network = party.network.module
    classifier = network.classifier if isinstance(network, Committee) else network
    if isinstance(classifier, Classifier) and isinstance(classifier.raw, MobileNetV2):
        return {"classifier": NETWORK, "extractor": json.dumps(classifier.raw.facts)}
    return {"classifier": party.experiment.model.classifier}


def _describe_encoder(party: Party, encoder: nn.Module) -> tuple[dict[str, np.ndarray], str]:
    if type(encoder) in (ConvEncoder, EvenEncoder, MobileNetV2):
        arrays, facts = pack_encoder(encoder)  # type: ignore[arg-type]
        return arrays, json.dumps(facts)
    name = IN_PYTHON if party.given.encoder is not None else party.experiment.digest.encoder
    arrays = {key: tensor.detach().cpu().numpy() for key, tensor in encoder.state_dict().items()}
    return arrays, json.dumps({"network": name, "hash": encoder_hash(encoder)})


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, ready to classify images."""

    path: Path
    network: FlatNetwork
    encoder: nn.Module | None
    image_shape: tuple[int, int, int]
    """Channels, height and width of an image as it is stored."""
    classes: tuple[str, ...]
    facts: Mapping[str, str]

    def samples(self, images: Images) -> RawSamples:
        """Return these images as the network sees them."""
        return RawSamples.all_of(ImageSource(images, self.encoder, self.network.device))


def load_model(path: Path, *, device: str = "auto", own_code: bool = False) -> TrainedModel:
    """Load the trained model of a file or a results folder.

    With `own_code`, functions that the file names as package.module:function are imported; a file of unknown origin
    could name any.
    """
    file = _find(path)
    arrays, facts = read_tensors(file, "model")
    if "image_shape" not in facts:
        raise FileFormatError(
            f"{file}: an older FedDig wrote it, without what its network is built from; train it again, with `feddig "
            "run` and its experiment.toml"
        )
    try:
        channels, height, width = (int(length) for length in json.loads(facts["image_shape"]))
        classes = tuple(str(name) for name in json.loads(facts["classes"]))
        parts = {
            name: json.loads(facts.get(name, "null"))
            for name in ("expert", "samples_per_digest", "extractor", "encoder")
        }
        image_shape = (channels, height, width)
        with torch.random.fork_rng(devices=[]):
            encoder = _build_encoder(file, arrays, parts["encoder"], channels, own_code)
            network = _build_network(
                file, facts["classifier"], parts, encoder, image_shape, classes, own_code
            )
        place = choose_device(device)
        prepare_device(facts.get("precision"), place)  # a GPU then rounds as in the run
        flat = FlatNetwork(network, place)
        own = {name: array for name, array in arrays.items() if not name.startswith(ENCODER)}
        network.load_state_dict(_tensors(own))
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise FileFormatError(
            f"{file}: its tensors do not fit what it says about its network ({type(error).__name__}); copy it again"
        ) from None
    encoder = None if encoder is None else encoder.to(place)
    return TrainedModel(file, flat, encoder, image_shape, classes, facts)


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    file = path / MODEL
    if not file.exists():
        begun = (path / "experiment.toml").exists()
        remedy = (
            f"finish its run with `feddig run --resume {path}`" if begun else "give a run's results folder"
        )
        raise FileFormatError(f"{file}: no such file; {remedy}")
    return file


def _build_encoder(
    file: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, str] | None, channels: int, own_code: bool
) -> nn.Module | None:
    if facts is None:
        return None
    own = {name.removeprefix(ENCODER): array for name, array in arrays.items() if name.startswith(ENCODER)}
    name = str(facts.get("network", ""))
    if ":" not in name and name != IN_PYTHON:
        return fixed(unpack_encoder(file, own, facts, channels))
    encoder = _import(file, "digest.encoder", name, own_code, channels)
    encoder.load_state_dict(_tensors(own))
    return fixed(encoder)


def _build_network(
    file: Path,
    name: str,
    parts: Mapping[str, Any],
    encoder: nn.Module | None,
    image_shape: tuple[int, int, int],
    classes: tuple[str, ...],
    own_code: bool,
) -> nn.Module:
    shape = padded(image_shape)
    code = None if encoder is None else feature_shape(encoder, shape)
    seen = None if parts["expert"] else code
    if name in SIZES:
        raw, said = None, parts["extractor"]
        if said is not None:
            raw = MobileNetV2(said["padding"], said["normalisation"], int(said["enlarge"]))
        classifier = build_classifier(name, shape, len(classes), seen, raw)
    else:
        classifier = _import(file, "model.classifier", name, own_code, shape, len(classes), seen)
    if not parts["expert"] or code is None:
        return classifier
    samples_per_digest = parts["samples_per_digest"] or MIXED  # files of the first release lack it
    return Committee(classifier, build_expert(code, len(classes)), len(classes), samples_per_digest)


def _import(file: Path, key: str, name: str, own_code: bool, *arguments: object) -> nn.Module:
    """Import a network of the user's own code, if that is allowed."""
    if name == IN_PYTHON:
        raise SettingError(
            f"{file}: its network for {key} was {IN_PYTHON}, so the file cannot build it; train with {key} = "
            '"package.module:function", or use the model in Python'
        )
    if ":" not in name:
        raise FileFormatError(
            f"{file}: names {name!r} for {key}, which this FedDig does not know; use the release that wrote it"
        )
    if not own_code:
        raise SettingError(
            f"{file}: needs the code of {name} for {key}; say --own-code if you trust the file and have that module"
        )
    return import_network(name, f"{file}: {key}", ", ".join(SIZES), *arguments)


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    # copied, because torch warns about sharing numpy's read-only memory
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


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
    confusion, area = count_confusion(logits, labels), roc_area(logits, labels)
    measures = class_measures(confusion)
    intervals = {**measures.pop("intervals"), "auc": None if area is None else list(area.interval())}
    per_class = zip(model.classes, *(measures.pop(key) for key in PER_CLASS[1:]), strict=True)
    return {
        "format_version": FORMAT_VERSION,
        "model": str(model.path),
        "algorithm": model.facts.get("algorithm"),
        "data": place,
        "images": len(images),
        "accuracy": measures.pop("accuracy"),
        **measures,
        "auc": None if area is None else area.value,
        "intervals": intervals,
        "classes": [dict(zip(PER_CLASS, row, strict=True)) for row in per_class],
        "confusion": confusion.tolist(),
    }


def count_confusion(logits: Tensor, labels: Tensor) -> np.ndarray:
    """Count images by true class, in rows, and by the class with the largest logit, in columns."""
    classes = logits.shape[1]
    pairs = labels * classes + logits.argmax(1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).numpy()


def roc_area(logits: Tensor, labels: Tensor) -> Auc | None:
    """Return the area under the ROC curve of the second of two classes; None unless both have images."""
    if logits.shape[1] != 2 or not 0 < int(labels.sum()) < len(labels):
        return None
    scores = logits[:, 1].double() - logits[:, 0].double()
    # a model that has diverged ranks nothing
    return None if scores.isnan().any() else area_under_curve(scores[labels == 1], scores[labels == 0])


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

        paths, labels, classes = list_labelled(path, model.classes)
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
