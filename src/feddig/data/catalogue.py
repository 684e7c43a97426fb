"""The public data sets by name: load one, or say which are there and whether they are the publisher's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from feddig.data.cifar import count_records, read_cifar
from feddig.data.dataset import Dataset, Images, assemble
from feddig.data.download import fetch, file_hash, read_record, unzipped_hash
from feddig.data.idx import count_items, read_part
from feddig.data.locate import (
    cache_folder,
    find_file,
    find_folder,
    folder_within,
    missing_files,
    refuse_traces,
)
from feddig.data.mmap import join
from feddig.data.public_sets import PUBLISHED, PublishedFile, PublishedSet
from feddig.errors import DataError, FedDigError, SettingError

Standing = Literal["official", "other", "unknown"]


@dataclass(frozen=True)
class Entry:
    """What is known about one public data set on this computer.

    `standing` is "official" when every file has the publisher's hash, "other" when a count or a hash differs,
    and "unknown" when the hashes were not looked at or are not known. `fault` says why a set that is there
    cannot be used.
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


def load_published(name: str, path: Path | None = None, *, data_dir: Path | None = None) -> Dataset:
    """Load a public set from the folder at path; without one, from where it is found, else downloaded to."""
    wanted = PUBLISHED[name]
    if path is not None:
        folder = _given_folder(wanted, path)
    else:
        folder = find_folder(wanted, data_dir) or fetch(wanted, cache_folder())
    return _load(wanted, folder)


def describe(data_dir: Path | None = None, verify: bool = False) -> list[Entry]:
    """Describe each public set as it is found on this computer; download nothing.

    To verify reads every file whole: its structure is checked and its hash compared with the publisher's.
    """
    return [_describe(wanted, data_dir, verify) for wanted in PUBLISHED.values()]


def _given_folder(wanted: PublishedSet, path: Path) -> Path:
    if not path.is_dir():
        raise SettingError(
            f"data.path: {path} is not a folder; give the one that holds the files of {wanted.name}, "
            "or leave it out to have them looked for"
        )
    folder = folder_within(wanted, path)
    if folder is None:
        refuse_traces(wanted, path)
        raise DataError(
            f"{path}: {' and '.join(missing_files(wanted, path))} missing; "
            f"add what {wanted.name} needs from {wanted.page}, or leave out data.path"
        )
    return folder


def _load(wanted: PublishedSet, folder: Path) -> Dataset:
    train, test = (_read(wanted, files, folder) for files in (wanted.train_files, wanted.test_files))
    return assemble(wanted.name, train, test, source=str(folder), class_names=wanted.classes)


def _read(wanted: PublishedSet, files: Sequence[PublishedFile], folder: Path) -> Images:
    if wanted.format == "cifar":
        paths = [folder / file.name for file in files]
        parts = [read_cifar(path, label_bytes=_label_bytes(wanted)) for path in paths]
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


def _label_bytes(wanted: PublishedSet) -> int:
    return 2 if wanted.name == "cifar100" else 1


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
                _load(wanted, folder)
            standing = _judge(wanted, folder, (train, test), verify)
    except SettingError:
        # a misspelt folder is the caller's to mend, not a fault of one set
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
        return sum(count_records(folder / file.name, label_bytes=_label_bytes(wanted)) for file in files)
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
        # unzipped by us, from a download whose hash was right, or by someone of whom nothing is known
        if recorded is None:
            return "unknown"
        return "official" if file_hash(path) == recorded else "other"
    hashed = unzipped_hash if zipped and not file.of_gzip else file_hash
    return "official" if hashed(path, algorithm) == known else "other"
