"""A data set, and the checks that images and labels from every source must pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from feddig.data.mmap import Pixels, choose, convert
from feddig.errors import DataError
from feddig.files import content_hash
from feddig.seeds import Name, derive


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their labels.

    `pixels` is [n, channels, height, width], uint8 or float32 from 0 to 1; `labels` is int64 [n]. The pixels may lie in
    memory-mapped files: treat them as read-only, and index them with an array of positions to get an array in memory.
    """

    pixels: Pixels
    labels: np.ndarray
    groups: np.ndarray | None = None
    """Numbers of the groups that the images belong to, such as patients; None where the data names none.

    A number follows from the group's name alone.
    """

    def __len__(self) -> int:
        return len(self.labels)

    def choose(self, rows: np.ndarray) -> "Images":
        """Return some of the images; those in memory-mapped files stay there."""
        groups = None if self.groups is None else self.groups[rows]
        return Images(choose(self.pixels, rows), self.labels[rows], groups)


@dataclass(frozen=True, eq=False)
class Natural:
    """Which silo holds each training image, where the data says so."""

    silos: np.ndarray
    """The name of each image's silo."""
    keys: np.ndarray
    """The name of each image's group, else its own: what its split follows from."""
    splits: np.ndarray
    """The split that is named for each image; empty where it follows from the key."""
    source: str
    """The file or folder that says so."""

    def choose(self, rows: np.ndarray) -> "Natural":
        """Return what is said of some of the images."""
        return Natural(self.silos[rows], self.keys[rows], self.splits[rows], self.source)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one task, with the number and the names of its classes."""

    name: str
    """The data set's name, for pages and summaries."""
    train: Images
    """The images that are dealt out to silos, as `pixels`, `labels` and perhaps `groups`."""
    test: Images
    """The images that accuracy is measured on; no silo holds them."""
    classes: int
    """The number of classes; labels go from 0 to one less."""
    class_names: tuple[str, ...]
    """The names of the classes; their numbers if they have no names."""
    natural: Natural | None = None
    """Which silo holds each training image; None where silos are drawn."""

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.train.pixels.shape[1:]))
        named = ", ".join(self.class_names[:5]) + (", ..." if self.classes > 5 else "")
        return (
            f"<Dataset {self.name}: {len(self.train)} images to train and {len(self.test)} to test, {shape}; "
            f"{self.classes} classes: {named}>"
        )

    def fingerprint(self) -> str:
        """Hash the labels and up to a thousand images of each part; hashing all images would take too long."""
        chunks = []
        for images in (self.train, self.test):
            places = np.unique(np.linspace(0, len(images) - 1, min(len(images), 1000)).astype(np.int64))
            chunks += [str(images.pixels.shape).encode(), images.labels.tobytes()]
            chunks.append(np.ascontiguousarray(images.pixels[places]).tobytes())
        return content_hash(*chunks)


def hold_out(keys: Sequence[str | int], share: float, seed: int, *purpose: Name) -> np.ndarray:
    """Return which of these are held out, as flags: this share of them or a few more, where equal keys stay together.

    Keys are ordered by a hash of each, so that a new name in the place of another changes at most a few at the border.
    """
    names, place, counts = np.unique(np.asarray(keys), return_inverse=True, return_counts=True)
    order = np.argsort([derive(seed, *purpose, str(name)) for name in names])
    wanted = max(share > 0, round(share * len(keys)))
    before = np.cumsum(counts[order]) - counts[order]
    apart = np.zeros(len(names), bool)
    apart[order[before < wanted]] = True
    flags: np.ndarray = apart[place]
    return flags


def group_numbers(names: Sequence[str] | np.ndarray) -> np.ndarray:
    """Number groups by a hash of their names, so that no group's number depends on what other groups there are."""
    found, place = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    numbers: np.ndarray = np.array([derive(0, "group", str(name)) for name in found], np.int64)[place]
    return numbers


def check_apart(train: Images, test: Images, source: str) -> None:
    """Refuse a group that has images for training and for testing: the test would be of what was learnt."""
    if train.groups is None or test.groups is None:
        return
    both = np.flatnonzero(np.isin(test.groups, train.groups))
    if both.size:
        raise DataError(
            f"{source}: the group of test image {both[0]} has training images too; move each group's images to one part"
        )


SMALLEST_SIDE = 8
CHANNELS = (1, 3)
# a larger label is a serial number or damage, and would need an impossibly large classifier
MOST_CLASSES = 65_536
# the number of values checked together, so that a memory-mapped set is never loaded whole
_CHUNK_VALUES = 2**22


def check_images(
    pixels: np.ndarray, labels: np.ndarray, *, pixels_at: str, labels_at: str, grey: bool = False
) -> Images:
    """Convert one part of a data set to `Images`, or say what is wrong with it and where.

    `grey` images that were saved with three equal channels get one; images in colour are then refused.
    """
    if pixels.size == 0:
        raise DataError(f"{pixels_at}: holds no images; give at least one")
    arranged = _channels_first(pixels, pixels_at)
    if grey and arranged.shape[1] > 1:
        arranged = _one_channel(arranged, pixels_at)
    checked = _check_pixels(arranged, pixels_at)
    return Images(checked, _check_labels(labels, labels_at, len(pixels), f"images in {pixels_at}"))


def check_rows(rows: np.ndarray, labels: np.ndarray, *, rows_at: str, labels_at: str) -> Images:
    """Convert one part of a table to `Images`: a row is an image one pixel high, its columns are the pixels."""
    if rows.size == 0:
        raise DataError(f"{rows_at}: holds no rows; give at least one, of at least one column")
    if rows.dtype.kind != "f":
        raise DataError(f"{rows_at}: the table holds {rows.dtype}; scale each column to floats from 0 to 1")
    images = rows[:, np.newaxis, np.newaxis]
    _check_range(images, rows_at, "row", "scale each column by a range agreed on in public")
    checked = convert(images, np.dtype(np.float32))
    return Images(checked, _check_labels(labels, labels_at, len(rows), f"rows in {rows_at}"))


def assemble(
    name: str, train: Images, test: Images, *, source: str, class_names: tuple[str, ...] = ()
) -> Dataset:
    """Make a data set of two checked parts; without class names, classes are named by their numbers."""
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        raise DataError(
            f"{source}: training images are {_describe(train.pixels)}, "
            f"but test images {_describe(test.pixels)}; bring both to one shape"
        )
    if not class_names:
        largest = max(train.labels.max(initial=0), test.labels.max(initial=0))
        class_names = tuple(str(label) for label in range(int(largest) + 1))
    return Dataset(name, train, test, len(class_names), class_names)


def _describe(pixels: Pixels) -> str:
    channels, height, width = pixels.shape[1:]
    return f"{height} x {width} with {channels} channel{'s' if channels > 1 else ''}"


def _channels_first(pixels: np.ndarray, place: str) -> np.ndarray:
    """Return images as [n, channels, height, width], without copying them."""
    if pixels.ndim == 3:
        return pixels[:, np.newaxis]
    if pixels.ndim == 4 and pixels.shape[3] in CHANNELS:
        return pixels.transpose(0, 3, 1, 2)
    if pixels.ndim == 4 and pixels.shape[1] in CHANNELS:
        return pixels
    raise DataError(
        f"{place}: shape {list(pixels.shape)} is not a shape of images; store [n, height, width], "
        "[n, height, width, channels] or [n, channels, height, width] with 1 or 3 channels"
    )


def _one_channel(pixels: np.ndarray, place: str) -> np.ndarray:
    """Return the first channel of grey images, without copying them."""
    for start, chunk in _in_chunks(pixels):
        equal = (chunk == chunk[:, :1]).all(axis=(1, 2, 3))
        if not equal.all():
            raise DataError(
                f"{place}: image {start + int(equal.argmin())} is in colour, but grey images are wanted; "
                "convert the images to grey"
            )
    return pixels[:, :1]


def _in_chunks(pixels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield images a few at a time, each time with the place of the first."""
    step = max(1, _CHUNK_VALUES // pixels[0].size)
    for start in range(0, len(pixels), step):
        yield start, pixels[start : start + step]


def _check_pixels(pixels: np.ndarray, place: str) -> Pixels:
    if min(pixels.shape[2:]) < SMALLEST_SIDE:
        raise DataError(
            f"{place}: images are {_describe(pixels)}; "
            f"both sides must have at least {SMALLEST_SIDE} pixels, so enlarge them"
        )
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise DataError(f"{place}: pixels are {pixels.dtype}; store uint8, or floats from 0 to 1")
    _check_range(pixels, place, "image", "divide by 255, leave out a normalisation, or store uint8")
    return convert(pixels, np.dtype(np.float32))


def _check_range(pixels: np.ndarray, place: str, one: str, remedy: str) -> None:
    for start, chunk in _in_chunks(pixels):
        finite = np.isfinite(chunk).all(axis=(1, 2, 3))
        if not finite.all():
            raise DataError(
                f"{place}: {one} {start + int(finite.argmin())} has a value that is not a finite number; "
                f"correct or remove that {one}"
            )
        inside = ((chunk >= 0) & (chunk <= 1)).all(axis=(1, 2, 3))
        if not inside.all():
            raise DataError(
                f"{place}: {one} {start + int(inside.argmin())} has a value outside 0 to 1; {remedy}"
            )


def _check_labels(labels: np.ndarray, place: str, count: int, of_what: str) -> np.ndarray:
    if labels.ndim != 1:
        raise DataError(f"{place}: labels have shape {list(labels.shape)}; store one list of numbers, [n]")
    whole = labels.dtype.kind in "iu"
    if labels.dtype.kind == "f":
        whole = bool((np.isfinite(labels) & (labels == np.floor(labels))).all())
    if not whole:
        raise DataError(
            f"{place}: labels are {labels.dtype} and not whole numbers; number the classes from 0"
        )
    fitting = (labels >= 0) & (labels < MOST_CLASSES)
    if not fitting.all():
        first = int(fitting.argmin())
        raise DataError(
            f"{place}: label {first} is {labels[first]}; number the classes from 0, below {MOST_CLASSES:,}"
        )
    if len(labels) != count:
        raise DataError(
            f"{place}: {len(labels)} labels, but {count} {of_what}; give exactly one label for each"
        )
    # a copy, so that labels are an ordinary array even if they were memory-mapped
    return np.array(labels, dtype=np.int64)
