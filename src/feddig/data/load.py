"""From the name of a data set to its images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from feddig.data.bundled import load_fashion_mini
from feddig.data.catalogue import load_published
from feddig.data.dataset import Dataset, Images, assemble, check_images, check_rows
from feddig.data.idx import load_idx
from feddig.data.mmap import choose
from feddig.data.npz import load_npz
from feddig.data.public_sets import PUBLISHED
from feddig.errors import DataError, SettingError, nearest
from feddig.seeds import numpy_stream

__all__ = ["NAMES", "Dataset", "Images", "dataset_from_arrays", "load_dataset"]

Loader = Callable[[Path | None, int, int], Dataset]


def _load_folder(path: Path, seed: int, size: int) -> Dataset:
    # a process that has arrays need not wait for what reads pictures
    from feddig.data.folder import load_folder

    return load_folder(path, seed=seed, image_size=size)


# each takes the path, the seed and the image size, and uses what its source has a use for
_LOADERS: dict[str, Loader] = {
    "fashion-mini": lambda path, seed, size: load_fashion_mini(),
    "idx": lambda path, seed, size: load_idx(_required(path, "idx")),
    "npz": lambda path, seed, size: load_npz(_required(path, "npz")),
    "folder": lambda path, seed, size: _load_folder(_required(path, "folder"), seed, size),
}
_BUNDLED = ("fashion-mini",)

NAMES = (*_LOADERS, *PUBLISHED)


def load_dataset(
    name: str,
    path: Path | None = None,
    *,
    limit: int = 0,
    seed: int = 0,
    image_size: int = 32,
    data_dir: Path | None = None,
) -> Dataset:
    """Load the data set of this name from its path.

    The public sets need no path: they are looked for in the data folder, the folder that FEDDIG_DATA names,
    the user's cache and Debian's package folder, and are downloaded into the cache if they are in none.

    A limit keeps that many training images, drawn by the seed, and the whole test set. The image size counts
    for the source "folder" only; the others keep the size that they are stored in.
    """
    if name not in NAMES:
        raise SettingError(f"data.name: unknown data set {name!r}; {nearest(name, NAMES)}")
    if path is not None and name in _BUNDLED:
        # silently training on other images than the user pointed at would be worse than an error
        raise SettingError(
            f"data.path: {name} comes with FedDig and takes no path; "
            "leave it out, or set data.name to the format of your images"
        )
    if limit < 0:
        raise SettingError(f"data.limit: {limit} is negative; use 0 for all images")
    if name in PUBLISHED:
        dataset = load_published(name, path, data_dir=data_dir)
    else:
        dataset = _LOADERS[name](path, seed, image_size)
    return _keep(dataset, limit, seed) if limit else dataset


def dataset_from_arrays(
    x_train: object, y_train: object, x_test: object, y_test: object, *, name: str = "tensors"
) -> Dataset:
    """Make a data set of numpy arrays or torch tensors that are at hand already.

    A table, [n, columns] with floats from 0 to 1, goes to the networks as images of 1 x 1 x columns, never padded.
    """

    def part(values: object, labels: object, suffix: str) -> Images:
        values_at, labels_at = f"{name}: x_{suffix}", f"{name}: y_{suffix}"
        array, numbers = _as_array(values, values_at), _as_array(labels, labels_at)
        if array.ndim == 2:
            return check_rows(array, numbers, rows_at=values_at, labels_at=labels_at)
        return check_images(array, numbers, pixels_at=values_at, labels_at=labels_at)

    return assemble(name, part(x_train, y_train, "train"), part(x_test, y_test, "test"), source=name)


def _required(path: Path | None, name: str) -> Path:
    if path is None:
        raise SettingError(f"data.path: the data set {name!r} needs a path; say where your images are")
    return path


def _keep(dataset: Dataset, limit: int, seed: int) -> Dataset:
    there = len(dataset.train)
    if limit > there:
        raise SettingError(
            f"data.limit: {limit} images wanted, but {dataset.name} has {there} for training; "
            "use a smaller number, or 0 for all"
        )
    kept = np.sort(numpy_stream(seed, "limit").choice(there, size=limit, replace=False))
    train = Images(choose(dataset.train.pixels, kept), dataset.train.labels[kept])
    return Dataset(dataset.name, train, dataset.test, dataset.classes, dataset.class_names)


def _as_array(values: object, place: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"{place}: {type(values).__name__} cannot be read as an array; "
            "give a numpy array, or a tensor on the CPU that needs no gradient"
        ) from None
