"""Image files in one folder per class.

An image is known by its file's name, without its class, or by a folder below its class, which names a group: the
images of one patient, say. Which images are held out follows from these names and a seed alone: an image that is
replaced, or moved to another class, changes the part of no other image, nor any part's size. A group is never split.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from feddig.data.dataset import SMALLEST_SIDE, Dataset, Images, assemble, check_images, hold_out
from feddig.data.mmap import map_unnamed
from feddig.errors import DataError, SettingError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_GREY = ("1", "L", "LA", "La")
TENTH = 0.1


_File = tuple[Path, str | None]
"""An image file and the name of its group, if it has one."""
_Found = tuple[str, str, int, _File]
"""The name that an image is known by, its file's name, its label, its file."""


@dataclass(frozen=True)
class _Labelled:
    """Image files of one part of the set, each with the number of its class and the name of its group."""

    paths: list[Path]
    labels: list[int]
    groups: list[str | None]


def load_folder(
    folder: Path,
    *,
    seed: int = 0,
    image_size: int = 32,
    channels: int | None = None,
    held_out: float | None = None,
) -> Dataset:
    """Load train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE alone, from a folder.

    `held_out` is the share of the training images that becomes the test set; left out, it is the folder's own test
    part, or a tenth if it has none. Images are resized to squares of the image size; 0 keeps their size. `channels` is
    1 for grey or 3 for colour; left out, it is as the files have it, which must then agree.
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
    if channels not in (None, 1, 3):
        raise SettingError(f"data.channels: {channels}; use 1 for grey or 3 for colour")
    # a class may be called "train", so only a folder that holds folders counts as the training part
    has_parts = (folder / "train").is_dir() and bool(_folders(folder / "train"))
    if has_parts and held_out is None:
        classes, train, test = _find_parts(folder)
    else:
        share = TENTH if held_out is None else held_out
        classes, train, test = _hold_out(folder / "train" if has_parts else folder, share, seed)
    decode = _Decoder.for_all([*train.paths, *test.paths], image_size, channels)
    groups = _number_groups(train, test)
    return assemble(
        "folder",
        _read_part(train, decode, str(folder), groups[: len(train.paths)]),
        _read_part(test, decode, str(folder), groups[len(train.paths) :]),
        source=str(folder),
        class_names=tuple(classes),
    )


def list_images(folder: Path) -> list[Path]:
    """List the images in a folder and in the folders in it, apart from hidden ones, by their names."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in ENDINGS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def list_labelled(folder: Path) -> tuple[list[Path], list[int], list[str]]:
    """List the images in folders of classes: paths, numbers of classes, names of classes.

    Of a folder with the parts train and test, it is the test part.
    """
    has_parts = (folder / "train").is_dir() and bool(_folders(folder / "train"))
    folder = folder / "test" if has_parts and (folder / "test").is_dir() else folder
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: holds no folders; put the images into one folder per class")
    found = _labelled(_found(folder, classes, all_classes=False))
    if not found.paths:
        raise DataError(f"{folder}: holds no images; put them into one folder per class")
    return found.paths, found.labels, classes


def read_images(paths: list[Path], labels: list[int], image_shape: tuple[int, int, int]) -> Images:
    """Read image files as training does, in this shape: channels, height, width."""
    channels, height, width = image_shape
    decode = _Decoder("L" if channels == 1 else "RGB", width, height)
    return _read_part(_Labelled(paths, labels, []), decode, str(paths[0].parent), np.zeros(0, np.int64))


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
    train = _labelled(_found(folder / "train", classes))
    test = _labelled(_found(folder / "test", classes, all_classes=False))
    if not test.paths:
        raise DataError(f"{folder / 'test'}: holds no images; put them into one folder per class")
    return classes, train, test


def _hold_out(folder: Path, share: float, seed: int) -> tuple[list[str], _Labelled, _Labelled]:
    """List the files of a folder of classes in two parts, of which the second has this share of them."""
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: holds no folders; put the images into one folder per class")
    found = _found(folder, classes)
    apart = hold_out([name for name, *_ in found], share, seed, "held-out images")
    train = _labelled([each for each, is_apart in zip(found, apart, strict=True) if not is_apart])
    test = _labelled([each for each, is_apart in zip(found, apart, strict=True) if is_apart])
    if not train.paths:
        raise DataError(
            f"{folder}: its {len(found)} images have too few names to hold {share:.0%} of them out; add images, or "
            "give each a name of its own"
        )
    return classes, train, test


def _found(folder: Path, classes: list[str], *, all_classes: bool = True) -> list[_Found]:
    """List the files of all classes in an order that follows from names: a place must not tell a label."""
    found = []
    for label, name in enumerate(classes):
        files = _images(folder / name) if all_classes or (folder / name).is_dir() else []
        if not files and all_classes:
            raise DataError(f"{folder / name}: holds no images; add some or remove the folder")
        found += [(group or path.name, path.name, label, (path, group)) for path, group in files]
    return sorted(found, key=lambda each: each[:3])


def _labelled(found: list[_Found]) -> _Labelled:
    return _Labelled(
        [path for *_, (path, _) in found],
        [label for _, _, label, _ in found],
        [group for *_, (_, group) in found],
    )


def _folders(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _images(folder: Path) -> list[_File]:
    """List the images of a class: directly in its folder, and in the folders of groups."""
    return sorted(
        (entry, group)
        for group in (None, *_folders(folder))
        for entry in (folder / (group or "")).iterdir()
        if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".") and entry.is_file()
    )


@dataclass(frozen=True)
class _Decoder:
    """The mode and size that every image of the set is converted to."""

    mode: str
    width: int
    height: int

    @classmethod
    def for_all(cls, paths: list[Path], image_size: int, channels: int | None) -> "_Decoder":
        """Read every file's header. What is not given must be the same in all of them."""
        grey: dict[bool, Path] = {}
        sizes: dict[tuple[int, int], Path] = {}
        for path in paths:
            with _open(path) as image:
                grey.setdefault(image.mode in _GREY or image.mode.startswith("I"), path)
                sizes.setdefault(image.size, path)
        if channels is None and len(grey) > 1:
            raise DataError(
                f"{grey[False]}: is in colour, and {grey[True]} is grey; set data.channels to 1 to read all images as "
                "grey, or to 3 to read all in colour"
            )
        if image_size == 0 and len(sizes) > 1:
            (first, _), (other, path) = list(sizes.items())[:2]
            raise DataError(
                f"{path}: {other[0]} x {other[1]} pixels, "
                f"but the images before it have {first[0]} x {first[1]}; "
                "set data.image_size to bring all to one size"
            )
        width, height = (image_size, image_size) if image_size else next(iter(sizes))
        return cls("L" if channels == 1 or (channels is None and True in grey) else "RGB", width, height)

    def read(self, path: Path) -> np.ndarray:
        """Read one image as [height, width, channels]."""
        with _open(path) as opened:
            image = _to_eight_bits(opened, path).convert(self.mode)
            if image.size != (self.width, self.height):
                image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(self.height, self.width, -1)


def _number_groups(train: _Labelled, test: _Labelled) -> np.ndarray:
    """Number the groups of all images; an image without one is a group of its own. Empty if there are no groups."""
    if not any([*train.groups, *test.groups]):
        return np.zeros(0, np.int64)
    files = zip([*train.paths, *test.paths], [*train.groups, *test.groups], strict=True)
    return np.unique([group or f"/{path}" for path, group in files], return_inverse=True)[1]


def _read_part(part: _Labelled, decode: _Decoder, source: str, groups: np.ndarray) -> Images:
    content = map_unnamed(lambda: (decode.read(path).tobytes() for path in part.paths))
    pixels = content.reshape(len(part.paths), decode.height, decode.width, len(decode.mode))
    if not part.paths:
        return Images(pixels.transpose(0, 3, 1, 2), np.zeros(0, np.int64))
    images = check_images(pixels, np.array(part.labels), pixels_at=source, labels_at=source)
    return replace(images, groups=groups if len(groups) else None)


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
