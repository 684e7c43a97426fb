"""The contract of a federation: what every silo and the moderator agree to, in one file that all of them hold.

It is an experiment file with three more tables: [federation], [deadlines] and a [[silo]] for each member, in the
order of their numbers. Where each silo brings its own images it has neither [data] nor [absence], which are for
simulations. Files that it names (an encoder, a classifier, an availability table) lie next to it. An error in it is one
line that names the field.

When rounds or members change, there is a next version of it, which names the hash of the version before.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from feddig.errors import SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import experiment_from_table, spell_table, write_experiment
from feddig.files import check_version, read_toml, write_atomically
from feddig.settings import AbsenceSettings, DataSettings

HASH = re.compile(r"[0-9a-f]{64}")


def take_table(table: dict[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Remove a table from a contract and return it; it must be there, and have no unknown keys."""
    found = table.pop(name, None)
    if not isinstance(found, Mapping):
        raise SettingError(f"{name}: there must be a table [{name}]")
    return check_keys(found, name, known)


def check_keys(table: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Check that a table has no unknown keys."""
    for key in table:
        if key not in known:
            raise SettingError(f"{name}.{key}: unknown key; {nearest(key, known)}")
    return table


def read_text(table: Mapping[str, Any], where: str, key: str) -> str:
    """Read a text, which must be there and not empty."""
    value = table.get(key)
    if not isinstance(value, str) or not value:
        fault = f"{value!r} is not a text" if key in table else "missing; it must be there"
        raise SettingError(f"{where}.{key}: {fault}")
    return value


def read_hash(table: Mapping[str, Any], where: str, key: str) -> str:
    """Read a SHA-256 hash."""
    value = read_text(table, where, key)
    if not HASH.fullmatch(value):
        raise SettingError(f"{where}.{key}: {value!r} is not a SHA-256 hash, 64 digits of 0-9 and a-f")
    return value


def read_shape(value: object) -> tuple[int, int, int]:
    """Read channels, height and width."""
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(
            isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in value
        )
    ):
        raise SettingError(
            f"federation.image_shape: {value!r} is not [channels, height, width], three whole numbers above 0"
        )
    channels, height, width = value
    return channels, height, width


def read_classes(value: object) -> tuple[str, ...]:
    """Read the names of the classes."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(name, str) for name in value):
        raise SettingError("federation.classes: must be a list of at least two names")
    if len(set(value)) != len(value):
        twice = next(name for name in value if value.count(name) > 1)
        raise SettingError(f"federation.classes: {twice!r} is listed twice; give each class its own name")
    return tuple(value)


def read_positive(table: Mapping[str, Any], where: str, key: str, what: str) -> float:
    """Read a number above 0."""
    value = table.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise SettingError(f"{where}.{key}: {value!r} is not a {what} above 0")
    return float(value)


def read_count(table: Mapping[str, Any], key: str, smallest: int) -> int | None:
    """Read a whole number from [federation]; left out, it is None."""
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < smallest):
        raise SettingError(f"federation.{key}: {value!r} is not a whole number, {smallest} or larger")
    return value


def read_flag(table: Mapping[str, Any], key: str) -> bool:
    """Read true or false from [federation]; left out, it is false."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise SettingError(f"federation.{key}: {value!r} is not true or false")
    return value


ADDRESS = "127.0.0.1:9092"
FEDERATION = (
    "name",
    "address",
    "image_shape",
    "classes",
    "encoder_hash",
    "no_privacy",
    "new_release",
    "update_limit",
    "digest_limit",
    "min_silos",
    "start_silos",
    "rounds_alone",
    "version",
    "previous",
    "first_rounds",
    "first_silos",
    "model_every",
)
DEADLINES = ("training", "digest")
SILO = ("name", "fingerprint", "first_fingerprint", "removed")
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


@dataclass(frozen=True)
class Member:
    """A silo of the federation: its name, and the fingerprint of its key."""

    name: str
    fingerprint: str
    first_fingerprint: str | None = None
    """Of the key that it had in its first version; None: the same."""
    removed: str | None = None
    """Whether its digest stays or goes, if it is a member no more."""


@dataclass(frozen=True)
class Contract:
    """What the parties of a federation agree to."""

    name: str
    members: tuple[Member, ...]
    """A silo's number is its position here."""
    experiment: Experiment
    image_shape: tuple[int, int, int]
    """Channels, height and width of an image as it is stored."""
    classes: tuple[str, ...]
    encoder_hash: str | None
    """Hash of the encoder that all use; None if the algorithm has none."""
    training_deadline: float
    """Seconds after which a silo that has not sent its update counts as absent."""
    digest_deadline: float
    """Seconds after which a silo that has not sent its digest counts as absent."""
    no_privacy: bool = False
    """Whether all agree that digests promise a record nothing; only in the file if they do."""
    new_release: bool = False
    """Whether a silo may replace its digest by another; each one reveals more."""
    address: str = ADDRESS
    """Host and port of the moderator."""
    update_limit: float | None = None
    """An update longer than this many times the model is refused; None: the default, not in the file."""
    digest_limit: float | None = None
    """A digest of more megabytes is refused; None: the default, not in the file."""
    min_silos: int | None = None
    """With fewer silos the federation pauses; None: more than half of them, not in the file."""
    start_silos: int | None = None
    """With fewer silos the first round does not begin; None: all of them, not in the file."""
    rounds_alone: int | None = None
    """How many rounds in a row may have fewer silos than the minimum; None: 0, not in the file."""
    version: int = 1
    """Only in the file from 2 on."""
    previous: str | None = None
    """The hash of the version before; None in the first."""
    first_rounds: int | None = None
    """The rounds of the first version; None: the same."""
    first_silos: int | None = None
    """How many of the silos are in the first version; None: all."""
    model_every: int | None = None
    """The silos also get the model each time this many rounds are done; None: only the final one, not in the file."""

    def __post_init__(self) -> None:
        """Check that names and keys are unique, and that deadlines, limits and numbers of silos are possible."""
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
        numbers = {
            "deadlines.training": self.training_deadline,
            "deadlines.digest": self.digest_deadline,
            "federation.update_limit": self.update_limit,
            "federation.digest_limit": self.digest_limit,
        }
        for where, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                raise SettingError(f"{where}: {number} is not a number above 0; give one")
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

    @cached_property
    def text(self) -> str:
        """The text of the contract's file, which is the same on every machine."""
        federation = {
            "name": self.name,
            "address": self.address,
            "image_shape": self.image_shape,
            "classes": self.classes,
            "encoder_hash": self.encoder_hash,
            "no_privacy": self.no_privacy or None,
            "new_release": self.new_release,
            "update_limit": self.update_limit,
            "digest_limit": self.digest_limit,
            "min_silos": self.min_silos,
            "start_silos": self.start_silos,
            "rounds_alone": self.rounds_alone,
            "version": self.version if self.version > 1 else None,
            "previous": self.previous,
            "first_rounds": self.first_rounds,
            "first_silos": self.first_silos,
            "model_every": self.model_every,
        }
        deadlines = {"training": self.training_deadline, "digest": self.digest_deadline}
        tables: list[tuple[str, Mapping[str, Any]]] = [
            ("[federation]", federation),
            ("[deadlines]", deadlines),
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
            address=ADDRESS,
            training_deadline=1.0,
            digest_deadline=1.0,
            new_release=False,
            update_limit=None,
            digest_limit=None,
            min_silos=None,
            start_silos=None,
            rounds_alone=None,
            model_every=None,
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


def _contract(table: dict[str, Any], folder: Path) -> Contract:
    federation = take_table(table, "federation", FEDERATION)
    deadlines = take_table(table, "deadlines", DEADLINES)
    silos = table.pop("silo", None)
    if not isinstance(silos, list) or not silos:
        raise SettingError("silo: no silos; there must be a table [[silo]] for each")
    members = tuple(_member(place, silo) for place, silo in enumerate(silos))
    return Contract(
        name=check_name("federation.name", read_text(federation, "federation", "name")),
        members=members,
        experiment=_beside(_experiment(table, len(members)), folder),
        image_shape=read_shape(federation.get("image_shape")),
        classes=read_classes(federation.get("classes")),
        encoder_hash=read_hash(federation, "federation", "encoder_hash")
        if "encoder_hash" in federation
        else None,
        training_deadline=read_positive(deadlines, "deadlines", "training", "number of seconds"),
        digest_deadline=read_positive(deadlines, "deadlines", "digest", "number of seconds"),
        no_privacy=read_flag(federation, "no_privacy"),
        new_release=read_flag(federation, "new_release"),
        address=check_address("federation.address", read_text(federation, "federation", "address")),
        update_limit=read_positive(federation, "federation", "update_limit", "multiple of the model's length")
        if "update_limit" in federation
        else None,
        digest_limit=read_positive(federation, "federation", "digest_limit", "number of megabytes")
        if "digest_limit" in federation
        else None,
        min_silos=read_count(federation, "min_silos", 1),
        start_silos=read_count(federation, "start_silos", 1),
        rounds_alone=read_count(federation, "rounds_alone", 0),
        version=read_count(federation, "version", 1) or 1,
        previous=read_hash(federation, "federation", "previous") if "previous" in federation else None,
        first_rounds=read_count(federation, "first_rounds", 1),
        first_silos=read_count(federation, "first_silos", 1),
        model_every=read_count(federation, "model_every", 1),
    )


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


def _member(place: int, table: object) -> Member:
    where = f"silo[{place}]"
    if not isinstance(table, Mapping):
        raise SettingError(f"{where}: must be a table [[silo]]")
    check_keys(table, where, SILO)
    name = check_name(f"{where}.name", read_text(table, where, "name"))
    removed = table.get("removed")
    if removed not in (None, STAY, GO):
        raise SettingError(f'{where}.removed: {removed!r} is neither "{STAY}" nor "{GO}"')
    first = read_hash(table, where, "first_fingerprint") if "first_fingerprint" in table else None
    return Member(name, read_hash(table, where, "fingerprint"), first, removed)


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
