"""Read images that are stored as plain arrays: NumPy archives, IDX files, and the binary files of CIFAR.

- `.npz`: one archive with x_train, y_train, x_test and y_test. The last two may be missing where a share of the
  training images is held out instead. It may also have g_train and g_test: numbers or names of the groups that the
  images belong to, such as patients.
- IDX, gzipped or not, the format of MNIST and of the sets that follow it: two zero bytes, one byte for the type of the
  values, one for the number of dimensions, each dimension as four bytes (big-endian), and then the values.
- CIFAR-10 and CIFAR-100: one record per image. It has the label (in CIFAR-100 the coarse and then the fine label, one
  byte each), then 32 x 32 red, green and blue bytes, row by row.
"""

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

import numpy as np

from feddig.data.dataset import Dataset, Images, assemble, check_apart, check_images, group_numbers
from feddig.data.mmap import map_cached, map_unnamed
from feddig.errors import DataError, SettingError

_CHUNK_BYTES = 2**20
_FIXED_HEADER = 30  # bytes of a zip member's local header before its name


def load_npz(path: Path, *, channels: int | None = None, held_out: float | None = None) -> Dataset:
    """Load a data set from a file that np.savez or np.savez_compressed wrote.

    With `channels` 1, grey images saved in three equal channels are read as grey. If a share is to be held out, the
    test part may be missing and is then empty: the caller holds images out.
    Uncompressed arrays are memory-mapped; compressed ones are unzipped into a file without a name, and that is mapped.
    """
    if not path.is_file():
        raise SettingError(
            f"data.path: {path} is not a file; give the .npz file with x_train, y_train and so on"
        )
    with _open(path) as archive:
        names = archive.namelist()
        train = _read_part(archive, path, "train", grey=channels == 1)
        if held_out is not None and not {"x_test.npy", "y_test.npy"} & set(names):
            test = train.choose(np.zeros(0, np.int64))
        else:
            test = _read_part(archive, path, "test", grey=channels == 1)
        if "g_train.npy" in names:
            groups = [_read_member(archive, path, "g_train")]
            groups += [_read_member(archive, path, "g_test") if len(test) else groups[0][:0]]
            train, test = _grouped(path, (train, test), groups)
    return assemble("npz", train, test, source=str(path))


def load_arrays(path: Path, *, labelled: bool) -> Images:
    """Load x and y, or x_test and y_test; unless `labelled`, there may be no y, and labels are zero."""
    with _open(path) as archive:
        x, y = ("x", "y") if "x.npy" in archive.namelist() else ("x_test", "y_test")
        wanted = "its images as x, and their labels as y" if labelled else "its images as x"
        pixels = _read_member(archive, path, x, wanted)
        labels = _read_member(archive, path, y, wanted) if labelled else np.zeros(pixels.shape[:1], np.int64)
        return check_images(pixels, labels, pixels_at=f"{path}: {x}", labels_at=f"{path}: {y}")


def _grouped(path: Path, parts: tuple[Images, Images], groups: list[np.ndarray]) -> tuple[Images, Images]:
    """Number the groups of both parts."""
    for part, found, name in zip(parts, groups, ("train", "test"), strict=True):
        if found.shape != (len(part),):
            raise DataError(
                f"{path}: g_{name} has shape {list(found.shape)}, but there are {len(part)} images; give one group each"
            )
    train, test = (
        replace(part, groups=group_numbers(found.astype(str)))
        for part, found in zip(parts, groups, strict=True)
    )
    check_apart(train, test, str(path))
    return train, test


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError) as error:
        raise DataError(f"{path}: not a whole .npz file ({error}); save or copy it again") from None


def _read_part(archive: zipfile.ZipFile, path: Path, part: str, *, grey: bool) -> Images:
    return check_images(
        _read_member(archive, path, f"x_{part}"),
        _read_member(archive, path, f"y_{part}"),
        pixels_at=f"{path}: x_{part}",
        labels_at=f"{path}: y_{part}",
        grey=grey,
    )


PARTS = (
    "x_train, y_train, x_test and y_test (a silo needs no test arrays if its silo.toml has data.validation)"
)


def _read_member(archive: zipfile.ZipFile, path: Path, name: str, wanted: str = PARTS) -> np.ndarray:
    place = f"{path}: {name}"
    try:
        member = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = ", ".join(sorted(entry.removesuffix(".npy") for entry in archive.namelist())) or "nothing"
        raise DataError(f"{place}: no such array, only {found}; save {wanted}") from None
    try:
        _check_sum(archive, member)
        with archive.open(member) as stream:
            shape, fortran, dtype = _read_npy_header(stream)
            values_start = stream.tell()
            if dtype.hasobject:
                raise DataError(
                    f"{place}: holds Python objects, which are never read; save an array of numbers"
                )
            if member.file_size - values_start != math.prod(shape) * dtype.itemsize:
                raise DataError(
                    f"{place}: its length does not fit its shape {list(shape)}; save the file again"
                )
        order: Literal["F", "C"] = "F" if fortran else "C"
        if member.compress_type != zipfile.ZIP_STORED or 0 in shape:
            content = map_unnamed(lambda: _chunks(archive, member))
            return content[values_start:].view(dtype).reshape(shape, order=order)
        offset = _data_offset(path, member) + values_start
        return np.memmap(path, dtype, mode="r", offset=offset, shape=shape, order=order)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{place}: damaged ({type(error).__name__}); save or copy the file again") from None


def _check_sum(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Read a member to its end, which checks its checksum; mapping it would not notice damage."""
    for _ in _chunks(archive, member):
        pass


def _chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(member) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the shape, the order (True: columns first) and the type of an array from its header."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Find where a member's bytes start in the file, by its local header; the archive's directory may differ."""
    with path.open("rb") as stream:
        stream.seek(member.header_offset)
        head = stream.read(_FIXED_HEADER)
    name_length, extra_length = (int(length) for length in np.frombuffer(head, dtype="<u2", offset=26))
    return member.header_offset + _FIXED_HEADER + name_length + extra_length


_TRAILER = 8
"""A gzip file ends with the checksum of its content and the content's length modulo 2^32, four bytes each."""
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
        start, shape = _read_idx_header(path, head, len(content), dimensions)
        return content[start:].reshape(shape)
    try:
        with path.open("rb") as stream:
            head = stream.read(_LONGEST_HEADER)
        start, shape = _read_idx_header(path, head, path.stat().st_size, dimensions)
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


def _read_idx_header(
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


CIFAR_SIDE = 32
_PIXEL_BYTES = 3 * CIFAR_SIDE * CIFAR_SIDE


def read_cifar(path: Path, *, label_bytes: int) -> Images:
    """Map one file; the last label byte of a record is the label."""
    count = count_records(path, label_bytes=label_bytes)
    try:
        records = np.memmap(path, np.uint8, mode="r", shape=(count, label_bytes + _PIXEL_BYTES))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    # splitting the last axis of this slice makes a view, so the pixels stay in the file
    pixels = records[:, label_bytes:].reshape(count, 3, CIFAR_SIDE, CIFAR_SIDE)
    return check_images(pixels, records[:, label_bytes - 1], pixels_at=str(path), labels_at=str(path))


def count_records(path: Path, *, label_bytes: int) -> int:
    """Compute from the length of a file how many images it holds."""
    record = label_bytes + _PIXEL_BYTES
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None
    if size == 0 or size % record:
        raise DataError(
            f"{path}: damaged: expected records of {record:,} bytes, found {size:,} bytes, "
            f"which is {size // record:,} records and {size % record:,} bytes; "
            "fetch the file again from its publisher"
        )
    return size // record


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{path}: cannot be read ({reason}); check the file and its permissions")
