"""Change a federation after `init`: write the next version of its contract, and let each party accept it.

Versions are made in the organiser's folder. A party accepts only the version that follows the one it holds, and only
changes with which its run can go on.
"""

import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.federation.certificates import read_certificate, read_fingerprint, read_key_fingerprint
from feddig.federation.contract import (
    CHANGEABLE,
    GO,
    SILOS_OWN,
    Contract,
    Member,
    check_name,
    read_contract,
    with_silos,
    write_contract,
)
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.setup import REHEARSED, make_key, renew_moderator, renew_silo, write_silo
from feddig.federation.silo_data import read_silo_file
from feddig.files import write_atomically
from feddig.runs.results_folder import ResultsFolder

TERMS = (*(f"federation.{name}" for name in CHANGEABLE), "deadlines.training", "deadlines.digest")
"""What may change in a run, besides rounds and silos."""
COUNTED = (
    "training.rounds", "data.silos", "silo", "federation.version", "federation.previous",
    "federation.first_rounds", "federation.first_silos",
)  # fmt: skip
"""What is compared by itself."""
NO_KEYS: Mapping[str, Path] = {}


@dataclass(frozen=True)
class Version:
    """The next version of a contract."""

    contract: Contract
    changes: Sequence[str]
    """A line for each change."""
    steps: Sequence[str] = ()
    """What is left to do by hand."""
    install: Callable[[], None] = field(default=lambda: None, repr=False)
    """Writes it into the folder of the party that it was read for."""


# --- the organiser makes a version


def extend(whole: FederationFolder, rounds: int) -> Version:
    """Let the run have more rounds."""
    old = _open(whole)
    training = old.experiment.training
    if rounds <= training.rounds:
        raise SettingError(f"--rounds: {training.rounds} rounds are agreed on already; give more")
    new = _next(
        old,
        experiment=replace(old.experiment, training=replace(training, rounds=rounds)),
        first_rounds=old.first_rounds or training.rounds,
    )
    return _write(whole, old, new)


def change(whole: FederationFolder, **terms: float | None) -> Version:
    """Change some of the terms that may change in a run; None leaves one as it is."""
    old = _open(whole)
    given = {name: value for name, value in terms.items() if value not in (None, getattr(old, name))}
    if not given:
        raise SettingError(f"{whole.path}: nothing changes; give an option with another value than now")
    return _write(whole, old, _next(old, **given))


def add(whole: FederationFolder, name: str, key: Path | None) -> Version:
    """Add a silo, with its own public key or one that is made here."""
    old, silo = _open(whole), whole.silo(check_name("NAME", name))
    if any(member.name.lower() == name.lower() for member in old.members):
        raise SettingError(f"{name}: is or was a silo of {old.name}; choose another name")
    if silo.path.exists():
        raise FedDigError(
            f"{silo.path}: exists; choose another name, or remove what an interrupted `add` left"
        )
    number, rehearsal = len(old.members), _is_rehearsal(whole, old)
    silo.path.parent.mkdir(parents=True, exist_ok=True)
    # it is moved into place when it is whole
    with tempfile.TemporaryDirectory(dir=silo.path.parent, prefix=f".{name}.") as draft:
        made = SiloFolder(Path(draft) / name)
        made.released.mkdir(parents=True)
        made.path.chmod(0o700)
        new = _next(
            old,
            members=(*old.members, Member(name, make_key(made, key))),
            experiment=with_silos(old.experiment, number + 1),
            first_silos=old.first_silos or number,
        )
        check_follows(old, new)
        write_silo(made, number, new, read_certificate(whole.ca_certificate), rehearsal=rehearsal)
        made.path.rename(silo.path)
    step = f"give {silo.path} to its silo; its RUN-SHEET.md has the commands"
    if rehearsal:
        step = f"put its images as x_train, y_train, x_test and y_test into {silo.path / REHEARSED}"
    return _write(whole, old, new, {name: silo.public_key}, [step])


def remove(whole: FederationFolder, name: str, digest: str) -> Version:
    """Remove a silo; its digest stays or goes."""
    old = _open(whole)
    number = old.number(name)
    if old.members[number].removed == digest:
        raise SettingError(f"{name}: is removed already, and its digest {_say_digest(digest)}")
    return _write(whole, old, _next(old, members=_with(old, number, removed=digest)))


def rekey(whole: FederationFolder, name: str, key: Path) -> Version:
    """Give a silo another key."""
    old = _open(whole)
    number, new_key = old.number(name), read_fingerprint(key)
    member, silo = old.members[number], whole.silo(name)
    if member.removed is not None:
        raise SettingError(f"{name}: is removed, and needs no key")
    if member.fingerprint == new_key:
        raise SettingError(f"{key}: is the key that {name} has already")
    first = member.first_fingerprint or member.fingerprint
    new = _next(old, members=_with(old, number, fingerprint=new_key, first_fingerprint=first))
    step = f"put the private key that belongs to {key} in place of {silo.key}" if silo.key.exists() else ""
    return _write(whole, old, new, {name: key}, [step] if step else [])


def _next(old: Contract, **changes: Any) -> Contract:
    return replace(old, version=old.version + 1, previous=old.hash, **changes)


def _with(old: Contract, number: int, **changes: Any) -> tuple[Member, ...]:
    members = list(old.members)
    members[number] = replace(members[number], **changes)
    return tuple(members)


def _open(whole: FederationFolder) -> Contract:
    """Return the contract of the organiser's folder, if the parties' folders in it hold the same."""
    if not whole.ca_certificate.is_file():
        raise FedDigError(
            f"{whole.path}: is not the organiser's folder; give the one that `feddig federation init` wrote, with ca/"
        )
    contract = read_contract(whole.contract)
    for path in (whole.moderator.contract, *(silo.contract for silo in _silos_in(whole, contract))):
        # a command that was interrupted may have written the next version there
        held = read_contract(path) if path.is_file() else contract
        if contract.hash not in (held.hash, held.previous):
            raise FileFormatError(f"{path}: is another version than {whole.contract}; copy that file over it")
    return contract


def _silos_in(whole: FederationFolder, contract: Contract) -> list[SiloFolder]:
    """List the folders of silos that lie in the organiser's folder."""
    silos = whole.silos([member.name for member in contract.members])
    return [silo for silo in silos if silo.silo_file.is_file()]


def _is_rehearsal(whole: FederationFolder, contract: Contract) -> bool:
    if contract.experiment.data.name == SILOS_OWN:
        return False
    return any(read_silo_file(silo.silo_file).data.rehearsal for silo in _silos_in(whole, contract))


def _write(
    whole: FederationFolder,
    old: Contract,
    new: Contract,
    keys: Mapping[str, Path] = NO_KEYS,
    steps: Sequence[str] = (),
) -> Version:
    """Write a version into the organiser's folder and those of the parties in it, and as a file to be sent."""
    changes = check_follows(old, new)
    for silo in _silos_in(whole, new):
        if silo.name in keys:
            write_atomically(silo.public_key, keys[silo.name].read_bytes())
        renew_silo(silo, new.number(silo.name), new)
    if whole.moderator.contract.is_file():
        _install_at_moderator(whole.moderator, new, keys)
    write_contract(version_file(whole, new), new)
    # last, so that a command that was interrupted can be given again
    write_contract(whole.contract, new)
    return Version(new, changes, steps)


def version_file(whole: FederationFolder, contract: Contract) -> Path:
    """Return the path of a version's own file in the organiser's folder."""
    return whole.path / f"federation-{contract.version}.toml"


def _install_at_moderator(folder: ModeratorFolder, contract: Contract, keys: Mapping[str, Path]) -> None:
    for name, key in keys.items():
        write_atomically(folder.public_key(name), key.read_bytes())
    renew_moderator(folder, contract)
    for silo in contract.gone:
        ResultsFolder(folder.run).delete_digest(silo)


# --- a party accepts a version


def read_next_version(path: Path, file: Path) -> Version:
    """Check that a file holds the next version for the party of this folder."""
    silo, moderator = SiloFolder(path), ModeratorFolder(path)
    if FederationFolder(path).moderator.path.is_dir():
        raise FedDigError(
            f"{path}: is the organiser's folder, where `extend`, `change`, `add`, `remove` and `rekey` make versions; "
            "give the folder of the moderator or of a silo"
        )
    old, new = read_contract(moderator.contract), read_contract(file)
    try:
        changes = check_follows(old, new)
        if silo.silo_file.is_file():
            number = _check_own_key(silo, new)
            return Version(new, changes, install=lambda: renew_silo(silo, number, new))
        keys = _find_new_keys(moderator, new, file.parent)
    except SettingError as error:
        raise SettingError(f"{file}: {error}") from None
    return Version(new, changes, install=lambda: _install_at_moderator(moderator, new, keys))


def _check_own_key(silo: SiloFolder, new: Contract) -> int:
    """Check that a version names this silo's key; return the silo's number."""
    own = read_silo_file(silo.silo_file)
    if own.silo >= len(new.members) or new.members[own.silo].name != own.name:
        raise SettingError(f"silo {own.silo} is not {own.name} there; ask the organiser for the right file")
    member = new.members[own.silo]
    keys = [read_fingerprint(silo.public_key)]
    keys += [read_key_fingerprint(silo.key)] if silo.key.is_file() else []
    if member.removed is None and set(keys) != {member.fingerprint}:
        raise SettingError(
            f"names another key for {own.name} than {silo.public_key}; for a new key, put both of its files there "
            "first, else ask the organiser"
        )
    return own.silo


def _find_new_keys(moderator: ModeratorFolder, new: Contract, beside: Path) -> dict[str, Path]:
    """Find the public keys that the moderator does not have yet next to the version's file."""
    found = {}
    for member in (new.members[silo] for silo in new.active):
        held, sent = moderator.public_key(member.name), beside / f"{member.name}.pub"
        if held.is_file() and read_fingerprint(held) == member.fingerprint:
            continue
        if not sent.is_file() or read_fingerprint(sent) != member.fingerprint:
            raise SettingError(
                f"the key of {member.name} is needed; put the {sent.name} that the organiser has next to this file"
            )
        found[member.name] = sent
    return found


# --- what may change


def check_follows(old: Contract, new: Contract) -> list[str]:
    """Check that a version follows another and that the run can go on with it; return a line for each change."""
    _check_chain(old, new)
    before, after = _flatten(old), _flatten(new)
    terms = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key) or key in COUNTED:
            continue
        line = f"{key}: {before.get(key, 'left out')} -> {after.get(key, 'left out')}"
        if key not in TERMS:
            raise SettingError(
                f"{line}; that cannot change in a run. Set another federation up with `feddig federation init`"
            )
        terms.append(line)
    changes = [*_describe_rounds(old, new), *_describe_members(old, new), *terms]
    counts = [(one.experiment.training.rounds, len(one.members)) for one in (old, new)]
    scenario = old.experiment.absence.scenario
    if scenario != "none" and counts[0] != counts[1]:
        raise SettingError(
            f"absence.scenario: {scenario} is drawn for {counts[0][0]} rounds and {counts[0][1]} silos, and would be "
            "another with more; rehearse this without a scenario"
        )
    if new.lasting_hash != old.lasting_hash:
        raise SettingError(
            "federation.first_rounds, first_silos or silo.first_fingerprint: do not fit the first version; use the "
            "file as the organiser's folder has it"
        )
    return [f"version {old.version} -> {new.version}", *changes]


def _check_chain(old: Contract, new: Contract) -> None:
    if new.name != old.name:
        raise SettingError(f"federation.name: is of {new.name}, and this is {old.name}; give the right file")
    if new.version <= old.version:
        raise SettingError(
            f"federation.version: is version {new.version}, and version {old.version} is held already; ask the "
            "organiser for a newer one"
        )
    if new.version > old.version + 1:
        raise SettingError(
            f"federation.version: is version {new.version}, and version {old.version} is held; accept version "
            f"{old.version + 1} first (the organiser's folder has it as federation-{old.version + 1}.toml)"
        )
    if new.previous != old.hash:
        raise SettingError(
            f"federation.previous: follows another version {old.version} ({str(new.previous)[:12]}) than is held "
            f"({old.hash[:12]}); ask the organiser for the one that follows it"
        )


def _flatten(contract: Contract) -> dict[str, Any]:
    """Return every key of a contract's file, with dots."""
    flat: dict[str, Any] = {}

    def take(table: Mapping[str, Any], where: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                take(value, f"{where}{key}.")
            else:
                flat[f"{where}{key}"] = value

    take(tomllib.loads(contract.text), "")
    return flat


def _describe_rounds(old: Contract, new: Contract) -> list[str]:
    before, after = old.experiment.training.rounds, new.experiment.training.rounds
    if after < before:
        raise SettingError(f"training.rounds: {after}, fewer than the {before} that are agreed on; give more")
    return [f"rounds {before} -> {after}"] if after != before else []


def _describe_members(old: Contract, new: Contract) -> list[str]:
    changes = []
    for place, was in enumerate(old.members):
        now = new.members[place] if place < len(new.members) else None
        if now is None or now.name != was.name:
            raise SettingError(
                f"silo[{place}].name: {was.name} must stay in its place; a silo is removed by `removed`, and a new one "
                "comes last"
            )
        if was.removed not in (None, now.removed) and now.removed != GO:
            raise SettingError(
                f"silo[{place}].removed: {was.name} was removed, and its digest {_say_digest(was.removed or '')}; add "
                "it under another name, with another key"
            )
        if now.removed != was.removed:
            changes.append(f"silo {now.name} is removed; its digest {_say_digest(now.removed or '')}")
        if now.fingerprint != was.fingerprint:
            changes.append(f"silo {now.name} gets another key, {now.fingerprint}")
    joined = new.members[len(old.members) :]
    return changes + [f"silo {member.name} joins, with the key {member.fingerprint}" for member in joined]


def _say_digest(removed: str) -> str:
    return "is deleted" if removed == GO else "stays in use"
