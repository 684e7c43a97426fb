"""A log of a run that only remembers what it was told, in TensorBoard's place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from feddig.experiment.experiment import Experiment
from feddig.runs.loggers import base
from feddig.runs.loggers.base import FinishedRun


class Notebook:
    """A log that keeps what it is told."""

    name = "notebook"
    kept: list["Notebook"]

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.folder, self.next_round = folder, 0
        self.rounds: list[int] = []
        self.outcome: FinishedRun | None = None
        self.ended = ""
        self.kept.append(self)

    def log_round(self, row: Mapping[str, Any]) -> None:
        assert row["round"] == self.next_round
        self.rounds.append(row["round"])
        self.next_round += 1

    def finish(self, outcome: FinishedRun) -> None:
        self.outcome = outcome

    def close(self, ended: str) -> None:
        self.ended = ended


def put_notebooks(monkeypatch: pytest.MonkeyPatch) -> list[Notebook]:
    """Put a notebook in TensorBoard's place, and give the list of all that are opened."""
    kept: list[Notebook] = []
    monkeypatch.setattr(Notebook, "kept", kept, raising=False)
    monkeypatch.setattr(base, "LOGS", {"tensorboard": (Notebook, "json", "logging")})
    return kept
