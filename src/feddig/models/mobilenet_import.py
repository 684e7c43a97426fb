"""Import MobileNetV2's weights from files with TensorFlow's or torchvision's names, and fold BatchNorm.

No pickle is opened, because opening one runs a program.
"""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from feddig.errors import FileFormatError, SettingError, first_line
from feddig.models.mobilenet import MobileNetV2

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
EPSILON = 1e-5
"""What torchvision's BatchNorm adds to the variance."""

_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, SafetensorError, OSError, EOFError, MemoryError),
    *(ValueError, TypeError, AttributeError, KeyError, RuntimeError),
)
"""The errors that numpy and safetensors raise on damaged files."""


class Arrays:
    """The arrays of a file, each checked when it is taken."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]) -> None:
        self.path, self._arrays = path, arrays

    def named(self, *starts: str) -> bool:
        """Tell whether an array's name starts with one of these."""
        return any(name.startswith(starts) for name in self._arrays)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Remove and return an array, in float64, so that folding loses no precision."""
        if name not in self._arrays:
            raise FileFormatError(f"{self.path}: {name}: no such array; give a file with the whole network")
        array = self._arrays.pop(name)
        if array.dtype.kind != "f":
            raise FileFormatError(
                f"{self.path}: {name}: holds {array.dtype}, not floating-point numbers; "
                "give weights that are not quantised"
            )
        if array.shape != shape:
            raise FileFormatError(
                f"{self.path}: {name}: has shape {array.shape}, but MobileNetV2 of width 1.0 has {shape} there"
            )
        if not np.isfinite(array).all():
            raise FileFormatError(
                f"{self.path}: {name}: holds numbers that are not finite; save or copy it again"
            )
        return array.astype(np.float64)

    def check_nothing_is_left(self) -> None:
        """Refuse arrays that MobileNetV2 does not have; its classifier for ImageNet is not needed."""
        for name in sorted(self._arrays):
            if not name.startswith("classifier.") and not name.endswith(".num_batches_tracked"):
                raise FileFormatError(f"{self.path}: {name}: MobileNetV2 has no such array; give its weights")


Take = Callable[[Arrays, str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]
"""Takes a convolution's weight of this shape and its bias from a file."""


def import_mobilenet(path: Path, enlarge: int = 1) -> MobileNetV2:
    """Read MobileNetV2 from an .npz or .safetensors file; the arrays' names tell who wrote it."""
    arrays = Arrays(path, _read(path))
    # building a network draws first weights from torch's global stream, which must not move
    with torch.random.fork_rng(devices=[]):
        if arrays.named("features."):
            network = _fill(MobileNetV2("symmetric", "imagenet", enlarge), arrays, _take_torchvision)
        elif arrays.named("Conv1.", "expanded_conv_", "block_"):
            network = _fill(MobileNetV2("same", "centred", enlarge), arrays, _take_tensorflow)
        else:
            raise FileFormatError(
                f"{path}: holds no array of MobileNetV2; names must be torchvision's ('features.0.0.weight', ...) "
                "or, BatchNorm folded, TensorFlow's ('Conv1.weight', ...)"
            )
    arrays.check_nothing_is_left()
    return network


def _fill(network: MobileNetV2, arrays: Arrays, take: Take) -> MobileNetV2:
    state = {}
    for layer, convolution in network.named_modules():
        if isinstance(convolution, nn.Conv2d):
            folded = take(arrays, layer, tuple(convolution.weight.shape))
            for part, array in zip(("weight", "bias"), folded, strict=True):
                with np.errstate(over="ignore"):
                    numbers = array.astype(np.float32)
                if not np.isfinite(numbers).all():
                    raise FileFormatError(
                        f"{arrays.path}: {layer}.{part}: numbers are too large once BatchNorm is folded; "
                        "check the file"
                    )
                state[f"{layer}.{part}"] = torch.from_numpy(numbers)
    network.load_state_dict(state)
    return network


def _take_tensorflow(arrays: Arrays, layer: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    name = _tensorflow_name(layer)
    return arrays.take(f"{name}.weight", shape), arrays.take(f"{name}.bias", shape[:1])


def _take_torchvision(arrays: Arrays, layer: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    convolution, norm = _torchvision_names(layer)
    weight = arrays.take(f"{convolution}.weight", shape)
    scale, shift, mean, variance = (
        arrays.take(f"{norm}.{part}", shape[:1]) for part in ("weight", "bias", "running_mean", "running_var")
    )
    if (variance < 0).any():
        raise FileFormatError(
            f"{arrays.path}: {norm}.running_var: holds variances below zero; check the file"
        )
    factor = scale / np.sqrt(variance + EPSILON)
    return weight * factor[:, None, None, None], shift - mean * factor


def _tensorflow_name(layer: str) -> str:
    """Translate "blocks.3.project" to "block_3_project"; the first and last layers have names of their own."""
    if layer in ("stem", "top"):
        return {"stem": "Conv1", "top": "Conv_1"}[layer]
    _, block, part = layer.split(".")
    return f"expanded_conv_{part}" if block == "0" else f"block_{block}_{part}"


def _torchvision_names(layer: str) -> tuple[str, str]:
    """Translate "blocks.3.project" to the names of its convolution and of the BatchNorm after it."""
    if layer in ("stem", "top"):
        place = {"stem": "features.0", "top": "features.18"}[layer]
        return f"{place}.0", f"{place}.1"
    _, block, part = layer.split(".")
    # the first block does not expand, so its numbers start one earlier
    parts = ("depthwise", "project") if block == "0" else ("expand", "depthwise", "project")
    place = f"features.{int(block) + 1}.conv"
    number = parts.index(part)
    if part == "project":
        return f"{place}.{number}", f"{place}.{number + 1}"
    return f"{place}.{number}.0", f"{place}.{number}.1"


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise SettingError(f"{path}: no such file; give MobileNetV2's weights as .npz or .safetensors")
    if path.suffix in PICKLES:
        raise SettingError(
            f"{path}: a pickle, which is never opened because that runs a program; if you trust it, turn it into "
            "safetensors yourself: `import torch, safetensors.torch` and `safetensors.torch.save_file("
            f"torch.load({path.name!r}, weights_only=True), {path.with_suffix('.safetensors').name!r})`"
        )
    if path.suffix not in (".npz", ".safetensors"):
        raise SettingError(
            f"{path}: its name must end in .npz or .safetensors; give MobileNetV2's weights in such a file"
        )
    return _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        # opened here, because numpy does not close a file that it cannot read
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise FileFormatError(
                    f"{path}: holds one array, not an archive of them; save it with numpy.savez"
                )
            return {name: _read_array(path, name, archive.__getitem__) for name in archive.files}
    except _DAMAGE as error:
        raise FileFormatError(f"{path}: not a whole .npz file ({first_line(error)}); copy it again") from None


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, framework="numpy") as opened:
            return {name: _read_array(path, name, opened.get_tensor) for name in opened.keys()}  # noqa: SIM118
    except _DAMAGE as error:
        raise FileFormatError(
            f"{path}: not a whole safetensors file ({first_line(error)}); copy it again"
        ) from None


def _read_array(path: Path, name: str, read: Callable[[str], np.ndarray]) -> np.ndarray:
    try:
        return np.asarray(read(name))
    except _DAMAGE as error:
        raise FileFormatError(
            f"{path}: {name}: cannot be read ({first_line(error)}); save or copy it again"
        ) from None
