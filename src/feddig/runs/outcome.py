"""What every run leaves behind: a row for each round, and at the end its summary, models and picture."""

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
from feddig.errors import first_line
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device
from feddig.files import FORMAT_VERSION, write_tensors
from feddig.models.flat import FlatNetwork
from feddig.report.page import write_report
from feddig.report.pictures import draw_run
from feddig.runs.build import Moderated
from feddig.runs.model_file import MODEL, pack_model
from feddig.runs.results_folder import ResultsFolder

log = logging.getLogger("feddig")


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
    recipe = experiment.recipe
    # nothing is sent where no silo trains or all data is in one place
    update = moderator.weights.numel() * 4 if recipe.silos_train and not recipe.centralised else 0
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
