"""Showing how a federation goes while it runs: a bar in a terminal, a line for each round elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from feddig.federation.status import Status, describe

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
