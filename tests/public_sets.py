"""Write small files in the formats of the public data sets, and share checks between tests of data sets."""

import gzip
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from feddig.data import download
from feddig.data.public_sets import PUBLISHED

SIZES = {"train": 10, "test": 4}
"""The default number of images in each part."""


def hide_data_sets(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let FedDig find none of this computer's data sets; the cache is in this folder."""
    monkeypatch.delenv("FEDDIG_DATA", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(download, "DEBIAN_FOLDER", folder / "debian")


def write_all(folder: Path, sizes: Mapping[str, int]) -> Path:
    """Write all public sets: Fashion-MNIST into this folder, each other set into a subfolder."""
    for name in PUBLISHED:
        write(folder if name == "fashion-mnist" else folder / name, name, sizes=sizes)
    return folder


def write(folder: Path, name: str, *, zipped: bool = False, sizes: Mapping[str, int] = SIZES) -> Path:
    """Write a set's files, gzipped or not."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents(name, sizes).items():
        if zipped:
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)
    return folder


def contents(name: str, sizes: Mapping[str, int] = SIZES) -> dict[str, bytes]:
    """Return the content of a set's files by name."""
    if name == "cifar10":
        train = np.split(records("train", 10, False, sizes), 5)
        batches = {f"data_batch_{number}.bin": batch.tobytes() for number, batch in enumerate(train, start=1)}
        return {**batches, "test_batch.bin": records("test", 10, False, sizes).tobytes()}
    if name == "cifar100":
        return {f"{part}.bin": records(part, 100, True, sizes).tobytes() for part in sizes}
    prefixes = (
        ("train", "t10k") if name == "fashion-mnist" else ("emnist-byclass-train", "emnist-byclass-test")
    )
    made = {}
    for part, prefix in zip(sizes, prefixes, strict=True):
        images = draw(part, 28, 28, sizes=sizes)
        stored = images.transpose(0, 2, 1) if name == "emnist-byclass" else images
        made[f"{prefix}-images-idx3-ubyte"] = idx_bytes(stored)
        made[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(labels(part, len(PUBLISHED[name].classes), sizes))
    return made


def draw(part: str, *shape: int, sizes: Mapping[str, int] = SIZES) -> np.ndarray:
    """Draw random images."""
    return np.random.default_rng(len(part)).integers(0, 256, (sizes[part], *shape), dtype=np.uint8)


def labels(part: str, classes: int, sizes: Mapping[str, int] = SIZES) -> np.ndarray:
    """Return evenly distributed labels."""
    return (np.arange(sizes[part]) * 7 % classes).astype(np.uint8)


def write_idx(path: Path, array: np.ndarray, *, code: int = 0x08) -> None:
    """Write an IDX file, gzipped if its name says so."""
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def idx_bytes(array: np.ndarray) -> bytes:
    """Return an array as the content of an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def records(part: str, classes: int, coarse: bool, sizes: Mapping[str, int] = SIZES) -> np.ndarray:
    """Return images as CIFAR stores them: the labels, then red, green and blue."""
    columns = [
        labels(part, classes, sizes)[:, None],
        draw(part, 3, 32, 32, sizes=sizes).reshape(sizes[part], -1),
    ]
    return np.concatenate([np.full((sizes[part], 1), 200, np.uint8), *columns] if coarse else columns, axis=1)


def is_mapped(array: object) -> bool:
    """Return whether the values of an array are in a memory-mapped file."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    """Check that an error is one line with a remedy, and return it."""
    text = str(error.value)
    assert "\n" not in text
    assert "; " in text, "an error must name a remedy"
    return text
