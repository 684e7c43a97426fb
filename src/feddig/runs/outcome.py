"""What every run leaves behind: a row for each round, and at the end its summary, models and pictures.

For its page a run also describes its data set: classes.json names classes and silos and counts each silo's training
samples and the test images by class, and class_means.safetensors holds a mean image of each class, made of the data
set's own test images, so that it contains no silo's image.
"""

import json
import logging
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddig._version import __version__
from feddig.core.moderator import Moderator
from feddig.core.samples import ImageSource, RawSamples, classify
from feddig.core.training import RoundResult
from feddig.data.dataset import Dataset, Images
from feddig.data.partition import Partition
from feddig.data.public_sets import PUBLISHED
from feddig.errors import FedDigError, first_line
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device, load_data
from feddig.experiment.toml import read_experiment
from feddig.files import FORMAT_VERSION, write_atomically, write_tensors
from feddig.models.encoder import load_encoder
from feddig.models.flat import FlatNetwork
from feddig.report.measures import CLASS_DIGITS, class_measures
from feddig.report.page import write_report
from feddig.report.pictures import EncodedImages, draw_run
from feddig.runs.build import Moderated
from feddig.runs.model_file import MODEL, count_confusion, pack_model, roc_area
from feddig.runs.results_folder import ResultsFolder

log = logging.getLogger("feddig")


def describe_test(network: FlatNetwork, samples: RawSamples, classes: int) -> dict[str, Any]:
    """Measure a network on test images, in one pass: the part of a row of metrics.jsonl that says how it did."""
    if not len(samples):
        return {"test_accuracy": None}
    logits, labels = classify(network, samples), samples.labels.cpu()
    found = class_measures(count_confusion(logits, labels))
    area, intervals = roc_area(logits, labels), found["intervals"]
    if classes == 2:
        intervals["auc"] = area and list(area.interval())
    # a network of the user's own may have more outputs than there are classes
    recall = found["recall"][:classes]
    return {
        "test_accuracy": found["accuracy"],
        "class_accuracy": [None if value is None else round(value, CLASS_DIGITS) for value in recall],
        "macro_f1": found["macro_f1"],
        "balanced_accuracy": found["balanced_accuracy"],
        **({"auc": area and area.value} if classes == 2 else {}),
        "intervals": intervals,
    }


def describe_round(result: RoundResult, moderator: Moderator) -> dict[str, Any]:
    """Return the part of a row of metrics.jsonl that every run has: losses, norm, seconds."""
    return {
        "losses": {
            "silos": {str(reply.silo): reply.loss for reply in result.replies},
            "recall": {str(reply.silo): reply.loss for reply in result.stand_ins},
            "joint": result.joint.loss if result.joint else None,
        },
        "parameter_norm": moderator.parameter_norm(),
        "seconds": 0.0,
        "seconds_silos": result.seconds_silos,
        "seconds_recall": result.seconds_recall,
        "seconds_joint": result.seconds_joint,
        "seconds_preparing": 0.0,
    }


def describe_run(
    experiment: Experiment, moderator: Moderator, network: FlatNetwork, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the part of summary.json that every run has; the caller adds data and accuracies."""
    digests = moderator.digests
    update = update_bytes(experiment, moderator)
    return {
        "format_version": FORMAT_VERSION,
        "algorithm": experiment.algorithm.name,
        "scenario": experiment.absence.scenario,
        "seed": experiment.seed,
        "rounds": len(rows),
        "bytes": {
            "digest": [digests[silo].size if silo in digests else 0 for silo in range(experiment.data.silos)],
            "update": [update] * experiment.data.silos,
        },
        "digests": {
            str(silo): {**digest.facts, "hash": digest.hash} for silo, digest in sorted(digests.items())
        },
        "privacy": _privacy(moderator),
        "promise": experiment.say_promise(),
        "precision": experiment.training.precision,
        "seconds_per_round": math.fsum(row["seconds"] for row in rows) / len(rows),
        "device": describe_device(network.device),
        "versions": {
            "feddig": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def update_bytes(experiment: Experiment, moderator: Moderator) -> int:
    """Return what a silo sends in a round; nothing where no silo trains or all data is in one place."""
    recipe = experiment.recipe
    return moderator.weights.numel() * 4 if recipe.silos_train and not recipe.centralised else 0


def _privacy(moderator: Moderator) -> str | None:
    """Say what the digests that were sent promise, in one sentence."""
    for digest in moderator.digests.values():
        return digest.promise.sentence
    return None


def write_outcome(
    folder: ResultsFolder,
    moderated: Moderated,
    summary: Mapping[str, Any],
) -> None:
    """Write models, picture and summary; the summary comes last and marks the run as finished."""
    experiment, moderator = moderated.experiment, moderated.moderator
    moderated.network.load(moderator.model())
    write_tensors(folder.path / MODEL, "model", *pack_model(moderated.party, *moderated.task()))
    if moderator.guidance_producer is not None:
        facts = {"algorithm": experiment.algorithm.name, "seed": str(experiment.seed), "feddig": __version__}
        folder.write_guidance(moderator.guidance_producer.tensors(), facts)
    draw_run(folder.path)
    log.info("finished: %s", json.dumps(summary["accuracy"]))
    folder.write_summary(summary)
    write_page(folder.path)


def write_page(folder: Path) -> Path | None:
    """Write report.html about a folder of runs, and return its path."""
    try:
        return write_report([folder])[0]
    except Exception as error:  # the run is finished and kept, whatever is wrong with its page
        log.warning("%s: no report.html (%s); try `feddig report %s`", folder, first_line(error), folder)
        return None


COUNTS, MEANS = "classes.json", "class_means.safetensors"
IMAGES = 200
"""How many images of a class its mean is made of; more would not change the picture."""
LONGEST_SIDE = 64
"""Longest side of a mean image in pixels; from larger images only every second or third pixel is taken."""


def write_class_facts(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Write both files of a simulated run unless they exist; the same data gives the same bytes."""
    if (folder / COUNTS).exists() and (folder / MEANS).exists():
        return
    labels = dataset.train.labels
    counts = [count_classes(labels[share.train], dataset.classes) for share in partition.shares]
    names = dataset.class_names or [f"class {number}" for number in range(dataset.classes)]
    write_class_names(folder, names, partition.names, count_classes(dataset.test.labels, len(names)), counts)
    means = class_means(dataset.test, dataset.classes)
    write_tensors(folder / MEANS, "class-means", {"means": means}, {"data": dataset.name})


def write_class_names(
    folder: Path,
    classes: Sequence[str],
    silos: Sequence[str],
    tests: Sequence[int],
    counts: Sequence[Sequence[int]] | None = None,
) -> None:
    """Write classes.json; a federation's moderator does not know the silos' training samples."""
    facts: dict[str, Any] = {"format_version": FORMAT_VERSION, "names": list(classes), "test": list(tests)}
    if counts is not None:
        facts["counts"] = counts
    if silos:
        facts["silos"] = list(silos)
    write_atomically(folder / COUNTS, json.dumps(facts) + "\n")


def count_classes(labels: np.ndarray, classes: int) -> list[int]:
    """Count the images of each class."""
    counts: list[int] = np.bincount(labels, minlength=classes).tolist()
    return counts


def class_means(images: Images, classes: int) -> np.ndarray:
    """Average some images of each class, in [0, 1]; a class without images is black."""
    _, channels, height, width = images.pixels.shape
    step = -(-max(height, width) // LONGEST_SIDE)
    means = np.zeros((classes, channels, -(-height // step), -(-width // step)), dtype=np.float32)
    whole = 255.0 if images.pixels.dtype == np.uint8 else 1.0
    for number in range(classes):
        rows = np.flatnonzero(images.labels == number)[:IMAGES]
        if rows.size:
            means[number] = images.pixels[rows][:, :, ::step, ::step].mean(axis=0, dtype=np.float64) / whole
    return means


def load_samples(folder: Path, count: int, data_dir: Path | None = None) -> EncodedImages:
    """Return test images of a run's data set, from each class in turn; no silo holds them."""
    experiment = read_experiment(folder / "experiment.toml")
    if data_dir is not None and experiment.data.name in PUBLISHED:
        # the run may have been made on another computer
        experiment = replace(experiment, data=replace(experiment.data, path=None)).located(data_dir)
    dataset = load_data(experiment)
    rows = np.array(list(_in_turn(dataset, count)), dtype=np.int64)
    chosen = Images(dataset.test.pixels[rows], dataset.test.labels[rows])
    encoder = load_encoder(experiment.digest.encoder, chosen.pixels.shape[1])
    source = ImageSource(chosen, encoder, torch.device("cpu"))
    if source.features is None:
        raise FedDigError(f"{folder}: its encoder gives no features")
    images = source.images(torch.arange(len(chosen)))
    return EncodedImages(images.numpy(), source.features.numpy(), chosen.labels)


def _in_turn(dataset: Dataset, count: int) -> Iterator[int]:
    """Yield rows of the test images: the first of each class, then the second of each, and so on."""
    by_class = [np.flatnonzero(dataset.test.labels == number).tolist() for number in range(dataset.classes)]
    turns = [rows[turn] for turn in range(count) for rows in by_class if turn < len(rows)]
    yield from turns[:count]
