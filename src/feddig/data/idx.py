"""IDX files, gzipped or not: the format of MNIST and of the sets that follow it.

A file is two zero bytes, one byte for the type of its values, one for the number of dimensions, each dimension as
four bytes (big-endian), and then the values.
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from feddig.data.dataset import Dataset, Images, assemble, check_images
from feddig.data.mmap import map_cached, map_unnamed
from feddig.errors import DataError, SettingError

_TRAILER = 8
"""A gzip file ends with the checksum of its content and the content's length modulo 2^32, four bytes each."""
_CHUNK_BYTES = 2**20
_UNSIGNED_BYTE = 0x08
_LONGEST_HEADER = 4 + 4 * 4
_AGAIN = "fetch the file again from its publisher"


def map_gzip(path: Path, *, keep: bool) -> np.ndarray:
    """Unzip a file and map the content as bytes [n]; keep it in the cache for the next time if asked to."""

    def chunks() -> Iterator[bytes]:
        try:
            with gzip.open(path) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path}: expected a whole gzip file, found a damaged one ({error}); {_AGAIN}"
            ) from None

    if not keep:
        return map_unnamed(chunks)
    try:
        facts = path.stat()
        with path.open("rb") as stream:
            stream.seek(max(0, facts.st_size - _TRAILER))
            trailer = stream.read()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from None
    version = f"{facts.st_size} {facts.st_mtime_ns} {trailer.hex()}".encode()
    length = int.from_bytes(trailer[4:], "little")
    return map_cached(path, version, chunks, complete=lambda size: size % 2**32 == length)


def load_idx(folder: Path) -> Dataset:
    """Load a data set from a folder with the four IDX files, gzipped or not."""
    if not folder.is_dir():
        raise SettingError(f"data.path: {folder} is not a folder; give the one that holds the four IDX files")
    return assemble("idx", read_part(folder, "train"), read_part(folder, "t10k"), source=str(folder))


def read_idx(path: Path, *, dimensions: tuple[int, ...], public: bool = False) -> np.ndarray:
    """Map a file that has one of these numbers of dimensions; the cache keeps what a public file unzips to."""
    if path.suffix == ".gz":
        content = map_gzip(path, keep=public)
        head = content[:_LONGEST_HEADER].tobytes()
        start, shape = _read_header(path, head, len(content), dimensions)
        return content[start:].reshape(shape)
    try:
        with path.open("rb") as stream:
            head = stream.read(_LONGEST_HEADER)
        start, shape = _read_header(path, head, path.stat().st_size, dimensions)
        if 0 in shape:
            return np.zeros(shape, np.uint8)  # an empty array cannot be mapped
        return np.memmap(path, np.uint8, mode="r", offset=start, shape=shape)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from None


def read_part(folder: Path, prefix: str, *, transposed: bool = False, public: bool = False) -> Images:
    """Read one part of a set: the images and the labels whose file names start with the prefix.

    `transposed` turns images that are stored by columns upright, without a copy.
    """
    images, labels = _find(folder, f"{prefix}-images", "idx3"), _find(folder, f"{prefix}-labels", "idx1")
    pixels = read_idx(images, dimensions=(3,) if transposed else (3, 4), public=public)
    return check_images(
        pixels.transpose(0, 2, 1) if transposed else pixels,
        read_idx(labels, dimensions=(1,), public=public),
        pixels_at=str(images),
        labels_at=str(labels),
    )


def count_items(path: Path) -> int:
    """Read from the header of a file how many images or labels it holds."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(8)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); {_AGAIN}") from None
    if len(head) < 8 or head[:2] != b"\x00\x00":
        found = head.hex() or "nothing"
        raise DataError(f"{path}: not an IDX file: expected it to start with 0000, found {found}; {_AGAIN}")
    return int.from_bytes(head[4:8], "big")


def _find(folder: Path, stem: str, kind: str) -> Path:
    for name in (f"{stem}-{kind}-ubyte", f"{stem}.{kind}-ubyte"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(
        f"{folder}: no file {stem}-{kind}-ubyte, gzipped or not; "
        "add it, or set data.path to the folder that has it"
    )


def _read_header(
    path: Path, head: bytes, size: int, dimensions: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Return where the values start and their shape; check that the file has the right length."""
    if len(head) < 4 or head[:2] != b"\x00\x00":
        found = head[:4].hex() or "nothing"
        raise DataError(f"{path}: not an IDX file: expected it to start with 0000, found {found}; {_AGAIN}")
    if head[2] != _UNSIGNED_BYTE:
        raise DataError(
            f"{path}: expected values of type 0x08 (unsigned bytes), found 0x{head[2]:02x}; "
            "store it as unsigned bytes"
        )
    if head[3] not in dimensions:
        expected = " or ".join(str(number) for number in dimensions)
        raise DataError(
            f"{path}: expected {expected} dimensions, found {head[3]}; "
            "check that images and labels are not swapped"
        )
    start = 4 + 4 * head[3]
    if len(head) < start:
        raise DataError(f"{path}: truncated: expected a header of {start} bytes, found {len(head)}; {_AGAIN}")
    shape = tuple(int(length) for length in np.frombuffer(head[4:start], dtype=">u4"))
    expected_size = start + math.prod(shape)
    if size != expected_size:
        fault = "truncated" if size < expected_size else "too long"
        raise DataError(f"{path}: {fault}: expected {expected_size:,} bytes, found {size:,}; {_AGAIN}")
    return start, shape
