"""A silo's watch over its apps: one that has hung is ended, or each new question would leave one more of them.

Flower starts an app for every message and never ends one. From outside, as an app that hangs may be beyond hearing
signals of its own.

Showing how a federation goes while it runs: a bar in a terminal, a line for each round elsewhere.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from feddig.federation.processes.processes import age, end, started_by_us
from feddig.federation.status import Status, describe

APP = "feddig.federation.flower_1_41.local_app"
LOOK_SECONDS = 5.0

log = logging.getLogger("feddig")


class Watchdog:
    """Ends apps that are still at work when nobody waits for their answers any more."""

    def __init__(self, party: Path, longest: float) -> None:
        self._party, self._longest = party, longest
        self._looked = time.monotonic()

    def look(self) -> None:
        """Look through the apps that run, unless that was done just now."""
        # looking through all processes takes time that the silo's training needs
        if time.monotonic() - self._looked < min(LOOK_SECONDS, self._longest):
            return
        self._looked = time.monotonic()
        for process in started_by_us(self._party, APP):
            if age(process) > self._longest:
                log.warning(
                    "an app has not answered in %g s, twice the longest deadline: process %d is ended; if it was just "
                    "slow, agree on longer deadlines",
                    self._longest,
                    process,
                )
                end([process])


Show = Callable[[Status], None]


@contextmanager
def choose_display(console: Console, *, quiet: bool) -> Iterator[Show]:
    """Choose by where the output goes."""
    if quiet:
        yield lambda status: None
    elif console.is_terminal:
        with _bar(console) as show:
            yield show
    else:
        yield _lines(console)


def _lines(console: Console) -> Show:
    """Say a line when a round is done or somebody comes or goes."""
    last = ""

    def show(status: Status) -> None:
        nonlocal last
        line = f"{status.content['federation']}: {describe(status)}"
        if line != last:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        last = line

    return show


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[state]}  {task.fields[accuracy]}  {task.fields[attendance]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None, state="", accuracy="", attendance="")

        def show(status: Status) -> None:
            bar.update(
                task,
                description=status.content["federation"],
                completed=status.rounds_done,
                total=status.rounds,
                state=status.content["state"],
                accuracy=status.accuracy,
                attendance=status.attendance,
            )

        yield show
