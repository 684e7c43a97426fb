"""`feddig federation extend|change|add|remove|rekey|accept|pause|resume`: amend a federation, or pause it."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddig.commands.federation import (
    DIGEST_DEADLINE,
    DIGEST_LIMIT,
    MIN_SILOS,
    MODEL_EVERY,
    ROUNDS_ALONE,
    START_SILOS,
    TRAINING_DEADLINE,
    UPDATE_LIMIT,
    Whole,
    moderator_of,
    need_flower,
)
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.federation.amend import Version
    from feddig.federation.folders import FederationFolder

Name = Annotated[str, typer.Argument(metavar="NAME", help="The silo's name.")]
Running = Annotated[
    Path, typer.Argument(metavar="DIR", help="The moderator's folder, or the federation's with it inside.")
]


class DigestOf(StrEnum):
    """What happens to the digest of a removed silo."""

    stay = "stay"
    go = "go"


def extend_command(
    folder: Whole,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in all, more than now.")],
) -> None:
    """Let a federation have more rounds, also after its last one."""
    need_flower()
    from feddig.federation.amend import extend

    whole = _whole(folder)
    _tell(whole, extend(whole, rounds))


def change_command(
    folder: Whole,
    training_deadline: Annotated[float | None, TRAINING_DEADLINE] = None,
    digest_deadline: Annotated[float | None, DIGEST_DEADLINE] = None,
    update_limit: Annotated[float | None, UPDATE_LIMIT] = None,
    digest_limit: Annotated[float | None, DIGEST_LIMIT] = None,
    min_silos: Annotated[int | None, MIN_SILOS] = None,
    start_silos: Annotated[int | None, START_SILOS] = None,
    rounds_alone: Annotated[int | None, ROUNDS_ALONE] = None,
    model_every: Annotated[int | None, MODEL_EVERY] = None,
) -> None:
    """Change deadlines, limits and how many silos a round needs; what is left out stays as it is."""
    need_flower()
    from feddig.federation.amend import change

    whole = _whole(folder)
    version = change(
        whole,
        training_deadline=training_deadline,
        digest_deadline=digest_deadline,
        update_limit=update_limit,
        digest_limit=digest_limit,
        min_silos=min_silos,
        start_silos=start_silos,
        rounds_alone=rounds_alone,
        model_every=model_every,
    )
    _tell(whole, version)


def add_command(
    folder: Whole,
    name: Name,
    key: Annotated[
        Path | None,
        typer.Option(help="The silo's own public key; without it a key pair is made in its folder."),
    ] = None,
) -> None:
    """Add a silo: it takes part when it and the moderator have the new version."""
    need_flower()
    from feddig.federation.amend import add

    whole = _whole(folder)
    _tell(whole, add(whole, name, key))


def remove_command(
    folder: Whole,
    name: Name,
    digest: Annotated[
        DigestOf, typer.Option(help="stay: the moderator goes on using it; go: the moderator deletes it.")
    ],
) -> None:
    """Remove a silo for good; for a pause it just stops."""
    need_flower()
    from feddig.federation.amend import remove

    whole = _whole(folder)
    _tell(whole, remove(whole, name, digest.value))


def rekey_command(
    folder: Whole,
    name: Name,
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The silo's new public key.")],
) -> None:
    """Give a silo a new key, for example when the old one was lost or seen by others."""
    need_flower()
    from feddig.federation.amend import rekey

    whole = _whole(folder)
    _tell(whole, rekey(whole, name, key))


def accept_command(
    folder: Annotated[Path, typer.Argument(help="The party's own folder.")],
    file: Annotated[
        Path, typer.Argument(metavar="NEW.toml", help="The next version, as the organiser sent it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Accept without being asked.")] = False,
) -> None:
    """Show what the next version of the contract changes, and put it into a party's folder."""
    need_flower()
    from feddig.federation.amend import read_next_version

    version = read_next_version(folder, file)
    _list(version)
    if not yes:
        if not sys.stdin.isatty():
            raise FedDigError(f"{folder}: nothing is changed yet; give --yes to accept this version")
        typer.confirm("accept?", abort=True)
    version.install()
    print(f"{folder}: holds version {version.contract.version} now; {_when(folder)}")


def pause_command(folder: Running) -> None:
    """Let no further round begin, until `resume`; the silos stay connected."""
    from feddig.federation.status import say_paused

    moderator = moderator_of(folder)
    moderator.pause.touch()
    print(f"{moderator.path}: {say_paused(moderator)}; a round that has begun is finished first")


def resume_command(folder: Running) -> None:
    """Let the rounds of a paused federation go on."""
    moderator = moderator_of(folder)
    if not moderator.pause.exists():
        raise FedDigError(
            f"{moderator.path}: is not paused; `feddig federation status` says what it waits for"
        )
    moderator.pause.unlink()
    print(f"{moderator.path}: goes on")


COMMANDS: dict[str, Callable[..., Any]] = {
    "extend": extend_command,
    "change": change_command,
    "add": add_command,
    "remove": remove_command,
    "rekey": rekey_command,
    "accept": accept_command,
    "pause": pause_command,
    "resume": resume_command,
}


def _whole(folder: Path) -> "FederationFolder":
    from feddig.federation.folders import FederationFolder

    return FederationFolder(folder)


def _when(folder: Path) -> str:
    """Say when a party follows a version that it has accepted."""
    from feddig.federation.folders import SiloFolder

    if SiloFolder(folder).silo_file.is_file():
        return "the silo follows it as soon as the moderator does; for a new key, address or deadline start it again"
    return "start the moderator again to follow it"


def _list(version: "Version") -> None:
    print(f"contract of {version.contract.name}, SHA-256 {version.contract.hash}")
    for line in version.changes:
        print(f"  {line}")


def _tell(whole: "FederationFolder", version: "Version") -> None:
    """Print what was changed, and what is left to do."""
    from feddig.federation.amend import version_file

    _list(version)
    for step in version.steps:
        print(step)
    file = version_file(whole, version.contract)
    print(f"the folders in {whole.path} have it; the moderator follows it when it is started again")
    print(
        f"send {file} to parties elsewhere, and to the moderator also the .pub file of a new key; each runs "
        f"`feddig federation accept FOLDER {file.name}` and compares the SHA-256 over another channel"
    )
