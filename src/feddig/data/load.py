"""Load a data set by its name, and list the public sets that are on this computer.

A small set, fashion-mini, is installed with FedDig, so that a first run needs no download.
"""

import io
import lzma
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import numpy as np

from feddig.data.arrays import count_items, count_records, load_idx, load_npz, read_cifar, read_part
from feddig.data.dataset import Dataset, Images, assemble, check_images
from feddig.data.download import (
    download_set,
    file_hash,
    find_file,
    find_folder,
    find_folder_in,
    missing_files,
    read_record,
    refuse_unusable,
)
from feddig.data.mmap import join
from feddig.data.natural import Silos, SiloTable
from feddig.data.public_sets import FASHION_CLASSES, PUBLISHED, PublishedFile, PublishedSet
from feddig.errors import DataError, FedDigError, SettingError, nearest
from feddig.files import cache_folder, content_hash
from feddig.seeds import numpy_stream

FILES = ("train-pixels", "train-labels", "test-pixels", "test-labels")
# hash of the four arrays in the order of FILES; tools/make_fashion_mini.py prints it
FINGERPRINT = "8237a99d05871a04fc1b2cb6f12a68e2c89fd549f986252e854a07ea96c16c9c"
OWN = ("idx", "npz", "folder")
"""The formats of a user's own images."""
_BUNDLED = "fashion-mini"

NAMES = (_BUNDLED, *OWN, *PUBLISHED)


def load_dataset(
    name: str,
    path: Path | None = None,
    *,
    limit: int = 0,
    seed: int = 0,
    image_size: int = 32,
    channels: int | None = None,
    held_out: float | None = None,
    silos: Silos = None,
    data_dir: Path | None = None,
) -> Dataset:
    """Load the data set of this name from its path.

    The public sets need no path: they are looked for in the data folder, the folder that FEDDIG_DATA names, the
    user's cache and Debian's package folder, and are downloaded into the cache if they are in none.

    A limit keeps that many training images, drawn by the seed, and the whole test set. Only the source "folder" uses
    the image size, and holds a share out itself; "npz" may lack its test part if there is such a share. Both are read
    with this number of channels; other sources keep their images as they are stored. `silos` says where the silos of
    training images are named: by a folder's folders, or in a table.
    """
    if name not in NAMES:
        raise SettingError(f"data.name: unknown data set {name!r}; {nearest(name, NAMES)}")
    if path is not None and name == _BUNDLED:
        # training silently on other images than the user's would be worse than an error
        raise SettingError(
            f"data.path: {name} comes with FedDig and takes no path; "
            "leave it out, or set data.name to the format of your images"
        )
    if silos == "folders" and name != "folder":
        raise SettingError(
            f'data.partition: "folders" needs data.name = "folder", not {name!r}; give a file or a partition in Python'
        )
    if limit < 0:
        raise SettingError(f"data.limit: {limit} is negative; use 0 for all images")
    if name == _BUNDLED:
        dataset = load_fashion_mini()
    elif name in PUBLISHED:
        dataset = _load_published(PUBLISHED[name], path, data_dir)
    elif path is None:
        raise SettingError(f"data.path: the data set {name!r} needs a path; say where your images are")
    elif name == "folder":
        # imported only here, because Pillow takes time to load and most processes read arrays
        from feddig.data.folder import load_folder

        dataset = load_folder(
            path, seed=seed, image_size=image_size, channels=channels, held_out=held_out, silos=silos
        )
    else:
        dataset = load_idx(path) if name == "idx" else load_npz(path, channels=channels, held_out=held_out)
    if isinstance(silos, SiloTable) and name != "folder":
        dataset = silos.name_rows(dataset)
    return _keep(dataset, limit, seed) if limit else dataset


def _keep(dataset: Dataset, limit: int, seed: int) -> Dataset:
    count = len(dataset.train)
    if limit > count:
        raise SettingError(
            f"data.limit: {limit} images wanted, but {dataset.name} has {count} for training; "
            "use a smaller number, or 0 for all"
        )
    kept = np.sort(numpy_stream(seed, "limit").choice(count, size=limit, replace=False))
    natural = dataset.natural and dataset.natural.choose(kept)
    return replace(dataset, train=dataset.train.choose(kept), natural=natural)


# --- public sets

Standing = Literal["official", "other", "unknown"]


@dataclass(frozen=True)
class Entry:
    """What is known about one public data set on this computer.

    `standing` is "official" if every file has the publisher's hash, "other" if a count or a hash differs, and
    "unknown" if hashes were not computed or have not been published. `fault` says why a set that is here cannot be
    used.
    """

    name: str
    present: bool
    where: Path | None
    train: int | None
    test: int | None
    classes: int
    licence: str
    standing: Standing
    address: str
    fault: str | None = None


def describe(data_dir: Path | None = None, verify: bool = False) -> list[Entry]:
    """Describe each public set as it is found on this computer; download nothing.

    Verifying reads every file whole, checks its structure and compares its hash with the publisher's.
    """
    return [_describe(wanted, data_dir, verify) for wanted in PUBLISHED.values()]


def _load_published(wanted: PublishedSet, path: Path | None, data_dir: Path | None) -> Dataset:
    if path is not None:
        return _read_set(wanted, _given_folder(wanted, path))
    return _read_set(wanted, find_folder(wanted, data_dir) or download_set(wanted, cache_folder()))


def _given_folder(wanted: PublishedSet, path: Path) -> Path:
    if not path.is_dir():
        raise SettingError(
            f"data.path: {path} is not a folder; give the one that holds the files of {wanted.name}, "
            "or leave it out to have them looked for"
        )
    folder = find_folder_in(wanted, path)
    if folder is None:
        refuse_unusable(wanted, path)
        raise DataError(
            f"{path}: {' and '.join(missing_files(wanted, path))} missing; "
            f"add what {wanted.name} needs from {wanted.page}, or leave out data.path"
        )
    return folder


def _read_set(wanted: PublishedSet, folder: Path) -> Dataset:
    train, test = (_read_files(wanted, files, folder) for files in (wanted.train_files, wanted.test_files))
    return assemble(wanted.name, train, test, source=str(folder), class_names=wanted.classes)


def _read_files(wanted: PublishedSet, files: Sequence[PublishedFile], folder: Path) -> Images:
    if wanted.format == "cifar":
        paths = [folder / file.name for file in files]
        parts = [read_cifar(path, label_bytes=wanted.label_bytes) for path in paths]
    else:
        paths = [folder / files[-1].name]
        prefix = files[0].name.partition("-images")[0]
        parts = [read_part(folder, prefix, transposed=wanted.transposed, public=True)]
    for path, part in zip(paths, parts, strict=True):
        outside = part.labels >= len(wanted.classes)
        if outside.any():
            first = int(outside.argmax())
            raise DataError(
                f"{path}: label {first} is {part.labels[first]}, but {wanted.name} has "
                f"{len(wanted.classes)} classes, numbered from 0; fetch the file again from its publisher"
            )
    return Images(join([part.pixels for part in parts]), np.concatenate([part.labels for part in parts]))


def _describe(wanted: PublishedSet, data_dir: Path | None, verify: bool) -> Entry:
    folder: Path | None = None
    train = test = None
    standing: Standing = "unknown"
    fault = None
    try:
        folder = find_folder(wanted, data_dir)
        if folder is not None:
            train, test = (_count(wanted, part, folder) for part in (wanted.train_files, wanted.test_files))
            if verify:
                _read_set(wanted, folder)
            standing = _judge(wanted, folder, (train, test), verify)
    except SettingError:
        # a misspelt folder is the caller's mistake and no fault of one set
        raise
    except FedDigError as error:
        fault = str(error)
    return Entry(
        wanted.name,
        folder is not None,
        folder,
        train,
        test,
        len(wanted.classes),
        wanted.licence,
        standing,
        wanted.page,
        fault,
    )


def _count(wanted: PublishedSet, files: Sequence[PublishedFile], folder: Path) -> int:
    if wanted.format == "cifar":
        return sum(count_records(folder / file.name, label_bytes=wanted.label_bytes) for file in files)
    labels = find_file(folder, files[-1].name)
    return count_items(labels) if labels is not None else 0


def _judge(wanted: PublishedSet, folder: Path, counts: tuple[int, int], verify: bool) -> Standing:
    if counts != (wanted.train_count, wanted.test_count):
        return "other"
    if not verify:
        return "unknown"
    record = read_record(wanted, folder)
    verdicts = {_judge_file(file, folder, record.get(file.name)) for file in wanted.files}
    for verdict in ("other", "unknown"):
        if verdict in verdicts:
            return verdict
    return "official"


def _judge_file(file: PublishedFile, folder: Path, recorded: str | None) -> Standing:
    path = find_file(folder, file.name)
    if path is None:
        return "unknown"
    algorithm, _, known = file.fingerprint.partition(":")
    zipped = path.suffix == ".gz"
    if file.of_gzip and not zipped:
        # only a record tells whether this was unzipped from the publisher's file
        if recorded is None:
            return "unknown"
        return "official" if file_hash(path) == recorded else "other"
    found = file_hash(path, algorithm, unzip=zipped and not file.of_gzip)
    return "official" if found == known else "other"


def load_fashion_mini(folder: Traversable | None = None) -> Dataset:
    """Load 6,000 training and 1,000 test images of Fashion-MNIST, evenly from each of its ten classes."""
    folder = folder or files("feddig.data") / "fashion_mini"
    arrays = [_read_bundled(folder / f"{name}.npy.xz") for name in FILES]
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


def _read_bundled(file: Traversable) -> np.ndarray:
    try:
        array: np.ndarray = np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(
            f"fashion-mini: {file} is missing or damaged ({type(error).__name__}); install FedDig again"
        ) from None
    return array
