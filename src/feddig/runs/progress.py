"""Show the progress of a run: a bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from feddig.core.absence import PRESETS
from feddig.experiment.experiment import Experiment

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
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[silos]}"),
            TimeRemainingColumn(),
            console=console,
        )
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
        accuracy = f"{row['test_accuracy']:5.1f} %"
        silos = escape(describe_silos(row) + describe_preparation(row))
        self._bar.update(self._task, advance=1, accuracy=accuracy, silos=silos)

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


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
