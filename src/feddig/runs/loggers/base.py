"""What every log is given: a round as named numbers, the settings, and at the end the outcome with its pictures."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import write_experiment
from feddig.report.grouping import flatten

LAST = "silos/present"
"""The number that is logged last in each round and is always there: where it stands, the round is whole."""
PLAIN = (
    "test_accuracy", "accuracy", "parameter_norm",
    "seconds", "seconds_silos", "seconds_recall", "seconds_joint", "seconds_preparing",
)  # fmt: skip
"""What a row of metrics.jsonl holds as a single number."""


class Log(Protocol):
    """A log of one run in somebody else's form. Any exception of it means: not logged."""

    name: str
    next_round: int
    """The first round that is not in the log yet."""

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Log the round `next_round`, and count it."""

    def finish(self, outcome: "Outcome") -> None:
        """Log how the run ended."""

    def close(self, ended: str) -> None:
        """Let go of the log; `ended` is one of finished, paused, interrupted, failed."""


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def measures(self) -> dict[str, float]:
        """The accuracies of summary.json that were reached."""
        return {name: value for name, value in self.summary["accuracy"].items() if value is not None}

    def pictures(self) -> dict[str, bytes]:
        """Give the run's pictures as PNG files by name: its curve, and guidance where there is any."""
        from feddig.report.paper.digests import class_guidance
        from feddig.report.paper.style import as_bytes
        from feddig.report.read_run import read_runs

        found = {"curves": (self.folder / "curves.png").read_bytes()}
        with suppress(FedDigError):  # no guidance producer in this run, or one of the user's own
            found["guidance"] = as_bytes(class_guidance(read_runs([self.folder])), "png")
        return found


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Name the numbers of a round; what is unknown or not finite is left out."""
    found: dict[str, Any] = {name: row.get(name) for name in PLAIN}
    found |= _by_silo("validation_accuracy/silo", enumerate(row.get("validation_accuracy") or ()))
    losses = row.get("losses") or {}
    found |= _by_silo("losses/silo", (losses.get("silos") or {}).items())
    found |= _by_silo("losses/recall", (losses.get("recall") or {}).items())
    found["losses/joint"] = losses.get("joint")
    found["silos/recalled"] = len(row["recalled"])
    found[LAST] = len(row["present"])
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _by_silo(name: str, values: Any) -> dict[str, Any]:
    return {f"{name}_{silo}": value for silo, value in values}


def settings_of(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Spell all settings as section.key; lists become text."""
    flat = flatten(tomllib.loads(write_experiment(experiment)))
    flat.pop("format_version", None)
    return {key: str(value) if isinstance(value, Sequence) else value for key, value in flat.items()}
