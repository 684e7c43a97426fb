"""The contract of a federation: what every silo and the moderator agree to, in one file that all of them hold.

It is an experiment file with three more tables: [federation], [deadlines] and a [[silo]] for each member, in the
order of their numbers. Where each silo brings its own images it has neither [data] nor [absence], which are for
simulations. Files that it names (an encoder, a classifier, an availability table) lie next to it. An error in it is one
line that names the field.

When rounds or members change, there is a next version of it, which names the hash of the version before.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from feddig.errors import SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.fields import read_fields
from feddig.experiment.toml import experiment_from_table, spell_table, write_experiment
from feddig.files import check_version, read_toml, write_atomically
from feddig.settings import REQUIRED, AbsenceSettings, DataSettings, setting

HASH = re.compile(r"[0-9a-f]{64}")


ADDRESS = "127.0.0.1:9092"
STAY, GO = "stay", "go"
"""What happens to the digest of a silo that is removed."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
UPDATE_LIMIT = 10.0
"""How many times the model's length an update may have; training moves a model by less than its length in a round."""
DIGEST_LIMIT = 256.0
"""Megabytes: enough for 960,000 of the demo's images, at four images per digest."""
SILOS_OWN = "own"
"""The `data.name` of a federation in which each silo brings its own images."""
SIMULATED = ("data", "absence")
"""The sections that mean nothing there."""
VALID_DEADLINES = 2
"""How many deadlines a message stays valid, so that a late reply still comes, and is logged and dropped."""


def check_name(field: str, name: str) -> str:
    """Check a name that is used for a folder and in commands."""
    if not NAME.fullmatch(name):
        raise SettingError(
            f"{field}: {name!r} cannot be a name; use up to 63 letters, digits, dots, dashes and underscores, "
            "a letter or digit first"
        )
    return name


def check_address(field: str, address: str) -> str:
    """Check a host with a port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SettingError(f"{field}: {address!r} is no host and port; write it as moderator.example:9092")
    return address


def _check_hash(field: str, text: str) -> None:
    if not HASH.fullmatch(text):
        raise SettingError(f"{field}: {text!r} is not a SHA-256 hash, 64 digits of 0-9 and a-f")


def _check_classes(field: str, names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise SettingError(f"{field}: {list(names)} must be at least two names")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"{field}: {twice!r} is listed twice; give each class its own name")


@dataclass(frozen=True)
class Member:
    """[[silo]]: a member of the federation."""

    name: str = setting(REQUIRED, "silo's name", check=check_name)
    fingerprint: str = setting(REQUIRED, "fingerprint of the silo's key", check=_check_hash)
    first_fingerprint: str | None = setting(
        None, "fingerprint of the key that it had in its first version; left out: the same", check=_check_hash
    )
    removed: str | None = setting(
        None, "whether its digest stays or goes, if it is a member no more", choices=(STAY, GO)
    )


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """[deadlines]: after how many seconds a silo that has not answered counts as absent."""

    training: float = setting(REQUIRED, "number of seconds that a silo has for its update", above=0)
    digest: float = setting(REQUIRED, "number of seconds that a silo has for its digest", above=0)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """[federation]: what it is about, and what a round needs."""

    name: str = setting(REQUIRED, "name of the federation", check=check_name)
    address: str = setting(REQUIRED, "host and port of the moderator", check=check_address)
    image_shape: tuple[int, int, int] = setting(
        REQUIRED, "number of channels, height and width of an image as it is stored", least=1
    )
    classes: tuple[str, ...] = setting(REQUIRED, "list of the classes' names", check=_check_classes)
    encoder_hash: str | None = setting(
        None, "hash of the encoder that all use; left out if the algorithm has none", check=_check_hash
    )
    no_privacy: bool = setting(False, "whether all agree that digests promise a record nothing")
    new_release: bool = setting(
        False, "whether a silo may replace its digest by another; each one reveals more"
    )
    update_limit: float | None = setting(
        None, "an update longer than this many times the model is refused; left out: 10", above=0
    )
    digest_limit: float | None = setting(
        None, "a digest of more megabytes is refused; left out: 256", above=0
    )
    min_silos: int | None = setting(
        None, "with fewer silos the federation pauses; left out: more than half of them", least=1
    )
    start_silos: int | None = setting(
        None, "with fewer silos the first round does not begin; left out: all of them", least=1
    )
    rounds_alone: int | None = setting(
        None, "how many rounds in a row may have fewer silos than the minimum; left out: 0", least=0
    )
    version: int = setting(1, "version of the contract; in the file from 2 on", least=1)
    previous: str | None = setting(None, "hash of the version before", check=_check_hash)
    first_rounds: int | None = setting(None, "rounds of the first version; left out: the same", least=1)
    first_silos: int | None = setting(
        None, "how many of the silos are in the first version; left out: all", least=1
    )
    model_every: int | None = setting(
        None,
        "the silos also get the model each time this many rounds are done; left out: only the final one",
        least=1,
    )


CHANGEABLE: Mapping[str, Any] = {
    "address": ADDRESS,
    "new_release": False,
    **dict.fromkeys(
        ("update_limit", "digest_limit", "min_silos", "start_silos", "rounds_alone", "model_every")
    ),
}
"""What may change between rounds, besides the deadlines, and what stands for it in `Contract.lasting_hash`."""


@dataclass(frozen=True, kw_only=True)
class Contract(Terms):
    """What the parties of a federation agree to."""

    members: tuple[Member, ...]
    """A silo's number is its position here."""
    experiment: Experiment
    training_deadline: float
    digest_deadline: float

    def __post_init__(self) -> None:
        """Check all terms, which come from a file or from a command, and that they fit each other."""
        terms = {name: value for name, value in self._terms.items() if value is not None}
        read_fields(Terms, terms, "federation.")
        read_fields(Deadlines, self._deadlines, "deadlines.")
        needed = {"name": "a name that differs in more than capitals", "fingerprint": "a key of its own"}
        for kind, remedy in needed.items():
            found: set[str] = set()
            for member in self.members:
                # folders are named after silos, and some file systems ignore case
                value = str(getattr(member, kind)).lower()
                if value in found:
                    raise SettingError(
                        f"silo.{kind}: {getattr(member, kind)!r} is listed twice; each silo needs {remedy}"
                    )
                found.add(value)
        if self.experiment.data.silos != len(self.members):
            raise SettingError(
                f"data.silos: {self.experiment.data.silos}, but there are {len(self.members)} tables [[silo]]"
            )
        for key in ("min_silos", "start_silos"):
            if (getattr(self, key) or 1) > len(self.members):
                raise SettingError(
                    f"federation.{key}: {getattr(self, key)}, but there are {len(self.members)} silos; "
                    f"set it to {len(self.members)} or fewer"
                )
        if (self.version > 1) != (self.previous is not None):
            raise SettingError(
                "federation.previous: from version 2 on it must be there, and not before; use the file as you got it"
            )
        if not self.active:
            raise SettingError("silo: all are removed; keep at least one")

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The numbers of the silos that are not removed."""
        return tuple(silo for silo, member in enumerate(self.members) if member.removed is None)

    @property
    def gone(self) -> list[int]:
        """The numbers of the removed silos of which the moderator keeps nothing."""
        return [silo for silo, member in enumerate(self.members) if member.removed == GO]

    @property
    def _terms(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(Terms)}

    @property
    def _deadlines(self) -> dict[str, float]:
        return {"training": self.training_deadline, "digest": self.digest_deadline}

    @cached_property
    def text(self) -> str:
        """The text of the contract's file, which is the same on every machine."""
        federation = {
            **self._terms,
            # only where they say something, so that older contracts keep their hashes
            "no_privacy": self.no_privacy or None,
            "version": self.version if self.version > 1 else None,
        }
        tables: list[tuple[str, Mapping[str, Any]]] = [
            ("[federation]", federation),
            ("[deadlines]", self._deadlines),
        ]
        tables += [("[[silo]]", vars(member)) for member in self.members]
        spelled = ["\n".join([title, *spell_table(table)]) for title, table in tables]
        promise = f"# {self.experiment.say_promise()}"
        without = SIMULATED if self.experiment.data.name == SILOS_OWN else ()
        experiment = write_experiment(_without_folders(self.experiment), without)
        return "\n\n".join([promise, experiment.strip(), *spelled]) + "\n"

    @property
    def hash(self) -> str:
        """The SHA-256 of the contract's file."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def lasting_hash(self) -> str:
        """The SHA-256 of what may not change between rounds; address, deadlines, limits and numbers of silos may.

        All versions of a contract have that of the first.
        """
        members = tuple(
            Member(member.name, member.first_fingerprint or member.fingerprint)
            for member in self.members[: self.first_silos]
        )
        training = self.experiment.training
        training = replace(training, rounds=self.first_rounds or training.rounds)
        first = with_silos(replace(self.experiment, training=training), len(members))
        if first.data.name == SILOS_OWN:
            # older contracts for real data have the tables of the default data set
            first = replace(first, data=replace(first.data, name=DataSettings().name))
        lasting = replace(
            self,
            members=members,
            experiment=first,
            version=1,
            previous=None,
            first_rounds=None,
            first_silos=None,
            training_deadline=1.0,
            digest_deadline=1.0,
            **CHANGEABLE,
        )
        # spelled with the keys that older checkpoints were hashed with, and without newer ones at their defaults
        text = lasting.text.replace("\nrecall_epochs", "\nrecall = true\nrecall_epochs")
        text = text.replace("\njoint_epochs", "\njoint = true\njoint_epochs")
        text = text.replace('\nunit = "record"', "").replace("\ngroup_limit = 1\n", "\n")
        text = text.replace("\nmin_share = 0.0\n", "\n")
        # the sentence on top may be worded in another way tomorrow
        text = text.partition("\n\n")[2]
        if not self.experiment.recipe.expert:
            text = text.replace("\nprior_correction = false", "").replace("\nvotes = 0.0", "")
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def longest_answer(self) -> float:
        """Seconds after which nobody waits for a reply to any message any more."""
        return VALID_DEADLINES * max(self.training_deadline, self.digest_deadline)

    @property
    def longest_stay(self) -> float:
        """Seconds after the last round for which the moderator waits for silos that lack the final model."""
        return max(self.training_deadline, self.digest_deadline)

    @property
    def longest_update(self) -> float:
        """How many times the model's length an update may have."""
        return UPDATE_LIMIT if self.update_limit is None else self.update_limit

    @property
    def largest_digest(self) -> int:
        """How many bytes a digest file may have."""
        return int((DIGEST_LIMIT if self.digest_limit is None else self.digest_limit) * 1e6)

    def needed_silos(self, expected: int) -> int:
        """Return how many of the silos that are expected in a round it needs."""
        if self.min_silos is not None:
            return min(self.min_silos, expected)
        return expected // 2 + 1 if expected else 0

    def silos_to_start(self, expected: int) -> int:
        """Return how many of the silos that are expected in the first round it waits for."""
        return expected if self.start_silos is None else min(self.start_silos, expected)

    def number(self, name: str) -> int:
        """Return a silo's number by its name."""
        names = [member.name for member in self.members]
        if name not in names:
            raise SettingError(f"{name!r} is no silo of {self.name}; {nearest(name, names)}")
        return names.index(name)


def read_contract(path: Path) -> Contract:
    """Read a contract; an error is one line that names the file and the field."""
    path = Path(path)
    missing = "no such contract; `feddig federation init` writes one for each party"
    table = read_toml(path, missing, "copy it again")
    check_version(path, table.pop("format_version", None))
    try:
        return _contract(table, path.parent)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None


def write_contract(path: Path, contract: Contract) -> None:
    """Write a contract in one step."""
    write_atomically(Path(path), contract.text)


def _contract(table: dict[str, Any], folder: Path) -> Contract:
    terms = read_fields(Terms, _take(table, "federation"), "federation.")
    deadlines = read_fields(Deadlines, _take(table, "deadlines"), "deadlines.")
    silos = table.pop("silo", None)
    if not isinstance(silos, list) or not silos or not all(isinstance(silo, dict) for silo in silos):
        raise SettingError("silo: no silos; there must be a table [[silo]] for each")
    members = [Member(**read_fields(Member, silo, f"silo[{place}].")) for place, silo in enumerate(silos)]
    return Contract(
        members=tuple(members),
        experiment=_beside(_experiment(table, len(members)), folder),
        training_deadline=deadlines["training"],
        digest_deadline=deadlines["digest"],
        **terms,
    )


def _take(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a table from a contract and return it."""
    found = table.pop(name, None)
    if not isinstance(found, dict):
        raise SettingError(f"{name}: there must be a table [{name}]")
    return found


def _experiment(table: dict[str, Any], silos: int) -> Experiment:
    if "data" in table:
        return experiment_from_table(table)
    return with_silos_own_data(experiment_from_table({"absence": {"scenario": "none"}, **table}), silos)


def with_silos_own_data(experiment: Experiment, silos: int) -> Experiment:
    """Return an experiment for silos that bring their own images, without the settings of a simulation."""
    if experiment.absence.scenario != "none":
        raise SettingError(
            f"absence.scenario: {experiment.absence.scenario!r} simulates absence, but with real data silos come and "
            "go by themselves; set it to none"
        )
    data, absence = DataSettings(name=SILOS_OWN, silos=silos), AbsenceSettings(scenario="none")
    own = replace(experiment, data=data, absence=absence)
    filled = own.resolved()
    return replace(own, data=filled.data, absence=filled.absence)


def with_silos(experiment: Experiment, silos: int) -> Experiment:
    """Return an experiment for this number of silos."""
    if experiment.data.name == SILOS_OWN:
        return with_silos_own_data(experiment, silos)
    return replace(experiment, data=replace(experiment.data, silos=silos))


def check_possible(experiment: Experiment) -> None:
    """Refuse controls of simulations, and settings that only a simulation can derive."""
    recipe = experiment.recipe
    if recipe.centralised or recipe.frozen:
        raise SettingError(f"algorithm.name: {recipe.name} is a control for simulations; choose another")
    for name, value in vars(experiment.resolved().base_algorithm()).items():
        if value is None:
            raise SettingError(
                f"algorithm.{recipe.base}.{name}: must be in the contract, because it follows from how many steps "
                "silos take, which nobody knows in advance"
            )


def named_files(experiment: Experiment) -> list[Path]:
    """List the files that an experiment names, and that must go to every party with the contract."""
    networks = (experiment.digest.encoder, experiment.model.classifier)
    names = [name for name in networks if name.endswith(".safetensors")]
    return [Path(name) for name in [*names, *([experiment.absence.file] if experiment.absence.file else [])]]


def _without_folders(experiment: Experiment) -> Experiment:
    """Reduce paths to what is the same on every machine: the names of files next to the contract."""
    return _with_files(experiment, lambda name: Path(name).name)


def _beside(experiment: Experiment, folder: Path) -> Experiment:
    return _with_files(experiment, lambda name: str((folder / Path(name).name).absolute()))


def _with_files(experiment: Experiment, placed: Callable[[str], str]) -> Experiment:
    def network(name: str) -> str:
        return placed(name) if name.endswith(".safetensors") else name

    file = experiment.absence.file
    return replace(
        experiment,
        # each silo has its own path
        data=replace(experiment.data, path=None),
        absence=replace(experiment.absence, file=file and placed(file)),
        digest=replace(experiment.digest, encoder=network(experiment.digest.encoder)),
        model=replace(experiment.model, classifier=network(experiment.model.classifier)),
    )
