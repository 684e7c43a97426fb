"""Telling a person how a run goes: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from feddig.experiment.experiment import Experiment


class Progress(Protocol):
    """Whatever wants to know about rounds."""

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Hear that a run starts (or goes on after some rounds), and who will come and go when."""
        ...

    def round(self, row: Mapping[str, Any]) -> None:
        """Hear of a finished round: its row of metrics."""
        ...

    def stop(self) -> None:
        """Hear that no more rounds come."""
        ...


class Silent:
    """Says nothing."""

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Say nothing."""

    def round(self, row: Mapping[str, Any]) -> None:
        """Say nothing."""

    def stop(self) -> None:
        """Say nothing."""


class Lines:
    """A plain line a round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console, self._rounds, self._left = console, 0, 0
        self._begun, self._prepared = time.perf_counter(), 0.0

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Say what starts."""
        self._rounds, self._left, self._begun = rounds, rounds - done, time.perf_counter()
        self._say(f"{title(experiment)}: rounds {done} to {rounds - 1}")
        self._say(outlook(events))

    def round(self, row: Mapping[str, Any]) -> None:
        """Say what the round brought."""
        finished = self._left - (self._rounds - 1 - row["round"])
        self._prepared += row["seconds_preparing"]
        working = time.perf_counter() - self._begun - self._prepared
        left = working / max(finished, 1) * (self._left - finished)
        self._say(
            f"round {row['round']:>3} of {self._rounds}  accuracy {row['test_accuracy']:5.1f} %  "
            f"{attendance(row)}{preparation(row)}  {left:.0f} s left"
        )

    def stop(self) -> None:
        """Say nothing: the last round was said."""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Live:
    """A bar that moves: round, who is here, who is recalled, accuracy, time left."""

    def __init__(self, console: Console) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[attendance]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Show the bar."""
        self._bar.console.print(outlook(events), markup=False, highlight=False)
        self._task = self._bar.add_task(
            title(experiment), total=rounds, completed=done, accuracy="", attendance="", start=True
        )
        self._bar.start()

    def round(self, row: Mapping[str, Any]) -> None:
        """Move the bar on."""
        assert self._task is not None
        accuracy = f"{row['test_accuracy']:5.1f} %"
        self._bar.update(
            self._task, advance=1, accuracy=accuracy, attendance=attendance(row) + preparation(row)
        )

    def stop(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()


def choose_progress(console: Console, *, quiet: bool) -> Progress:
    """Choose by where the output goes."""
    if quiet:
        return Silent()
    return Live(console) if console.is_terminal else Lines(console)


def outlook(events: Sequence[str], most: int = 8) -> str:
    """Say who comes and goes when, the first few at least."""
    more = f"; and {len(events) - most} more, see log.txt" if len(events) > most else ""
    return "; ".join(events[:most]) + more if events else "everybody stays"


def title(experiment: Experiment) -> str:
    """Name a run in a few words."""
    return f"{experiment.algorithm.name}, {experiment.absence.scenario}, seed {experiment.seed}"


def preparation(row: Mapping[str, Any]) -> str:
    """Say what a round's time went on besides training, where that is much."""
    seconds = row["seconds_preparing"]
    return f"  (compiling and recording: {seconds:.1f} s, once)" if seconds >= 0.1 else ""


def attendance(row: Mapping[str, Any]) -> str:
    """Say who is here and who is recalled."""
    here, recalled = (" ".join(map(str, row[key])) or "nobody" for key in ("present", "recalled"))
    return f"here: {here}" + (f"  recalled: {recalled}" if row["recalled"] else "")
