"""Options that several commands share, and functions that read them."""

import logging
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddig.commands import completion
from feddig.errors import FedDigError, nearest

if TYPE_CHECKING:
    from feddig.experiment.experiment import Experiment
    from feddig.federation.folders import SiloFolder


MOST_IN_RANGE = 10_000
"""Numbers in one range of --seeds; a longer one is a slip."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class LogLevel(StrEnum):
    """How much of the log is shown."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE.toml]", help="The experiment; without it, that of the demo."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a key of the experiment; may be repeated.",
        autocompletion=completion.settings,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda or cuda:N (one device; several GPUs are not used).",
        autocompletion=completion.one_of(lambda: completion.DEVICES),
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDDIG_DATA", help="Folder with data: public sets, and where a relative data.path starts."
    ),
]
NoPrivacy = Annotated[
    bool,
    typer.Option("--no-privacy", help="Real data: go on although the digest promises a record nothing."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only results and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Level = Annotated[LogLevel, typer.Option(help="Show log messages of this level and above on standard error.")]


def chosen_experiment(
    file: Path | None,
    overrides: list[str] | None,
    data_dir: Path | None,
    defaults: dict[str, Any] | None = None,
) -> "Experiment":
    """Read the experiment of a command: its file or the demo's, changed by --set."""
    from feddig.experiment.toml import read_experiment

    _refuse_federation(file)
    return read_experiment(file, overrides or [], defaults).located(data_dir)


def find_contract(path: Path | None) -> Path | None:
    """Return the contract that this file is, or that lies in this folder of a federation; None for another file."""
    from feddig.federation.folders import CONTRACT

    if path is None or (path.is_file() and path.suffix != ".toml"):
        return None
    if path.is_dir():
        return path / CONTRACT
    try:
        return path if "federation" in tomllib.loads(path.read_text(encoding="utf-8")) else None
    except (OSError, ValueError, RecursionError):
        return None  # the reader of experiments says what is wrong


def _refuse_federation(path: Path | None) -> None:
    """Name the commands for a federation if its folder or contract is given in an experiment's place."""
    from feddig.federation.folders import FederationFolder

    contract = find_contract(path)
    if path is None or contract is None:
        return
    if contract.exists() or FederationFolder(path).moderator.contract.exists():
        folder = path if path.is_dir() else path.parent
        raise FedDigError(
            f"{path}: is of a federation and no experiment; check it with `feddig federation check {folder}`, and "
            "start it as its run sheet says"
        )


def find_silo(path: Path | None) -> "SiloFolder | None":
    """Return the silo's folder that is given by itself or by the contract in it; None for another file."""
    from feddig.federation.folders import CONTRACT, SiloFolder

    contract = find_contract(path)
    if contract is None:
        return None
    folder = SiloFolder(contract.parent)
    if not folder.silo_file.exists() or contract.name != CONTRACT:
        raise FedDigError(
            f"{path}: is no silo's folder, nor the contract in one; give the folder with {CONTRACT} and silo.toml: a "
            "contract alone has no data and no digest"
        )
    return folder


def refuse_options(path: Path | None, given: Mapping[str, object]) -> None:
    """Refuse options whose values a contract has already decided."""
    for name, value in given.items():
        if value:
            raise FedDigError(f"{name}: cannot be given with {path}: its contract decides that")


def listed(option: str, text: str, known: Sequence[str] = (), *, distinct: bool = False) -> list[str]:
    """Split a list of names at its commas; if `known` names are given, each must be one of them.

    A name that is repeated counts once, or is refused where names must be `distinct`.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise FedDigError(f"{option}: give at least one name")
    for name in names:
        if known and name not in known:
            raise FedDigError(f"{option}: {name!r} is not known; {nearest(name, known)}")
        if distinct and names.count(name) > 1:
            raise FedDigError(f"{option}: {name!r} is listed twice; give each one its own name")
    return list(dict.fromkeys(names))


def whole_number(option: str, text: str) -> int:
    """Read a whole number, 0 or larger."""
    if not text.isdecimal() or len(text) > 18:
        raise FedDigError(
            f"{option}: {text!r} is not a whole number below 10^18; several are written as 0-4,7"
        )
    return int(text)


def whole_numbers(option: str, text: str) -> list[int]:
    """Read whole numbers and ranges of them, such as 0,2,5-7; a number that is repeated counts once."""
    numbers: dict[int, None] = {}
    for each in listed(option, text):
        first, dash, last = (part.strip() for part in each.partition("-"))
        is_range = bool(first and dash and last)
        start = whole_number(option, first if is_range else each)
        end = whole_number(option, last) if is_range else start
        if not 0 <= end - start < MOST_IN_RANGE:
            raise FedDigError(
                f"{option}: {each!r} is no range of at most {MOST_IN_RANGE:,} numbers; write the smaller first, as 0-4"
            )
        numbers.update(dict.fromkeys(range(start, end + 1)))
    return list(numbers)


def check_out(out: Path) -> None:
    """Refuse a file where a folder for results is to be."""
    if out.is_file():
        raise FedDigError(f"--out: {out} is a file; give a new folder")


def page_in(folder: Path) -> Path | None:
    """Return the page of a run's or a comparison's folder, if it was written."""
    from feddig.report.html_parts import PAGE

    page = folder / PAGE
    return page if page.is_file() else None


def print_page(page: Path | None) -> None:
    """Print where a page is, if it was written; all commands print it in the same way."""
    from feddig.report.html_parts import say_page

    if page is not None:
        print(say_page(page))


def show_log(level: LogLevel, *, timed: bool = False) -> None:
    """Show log messages of this level and above on standard error; `timed`, each with its time."""
    log = logging.getLogger("feddig")
    log.handlers.clear()
    handler = logging.StreamHandler()
    handler.setLevel(level.upper())
    form = "%(asctime)s %(levelname)s %(message)s" if timed else "feddig: %(levelname)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, logging.getLevelName(level.upper())))


@contextmanager
def hint(text: str, *, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """When the user interrupts a command, print how to continue it."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        if when():
            print(f"\n{text}", file=sys.stderr)
        sys.exit(INTERRUPTED)
