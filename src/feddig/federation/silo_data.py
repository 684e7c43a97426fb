"""The data that lies in a party's own folder: a silo's training images, or the moderator's test images.

`silo.toml` says which silo a folder is and where its images lie:

    format_version = 1
    silo = 0
    name = "north"

    [data]
    path = "images"       # a folder of images per class, an .npz file, or a folder of IDX files; relative to the file
    validation = 0.1      # the share of the training images used for validation; left out: the data's own test images
    ledger = "my.jsonl"   # the ledger of this data, for all federations; left out: in the user's own folder
    budget_epsilon = 8.0  # the most that a record may be charged in all; left out: what the contract says
    budget_delta = 1e-5
    rehearsal = true      # these images are not real: noise may come from a seed; left out: false
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from feddig.data.dataset import Dataset, Images, check_images, hold_out
from feddig.data.load import load_dataset
from feddig.errors import DataError, FedDigError, SettingError, nearest
from feddig.experiment.fields import read_fields
from feddig.experiment.toml import spell_table
from feddig.federation.certificates import read_fingerprint, read_key_fingerprint
from feddig.federation.contract import Contract, check_name, read_contract
from feddig.federation.folders import SiloFolder
from feddig.files import FORMAT_VERSION, check_version, read_toml, write_atomically
from feddig.privacy.accounting import Budget
from feddig.settings import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """[data] in silo.toml."""

    path: Path = setting(REQUIRED, "place of the images")
    """Absolute, once it is read."""
    validation: float | None = setting(
        None,
        "share of the training images used for validation; left out: the data's own test images",
        least=0,
        below=1,
    )
    ledger: Path | None = setting(
        None, "ledger of this data, for all federations; left out: in the user's own folder"
    )
    budget_epsilon: float | None = setting(
        None, "the most epsilon that a record may be charged, whatever contracts say", above=0
    )
    budget_delta: float | None = setting(None, "the most delta that it may be charged", least=0, below=1)
    rehearsal: bool = setting(
        False, "whether the images are those of a rehearsal, with which nothing needs to be protected"
    )

    @property
    def budget(self) -> Budget:
        """The most that a record of this data may be charged."""
        return Budget(self.budget_epsilon, self.budget_delta)


@dataclass(frozen=True, kw_only=True)
class SiloFile:
    """The content of silo.toml."""

    silo: int = setting(REQUIRED, "number of the silo, from 0 on", least=0)
    name: str = setting(REQUIRED, "name of the silo", check=check_name)
    data: OwnData


def read_silo_file(path: Path) -> SiloFile:
    """Read silo.toml; an error is one line that names the field."""
    missing = "no such file; is this a silo's folder made by `feddig federation init`?"
    table = read_toml(path, missing)
    check_version(path, table.pop("format_version", None))
    data = table.pop("data", {})
    try:
        if not isinstance(data, dict):
            raise SettingError("data: must be a table")
        own = OwnData(**read_fields(OwnData, data, "data."))
        here = Path(path).parent
        own = replace(own, path=_absolute(here, own.path), ledger=own.ledger and _absolute(here, own.ledger))
        return SiloFile(**read_fields(SiloFile, table), data=own)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None


def write_silo_file(
    path: Path, *, silo: int, name: str, data: str, validation: float | None, rehearsal: bool = False
) -> None:
    """Write silo.toml with a path of data as it stands."""
    lines = [
        *spell_table({"format_version": FORMAT_VERSION, "silo": silo, "name": name}),
        "",
        "[data]",
        "# a folder with a folder of images per class, an .npz file, or a folder of IDX files; relative to this file",
        *spell_table({"path": data}),
        "# the share of the training images used for validation; left out: the data's own test images",
        *spell_table({"validation": validation}),
        *(
            ["# these images are not real; with your own, remove this line", "rehearsal = true"]
            if rehearsal
            else []
        ),
    ]
    write_atomically(path, "\n".join(lines) + "\n")


def load_silo_data(file: SiloFile, contract: Contract) -> tuple[Images, Images]:
    """Load a silo's training and validation images, with labels numbered as the contract's classes.

    Which image is used for validation follows from file names, or from places in an array: never from labels.
    """
    dataset = _load(file, contract)
    train, validation = (
        _labelled(part, dataset, contract, file.data.path) for part in (dataset.train, dataset.test)
    )
    if file.data.validation is None or dataset.name == "folder":
        return train, validation
    keys = range(len(train)) if train.groups is None else train.groups.tolist()
    apart = hold_out(keys, file.data.validation, contract.experiment.seed, "validation", file.silo)
    if apart.all():
        raise DataError(
            f"{file.data.path}: of {len(train)} training images none is left to train on; add some"
        )
    return train.choose(np.flatnonzero(~apart)), train.choose(np.flatnonzero(apart))


def load_test_set(path: Path, contract: Contract) -> Images | None:
    """Load the moderator's test images; None if it has none."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            pixels, labels = archive["x_test"], archive["y_test"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: must hold x_test and y_test ({error}); save or copy it again") from None
    images = check_images(
        pixels,
        labels,
        pixels_at=f"{path}: x_test",
        labels_at=f"{path}: y_test",
        grey=contract.image_shape[0] == 1,
    )
    _check(images, contract, path)
    return images


def _load(file: SiloFile, contract: Contract) -> Dataset:
    """Load the data at the path, in any of the three formats."""
    path, (channels, height, width) = file.data.path, contract.image_shape
    kind = "npz" if path.suffix == ".npz" else "idx" if any(path.glob("*-images*idx3*")) else "folder"
    try:
        return load_dataset(
            kind,
            path,
            seed=contract.experiment.seed,
            image_size=height if height == width else 0,
            channels=channels,
            held_out=file.data.validation,
        )
    except FedDigError as error:
        raise DataError(f"silo.toml: {error}") from None


def _labelled(images: Images, dataset: Dataset, contract: Contract, place: Path) -> Images:
    """Number the labels as the contract does: a folder may hold fewer classes."""
    if dataset.name == "folder":
        for name in dataset.class_names:
            if name not in contract.classes:
                raise DataError(
                    f"{place}: the class {name!r} is not in the contract; {nearest(name, contract.classes)}"
                )
        numbers = np.array([contract.classes.index(name) for name in dataset.class_names])
        images = replace(images, labels=numbers[images.labels])
    _check(images, contract, place)
    return images


def _check(images: Images, contract: Contract, place: Path) -> None:
    shape = tuple(images.pixels.shape[1:])
    if shape != contract.image_shape:
        raise DataError(
            f"{place}: images are {list(shape)} (channels, height, width), "
            f"but the contract says {list(contract.image_shape)}; convert them"
        )
    if images.labels.max(initial=0) >= len(contract.classes):
        raise DataError(
            f"{place}: there is a label {images.labels.max()}, but the contract has only the classes "
            f"0 to {len(contract.classes) - 1}; number them as federation.classes does"
        )


def _absolute(folder: Path, path: Path) -> Path:
    return (folder / path).absolute()


def check_folder(folder: SiloFolder) -> Contract:
    """Check that a silo's folder is complete and that its files belong together."""
    contract, file = read_contract(folder.contract), read_silo_file(folder.silo_file)
    if file.silo >= len(contract.members) or contract.members[file.silo].name != file.name:
        raise FedDigError(
            f"{folder.silo_file}: silo {file.silo} is not {file.name!r} in {folder.contract.name}; "
            "copy both files again from the same federation"
        )
    for path in (folder.public_key, folder.ca):
        if not path.is_file():
            raise FedDigError(f"{path}: is missing; copy it again from the folder that `init` wrote")
    if not folder.key.is_file():
        raise FedDigError(
            f"{folder.key}: is missing; put the key there that `feddig federation key` made, or that you were given"
        )
    if read_fingerprint(folder.public_key) != contract.members[file.silo].fingerprint:
        raise FedDigError(
            f"{folder.public_key}: is not the key that {folder.contract.name} names for {file.name}; "
            "send it to the moderator, or copy the folder again"
        )
    if read_key_fingerprint(folder.key) != contract.members[file.silo].fingerprint:
        raise FedDigError(
            f"{folder.key}: does not belong to {folder.public_key.name}; put the key there that was made with it"
        )
    return contract
