"""Natural silos: folders, a CSV file or the caller say which silo holds an image, and nothing is drawn.

An image is known by its key: the name of its group, such as a patient, else its own name. Its split follows from key
and seed alone, never from labels or from other images, so a group is in the same split in every silo.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from feddig.data.dataset import Dataset, Natural, group_numbers
from feddig.data.partition import SPLITS, TITLE, Partition, Share
from feddig.errors import DataError, FileFormatError, SettingError, nearest
from feddig.seeds import derive

Split = tuple[float, float, float]
_KEYS = ("file", "row")
_COLUMNS = (*_KEYS, "silo", "group", "split")


@dataclass(frozen=True)
class Holder:
    """What one line of a partition file says of an image; an empty group or split is left out."""

    silo: str
    group: str
    split: str
    line: int


@dataclass(frozen=True, eq=False)
class SiloTable:
    """A partition file that a person wrote: which silo holds which image."""

    path: Path
    key: str
    """Whether images are named by their file or by their row among the training images."""
    holders: dict[str, Holder]
    has_groups: bool

    def name_rows(self, dataset: Dataset) -> Dataset:
        """Return a data set whose training images have the silos, groups and splits of this table."""
        if self.key != "row":
            raise DataError(
                f"{self.path}: the column file names image files, but {dataset.name} data has none; give the column row"
            )
        rows = [str(row) for row in range(len(dataset.train))]
        for row in rows:
            if row not in self.holders:
                raise DataError(f"{self.path}: row {row} is not listed; give a line for each training image")
        for row, holder in self.holders.items():
            if int(row) >= len(rows):
                raise DataError(
                    f"{self.path}, line {holder.line}: row {row}, but there are {len(rows)} training images, "
                    "counted from 0"
                )
        if self.has_groups and dataset.train.groups is not None:
            raise DataError(f"{self.path}: the data names groups too; leave the column group out")
        held = [self.holders[row] for row in rows]
        keys = [holder.group or row for holder, row in zip(held, rows, strict=True)]
        natural = Natural(
            np.array([holder.silo for holder in held]),
            np.array(keys),
            np.array([holder.split for holder in held]),
            str(self.path),
        )
        groups = group_numbers(keys) if self.has_groups else dataset.train.groups
        return replace(dataset, train=replace(dataset.train, groups=groups), natural=natural)


Silos = Literal["folders"] | SiloTable | None
"""Where a folder's silos are named: by its folders, in a file, or not at all."""


def partition_from(
    silos: Sequence[object] | np.ndarray,
    *,
    groups: Sequence[object] | np.ndarray | None = None,
    splits: Sequence[str] | np.ndarray | None = None,
    split: Split = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Partition:
    """Make a partition from the silo of each training image: its name or number.

    `groups` names what belongs together, such as a patient: a group is in one split only, in all silos. `splits` says
    "train", "validation" or "test" for each image; left out, the split follows from the group (else from the image's
    place) and the seed, by these shares.
    """
    count = len(silos)
    for what, values in (("groups", groups), ("splits", splits)):
        if values is not None and len(values) != count:
            raise DataError(
                f"partition: {len(values)} {what} for {count} silos; give one for each training image"
            )
    keys = [str(key) for key in (range(count) if groups is None else groups)]
    given = [""] * count if splits is None else [str(each) for each in splits]
    for name in given:
        if name and name not in SPLITS:
            raise DataError(f"partition: unknown split {name!r}; {nearest(name, SPLITS)}")
    natural = Natural(np.array([str(silo) for silo in silos]), np.array(keys), np.array(given), "partition")
    found = divide(natural, split, seed)
    if groups is not None:
        check_groups(found, group_numbers(keys), "partition")
    return found


def divide(natural: Natural, split: Split, seed: int) -> Partition:
    """Give each silo its images, and each image the split that is named or that follows from its key."""
    names = tuple(sorted(set(natural.silos.tolist()), key=_by_number))
    drawn = _draw_splits(natural.keys, split, seed)
    splits = np.where(natural.splits == "", drawn, natural.splits)
    shares = tuple(_share(np.flatnonzero(natural.silos == name), splits) for name in names)
    for name, share in zip(names, shares, strict=True):
        if not len(share.train):
            raise DataError(
                f"{natural.source}: silo {name} has no training images among its {len(share)}; add some, or set "
                "data.split to [1, 0, 0]"
            )
    is_numbered = names == tuple(map(str, range(len(names))))
    return Partition(shares, redraws=0, names=() if is_numbered else names)


def keep_groups_whole(drawn: Partition, groups: np.ndarray, split: Split, seed: int) -> Partition:
    """Split each silo's images again by their groups, so that no group is in two splits, in whatever silos it is."""
    splits = _draw_splits(groups.astype(str), split, seed)
    shares = [
        _share(np.sort(np.concatenate([share.train, share.validation, share.test])), splits)
        for share in drawn.shares
    ]
    for silo, share in enumerate(shares):
        if not len(share.train):
            raise DataError(
                f"partition: all groups of silo {silo} are held out, and none is left to train on; use fewer "
                "data.silos or a larger training share in data.split"
            )
    return replace(drawn, shares=tuple(shares))


def check_groups(partition: Partition, groups: np.ndarray, source: str) -> None:
    """Refuse a partition that has one group in two splits."""
    splits = np.zeros(len(groups), np.int64)
    for share in partition.shares:
        for number, name in enumerate(SPLITS):
            splits[getattr(share, name)] = number
    order = np.lexsort((splits, groups))
    same = groups[order][1:] == groups[order][:-1]
    torn = np.flatnonzero(same & (splits[order][1:] != splits[order][:-1]))
    if torn.size:
        first, second = order[torn[0]], order[torn[0] + 1]
        raise DataError(
            f"{source}: training images {first} and {second} are of one group, but one is for {SPLITS[splits[first]]} "
            f"and the other for {SPLITS[splits[second]]}; give a group one split"
        )


def check_whole(partition: Partition, count: int) -> None:
    """Refuse a partition that does not hold each of this many training images exactly once."""
    rows = np.concatenate([getattr(share, name) for share in partition.shares for name in SPLITS])
    if len(rows) != count or not np.array_equal(np.sort(rows), np.arange(count)):
        raise DataError(
            f"partition: holds {len(rows)} places of images, but there are {count} training images; each must be in "
            "exactly one split of one silo"
        )
    if any(not len(share.train) for share in partition.shares):
        raise DataError("partition: a silo has no training images; give each at least one")
    if partition.names and len(set(partition.names)) != len(partition.shares):
        raise DataError(
            f"partition: {len(set(partition.names))} names for {len(partition.shares)} silos; give each its own"
        )


def read_silo_table(path: Path) -> SiloTable | Partition:
    """Read a partition file: a table with the columns file or row, silo, and perhaps group and split.

    A run's own partition.csv is read too.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        heading = text.lstrip().partition("\n")[0]
        # spreadsheets of many countries write semicolons
        comma = ";" if ";" in heading and "," not in heading else ","
        rows = list(csv.reader(text.splitlines(), delimiter=comma))
    except FileNotFoundError:
        raise SettingError(f"data.partition_file: {path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(
            f"{path}: not a readable CSV file ({error}); save it again as CSV, in UTF-8"
        ) from None
    if text.startswith(TITLE):
        return Partition.from_csv(path)
    lines = [(number, row) for number, row in enumerate(rows, start=1) if any(cell.strip() for cell in row)]
    if len(lines) < 2:
        raise FileFormatError(f"{path}: holds no images; give a heading and a line for each image")
    columns = [cell.strip() for cell in lines[0][1]]
    _check_columns(path, columns)
    key = next(name for name in columns if name in _KEYS)
    holders: dict[str, Holder] = {}
    for number, row in lines[1:]:
        place = f"{path}, line {number}"
        if len(row) != len(columns):
            raise FileFormatError(f"{place}: {len(row)} cells, but the heading has {len(columns)}")
        cells = dict(zip(columns, (cell.strip() for cell in row), strict=True))
        name = _key(place, key, cells[key])
        if name in holders:
            raise FileFormatError(
                f"{place}: {key} {name} is in line {holders[name].line} already; remove one"
            )
        if not cells["silo"]:
            raise FileFormatError(f"{place}: names no silo; name one, or remove the image")
        split = cells.get("split", "")
        if split and split not in SPLITS:
            raise FileFormatError(f"{place}: unknown split {split!r}; {nearest(split, SPLITS)}")
        holders[name] = Holder(cells["silo"], cells.get("group", ""), split, number)
    _check_group_splits(path, holders)
    has_groups = any(holder.group for holder in holders.values())
    return SiloTable(path, key, holders, has_groups)


def _check_columns(path: Path, columns: list[str]) -> None:
    for name in columns:
        if name not in _COLUMNS or columns.count(name) > 1:
            raise FileFormatError(
                f"{path}: the heading has {name!r}"
                + (" twice" if name in _COLUMNS else f", which is not known; {nearest(name, _COLUMNS)}")
                + "; separate columns by commas and remove all others"
            )
    if "silo" not in columns or sum(name in columns for name in _KEYS) != 1:
        raise FileFormatError(
            f"{path}: the heading is {','.join(columns)}; give silo and either file or row, and if you like group and "
            "split"
        )


def _key(place: str, key: str, cell: str) -> str:
    if key == "row":
        if not (cell.isascii() and cell.isdigit() and len(cell) < 19):
            raise FileFormatError(f"{place}: {cell!r} is not the number of a row, from 0 on")
        return str(int(cell))
    if not cell:
        raise FileFormatError(f"{place}: names no file; give its path below data.path")
    return cell.replace("\\", "/").removeprefix("./")


def _check_group_splits(path: Path, holders: dict[str, Holder]) -> None:
    known: dict[str, Holder] = {}
    for holder in holders.values():
        first = known.setdefault(holder.group, holder) if holder.group else holder
        if first.split != holder.split:
            raise FileFormatError(
                f"{path}, line {holder.line}: group {holder.group} has split {holder.split or 'none'} here and "
                f"{first.split or 'none'} in line {first.line}; a group is never split"
            )


def _draw_splits(keys: np.ndarray, split: Split, seed: int) -> np.ndarray:
    """Return the split of each key, by a hash of it and the seed."""
    names, place = np.unique(keys, return_inverse=True)
    chances = np.array([derive(seed, "split", str(name)) / 2**63 for name in names])
    # test first, so that another validation share moves no image into or out of the test images
    found = np.where(
        chances < split[2], "test", np.where(chances < split[2] + split[1], "validation", "train")
    )
    drawn: np.ndarray = found[place]
    return drawn


def _share(rows: np.ndarray, splits: np.ndarray) -> Share:
    return Share(*(rows[splits[rows] == name] for name in SPLITS))


def _by_number(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts silo 10 after silo 9, and names after numbers."""
    is_number = name.isascii() and name.isdigit() and len(name) < 19
    return not is_number, int(name) if is_number else 0, name
