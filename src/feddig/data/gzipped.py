"""Gzip files, unzipped into a file that is memory-mapped."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from feddig.data.mapping import map_kept, map_unnamed
from feddig.errors import DataError

_TRAILER = 8
"""A gzip file ends with the checksum of its content and the content's length modulo 2^32, four bytes each."""
_AT_ONCE = 2**20


def map_gzip(path: Path, *, keep: bool) -> np.ndarray:
    """Give what a gzip file unzips to as mapped bytes [n]; kept, it is there at once the next time."""

    def pieces() -> Iterator[bytes]:
        try:
            with gzip.open(path) as stream:
                while piece := stream.read(_AT_ONCE):
                    yield piece
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path}: expected a whole gzip file, found a damaged one ({error}); "
                "fetch the file again from its publisher"
            ) from None

    if not keep:
        return map_unnamed(pieces)
    try:
        facts = path.stat()
        with path.open("rb") as stream:
            stream.seek(max(0, facts.st_size - _TRAILER))
            trailer = stream.read()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from None
    mark = f"{facts.st_size} {facts.st_mtime_ns} {trailer.hex()}".encode()
    length = int.from_bytes(trailer[4:], "little")
    return map_kept(path, mark, pieces, whole=lambda size: size % 2**32 == length)
