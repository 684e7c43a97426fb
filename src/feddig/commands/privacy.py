"""`feddig privacy`: what the settings of an experiment promise, without any data."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddig.commands.options import (
    DataDir,
    Json,
    Overrides,
    chosen_experiment,
    find_contract,
    refuse_options,
)

if TYPE_CHECKING:
    from feddig.experiment.experiment import Experiment
    from feddig.privacy.accounting import Guess, Promise

SIDE = 32
"""Height and width of the image that the encoder is tried on: the paper's data, padded."""

BYTES = 4
"""Bytes of a number in a digest; only integers that very strong noise makes larger have 8."""

SOURCES = {"system": "from the system's entropy", "seeded": "from a seed, for simulation only"}


def privacy_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.toml|DIR]",
            help="The experiment, or a contract or a folder of a federation with one; without it, that of the demo.",
        ),
    ] = None,
    overrides: Overrides = None,
    elements: Annotated[
        int | None,
        typer.Option(
            min=1, help="Numbers in a feature (ell); without it, what the encoder makes of 32x32 pixels."
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(min=1, help="Channels of that image; without it, as the data set has, else 1."),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            min=2, help="Classes in the federation; without it, as the data set has, if that is known."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Training samples of a silo, for the bytes it sends in all.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say what a digest promises a record, on which assumptions, without any data."""
    from feddig.privacy.accounting import guess_digest
    from feddig.privacy.mechanisms import promise_for

    agreed = find_contract(file)
    if agreed is not None and agreed.exists():
        refuse_options(
            file,
            {"--set": overrides, "--elements": elements, "--channels": channels, "--classes": classes},
        )
        experiment, image_shape, classes = _read_contract(agreed)
    else:
        experiment = chosen_experiment(file, overrides, data_dir)
        known_channels, known_classes = _known(experiment.data.name)
        image_shape, classes = (channels or known_channels, SIDE, SIDE), classes or known_classes
    elements = elements or _elements(experiment, image_shape)
    promised = promise_for(experiment.privacy, experiment.digest, elements, classes)
    guess = guess_digest(experiment.digest.samples_per_digest, elements)
    statement = _statement(experiment, promised, guess, elements, classes, samples)
    if as_json:
        print(json.dumps(statement, indent=2, allow_nan=False))
    else:
        _print(statement, promised, guess)


def _known(name: str) -> tuple[int, int | None]:
    """Return the channels and classes of a data set that is known by name; 1 and None for others."""
    from feddig.data.public_sets import FASHION_CLASSES, PUBLISHED

    if name == "fashion-mini":
        return 1, len(FASHION_CLASSES)
    if name in PUBLISHED:
        return 3 if PUBLISHED[name].format == "cifar" else 1, len(PUBLISHED[name].classes)
    return 1, None


def _read_contract(path: Path) -> tuple["Experiment", tuple[int, int, int], int]:
    """Return what a contract says: the experiment, the shape of a padded image, the number of classes."""
    from feddig.core.samples import padded
    from feddig.federation.contract import read_contract

    contract = read_contract(path)
    return contract.experiment, padded(contract.image_shape), len(contract.classes)


def _elements(experiment: "Experiment", image_shape: tuple[int, int, int]) -> int:
    from feddig.models.encoder import feature_shape, load_encoder

    encoder = load_encoder(experiment.digest.encoder, image_shape[0])
    return math.prod(feature_shape(encoder, image_shape))


def _statement(
    experiment: "Experiment",
    promised: "Promise",
    guess: "Guess",
    elements: int,
    classes: int | None,
    samples: int | None,
) -> dict[str, Any]:
    """Return everything under its names in JSON."""
    from feddig.privacy.mechanisms import MECHANISMS

    privacy, spd = experiment.privacy, experiment.digest.samples_per_digest
    size = None if classes is None else (elements + classes) * BYTES
    # within-class mixing leaves out some samples of each class; how many depends on the data
    digests = None if samples is None else samples // spd
    return {
        "mechanism": promised.mechanism,
        "adjacency": promised.adjacency,
        "random": privacy.random,
        "samples_per_digest": spd,
        "elements": elements,
        "classes": classes,
        "paper_epsilon": privacy.epsilon if MECHANISMS[privacy.mechanism].epsilon_is == "paper" else None,
        "record_epsilon": _finite(promised.epsilon),
        "record_epsilon_if_bound_public": _finite(promised.epsilon_if_bound_public),
        "record_delta": promised.delta,
        "label_epsilon": promised.label_epsilon,
        "keep_probability": promised.keep_probability,
        "sensitivity": _finite(promised.sensitivity),
        "sensitivity_norm": promised.norm,
        "noise_scale": _finite(promised.noise_scale),
        "unit": promised.unit,
        "p_crt_values": guess.values,
        "log10_p_crt_paper": guess.paper,
        "log10_p_crt_ordered": guess.ordered,
        "log10_p_crt_uniform": guess.uniform,
        "bytes_per_digest": size,
        "digests": digests,
        "bytes": None if digests is None or size is None else digests * size,
        "assumptions": [*promised.assumptions, *guess.assumptions],
    }


def _finite(value: float) -> float | str:
    """Spell infinity as a word, because JSON has no number for it."""
    return value if math.isfinite(value) else "inf"


def _print(statement: dict[str, Any], promised: "Promise", guess: "Guess") -> None:
    said = {
        "mechanism": f"{promised.mechanism}, adjacency {promised.adjacency}",
        "randomness": SOURCES[statement["random"]],
        "digest": f"{statement['elements']:,} numbers, SpD {statement['samples_per_digest']}",
        "paper's epsilon": statement["paper_epsilon"],
        "record epsilon": _number(promised.epsilon),
        "if bound public": _number(promised.epsilon_if_bound_public),
        "record delta": _number(promised.delta),
        "label epsilon": _number(promised.label_epsilon) if promised.label_epsilon else None,
        "sensitivity": f"{_number(promised.sensitivity)} {promised.unit} ({promised.norm})",
        "noise scale": f"{_number(promised.noise_scale)} {promised.unit}",
        "P_crt, paper": guess.without_bound if guess.paper is None else f"10^{guess.paper:.4f} at most",
        "P_crt, ordered": f"10^{guess.ordered:.4f}",
        "P_crt, uniform": f"10^{guess.uniform:.4f}",
        "bytes per digest": statement["bytes_per_digest"] or "not known: give --classes",
        "digests": statement["digests"],
        "bytes": statement["bytes"],
    }
    for name, value in said.items():
        if value is not None:
            print(f"{name:<18} {value}")
    print("\nThis holds only if all of these hold:")
    for sentence in statement["assumptions"]:
        print(f"- {sentence}")


def _number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:,.6g}"
