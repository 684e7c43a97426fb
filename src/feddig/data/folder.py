"""Image files in one folder per class."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from feddig.data.dataset import SMALLEST_SIDE, Dataset, Images, assemble, check_images
from feddig.data.mmap import map_unnamed
from feddig.errors import DataError, SettingError
from feddig.seeds import numpy_stream

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_GREY = ("1", "L", "LA", "La")


@dataclass(frozen=True)
class _Labelled:
    """Image files of one part of the set, each with the number of its class."""

    paths: list[Path]
    labels: list[int]


def load_folder(folder: Path, *, seed: int = 0, image_size: int = 32) -> Dataset:
    """Load train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE alone, from a folder.

    Without a test folder, a seeded tenth of each class becomes the test set. Images are resized to squares of the image
    size; 0 keeps their size.
    """
    if not folder.is_dir():
        raise SettingError(
            f"data.path: {folder} is not a folder; give the folder that holds one folder per class"
        )
    if image_size != 0 and image_size < SMALLEST_SIDE:
        raise SettingError(
            f"data.image_size: {image_size} is too small; use at least {SMALLEST_SIDE}, "
            "or 0 to keep the images' own size"
        )
    # a class may be called "train", so only a folder that holds folders counts as the training part
    if (folder / "train").is_dir() and _folders(folder / "train"):
        classes, train, test = _find_parts(folder)
    else:
        classes, train, test = _split_classes(folder, seed)
    decode = _Decoder.for_all([*train.paths, *test.paths], image_size)
    return assemble(
        "folder",
        _read_part(train, decode, str(folder)),
        _read_part(test, decode, str(folder)),
        source=str(folder),
        class_names=tuple(classes),
    )


def _find_parts(folder: Path) -> tuple[list[str], _Labelled, _Labelled]:
    """List the files of a folder that has its own test part."""
    classes = _folders(folder / "train")
    if not (folder / "test").is_dir():
        raise DataError(
            f"{folder}: has a folder train but no folder test; "
            "add one, or set data.path to the folder train and a tenth of it becomes the test set"
        )
    for name in _folders(folder / "test"):
        if name not in classes:
            raise DataError(
                f"{folder / 'test' / name}: a class without training images; "
                f"add {folder / 'train' / name} or remove this folder"
            )
    train, test = _Labelled([], []), _Labelled([], [])
    for label, name in enumerate(classes):
        found = _images(folder / "train" / name)
        if not found:
            raise DataError(f"{folder / 'train' / name}: holds no images; add some or remove the folder")
        _extend(train, found, label)
        if (folder / "test" / name).is_dir():
            _extend(test, _images(folder / "test" / name), label)
    if not test.paths:
        raise DataError(f"{folder / 'test'}: holds no images; put them into one folder per class")
    return classes, train, test


def _split_classes(folder: Path, seed: int) -> tuple[list[str], _Labelled, _Labelled]:
    """List the files of a folder without a test part, and make a tenth of each class the test set."""
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: holds no folders; put the images into one folder per class")
    train, test = _Labelled([], []), _Labelled([], [])
    for label, name in enumerate(classes):
        found = _images(folder / name)
        if len(found) < 2:
            raise DataError(
                f"{folder / name}: {len(found)} images, but a class needs 2, one to train and one to test; "
                "add images or remove the folder"
            )
        order = numpy_stream(seed, "test images", name).permutation(len(found))
        tenth = max(1, round(len(found) / 10))
        _extend(test, [found[position] for position in sorted(order[:tenth])], label)
        _extend(train, [found[position] for position in sorted(order[tenth:])], label)
    return classes, train, test


def _extend(part: _Labelled, paths: list[Path], label: int) -> None:
    part.paths.extend(paths)
    part.labels.extend([label] * len(paths))


def _folders(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _images(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".") and entry.is_file()
    )


@dataclass(frozen=True)
class _Decoder:
    """The mode and size that every image of the set is converted to."""

    mode: str
    width: int
    height: int

    @classmethod
    def for_all(cls, paths: list[Path], image_size: int) -> "_Decoder":
        """Read every file's header: grey only if all are; without an image size, all must have the same size."""
        grey = True
        sizes: dict[tuple[int, int], Path] = {}
        for path in paths:
            with _open(path) as image:
                grey = grey and (image.mode in _GREY or image.mode.startswith("I"))
                sizes.setdefault(image.size, path)
        if image_size == 0 and len(sizes) > 1:
            (first, _), (other, path) = list(sizes.items())[:2]
            raise DataError(
                f"{path}: {other[0]} x {other[1]} pixels, "
                f"but the images before it have {first[0]} x {first[1]}; "
                "set data.image_size to bring all to one size"
            )
        width, height = (image_size, image_size) if image_size else next(iter(sizes))
        return cls("L" if grey else "RGB", width, height)

    def read(self, path: Path) -> np.ndarray:
        """Read one image as [height, width, channels]."""
        with _open(path) as opened:
            image = _to_eight_bits(opened, path).convert(self.mode)
            if image.size != (self.width, self.height):
                image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(self.height, self.width, -1)


def _read_part(part: _Labelled, decode: _Decoder, source: str) -> Images:
    content = map_unnamed(lambda: (decode.read(path).tobytes() for path in part.paths))
    pixels = content.reshape(len(part.paths), decode.height, decode.width, -1)
    return check_images(pixels, np.array(part.labels), pixels_at=source, labels_at=source)


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open an image; turn every error that Pillow raises on a damaged file into one line that names it."""
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, EOFError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: not a readable image ({type(error).__name__}); replace the file or remove it"
        ) from None


def _to_eight_bits(image: Image.Image, path: Path) -> Image.Image:
    """Convert an image to a mode that Pillow turns into grey or colour without loss."""
    if image.mode.startswith("I"):
        # Pillow's own conversion makes everything above 255 white; the upper byte keeps the picture
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65_535:
            raise DataError(f"{path}: values outside 16 bits; save it with 8 or 16 bits per pixel")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise DataError(
            f"{path}: floating-point pixels have no agreed range; save it with 8 bits per channel"
        )
    if "transparency" in image.info:
        return image.convert("RGBA")
    return image
