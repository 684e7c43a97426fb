"""Data sets from what a program holds: arrays, torch data sets, Hugging Face data sets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feddig.data.dataset import Dataset, Images, assemble, check_images, check_rows
from feddig.data.mmap import map_unnamed
from feddig.errors import DataError, first_line, nearest


def dataset_from_arrays(
    x_train: object, y_train: object, x_test: object, y_test: object, *, name: str = "tensors"
) -> Dataset:
    """Make a data set from numpy arrays or torch tensors.

    A table, [n, columns] with floats from 0 to 1, goes to the networks as images of 1 x 1 x columns, never padded.
    """

    def part(values: object, labels: object, suffix: str) -> Images:
        values_at, labels_at = f"{name}: x_{suffix}", f"{name}: y_{suffix}"
        return _check_part(_as_array(values, values_at), _as_array(labels, labels_at), values_at, labels_at)

    return assemble(name, part(x_train, y_train, "train"), part(x_test, y_test, "test"), source=name)


def dataset_from(
    train: Any,
    test: Any = None,
    *,
    image: str | None = None,
    label: str | None = None,
    name: str = "tensors",
) -> Dataset:
    """Make a data set from two torch data sets, or from two Hugging Face data sets or a dictionary of them.

    A torch data set gives pairs of an image and a label. Of a Hugging Face data set the columns of type Image and
    ClassLabel are used, unless `image` and `label` name others; of a dictionary, "train" and "test". Images are
    pictures, arrays or tensors of one size: uint8, or floats from 0 to 1. They are read once, into a file without a
    name. Labels are numbers from 0, or names.
    """
    if test is None and isinstance(train, Mapping):
        for part in ("train", "test"):
            if part not in train:
                raise DataError(
                    f"{name}: has no part {part!r} but {', '.join(map(str, train))}; give train and test by themselves"
                )
        train, test = train["train"], train["test"]
    if test is None:
        raise DataError(
            f"{name}: no test images; give a second data set, or a dictionary with train and test"
        )
    sources = [
        _Source(part, values, image, label)
        for part, values in ((f"{name}: train", train), (f"{name}: test", test))
    ]
    arrays = [source.read() for source in sources]
    classes = sources[0].classes
    if classes and sources[1].classes and sources[1].classes != classes:
        raise DataError(f"{name}: training and test images have other classes; number both in the same way")
    labels: list[np.ndarray] = [np.asarray(source.labels) for source in sources]
    if labels[0].dtype.kind == "U":
        classes = tuple(np.unique(labels[0]).tolist())
        for source, names in zip(sources, labels, strict=True):
            for unknown in np.setdiff1d(names, classes)[:1]:
                raise DataError(
                    f"{source.place}: no training image has the label {str(unknown)!r}; "
                    + nearest(str(unknown), classes)
                )
        labels = [np.searchsorted(classes, names) for names in labels]
    parts = [
        _check_part(array, numbers, source.place, source.place)
        for array, numbers, source in zip(arrays, labels, sources, strict=True)
    ]
    largest = max(int(part.labels.max()) for part in parts)
    if classes and largest >= len(classes):
        raise DataError(
            f"{name}: there is a label {largest}, but {len(classes)} classes are named; correct one of them"
        )
    return assemble(name, *parts, source=name, class_names=classes)


class _Source:
    """One part of a data set that gives its items one by one."""

    def __init__(self, place: str, values: Any, image: str | None, label: str | None) -> None:
        if not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise DataError(
                f"{place}: {type(values).__name__} has no length or no items; give a data set whose items are numbered"
            )
        if not len(values):
            raise DataError(f"{place}: holds no images; give at least one")
        self.place, self._values = place, values
        self.labels: list[Any] = []
        self.classes: tuple[str, ...] = ()
        features = getattr(values, "features", None)
        self._image: str | int = image or "image"
        self._label: str | int = label or "label"
        if isinstance(features, Mapping):
            self._image = image or _column(place, features, "Image", "image")
            self._label = label or _column(place, features, "ClassLabel", "label")
            for key, column in (("image", self._image), ("label", self._label)):
                if column not in features:
                    raise DataError(
                        f"{place}: no column {column!r} for {key}; {nearest(str(column), features)}"
                    )
            self.classes = tuple(map(str, getattr(features[self._label], "names", None) or ()))
        else:
            named = getattr(values, "classes", None)
            self.classes = tuple(map(str, named)) if isinstance(named, Sequence) else ()

    def read(self) -> np.ndarray:
        """Read all images as [n, ...], and the labels beside them."""
        first = self._item(0)[0]
        content = map_unnamed(lambda: self._chunks(first))
        return content.view(first.dtype).reshape(len(self._values), *first.shape)

    def _chunks(self, first: np.ndarray) -> Iterator[bytes]:
        self.labels.clear()
        for number in range(len(self._values)):
            image, label = self._item(number)
            if image.shape != first.shape or image.dtype != first.dtype:
                raise DataError(
                    f"{self.place}: item {number} is {image.dtype} {list(image.shape)}, but item 0 is {first.dtype} "
                    f"{list(first.shape)}; bring all to one size and kind by the data set's transform"
                )
            self.labels.append(label)
            yield image.tobytes()

    def _item(self, number: int) -> tuple[np.ndarray, Any]:
        try:
            item = self._values[number]
        except Exception as error:  # it is the user's own code
            raise DataError(
                f"{self.place}: item {number} cannot be read ({first_line(error)}); correct or remove it"
            ) from None
        if isinstance(item, Mapping):
            for column in (self._image, self._label):
                if column not in item:
                    raise DataError(
                        f"{self.place}: item {number} has no {column!r}, but {', '.join(map(str, item))}; name "
                        "the columns by image= and label="
                    )
            image, label = item[self._image], item[self._label]
        elif isinstance(item, tuple | list) and len(item) >= 2:
            image, label = item[0], item[1]
        else:
            raise DataError(
                f"{self.place}: item {number} is a {type(item).__name__}; each must be an image and its label"
            )
        place = f"{self.place}: item {number}"
        for key, found in (("image", image), ("label", label)):
            if found is None:
                raise DataError(f"{place}: has no {key} (None); add it or remove the item")
        value = label if isinstance(label, str) else _as_array(label, place)
        if not isinstance(value, str):
            if value.size != 1:
                raise DataError(f"{place}: its label is {list(value.shape)} numbers; give one")
            value = value.reshape(()).item()
        return _pixels(image, place), value


def _pixels(image: Any, place: str) -> np.ndarray:
    """Return a picture, array or tensor as an array in memory."""
    if hasattr(image, "mode") and hasattr(image, "convert"):
        # imported only here, because Pillow takes time to load
        from feddig.data.decode import is_grey, to_eight_bits

        return np.asarray(to_eight_bits(image, place).convert("L" if is_grey(image) else "RGB"))
    array = _as_array(image, place)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.ndim not in (1, 2, 3) or array.dtype.kind not in "uif":
        raise DataError(
            f"{place}: its image is {array.dtype} {list(array.shape)}; give uint8, or floats from 0 to 1"
        )
    return np.ascontiguousarray(array)


def _column(place: str, features: Mapping[str, Any], kind: str, argument: str) -> str:
    """Return the name of the one column of this type."""
    found = [str(name) for name, feature in features.items() if type(feature).__name__ == kind]
    if len(found) != 1:
        raise DataError(
            f"{place}: {len(found)} columns are of type {kind}; name one by {argument}=, from "
            + ", ".join(map(str, features))
        )
    return found[0]


def _check_part(values: np.ndarray, labels: np.ndarray, values_at: str, labels_at: str) -> Images:
    if values.ndim == 2:
        return check_rows(values, labels, rows_at=values_at, labels_at=labels_at)
    return check_images(values, labels, pixels_at=values_at, labels_at=labels_at)


def _as_array(values: object, place: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"{place}: {type(values).__name__} cannot be read as an array; "
            "give a numpy array, or a tensor on the CPU that needs no gradient"
        ) from None
