"""The encoder that every silo uses to turn an image into a small feature, its code (the paper's P_R).

It is public and fixed during a federation. All silos must use the same one, which is why an encoder has a hash. The
default encoders were trained on generated images only (train_encoder.py).

Also here: import a network that a user's function builds, be it an encoder, a guidance producer or a classifier.
"""

import copy
import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from feddig.errors import FileFormatError, SettingError, first_line
from feddig.files import content_hash, read_tensors, write_tensors
from feddig.models.mobilenet import NETWORK, MobileNetV2

SHIPPED = {1: "grey.safetensors", 3: "colour.safetensors"}
EVEN = {channels: f"even-{file}" for channels, file in SHIPPED.items()}
SETTING = "digest.encoder"
EVEN_NETWORK = "even"
LENGTH = 350.0
"""The L2 length of every code: about the median of the shipped encoder's codes on generated images, 357."""
LEVEL_SIDE = 5
"""Height and width of the even encoder's convolution."""
TRIED = 16
"""Images that are encoded again before a digest is made of their codes."""
ROUNDING = 1e-3
"""The share of the largest code by which two encodings of an image may differ.

A CPU's kernels for other batch sizes round differently, by up to 1e-5 of the largest code in MobileNetV2. An encoder
that mixes images differs by much more, because an image alone has nothing to be mixed with.
"""


class ConvEncoder(nn.Module):
    """Two small convolutions: a 32x32 image becomes a non-negative feature of 4x8x8 numbers."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.channels = channels
        self.edges = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.summary = nn.Conv2d(16, 4, kernel_size=3, padding=1)
        self.halve = nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [batch, channels, height, width] in [0, 1]; both sides are multiples of 4."""
        edges = torch.relu(self.halve(self.edges(images)))
        return torch.relu(self.halve(self.summary(edges)))


class EvenEncoder(nn.Module):
    """Another encoder's code [channels, height, width], levelled, without negative numbers, of one length.

    Sound noise is equally strong in every direction, so long codes and directions that distinguish images little waste
    it. This encoder subtracts a public mean, levels the directions by a small fixed convolution, keeps what is above
    zero and scales the code to one length, which a clip of that length does not change.
    """

    mean: Tensor
    """Of each channel, over generated images."""
    length: Tensor

    def __init__(self, encoder: nn.Module, channels: int, code_channels: int = 4) -> None:
        super().__init__()
        self.encoder, self.channels = encoder, channels
        self.level = nn.Conv2d(code_channels, code_channels, LEVEL_SIDE, padding=LEVEL_SIDE // 2, bias=False)
        # buffers decide the features too, so they belong to the file and to the hash
        self.register_buffer("mean", torch.zeros(code_channels, 1, 1))
        self.register_buffer("length", torch.tensor(LENGTH))

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [batch, channels, height, width] in [0, 1]; a code of zeros stays zero."""
        codes = torch.relu(self.level(self.encoder(images) - self.mean))
        even: Tensor = self.length * normalize(codes.flatten(1)).view_as(codes)
        return even


Encoder = ConvEncoder | EvenEncoder | MobileNetV2
"""The encoders that have a file format."""


def load_encoder(spec: str, channels: int) -> nn.Module:
    """Load the encoder that digest.encoder names: "default", "even", a file, or "package.module:function"."""
    encoder: nn.Module
    if spec == "default":
        encoder = _load_shipped(SHIPPED, channels)
    elif spec == "even":
        encoder = _load_shipped(EVEN, channels)
    elif spec.endswith(".safetensors"):
        encoder = load_encoder_file(Path(spec), channels)
    elif ":" in spec:
        encoder = import_network(spec, SETTING, "default", channels)
    else:
        raise SettingError(
            f'{SETTING}: {spec!r} names no encoder; give "default", "even", a .safetensors file '
            'or "package.module:function"'
        )
    return fixed(encoder)


def fixed(encoder: nn.Module) -> nn.Module:
    """Prepare an encoder that is used and never trained."""
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast on a CPU
    return encoder.eval().requires_grad_(False)


def save_encoder(path: Path, encoder: Encoder, facts: Mapping[str, str]) -> None:
    """Write the encoder with its kind, its number of channels and its hash; `facts` say how it was made."""
    arrays, proof = pack_encoder(encoder)
    write_tensors(Path(path), "encoder", arrays, {**facts, **proof})


def pack_encoder(encoder: Encoder) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return an encoder's arrays, and what else is needed to build it again: kind, channels and hash."""
    proof = {"channels": str(encoder.channels), "hash": encoder_hash(encoder)}
    arrays = _arrays(encoder)
    if isinstance(encoder, MobileNetV2):
        proof, arrays = proof | encoder.facts, _halved(arrays)
    if isinstance(encoder, EvenEncoder):
        proof["network"] = EVEN_NETWORK
    return arrays, proof


def load_encoder_file(path: Path, channels: int, setting: str = SETTING) -> Encoder:
    """Load an encoder from its file; errors name the setting that gave the path."""
    if not path.is_file():
        raise SettingError(
            f"{setting}: no file at {path}; make one with `feddig encoder make --out {path}`, "
            "or with `feddig encoder import`"
        )
    arrays, facts = read_tensors(path, "encoder")
    if facts.get("channels") != str(channels):
        raise SettingError(
            f"{setting}: {path} is for images with {facts.get('channels')} channel(s), but these have "
            f"{channels}; make one with `feddig encoder make --channels {channels}`"
        )
    return unpack_encoder(path, arrays, facts, channels)


def unpack_encoder(
    path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, str], channels: int
) -> Encoder:
    """Build the encoder that a file holds, from its arrays and facts."""
    # building a network draws first weights from torch's global stream, which must not move
    with torch.random.fork_rng(devices=[]):
        encoder = _build(path, facts, channels)
    try:
        # copied, because torch warns about sharing numpy's read-only memory
        encoder.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    except RuntimeError:
        raise FileFormatError(f"{path}: holds weights of another network; make the encoder again") from None
    if facts.get("hash") != encoder_hash(encoder):
        raise FileFormatError(f"{path}: the weights do not match their hash; make or copy the file again")
    return encoder


def encoder_hash(encoder: nn.Module) -> str:
    """Hash what decides the features: the kind of network and all of its numbers."""
    chunks = [type(encoder).__name__.encode()]
    if isinstance(encoder, MobileNetV2):
        chunks += [fact.encode() for fact in encoder.facts.values()]
    for name, array in sorted(_arrays(encoder).items()):
        # always little-endian, so that an encoder has the same hash on every machine
        portable = array.astype(array.dtype.newbyteorder("<"))
        chunks += [name.encode(), str(array.shape).encode(), array.dtype.name.encode(), portable.tobytes()]
    return content_hash(*chunks)


def feature_shape(encoder: nn.Module, image_shape: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the shape of a feature, found by encoding black images of this shape (channels, height, width)."""
    images = torch.zeros(2, *image_shape)
    try:
        with torch.no_grad():
            features = encoder(images)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(
            f"{SETTING}: the encoder cannot encode an image of shape {image_shape} ({reason}); "
            "choose one made for this data set"
        ) from None
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise SettingError(f"{SETTING}: the encoder must return a tensor of floating-point numbers")
    if features.dim() < 2 or len(features) != len(images):
        raise SettingError(
            f"{SETTING}: the encoder made a tensor of shape {tuple(features.shape)} from {len(images)} "
            "images; its first dimension must be the batch, with at least one after it"
        )
    if not torch.isfinite(features).all():
        raise SettingError(f"{SETTING}: the encoder makes values that are not finite; make or choose another")
    return tuple(features.shape[1:])


def check_codes(encoder: nn.Module, images: Tensor) -> None:
    """Check that the code of an image depends on that image alone, as every bound on what a record changes assumes.

    Codes must stay the same when the images are encoded one by one, or in another order.
    """
    # on a CPU, because a GPU may round to tf32 for one batch size and not for another
    encoder, images = copy.deepcopy(encoder).cpu(), images.cpu()
    try:
        with torch.no_grad():
            codes = encoder(images)
            alone = torch.cat([encoder(image) for image in torch.split(images, 1)])
            turned = encoder(images.flip(0)).flip(0)
    except Exception as error:  # a user's network may fail in any way
        raise SettingError(
            f"{SETTING}: the encoder cannot encode an image alone ({first_line(error)}); it must treat each image of "
            "a batch by itself, so use no statistics of the batch"
        ) from error
    allowed = ROUNDING * float(codes.abs().max())
    for how, again in (("alone", alone), ("in another order", turned)):
        difference = float((again - codes).abs().max()) if again.shape == codes.shape else torch.inf
        if not difference <= allowed:
            raise SettingError(
                f"{SETTING}: the encoder gives an image another code when it is encoded {how} (they differ by "
                f"{difference:.3g}, more than {allowed:.3g}), so a record would change the codes of others; use no "
                "statistics of the batch"
            )


def _load_shipped(files: Mapping[int, str], channels: int) -> nn.Module:
    if channels not in files:
        raise SettingError(
            f"{SETTING}: there is a default encoder for 1 or 3 channels, but the images have {channels}; "
            'give a .safetensors file or "package.module:function"'
        )
    with resources.as_file(resources.files("feddig.models.encoders") / files[channels]) as path:
        return load_encoder_file(path, channels)


def _build(path: Path, facts: Mapping[str, str], channels: int) -> Encoder:
    """Build the network that a file names; the oldest files name none and hold a ConvEncoder."""
    network = facts.get("network")
    if network is None:
        return ConvEncoder(channels)
    if network == EVEN_NETWORK:
        return EvenEncoder(ConvEncoder(channels), channels)
    if network == NETWORK:
        with suppress(KeyError, ValueError):
            return MobileNetV2(facts["padding"], facts["normalisation"], int(facts["enlarge"]))
    raise FileFormatError(
        f"{path}: holds {network!r} of a kind that this FedDig does not know; use the release that wrote it"
    )


def _arrays(encoder: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy() for name, value in encoder.state_dict().items()}


def _halved(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays as float16 if that loses nothing, which halves the file."""
    with np.errstate(over="ignore"):
        halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    exact = all(np.array_equal(half, arrays[name]) for name, half in halves.items())
    return halves if exact else arrays


def import_network(name: str, key: str, known: str, *arguments: object) -> nn.Module:
    """Return the network that a user's function, given as package.module:function, builds."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as with `python -m`: a user's module lies in the working folder
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise SettingError(f"{key}: {name!r} is not known; choose {known}, or write package.module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{key}: {name!r} cannot be imported ({error}); check the name and PYTHONPATH"
        ) from None
    try:
        network = function(*arguments)
    except Exception as error:  # a user's code may fail in any way
        raise SettingError(f"{key}: {name!r} failed: {first_line(error)}") from error
    if not isinstance(network, nn.Module):
        raise SettingError(f"{key}: {name!r} returned {type(network).__name__}, not a torch.nn.Module")
    return network
