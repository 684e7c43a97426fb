"""Open the logs that an experiment asks for, and send them each round and the result.

A log that cannot be opened is an error before training; a log that fails later never stops the training.
"""

import importlib.util
import logging
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from feddig.errors import FedDigError, SettingError, first_line
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import write_experiment
from feddig.report.read_run import flatten
from feddig.report.run_files import NO_CLASSES, Classes

log = logging.getLogger("feddig")

LAST_NUMBER = "silos/present"
"""Every round has this number and logs it last: a round that has it is complete."""
SINGLE_NUMBERS = (
    "test_accuracy", "macro_f1", "balanced_accuracy", "auc", "accuracy", "parameter_norm",
    "seconds", "seconds_silos", "seconds_recall", "seconds_joint", "seconds_preparing",
)  # fmt: skip
"""The keys of a row of metrics.jsonl that hold one number."""


LONGEST_LABEL = 100
"""Of a class or silo; MLflow takes names of up to 250 characters."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, for the end of a log."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def measures(self) -> dict[str, float]:
        """The accuracies of summary.json that were reached."""
        return {name: value for name, value in self.summary["accuracy"].items() if value is not None}

    def pictures(self) -> dict[str, bytes]:
        """Return PNG files by name: the accuracy curve, and guidance where there is any."""
        from feddig.report.paper.digests import class_guidance
        from feddig.report.paper.style import DPI
        from feddig.report.pictures import to_bytes
        from feddig.report.read_run import read_runs

        found = {"curves": (self.folder / "curves.png").read_bytes()}
        with suppress(FedDigError):  # the run has no guidance producer, or one of the user's own
            found["guidance"] = to_bytes(class_guidance(read_runs([self.folder])), dpi=DPI)
        return found


class Log(Protocol):
    """The log of one run in another tool. If a method raises any exception, the data is not logged."""

    name: str
    next_round: int
    """The first round that is not in the log yet."""

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Log the round `next_round`, and count it."""

    def finish(self, run: FinishedRun) -> None:
        """Log the result of the run."""

    def close(self, ended: str) -> None:
        """Close the log; `ended` is one of finished, paused, interrupted, failed."""


def _open_tensorboard(experiment: Experiment, folder: Path) -> Log:
    from feddig.runs.loggers.tensorboard import TensorBoardLog

    return TensorBoardLog(experiment, folder)


def _open_mlflow(experiment: Experiment, folder: Path) -> Log:
    from feddig.runs.loggers.mlflow import MlflowLog

    return MlflowLog(experiment, folder)


LOGS: Mapping[str, tuple[Callable[[Experiment, Path], Log], str, str]] = {
    "tensorboard": (_open_tensorboard, "tensorboard", "logging"),
    "mlflow": (_open_mlflow, "mlflow", "mlflow"),
}
"""By setting: the function that opens the log, the package it needs, and the extra that installs the package."""


def check_logs(experiment: Experiment) -> None:
    """Raise an error if a package is missing, before anything is written."""
    for setting in _wanted(experiment):
        _, package, extra = LOGS[setting]
        if importlib.util.find_spec(package) is None:
            raise SettingError(
                f"logging.{setting}: the package {package} is not installed; pip install 'feddig[{extra}]'"
            )


@contextmanager
def open_logs(experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]]) -> "Iterator[Logs]":
    """Open the logs of a run whose rounds so far are `rows`, and close them however it ends."""
    logs = Logs(experiment, folder, rows)
    ended = "failed"
    try:
        yield logs
        ended = "finished" if logs.finished else "paused"
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        logs.close(ended)


class Logs:
    """All logs of a run. A log that fails is reported once, and tried again when the run is finished."""

    def __init__(self, experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        self._folder, self._rows = folder, list(rows)
        self._logs: list[Log] = []
        self._failed: set[str] = set()
        self.finished = False
        for setting in _wanted(experiment):
            try:
                self._logs.append(LOGS[setting][0](experiment, folder))
            except Exception as error:  # any exception of the package: the user asked for this log
                self.close("failed")
                raise FedDigError(
                    f"logging.{setting}: cannot be opened ({first_line(error)}); correct it and continue with "
                    f"feddig run --resume {folder}"
                ) from error
        self._log_rows()

    def round(self, row: Mapping[str, Any]) -> None:
        """Log a finished round."""
        self._rows.append(row)
        self._log_rows()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the result, and before it every round that a log has missed."""
        self.finished = True
        run = FinishedRun(self._folder, summary)
        for each in self._logs:
            self._try(each, partial(self._finish_log, each, run))

    def close(self, ended: str) -> None:
        """Close all logs."""
        for each in self._logs:
            self._try(each, partial(each.close, ended))

    def _log_rows(self) -> None:
        for each in self._logs:
            if each.name not in self._failed:
                self._try(each, partial(self._log_missing, each))

    def _log_missing(self, each: Log) -> None:
        """Log the rounds that are not in the log yet: usually one, or all of a run that branched off another."""
        for row in self._rows[each.next_round :]:
            each.log_round(row)

    def _finish_log(self, each: Log, run: FinishedRun) -> None:
        self._log_missing(each)
        each.finish(run)

    def _try(self, each: Log, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # training goes on: the results folder has every round
            if each.name not in self._failed:
                log.warning(
                    "%s: not logged from round %d on (%s); the results folder has every round, and logging is "
                    "tried again at the end",
                    each.name, each.next_round + 1, first_line(error),
                )  # fmt: skip
            self._failed.add(each.name)


def _wanted(experiment: Experiment) -> list[str]:
    return [setting for setting in LOGS if getattr(experiment.logging, setting)]


def numbers_of(row: Mapping[str, Any], classes: Classes = NO_CLASSES) -> dict[str, float]:
    """Return the numbers of a round by name; unknown and infinite ones are left out.

    `classes` has the names of classes and silos; without them they are called class_0, silo_0 and so on.
    """
    found: dict[str, Any] = {name: row.get(name) for name in SINGLE_NUMBERS}
    in_class = row.get("class_accuracy") or ()
    found |= _named("class_accuracy/", "class", classes.names, enumerate(in_class))
    for name, ends in (row.get("intervals") or {}).items():
        found |= {
            f"intervals/{name}_{end}": value for end, value in zip(("low", "high"), ends or (), strict=False)
        }
    silos, losses = classes.silo_names, row.get("losses") or {}
    of_silos, of_recall = losses.get("silos") or {}, losses.get("recall") or {}
    validation = row.get("validation_accuracy") or ()
    found |= _named("validation_accuracy/", "silo", silos, enumerate(validation))
    found |= _named("losses/", "silo", silos, of_silos.items())
    found |= _named("losses/recall_", "", silos, of_recall.items())
    found["losses/joint"] = losses.get("joint")
    found["silos/recalled"] = len(row["recalled"])
    found[LAST_NUMBER] = len(row["present"])
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _named(prefix: str, kind: str, names: Sequence[str], values: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Name numbers by silo or class; those without a name are called by their kind and number."""
    labels = _labels(names)
    unnamed = f"{kind}_" if kind else ""
    return {
        prefix + (labels[int(number)] if int(number) < len(labels) else f"{unnamed}{number}"): value
        for number, value in values
    }


def _labels(names: Sequence[str]) -> list[str]:
    """Return names of which both tools take every character; two that then look alike get their number."""
    labels: list[str] = []
    taken = {"joint"}  # losses/joint is no silo's
    for number, name in enumerate(names):
        label = re.sub(r"[^\w.-]+", "_", name)[:LONGEST_LABEL].strip(".") or "_"
        if label.casefold() in taken:
            label = f"{label}_{number}"
        taken.add(label.casefold())
        labels.append(label)
    return labels


def settings_of(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Return all settings by names such as data.silos; lists become text."""
    flat = flatten(tomllib.loads(write_experiment(experiment)))
    flat.pop("format_version", None)
    return {key: str(value) if isinstance(value, Sequence) else value for key, value in flat.items()}
