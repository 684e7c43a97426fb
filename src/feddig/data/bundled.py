"""The small data set that is installed with FedDig, so that a first run needs no download."""

import io
import lzma
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np

from feddig.data.dataset import Dataset, assemble, check_images
from feddig.data.public_sets import FASHION_CLASSES
from feddig.errors import DataError
from feddig.files import content_hash

FILES = ("train-pixels", "train-labels", "test-pixels", "test-labels")
# hash of the four arrays in the order of FILES; tools/make_fashion_mini.py prints it
FINGERPRINT = "8237a99d05871a04fc1b2cb6f12a68e2c89fd549f986252e854a07ea96c16c9c"


def load_fashion_mini(folder: Traversable | None = None) -> Dataset:
    """Load 6,000 training and 1,000 test images of Fashion-MNIST, evenly from each of its ten classes."""
    folder = folder or files("feddig.data") / "fashion_mini"
    arrays = [_read(folder / f"{name}.npy.xz") for name in FILES]
    if fingerprint(arrays) != FINGERPRINT:
        raise DataError(
            f"fashion-mini: {folder} is not what this FedDig was released with; install FedDig again"
        )
    train_pixels, train_labels, test_pixels, test_labels = arrays
    train = check_images(train_pixels, train_labels, pixels_at=FILES[0], labels_at=FILES[1])
    test = check_images(test_pixels, test_labels, pixels_at=FILES[2], labels_at=FILES[3])
    return assemble("fashion-mini", train, test, source="fashion-mini", class_names=FASHION_CLASSES)


def fingerprint(arrays: list[np.ndarray]) -> str:
    """Hash arrays by their type, shape and values."""
    return content_hash(
        *(part for array in arrays for part in (f"{array.dtype} {array.shape}".encode(), array.tobytes()))
    )


def _read(file: Traversable) -> np.ndarray:
    try:
        array: np.ndarray = np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(
            f"fashion-mini: {file} is missing or damaged ({type(error).__name__}); install FedDig again"
        ) from None
    return array
