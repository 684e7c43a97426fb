"""The binary version of CIFAR-10 and CIFAR-100.

A file holds one record per image: the label (in CIFAR-100 the coarse and then the fine label, one byte each), then
32 x 32 red, green and blue bytes, row by row.
"""

from pathlib import Path

import numpy as np

from feddig.data.dataset import Images, check_images
from feddig.errors import DataError

SIDE = 32
_PIXEL_BYTES = 3 * SIDE * SIDE


def read_cifar(path: Path, *, label_bytes: int) -> Images:
    """Map one file; the last label byte of a record is the label."""
    count = count_records(path, label_bytes=label_bytes)
    try:
        records = np.memmap(path, np.uint8, mode="r", shape=(count, label_bytes + _PIXEL_BYTES))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    # splitting the last axis of this slice makes a view, so the pixels stay in the file
    pixels = records[:, label_bytes:].reshape(count, 3, SIDE, SIDE)
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
