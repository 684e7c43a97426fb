"""Bytes that do not lie in a file as they are needed: written into one, and memory-mapped.

So a set that is unzipped or decoded may be larger than memory. What is public is kept in the user's cache for the
next time; of a user's own data no copy stays behind.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from feddig.data.locate import cache_folder
from feddig.files import content_hash

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
