"""The file of a trained model, which is used without its run: no experiment file and no data are needed.

It holds the network's tensors by the names of its state dict, those of the encoder as `encoder/NAME`, and as facts what
the network is built from: its parts, the shape of an image and the names of the classes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddig._version import __version__
from feddig.core.samples import ImageSource, RawSamples, padded
from feddig.data.dataset import Images
from feddig.errors import FileFormatError, SettingError
from feddig.experiment.setup import choose_device, prepare_device
from feddig.files import read_tensors
from feddig.models.classifier import SIZES, Classifier, build_classifier
from feddig.models.committee import Committee, build_expert
from feddig.models.custom import import_network
from feddig.models.encoder import (
    ConvEncoder,
    EvenEncoder,
    encoder_hash,
    feature_shape,
    fixed,
    pack_encoder,
    unpack_encoder,
)
from feddig.models.flat import FlatNetwork
from feddig.models.mobilenet import NETWORK, MobileNetV2
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
        parts = {name: json.loads(facts.get(name, "null")) for name in ("expert", "extractor", "encoder")}
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
    return Committee(classifier, build_expert(code, len(classes)), len(classes))


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
