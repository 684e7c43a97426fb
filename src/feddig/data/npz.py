"""One NumPy archive with the arrays x_train, y_train, x_test and y_test.

The last two may be missing where a share of the training images is held out instead. It may also have g_train and
g_test: numbers or names of the groups that the images belong to, such as patients.
"""

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
from feddig.data.mmap import map_unnamed
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
        pixels = _read_member(archive, path, x)
        labels = _read_member(archive, path, y) if labelled else np.zeros(pixels.shape[:1], np.int64)
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


def _read_member(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    place = f"{path}: {name}"
    try:
        member = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = ", ".join(sorted(entry.removesuffix(".npy") for entry in archive.namelist())) or "nothing"
        raise DataError(
            f"{place}: no such array, only {found}; save x_train, y_train, x_test and y_test "
            "(a silo needs no test arrays if its silo.toml has data.validation)"
        ) from None
    try:
        _check_sum(archive, member)
        with archive.open(member) as stream:
            shape, fortran, dtype = _read_header(stream)
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


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
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
