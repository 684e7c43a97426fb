"""Show the progress of a run or of a comparison: a bar in a terminal, plain lines elsewhere."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from feddig.core.absence import PRESETS
from feddig.experiment.experiment import Experiment

log = logging.getLogger("feddig")

MAX_EVENTS = 8
"""Departures and returns that are listed before the first round."""


class Progress(Protocol):
    """Is called when a run starts, after each round, and when no more rounds come."""

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Start with `done` rounds finished; `events` say which silos leave and return when."""
        ...

    def round(self, row: Mapping[str, Any]) -> None:
        """Show a finished round by its row of metrics."""
        ...

    def stop(self) -> None:
        """Stop: no more rounds come."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Show nothing."""

    def round(self, row: Mapping[str, Any]) -> None:
        """Show nothing."""

    def stop(self) -> None:
        """Show nothing."""


class ProgressLines:
    """Prints one line for each round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console, self._rounds, self._remaining = console, 0, 0
        self._started, self._preparing = time.perf_counter(), 0.0

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Print what starts."""
        self._rounds, self._remaining, self._started = rounds, rounds - done, time.perf_counter()
        self._print(f"{run_title(experiment)}: rounds {done + 1} to {rounds}")
        self._print(describe_events(events, experiment))

    def round(self, row: Mapping[str, Any]) -> None:
        """Print the round's accuracy and silos, and the time that is left."""
        finished = self._remaining - (self._rounds - 1 - row["round"])
        self._preparing += row["seconds_preparing"]
        working = time.perf_counter() - self._started - self._preparing
        left = working / max(finished, 1) * (self._remaining - finished)
        self._print(
            f"round {row['round'] + 1:>3} of {self._rounds}  accuracy {row['test_accuracy']:5.1f} %  "
            f"{describe_silos(row)}{describe_preparation(row)}  {left:.0f} s left"
        )

    def stop(self) -> None:
        """Print nothing: the last round is already printed."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class ProgressBar:
    """Shows a bar with the round, the accuracy, which silos are here and recalled, and the time left."""

    def __init__(self, console: Console) -> None:
        silos = TextColumn("{task.fields[silos]}")
        self._bar = _bar_with(silos, TimeRemainingColumn(), console=console)
        self._task: TaskID | None = None

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Show the bar."""
        self._bar.console.print(describe_events(events, experiment), markup=False, highlight=False)
        self._task = self._bar.add_task(
            run_title(experiment), total=rounds, completed=done, accuracy="", silos="", start=True
        )
        self._bar.start()

    def round(self, row: Mapping[str, Any]) -> None:
        """Advance the bar."""
        assert self._task is not None
        self._bar.update(self._task, advance=1, **_fields(row))

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


class GridProgress(Silent):
    """Hears of the runs of a comparison, and of the rounds of each; shows nothing, but logs failures."""

    def plan(self, trained: Sequence[range]) -> None:
        """Take the rounds that each run will train itself: not those that are finished, copied or frozen."""

    def begin(self, number: int, experiment: Experiment, origin: str) -> None:
        """Begin a run, by its number from 0; `origin` says where it starts."""

    def finish(self, accuracy: float) -> None:
        """Take the final accuracy of the run."""

    def fail(self, path: Path, why: str) -> None:
        """Log why the run has no result."""
        log.warning("%s: %s", path, why)


class GridLines(GridProgress):
    """Prints a line for each event of a comparison; in a terminal, a bar shows the rounds of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichProgress | None = None
        self._task = TaskID(0)
        self._left: list[range] = []
        self._number, self._title, self._rounds = 0, "", 0
        self._events: Sequence[str] | None = None
        self._trained, self._since, self._preparing = 0, time.perf_counter(), 0.0

    def plan(self, trained: Sequence[range]) -> None:
        """Remember what is to be trained, and start the clock."""
        self._left, self._since = list(trained), time.perf_counter()

    def begin(self, number: int, experiment: Experiment, origin: str) -> None:
        """Print which run begins and where it starts."""
        self._number, self._title, self._events = number, run_title(experiment), None
        self._rounds = experiment.training.rounds
        self._print_event(f"{origin}; {self._rounds} rounds in all")

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Show the bar, and print the first time what the scenario does in no round in particular."""
        if self._events is None:
            notes = [event for event in events if not event.startswith("round ")]
            if not events and experiment.absence.scenario != "none":
                notes = [describe_events(events, experiment)]
            for note in notes:
                self._print_event(note)
        self._events = events
        if self._console.is_terminal:
            left, silos = TextColumn("{task.fields[left]}"), TextColumn("{task.fields[silos]}")
            self._bar = _bar_with(left, silos, console=self._console, transient=True)
            self._task = self._bar.add_task(
                f"{self._place()}  {self._title}",
                total=self._rounds, completed=done, accuracy="", left=self._describe_left(), silos="",
            )  # fmt: skip
            self._bar.start()

    def round(self, row: Mapping[str, Any]) -> None:
        """Advance the bar; print who leaves, returns or joins in this round, if anybody does."""
        left = self._left[self._number]
        if row["round"] in left:
            self._trained += 1
            self._left[self._number] = range(row["round"] + 1, left.stop)
        self._preparing += row["seconds_preparing"]
        if self._bar:
            self._bar.update(self._task, advance=1, left=self._describe_left(), **_fields(row))
        begin = f"round {row['round'] + 1}: "
        events = [event.removeprefix(begin) for event in self._events or () if event.startswith(begin)]
        if events:
            happened = f"round {row['round'] + 1} of {self._rounds}: {', '.join(events)}"
            self._print_event(self._with_left(f"{happened}; accuracy {row['test_accuracy']:.1f} %"))

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def finish(self, accuracy: float) -> None:
        """Print the final accuracy, and the time that is left for all other runs."""
        self._print(self._with_left(f"finished; accuracy {accuracy:.1f} %"))

    def fail(self, path: Path, why: str) -> None:
        """Print why the run has no result."""
        self._left[self._number] = range(0)
        self._print(f"failed; {why}")

    def _print_event(self, text: str) -> None:
        # in a terminal the bar shows the same
        if not self._console.is_terminal:
            self._print(text)

    def _print(self, text: str) -> None:
        text = f"{self._place()}: {self._title}: {text}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _place(self) -> str:
        return f"run {self._number + 1} of {len(self._left)}"

    def _with_left(self, text: str) -> str:
        return ", ".join([text, *filter(None, [self._describe_left()])])

    def _describe_left(self) -> str:
        """Return the time that all runs still need, if a round takes as long as those so far."""
        rounds = sum(map(len, self._left))
        if not rounds or not self._trained:
            return ""
        working = time.perf_counter() - self._since - self._preparing
        return f"about {spell_seconds(working / self._trained * rounds)} left in all"


def _bar_with(*last: ProgressColumn, console: Console, transient: bool = False) -> RichProgress:
    """Return a bar with the description, the round and the accuracy, and these columns."""
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        *last,
        console=console,
        transient=transient,
    )


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a bar shows of a round."""
    silos = escape(describe_silos(row) + describe_preparation(row))
    return {"accuracy": f"{row['test_accuracy']:5.1f} %", "silos": silos}


def spell_seconds(seconds: float) -> str:
    """Return a duration for people, as 40 s, 25 min or 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def choose_progress(console: Console, *, quiet: bool) -> Progress:
    """Return a bar for a terminal, lines for anything else, and nothing if `quiet`."""
    if quiet:
        return Silent()
    return ProgressBar(console) if console.is_terminal else ProgressLines(console)


def run_title(experiment: Experiment) -> str:
    """Return the algorithm, scenario and seed of a run."""
    return f"{experiment.algorithm.name}, {experiment.absence.scenario}, seed {experiment.seed}"


def describe_events(events: Sequence[str], experiment: Experiment) -> str:
    """Return the first few events in one line."""
    if not events:
        scenario, rounds = experiment.absence.scenario, experiment.training.rounds
        if scenario == "none":
            return "every silo stays"
        remedy = "; use more training.rounds" if scenario in PRESETS else ""
        return f"every silo stays: {scenario} has no absence in {rounds} round{'s' if rounds > 1 else ''}{remedy}"
    more = len(events) - MAX_EVENTS
    return "; ".join(events[:MAX_EVENTS]) + (f"; and {more} more, see log.txt" if more > 0 else "")


def name_silos(row: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return a row for people: with the names of silos in place of their numbers, if they have some."""
    if not names:
        return row
    return {**row, **{key: [names[silo] for silo in row[key]] for key in ("present", "recalled")}}


def describe_silos(row: Mapping[str, Any]) -> str:
    """Return which silos are here and which are recalled."""
    here, recalled = (
        (", " if any(isinstance(silo, str) for silo in row[key]) else " ").join(map(str, row[key]))
        or "nobody"
        for key in ("present", "recalled")
    )
    return f"here: {here}" + (f"  recalled: {recalled}" if row["recalled"] else "")


def describe_preparation(row: Mapping[str, Any]) -> str:
    """Return the time that a round spent on compiling rather than training, if it is long."""
    seconds = row["seconds_preparing"]
    return f"  (compiling and recording: {seconds:.1f} s, once)" if seconds >= 0.1 else ""
