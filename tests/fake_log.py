"""A fake log that replaces TensorBoard in tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feddig.experiment.experiment import Experiment
from feddig.runs.loggers import base
from feddig.runs.loggers.base import FinishedRun


class FakeLog:
    """A log that stores the calls it receives."""

    name = "fake log"
    opened: list["FakeLog"]

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.folder, self.next_round = folder, 0
        self.rounds: list[int] = []
        self.finished_run: FinishedRun | None = None
        self.ended = ""
        self.opened.append(self)

    def log_round(self, row: Mapping[str, Any]) -> None:
        assert row["round"] == self.next_round
        self.rounds.append(row["round"])
        self.next_round += 1

    def finish(self, run: FinishedRun) -> None:
        self.finished_run = run

    def close(self, ended: str) -> None:
        self.ended = ended


def use_fake_logs(monkeypatch: pytest.MonkeyPatch) -> list[FakeLog]:
    """Replace TensorBoard by fake logs, and return the list of all that are opened."""
    opened: list[FakeLog] = []
    monkeypatch.setattr(FakeLog, "opened", opened, raising=False)
    monkeypatch.setattr(base, "LOGS", {"tensorboard": (FakeLog, "json", "logging")})
    return opened
