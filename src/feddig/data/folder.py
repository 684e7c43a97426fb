"""Image files in one folder per class, perhaps within one folder per silo.

An image is known by its file's name, without its class, or by a folder below its class, which names a group: the
images of one patient, say. Which images are held out follows from these names and a seed alone: an image that is
replaced, or moved to another class, changes the part of no other image, nor any part's size. A group is never split.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from feddig.data.dataset import (
    SMALLEST_SIDE,
    Dataset,
    Images,
    Natural,
    assemble,
    check_apart,
    check_images,
    group_numbers,
    hold_out,
)
from feddig.data.decode import ENDINGS, Decoder, Headers, read_headers
from feddig.data.mmap import map_unnamed
from feddig.data.natural import Silos, SiloTable
from feddig.errors import DataError, SettingError, nearest

TENTH = 0.1

log = logging.getLogger("feddig")


@dataclass(frozen=True)
class _File:
    """An image file, with the number of its class, and what its folders or a partition file say of it."""

    path: Path
    label: int
    group: str | None = None
    silo: str = ""
    split: str = ""

    @property
    def known_as(self) -> str:
        """The name that decides the image's part: its group's, else its own."""
        return self.group or (f"{self.silo}/{self.path.name}" if self.silo else self.path.name)


def load_folder(
    folder: Path,
    *,
    seed: int = 0,
    image_size: int = 32,
    channels: int | None = None,
    held_out: float | None = None,
    silos: Silos = None,
) -> Dataset:
    """Load train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE alone, from a folder.

    `held_out` is the share of the training images that becomes the test set; left out, it is the folder's own test
    part, or a tenth if it has none. Images are resized to squares of the image size; 0 keeps their size. `channels` is
    1 for grey or 3 for colour; left out, it is as the files have it, which must then agree.
    With `silos` "folders", training images lie in SILO/CLASS instead; a table names the silo of each file.
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
    has_parts = _has_parts(folder)
    root = folder / "train" if has_parts else folder
    if silos == "folders" and has_parts:
        _check_beside(folder)
    classes, found = _list_silos(root) if silos == "folders" else _list_classes(root)
    if isinstance(silos, SiloTable):
        found = _with_holders(found, silos, folder)
    found = _in_order(found)
    _say_skipped(root)
    if has_parts and held_out is None:
        train, test = found, _list_test(folder, classes, {file.silo for file in found})
    else:
        train, test = _hold_out(folder, found, TENTH if held_out is None else held_out, seed)
    decode = Decoder.for_all([file.path for file in (*train, *test)], image_size, channels)
    dataset = assemble(
        "folder",
        _read_part("train", train, decode, folder),
        _read_part("test", test, decode, folder),
        source=str(folder),
        class_names=tuple(classes),
    )
    if decode.is_dark:
        _say_once(
            f"{folder}: its images of 16 bits have no value above {decode.deepest}, and 65,535 is white, so they are "
            "nearly black; multiply them by a fixed factor before"
        )
    check_apart(dataset.train, dataset.test, str(folder))
    return dataset if silos is None else replace(dataset, natural=_natural(train, silos, folder))


def survey_folder(folder: Path) -> tuple[bool, Headers]:
    """Return whether a folder's images seem to lie in SILO/CLASS, and what their headers say."""
    parts = [folder / "train", folder / "test"] if _has_parts(folder) else [folder]
    below = [
        {None if path.parent == place else path.relative_to(place).parts[0] for path in list_images(place)}
        for place in (parts[0] / name for name in _folders(parts[0]))
    ]
    places = [part / name for part in parts if part.is_dir() for name in _folders(part)]
    return _may_be_silos(below), read_headers([path for place in places for path in list_images(place)])


def list_images(folder: Path) -> list[Path]:
    """List the images in a folder and in the folders in it, apart from hidden ones, by their names."""
    return sorted(path for path in _visible_files(folder) if path.suffix.lower() in ENDINGS)


def list_labelled(folder: Path, known: Sequence[str]) -> tuple[list[Path], list[int], list[str]]:
    """List the images in folders of classes: paths, numbers of classes, names of classes.

    Of a folder with the parts train and test, it is the test part. Where only the folders one level down have names of
    `known` classes, the outer ones are silos.
    """
    folder = folder / "test" if _has_parts(folder) and (folder / "test").is_dir() else folder
    classes, places = _class_folders(folder), [folder]
    inner = sorted({name for silo in classes for name in _folders(folder / silo)})
    if not set(classes) & set(known) and set(inner) & set(known):
        classes, places = inner, [folder / silo for silo in classes]
    found = _in_order([file for place in places for file in _list_files(place, classes)])
    if not found:
        raise DataError(f"{folder}: holds no images; put them into one folder per class")
    return [file.path for file in found], [file.label for file in found], classes


def read_images(paths: list[Path], labels: list[int], image_shape: tuple[int, int, int]) -> Images:
    """Read image files as training does, in this shape: channels, height, width."""
    channels, height, width = image_shape
    decode = Decoder("L" if channels == 1 else "RGB", width, height)
    files = [_File(path, label) for path, label in zip(paths, labels, strict=True)]
    return _read_part("test", files, decode, paths[0].parent)


def _list_classes(root: Path) -> tuple[list[str], list[_File]]:
    """List the images of root/CLASS; each class must have some."""
    classes = _class_folders(root)
    found = _list_files(root, classes)
    present = {file.label for file in found}
    for label, name in enumerate(classes):
        if label not in present:
            raise DataError(
                f"{root / name}: holds no images{_describe_skipped([root / name])}; add some or remove the folder"
            )
    below = [{file.group for file in found if file.label == label} for label in present]
    if _may_be_silos(below):
        names = ", ".join(sorted(map(str, below[0]))[:3])
        _say_once(
            f"{root}: the classes are {', '.join(classes[:3])}, and the folders below them ({names}) are groups, such "
            'as patients. If those are the classes and these are silos, set data.partition to "folders"'
        )
    return classes, found


def _may_be_silos(below: Sequence[set[str | None]]) -> bool:
    """Return whether folders seem to be silos rather than classes, by the folders below each that hold images.

    Silos share classes, and most patients are of one class; None stands for images without a folder of their own.
    """
    names = Counter(name for inside in below for name in inside)
    shared = sum(count > 1 for count in names.values())
    return len(below) > 1 and len(names) > 1 and None not in names and 2 * shared >= len(names)


def _list_silos(root: Path) -> tuple[list[str], list[_File]]:
    """List the images of root/SILO/CLASS; a silo may lack classes."""
    silos = _folders(root)
    for silo in silos:
        if not _folders(root / silo):
            raise DataError(
                f'{root / silo}: holds no folders of classes; with data.partition = "folders" images lie in '
                "<silo>/<class>/*"
            )
    classes = sorted({name for silo in silos for name in _folders(root / silo)})
    if not classes:
        raise DataError(f"{root}: holds no folders; put the images into <silo>/<class>/*")
    found = [file for silo in silos for file in _list_files(root / silo, classes, silo)]
    present = {file.label for file in found}
    for label, name in enumerate(classes):
        if label not in present:
            raise DataError(
                f"{root}: no silo has images of the class {name!r}; add some or remove its folders"
            )
    return classes, found


def _check_beside(folder: Path) -> None:
    """Refuse a silo that lies beside the folder train, which may itself be meant as a silo."""
    for name in _folders(folder):
        if name not in ("train", "test"):
            raise DataError(
                f"{folder / name}: lies beside the folder train; put silos into train/<silo>/<class>, or rename "
                "the silo train"
            )


def _list_test(folder: Path, classes: list[str], silos: set[str]) -> list[_File]:
    """List the images of the folder's own test part: test/CLASS, or test/SILO/CLASS where training has that."""
    test = folder / "test"
    if not test.is_dir():
        raise DataError(
            f"{folder}: has a folder train but no folder test; "
            "add one, or set data.path to the folder train and a tenth of it becomes the test set"
        )
    inside = _folders(test)
    is_by_silo = bool(inside) and set(inside) <= silos and not set(inside) <= set(classes)
    found = []
    for place in [test / name for name in inside] if is_by_silo else [test]:
        for name in _folders(place):
            if name not in classes:
                raise DataError(
                    f"{place / name}: a class without training images; "
                    f"add {folder / 'train' / name} or remove this folder"
                )
        found += _list_files(place, classes)
    if not found:
        raise DataError(f"{test}: holds no images; put them into one folder per class")
    return _in_order(found)


def _hold_out(folder: Path, found: list[_File], share: float, seed: int) -> tuple[list[_File], list[_File]]:
    """Split the files in two parts, of which the second has this share of them, or those that are named for testing."""
    if any(file.split for file in found):
        apart = [file.split == "test" for file in found]
        if not any(apart):
            raise DataError(
                f"{folder}: has no folder test, and the partition file names no image for it; give some images the "
                "split test"
            )
    else:
        apart = hold_out([file.known_as for file in found], share, seed, "held-out images").tolist()
    train = [file for file, is_apart in zip(found, apart, strict=True) if not is_apart]
    test = [file for file, is_apart in zip(found, apart, strict=True) if is_apart]
    if not train:
        raise DataError(
            f"{folder}: its {len(found)} images have too few names to hold {share:.0%} of them out; add images, or "
            "give each a name of its own"
        )
    return train, test


def _with_holders(found: list[_File], table: SiloTable, folder: Path) -> list[_File]:
    """Return the files with what a partition file says of each; it must name all of them, and no others."""
    if table.key != "file":
        raise DataError(f"{table.path}: the column row is for arrays; folder data needs the column file")
    names = {file.path.relative_to(folder).as_posix(): file for file in found}
    for name, holder in table.holders.items():
        if name not in names:
            raise DataError(
                f"{table.path}, line {holder.line}: {name} is none of the {len(found)} training images below {folder}; "
                f"{nearest(name, names) if len(names) < 10_000 else 'correct its path'}"
            )
    missing = [name for name in names if name not in table.holders]
    if missing:
        raise DataError(
            f"{table.path}: {len(missing)} of {len(names)} training images are not listed, the first is "
            f"{min(missing)}; add a line for each"
        )
    if table.has_groups and any(file.group for file in found):
        raise DataError(
            f"{table.path}: folders below the classes name groups too; leave the column group out"
        )
    held = []
    for name, file in names.items():
        holder = table.holders[name]
        held.append(replace(file, silo=holder.silo, group=holder.group or file.group, split=holder.split))
    return held


def _natural(train: list[_File], silos: Silos, folder: Path) -> Natural:
    return Natural(
        np.array([file.silo for file in train]),
        np.array([file.known_as for file in train]),
        np.array([file.split for file in train]),
        str(silos.path if isinstance(silos, SiloTable) else folder),
    )


def _has_parts(folder: Path) -> bool:
    """Return whether a folder has a training part; a class may be called "train", so that part must hold folders."""
    return (folder / "train").is_dir() and bool(_folders(folder / "train"))


def _class_folders(folder: Path) -> list[str]:
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{folder}: holds no folders; put the images into one folder per class")
    return classes


def _list_files(folder: Path, classes: list[str], silo: str = "") -> list[_File]:
    """List the images of these classes, however deep; a folder below a class names a group."""
    found = []
    for label, name in enumerate(classes):
        for group in (None, *_folders(folder / name)) if (folder / name).is_dir() else ():
            place = folder / name / group if group else folder / name
            files = list_images(place) if group else _direct_images(place)
            found += [_File(path, label, group, silo) for path in files]
    return found


def _direct_images(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".") and entry.is_file()
    )


def _in_order(found: list[_File]) -> list[_File]:
    """Sort files by their names: a place must not tell a label."""
    return sorted(found, key=lambda file: (file.known_as, file.path.name, file.label, file.path))


def _folders(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _visible_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _describe_skipped(folders: Iterable[Path]) -> str:
    """Say how many files in these folders are no images that can be read, by kind; empty if there are none."""
    kinds = Counter(
        path.suffix.lower() or "without an ending"
        for folder in folders
        for path in _visible_files(folder)
        if path.suffix.lower() not in ENDINGS
    )
    if not kinds:
        return ""
    each = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f" (skipped {kinds.total()} file{'' if kinds.total() == 1 else 's'}: {each})"


def _say_skipped(root: Path) -> None:
    skipped = _describe_skipped(root / name for name in _folders(root)).strip(" ()")
    beside = len(_direct_images(root))
    if skipped:
        _say_once(f"{root}: {skipped}")
    if beside:
        _say_once(f"{root}: {beside} images lie beside the folders of classes and are not used")


@cache
def _say_once(text: str) -> None:
    """Log a warning, once in a process: a comparison loads its data for each run."""
    log.warning(text)


def _read_part(part: str, files: list[_File], decode: Decoder, folder: Path) -> Images:
    content = map_unnamed(lambda: (decode.read(file.path).tobytes() for file in files))
    pixels = content.reshape(len(files), decode.height, decode.width, len(decode.mode))
    if not files:
        return Images(pixels.transpose(0, 3, 1, 2), np.zeros(0, np.int64))
    labels = np.array([file.label for file in files])
    images = check_images(pixels, labels, pixels_at=str(folder), labels_at=str(folder))
    if not any(file.group for file in files):
        return images
    # an image without a group is one by itself
    return replace(images, groups=group_numbers([file.group or f"/{part}/{file.known_as}" for file in files]))
