"""What a results folder says about classes, so that a report need not look for the data again.

classes.json counts each silo's training samples by class; class_means.safetensors holds a mean image of each class,
of the data set's own test images, so that no silo's image is in it.

What a run leaves behind on any engine: a row for each round, and at the end its summary, models and picture.
"""

import json
import logging
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddig._version import __version__
from feddig.core.moderator import Moderator
from feddig.core.training import RoundResult
from feddig.data.dataset import Dataset, Images
from feddig.data.partition import Partition
from feddig.errors import first_line
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device
from feddig.files import FORMAT_VERSION, write_atomically, write_tensors
from feddig.models.flat import FlatNetwork
from feddig.privacy.mechanism import guarantee
from feddig.report.figures import draw_run
from feddig.report.page import write_report
from feddig.runs.results_folder import ResultsFolder

COUNTS, MEANS = "classes.json", "class_means.safetensors"
IMAGES = 200
"""Images of a class that its mean is of: more change no picture."""
LONGEST_SIDE = 64
"""Of a mean, in pixels: of larger images every second pixel is taken, or every third; it is for a small picture."""


def write_class_facts(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Write both files of a run that simulates its silos, unless they are there; the same data gives the same bytes."""
    if (folder / COUNTS).exists() and (folder / MEANS).exists():
        return
    labels = dataset.train.labels
    counts = [
        np.bincount(labels[share.train], minlength=dataset.classes).tolist() for share in partition.shares
    ]
    names = dataset.class_names or [f"class {number}" for number in range(dataset.classes)]
    facts = {"format_version": FORMAT_VERSION, "names": list(names), "counts": counts}
    write_atomically(folder / COUNTS, json.dumps(facts) + "\n")
    means = class_means(dataset.test, dataset.classes)
    write_tensors(folder / MEANS, "class-means", {"means": means}, {"data": dataset.name})


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


log = logging.getLogger("feddig")


def describe_round(result: RoundResult, moderator: Moderator) -> dict[str, Any]:
    """Tell how a round went: the part of a row of metrics.jsonl that comes after who was there and how good it is."""
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


def summarise(
    experiment: Experiment, moderator: Moderator, network: FlatNetwork, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Tell of a finished run what is known wherever the silos were; data and accuracies are for the caller to add."""
    digests = moderator.digests
    recipe = experiment.recipe
    # nothing is sent where no silo trains or all data is in one place
    update = network.vector.numel() * 4 if recipe.silos_train and not recipe.centralised else 0
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
        "privacy": _privacy(experiment, moderator),
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


def _privacy(experiment: Experiment, moderator: Moderator) -> str | None:
    """Say what the digests that were sent promise, in one sentence."""
    if not moderator.digests:
        return None
    privacy, settings = experiment.privacy, experiment.digest
    digest = next(iter(moderator.digests.values()))
    return guarantee(
        privacy.mechanism,
        elements=math.prod(digest.features.shape[1:]),
        scale_size=privacy.scale_size,
        epsilon=privacy.epsilon,
        heaviest=max(settings.weights, default=1 / settings.samples_per_digest),
        facts=digest.facts,
    )


def write_outcome(
    folder: ResultsFolder,
    experiment: Experiment,
    moderator: Moderator,
    network: FlatNetwork,
    summary: Mapping[str, Any],
) -> None:
    """Write models, picture and summary; the summary last, as the sign that all is there."""
    facts = {"algorithm": experiment.algorithm.name, "seed": str(experiment.seed), "feddig": __version__}
    network.load(moderator.weights)
    folder.write_model("model", network.tensors(), facts)
    if moderator.guidance_producer is not None:
        folder.write_model("guidance", moderator.guidance_producer.tensors(), facts)
    draw_run(folder.path)
    log.info("finished: %s", json.dumps(summary["accuracy"]))
    folder.write_summary(summary)
    write_page(folder.path)


def write_page(folder: Path) -> Path | None:
    """Write report.html about a folder of runs, and give its place."""
    try:
        return write_report([folder])[0]
    except Exception as error:  # the run is done and kept: no fault in a page may take it away
        log.warning("%s: no report.html (%s); try `feddig report %s`", folder, first_line(error), folder)
        return None
