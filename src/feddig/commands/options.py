"""What the commands share: their options, and how those are read."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddig.errors import FedDigError, nearest

if TYPE_CHECKING:
    from feddig.experiment.experiment import Experiment


INTERRUPTED = 130
"""The exit code after ctrl-c."""


class LogLevel(StrEnum):
    """How much the log says."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE.toml]", help="The experiment; without one, the demo's setting."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change a key of the experiment; may be repeated."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:N (one device; several GPUs are not used).")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDDIG_DATA", help="Folder with data: public sets, and what a relative data.path names."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only results and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Level = Annotated[LogLevel, typer.Option(help="What of the log is shown on standard error.")]


def chosen_experiment(
    file: Path | None,
    overrides: list[str] | None,
    data_dir: Path | None,
    defaults: dict[str, Any] | None = None,
) -> "Experiment":
    """Read the experiment that a command is about: its file or the demo's, with what --set changes."""
    from feddig.experiment.toml import demo_experiment, read_experiment

    read = (
        read_experiment(file, overrides or [], defaults)
        if file
        else demo_experiment(overrides or [], defaults)
    )
    return read.located(data_dir)


def listed(option: str, text: str, known: Sequence[str] = ()) -> list[str]:
    """Take names apart that stand with commas between; each must be known, if it is said which are."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise FedDigError(f"{option}: names nothing")
    for name in names:
        if known and name not in known:
            raise FedDigError(f"{option}: {name!r} is not known; {nearest(name, known)}")
    return list(dict.fromkeys(names))


def whole_number(option: str, text: str) -> int:
    """Read a whole number from 0."""
    if not text.isdecimal() or len(text) > 18:
        raise FedDigError(f"{option}: {text!r} is not a whole number below 10^18")
    return int(text)


def show_log(level: LogLevel) -> None:
    """Show the log on standard error from this level on."""
    log = logging.getLogger("feddig")
    log.handlers.clear()
    handler = logging.StreamHandler()
    handler.setLevel(level.upper())
    handler.setFormatter(logging.Formatter("feddig: %(levelname)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, logging.getLevelName(level.upper())))


@contextmanager
def hint(text: str, *, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Tell how to go on when a command is interrupted by hand."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        if when():
            print(f"\n{text}", file=sys.stderr)
        sys.exit(INTERRUPTED)
