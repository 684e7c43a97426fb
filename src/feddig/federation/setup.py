"""Set a federation up: write the contract, the certificate authority and a folder for each party, or nothing at all.

A rehearsal also splits one data set among the silos' folders, exactly as an experiment in one process does, so that
both can be compared number by number.
"""

import ipaddress
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cryptography import x509

from feddig._version import __version__
from feddig.data.dataset import Images
from feddig.data.load import OWN
from feddig.data.mmap import choose
from feddig.errors import FedDigError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout, lay_out
from feddig.federation.certificates import (
    Authority,
    read_fingerprint,
    write_certificate,
    write_key,
    write_silo_key,
)
from feddig.federation.contract import (
    UPDATE_LIMIT,
    Contract,
    Member,
    check_address,
    check_name,
    named_files,
    with_silos_own_data,
    write_contract,
)
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.run_sheets import containerfile, moderator_sheet, silo_sheet, unit
from feddig.federation.silo_data import write_silo_file
from feddig.files import write_atomically
from feddig.models.encoder import encoder_hash, load_encoder


@dataclass(frozen=True)
class Rehearsal:
    """The data of a rehearsal, split among the silos."""

    layout: Layout

    @classmethod
    def of(cls, experiment: Experiment) -> "Rehearsal":
        """Split the data of an experiment."""
        layout = lay_out(experiment)
        for silo, share in enumerate(layout.partition.shares):
            if not len(share.validation):
                raise SettingError(
                    f"data.split: leaves silo {silo} without validation images; give them a larger share"
                )
        return cls(layout)

    @property
    def experiment(self) -> Experiment:
        """The experiment with all settings resolved."""
        return self.layout.experiment

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.layout.dataset.train.pixels.shape[1:]
        return channels, height, width

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.layout.dataset.class_names

    def write_silo(self, path: Path, silo: int) -> None:
        """Write the images of a silo, in the order in which it would train on them in one process."""
        train, validation = self.layout.training_rows()[silo], self.layout.partition.shares[silo].validation
        images = self.layout.dataset.train
        x_train, y_train = _arrays(images, train)
        x_test, y_test = _arrays(images, validation)
        groups = (
            {}
            if images.groups is None
            else {"g_train": images.groups[train], "g_test": images.groups[validation]}
        )
        np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, **groups)

    def write_test_set(self, path: Path) -> None:
        """Write the moderator's test images."""
        test = self.layout.dataset.test
        x_test, y_test = _arrays(test, np.arange(len(test)))
        np.savez(path, x_test=x_test, y_test=y_test)


def _arrays(images: Images, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(choose(images.pixels, rows)), images.labels[rows]


LOCAL = ("localhost", "127.0.0.1")
VALIDATION = 0.1
AUTHORITY_DAYS = 3650
"""Longer than any moderator's certificate, so that a renewed one needs no new file at the silos."""
OWN_DATA, REHEARSED = "data", "data.npz"


@dataclass(frozen=True)
class Plan:
    """The settings of a new federation."""

    name: str
    silos: tuple[str, ...]
    """Their names; a silo's number is its position."""
    experiment: Experiment
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """Host names and addresses of the moderator, first the one that silos use; none: this machine only."""
    port: int = 9092
    training_deadline: float = 600.0
    digest_deadline: float = 600.0
    no_privacy: bool = False
    """Whether all agree that the digests promise a record nothing."""
    new_release: bool = False
    update_limit: float = UPDATE_LIMIT
    digest_limit: float | None = None
    min_silos: int | None = None
    start_silos: int | None = None
    rounds_alone: int | None = None
    model_every: int | None = None
    keys: Path | None = None
    """Folder with the silos' own public keys, NAME.pub each; None: key pairs are made here."""

    @property
    def address(self) -> str:
        """Host and port of the moderator."""
        return f"{self.hosts[0] if self.hosts else LOCAL[1]}:{self.port}"


def initialise(path: Path, plan: Plan, rehearsal: Rehearsal | None = None) -> Contract:
    """Write the folders of a federation; with a rehearsal, also the data of each party."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedDigError(f"{path}: exists; choose a new folder, so that no key is lost")
    _check(plan, rehearsal)
    if rehearsal is None:
        plan = replace(plan, experiment=with_silos_own_data(plan.experiment, len(plan.silos)))
    path.parent.mkdir(parents=True, exist_ok=True)
    # it is moved into place at the end: the next try would refuse a folder that was left half written
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as draft:
        whole = FederationFolder(Path(draft) / path.name)
        whole.path.mkdir(mode=0o700)
        contract = _write(whole, plan, rehearsal)
        whole.path.rename(path)
    return contract


def _check(plan: Plan, rehearsal: Rehearsal | None) -> None:
    check_name("--name", plan.name)
    for silo in plan.silos:
        check_name("--names", silo)
    for host in plan.hosts:
        _check_host(host)
    check_address("--port", plan.address)
    recipe = plan.experiment.recipe
    if recipe.centralised:
        raise SettingError(
            "algorithm.name: centralised has all data in one place; choose one for a federation"
        )
    if rehearsal is not None:
        if plan.hosts and plan.experiment.data.name in OWN:
            raise SettingError(
                "--host: your own images are split among the folders of a rehearsal, which runs on this machine alone; "
                "leave --host out, or give --classes and --image for a real federation"
            )
        return
    if (
        recipe.base == "feddyn"
        and plan.experiment.base_algorithm().prepared(steps=1, lr=1, momentum=0)
        != plan.experiment.base_algorithm()
    ):
        raise SettingError(
            "algorithm.feddyn.alpha: depends on how much data the silos have, which is not known here; set it"
        )
    if plan.experiment.privacy.random != "system":
        raise SettingError(
            "privacy.random: everybody who knows the seed can remove seeded noise, and the seed is in the contract; "
            "leave it out, or set it to system"
        )
    plan.experiment.check_told(no_privacy=plan.no_privacy)
    if not plan.hosts:
        raise SettingError(
            "--host: silos on other machines need the moderator's host name or address; give it, or localhost if all "
            "silos run on this machine"
        )


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", host):
            raise SettingError(
                f"--host: {host!r} is no host name or address; write it as moderator.example, and the port as --port"
            ) from None


def _write(whole: FederationFolder, plan: Plan, rehearsal: Rehearsal | None) -> Contract:
    silos = whole.silos(plan.silos)
    for folder in silos:
        folder.released.mkdir(parents=True)
        folder.path.chmod(0o700)
    members = tuple(
        Member(silo.name, make_key(silo, plan.keys and plan.keys / f"{silo.name}.pub")) for silo in silos
    )
    contract = Contract(
        name=plan.name,
        members=members,
        experiment=plan.experiment,
        image_shape=plan.image_shape,
        classes=plan.classes,
        encoder_hash=_encoder_hash(plan),
        training_deadline=plan.training_deadline,
        digest_deadline=plan.digest_deadline,
        no_privacy=plan.no_privacy,
        new_release=plan.new_release,
        address=plan.address,
        update_limit=plan.update_limit,
        digest_limit=plan.digest_limit,
        min_silos=plan.min_silos,
        start_silos=plan.start_silos,
        rounds_alone=plan.rounds_alone or None,
        model_every=plan.model_every,
    )
    authority = Authority.create(f"authority of {plan.name}"[:64], AUTHORITY_DAYS)
    whole.ca.mkdir(mode=0o700)
    write_key(whole.ca_key, authority.key)
    write_certificate(whole.ca_certificate, authority.certificate)
    _copy_named_files(whole.path, contract)
    write_contract(whole.contract, contract)
    _write_moderator(whole.moderator, contract, authority, silos, plan.hosts)
    for number, folder in enumerate(silos):
        write_silo(folder, number, contract, authority.certificate, rehearsal=rehearsal is not None)
        if rehearsal is not None:
            rehearsal.write_silo(folder.path / REHEARSED, number)
    if rehearsal is not None:
        rehearsal.write_test_set(whole.moderator.test_set)
    return contract


def make_key(silo: SiloFolder, sent: Path | None) -> str:
    """Write a silo's key into its folder, a new pair or the public key that it sent; return the fingerprint."""
    if sent is None:
        return write_silo_key(silo.key)
    found = read_fingerprint(sent)
    shutil.copyfile(sent, silo.public_key)
    return found


def _encoder_hash(plan: Plan) -> str | None:
    recipe = plan.experiment.recipe
    if not (recipe.sees_features or recipe.collects_digests):
        return None
    return encoder_hash(load_encoder(plan.experiment.digest.encoder, plan.image_shape[0]))


def _copy_named_files(folder: Path, contract: Contract) -> None:
    """Copy the files that a contract names into a folder."""
    files = named_files(contract.experiment)
    if len({file.name for file in files}) < len(set(files)):
        raise SettingError(f"two of the experiment's files are called {files[0].name}; rename one")
    for file in files:
        if not file.is_file():
            raise SettingError(f"{file}: no such file, but the experiment names it")
        shutil.copyfile(file, folder / file.name)


def _write_moderator(
    folder: ModeratorFolder,
    contract: Contract,
    authority: Authority,
    silos: Sequence[SiloFolder],
    hosts: Sequence[str],
) -> None:
    folder.public_keys.mkdir(parents=True)
    folder.path.chmod(0o700)
    # programs on the moderator's machine use its local names, whatever the silos use
    key, certificate = authority.issue(list(dict.fromkeys([*hosts, *LOCAL])))
    write_key(folder.key, key)
    write_certificate(folder.certificate, certificate)
    write_certificate(folder.ca, authority.certificate)
    for silo in silos:
        shutil.copyfile(silo.public_key, folder.public_key(silo.name))
    _copy_named_files(folder.path, contract)
    renew_moderator(folder, contract)
    write_atomically(folder.unit, unit("moderator", contract.name))
    write_atomically(folder.container, containerfile("moderator", contract.name, __version__))


def write_silo(
    folder: SiloFolder, number: int, contract: Contract, authority: x509.Certificate, *, rehearsal: bool
) -> None:
    """Write a silo's folder, apart from its key and its data."""
    write_certificate(folder.ca, authority)
    write_silo_file(
        folder.silo_file,
        silo=number,
        name=contract.members[number].name,
        data=REHEARSED if rehearsal else OWN_DATA,
        validation=None if rehearsal else VALIDATION,
        rehearsal=rehearsal,
    )
    _copy_named_files(folder.path, contract)
    renew_silo(folder, number, contract)
    write_atomically(folder.unit, unit("silo", folder.name))
    write_atomically(folder.container, containerfile("silo", folder.name, __version__))


def renew_moderator(folder: ModeratorFolder, contract: Contract) -> None:
    """Write the contract and the run sheet into the moderator's folder."""
    write_contract(folder.contract, contract)
    write_atomically(folder.run_sheet, moderator_sheet(contract, __version__))


def renew_silo(folder: SiloFolder, number: int, contract: Contract) -> None:
    """Write the contract and the run sheet into a silo's folder."""
    write_contract(folder.contract, contract)
    write_atomically(folder.run_sheet, silo_sheet(contract, number, folder, __version__))


def planned(experiment: Experiment, silos: Sequence[str]) -> Experiment:
    """Return an experiment for these silos, with all settings resolved."""
    return replace(experiment, data=replace(experiment.data, silos=len(silos))).resolved()
