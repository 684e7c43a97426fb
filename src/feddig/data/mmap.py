"""Bytes that do not lie in a file as they are needed: written into one, and memory-mapped.

So a set that is unzipped or decoded may be larger than memory. What is public is kept in the user's cache for the
next time; of a user's own data no copy stays behind.

Pixels that are read from where they lie only when they are asked for, so that a set may exceed memory.
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

Pieces = Callable[[], Iterator[bytes]]
"""Makes the content from its beginning, a piece at a time. It turns its own OSErrors into DataErrors, as an OSError
is taken for a fault of the place that is written to."""


def map_unnamed(pieces: Pieces) -> np.ndarray:
    """Give the content as mapped bytes [n] of a file without a name, which goes when nobody uses it any more."""
    for place in (_made_folder, tempfile.gettempdir):
        with suppress(OSError), tempfile.TemporaryFile(dir=place()) as stream:
            _write(stream, pieces)
            return _map(stream)
    # no disk to write to at all: then memory must do
    return np.frombuffer(b"".join(pieces()), np.uint8)


def map_kept(source: Path, mark: bytes, pieces: Pieces, *, whole: Callable[[int], bool]) -> np.ndarray:
    """Give the content as mapped bytes [n] of a file in the cache, which is written if it is not there.

    `mark` differs whenever the source was changed; `whole` tells by its length whether a kept file is undamaged.
    """
    name = f"{source.stem}-{content_hash(str(source.resolve()).encode())[:16]}"
    path = _folder() / f"{name}-{content_hash(mark)[:16]}"
    with suppress(OSError):
        if not path.is_file() or not whole(path.stat().st_size):
            _keep(path, pieces)
            _remove(old for old in path.parent.iterdir() if old.name.startswith(f"{name}-") and old != path)
        with path.open("rb") as stream:
            return _map(stream)
    # the cache is full or may not be written to
    return map_unnamed(pieces)


def _folder() -> Path:
    return cache_folder() / "unzipped"


def _made_folder() -> Path:
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keep(path: Path, pieces: Pieces) -> None:
    """Write a file of the cache in one step, so that it is there whole or not at all."""
    handle, part = tempfile.mkstemp(dir=_made_folder(), prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            _write(stream, pieces)
            os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        _remove([Path(part)])
        raise


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # Windows removes no file that somebody still maps
        with suppress(OSError):
            path.unlink()


def _write(stream: IO[bytes], pieces: Pieces) -> None:
    for piece in pieces():
        stream.write(piece)
    stream.flush()


def _map(stream: IO[bytes]) -> np.ndarray:
    if os.fstat(stream.fileno()).st_size == 0:
        return np.zeros(0, np.uint8)  # nothing cannot be mapped
    # the mapping holds the file, so the stream may be closed
    return np.memmap(stream, np.uint8, mode="r")


@dataclass(frozen=True, eq=False)
class LazyPixels:
    """Images [n, channels, height, width] behind a function that reads some of them.

    Index them as an array: what comes back is an ordinary array of the images asked for.
    """

    read: Callable[[np.ndarray], np.ndarray]
    places: np.ndarray
    """For each image, the place that `read` knows it by."""
    image_shape: tuple[int, int, int]
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape that all images together have."""
        return (len(self.places), *self.image_shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: Any) -> np.ndarray:
        images, *within = key if isinstance(key, tuple) else (key,)
        places = self.places[images]
        values = self.read(np.atleast_1d(places))
        found: np.ndarray = values[(slice(None) if places.ndim else 0, *within)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # numpy asks for this when everything is wanted at once
        return self[:].astype(dtype or self.dtype, copy=False)


Pixels = np.ndarray | LazyPixels
"""Images [n, channels, height, width], in memory, mapped or read on demand."""


def join(parts: Sequence[Pixels]) -> Pixels:
    """Put several arrays of images behind one another, where they lie."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])

    def read(places: np.ndarray) -> np.ndarray:
        images = np.empty((len(places), *parts[0].shape[1:]), parts[0].dtype)
        holders = np.searchsorted(ends, places, side="right")
        for number, part in enumerate(parts):
            held = holders == number
            images[held] = part[places[held] - (ends[number] - len(part))]
        return images

    return LazyPixels(read, np.arange(ends[-1]), _image_shape(parts[0]), parts[0].dtype)


def choose(pixels: Pixels, rows: np.ndarray) -> Pixels:
    """Give some of the images, where they lie."""
    return LazyPixels(lambda places: pixels[places], rows, _image_shape(pixels), pixels.dtype)


def convert(pixels: np.ndarray, dtype: np.dtype) -> Pixels:
    """Give the images as another type of number, converted when they are read."""
    if pixels.dtype == dtype:
        return pixels
    every = np.arange(len(pixels))
    return LazyPixels(lambda places: pixels[places].astype(dtype), every, _image_shape(pixels), dtype)


def _image_shape(pixels: Pixels) -> tuple[int, int, int]:
    channels, height, width = pixels.shape[1:]
    return channels, height, width
