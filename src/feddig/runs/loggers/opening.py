"""The logs that an experiment asks for: noticed before training if they cannot be had, and never its end."""

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from feddig.errors import FedDigError, SettingError, first_line
from feddig.experiment.experiment import Experiment
from feddig.runs.loggers.base import Log, Outcome
from feddig.runs.loggers.mlflow import MlflowLog
from feddig.runs.loggers.tensorboard import TensorBoardLog

log = logging.getLogger("feddig")

Open = Callable[[Experiment, Path], Log]
KNOWN: Mapping[str, tuple[Open, Sequence[str], str]] = {
    "tensorboard": (TensorBoardLog, ["tensorboard"], "logging"),
    "mlflow": (MlflowLog, ["mlflow"], "mlflow"),
}
"""By setting: what opens the log, the packages it needs, and the extra that brings them."""


def check_logs(experiment: Experiment) -> None:
    """Notice a missing package before anything is written."""
    for setting in _wanted(experiment):
        _, packages, extra = KNOWN[setting]
        for package in packages:
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
    """All logs of a run. One that fails is left alone, said so once, and tried again when the run is over."""

    def __init__(self, experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        self._folder, self._rows = folder, list(rows)
        self._logs: list[Log] = []
        self._failed: set[str] = set()
        self.finished = False
        for setting in _wanted(experiment):
            try:
                self._logs.append(KNOWN[setting][0](experiment, folder))
            except Exception as error:  # whatever the package throws: the user asked for this log
                self.close("failed")
                raise FedDigError(
                    f"logging.{setting}: cannot be opened ({first_line(error)}); mend it and continue with "
                    f"feddig run --resume {folder}"
                ) from error
        self._log_rows()

    def round(self, row: Mapping[str, Any]) -> None:
        """Log a round that is done and recorded."""
        self._rows.append(row)
        self._log_rows()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the end, and before it whatever a log has missed."""
        self.finished = True
        outcome = Outcome(self._folder, summary)
        for each in self._logs:
            self._guard(each, partial(self._end, each, outcome))

    def close(self, ended: str) -> None:
        """Close all of them."""
        for each in self._logs:
            self._guard(each, partial(each.close, ended))

    def _log_rows(self) -> None:
        for each in self._logs:
            if each.name not in self._failed:
                self._guard(each, partial(self._catch_up, each))

    def _catch_up(self, each: Log) -> None:
        """Log what is not in the log yet: usually one round; all of them in a run that branched off another."""
        for row in self._rows[each.next_round :]:
            each.log_round(row)

    def _end(self, each: Log, outcome: Outcome) -> None:
        self._catch_up(each)
        each.finish(outcome)

    def _guard(self, each: Log, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # training goes on: the results folder has it all
            if each.name not in self._failed:
                log.warning(
                    "%s: not logged from round %d on (%s); the results folder has every round, and the log is "
                    "tried again at the end",
                    each.name, each.next_round, first_line(error),
                )  # fmt: skip
            self._failed.add(each.name)


def _wanted(experiment: Experiment) -> list[str]:
    return [setting for setting in KNOWN if getattr(experiment.logging, setting)]
