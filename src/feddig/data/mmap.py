"""Images that stay on disk until they are used, so that a data set may be larger than memory.

What must be unzipped or decoded first is written into a file and memory-mapped: public data into the user's cache,
where it is found the next time, and a user's own data into a file without a name, so that no copy stays behind.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from feddig.files import cache_folder, content_hash

Chunks = Callable[[], Iterator[bytes]]
"""Yields the content chunk by chunk, from its beginning. It must turn its own OSErrors into DataErrors, because an
OSError is taken for a fault of the disk that is written to."""


def map_unnamed(chunks: Chunks) -> np.ndarray:
    """Write the content into a file without a name and map it as bytes [n]; the file goes with the array."""
    for folder in (_make_folder, tempfile.gettempdir):
        with suppress(OSError), tempfile.TemporaryFile(dir=folder()) as stream:
            _write(stream, chunks)
            return _map(stream)
    # no disk can be written to, so the content is kept in memory
    return np.frombuffer(b"".join(chunks()), np.uint8)


def map_cached(
    source: Path, version: bytes, chunks: Chunks, *, complete: Callable[[int], bool]
) -> np.ndarray:
    """Map the content as bytes [n] from a file in the cache, which is written if it is not there.

    `version` differs whenever the source has changed; `complete` tells by its size whether a cached file is whole.
    """
    name = f"{source.stem}-{content_hash(str(source.resolve()).encode())[:16]}"
    path = _folder() / f"{name}-{content_hash(version)[:16]}"
    with suppress(OSError):
        if not path.is_file() or not complete(path.stat().st_size):
            _write_cached(path, chunks)
            _remove(old for old in path.parent.iterdir() if old.name.startswith(f"{name}-") and old != path)
        with path.open("rb") as stream:
            return _map(stream)
    # the cache is full or may not be written to
    return map_unnamed(chunks)


def _folder() -> Path:
    return cache_folder() / "unzipped"


def _make_folder() -> Path:
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_cached(path: Path, chunks: Chunks) -> None:
    """Write a file of the cache in one step, so that no reader sees half of it."""
    handle, part = tempfile.mkstemp(dir=_make_folder(), prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            _write(stream, chunks)
            os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        _remove([Path(part)])
        raise


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # Windows does not remove a file that a process still maps
        with suppress(OSError):
            path.unlink()


def _write(stream: IO[bytes], chunks: Chunks) -> None:
    for chunk in chunks():
        stream.write(chunk)
    stream.flush()


def _map(stream: IO[bytes]) -> np.ndarray:
    if os.fstat(stream.fileno()).st_size == 0:
        return np.zeros(0, np.uint8)  # an empty file cannot be mapped
    # the mapping keeps the file open, so the stream may be closed
    return np.memmap(stream, np.uint8, mode="r")


@dataclass(frozen=True, eq=False)
class LazyPixels:
    """Images [n, channels, height, width] that a function reads when they are indexed.

    Index them like an array; the result is an ordinary array of the chosen images.
    """

    read: Callable[[np.ndarray], np.ndarray]
    indices: np.ndarray
    """For each image, the index by which `read` finds it."""
    image_shape: tuple[int, int, int]
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all images together."""
        return (len(self.indices), *self.image_shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Any) -> np.ndarray:
        images, *within = key if isinstance(key, tuple) else (key,)
        indices = self.indices[images]
        values = self.read(np.atleast_1d(indices))
        found: np.ndarray = values[(slice(None) if indices.ndim else 0, *within)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # numpy calls this to convert all images at once
        return self[:].astype(dtype or self.dtype, copy=False)


Pixels = np.ndarray | LazyPixels
"""Images [n, channels, height, width], in memory, mapped or read on demand."""


def join(parts: Sequence[Pixels]) -> Pixels:
    """Concatenate several arrays of images without copying them."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])

    def read(indices: np.ndarray) -> np.ndarray:
        images = np.empty((len(indices), *parts[0].shape[1:]), parts[0].dtype)
        holders = np.searchsorted(ends, indices, side="right")
        for number, part in enumerate(parts):
            held = holders == number
            images[held] = part[indices[held] - (ends[number] - len(part))]
        return images

    return LazyPixels(read, np.arange(ends[-1]), _image_shape(parts[0]), parts[0].dtype)


def choose(pixels: Pixels, rows: np.ndarray) -> Pixels:
    """Choose some of the images without copying them."""
    return LazyPixels(lambda indices: pixels[indices], rows, _image_shape(pixels), pixels.dtype)


def convert(pixels: np.ndarray, dtype: np.dtype) -> Pixels:
    """Convert the images to another type of number when they are read."""
    if pixels.dtype == dtype:
        return pixels
    every = np.arange(len(pixels))
    return LazyPixels(lambda indices: pixels[indices].astype(dtype), every, _image_shape(pixels), dtype)


def _image_shape(pixels: Pixels) -> tuple[int, int, int]:
    channels, height, width = pixels.shape[1:]
    return channels, height, width
