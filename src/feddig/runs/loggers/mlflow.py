"""A run in MLflow: where MLflow's own environment variables say, else in its database in the working folder."""

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddig._version import __version__
from feddig.experiment.experiment import Experiment
from feddig.files import FORMAT_VERSION, write_atomically
from feddig.runs.loggers.base import LAST, Outcome, numbers_of, settings_of

NOTE = "mlflow.json"
"""Which MLflow run a results folder is logged as."""
EXPERIMENT = "feddig"
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Training waits for the log, so a server that is gone must be noticed soon: MLflow itself would try for minutes."""
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
"""Nothing is told to anybody, and what its database does while it is made is no news."""
MOST_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""
ARTIFACTS = ("summary.json", "experiment.toml", "availability.csv", "report.html")
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
"""By how a run ended; one that only pauses goes on being a running one."""


class MlflowLog:
    """Settings as parameters, rounds as metrics with steps, summary and pictures as artifacts."""

    name = "MLflow"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        """Open the folder's own log from before, or a new one."""
        for name, value in (PATIENCE | QUIET).items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        note = _read_note(folder / NOTE)
        # a variable that is set now counts; without one, a run that is resumed elsewhere finds its own log again
        uri = get_tracking_uri() if "MLFLOW_TRACKING_URI" in os.environ or not note else note["tracking_uri"]
        self._client = MlflowClient(tracking_uri=uri)
        if note and note["tracking_uri"] == uri:
            self._run = str(note["run_id"])
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._begin(experiment, folder)
            facts = {"format_version": FORMAT_VERSION, "tracking_uri": uri, "run_id": self._run}
            write_atomically(folder / NOTE, json.dumps(facts) + "\n")
        steps = [metric.step for metric in self._client.get_metric_history(self._run, LAST)]
        self.next_round = max(steps, default=-1) + 1

    def _begin(self, experiment: Experiment, folder: Path) -> str:
        """Make a run with its tags and parameters."""
        run = self._client.create_run(
            _experiment_of(self._client), run_name=_run_name(experiment), tags=_tags(experiment, folder)
        )
        settings = [self._param(key, str(value)) for key, value in settings_of(experiment).items()]
        for start in range(0, len(settings), MOST_AT_ONCE):
            self._client.log_batch(run.info.run_id, params=settings[start : start + MOST_AT_ONCE])
        return str(run.info.run_id)

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Send a round's numbers in one call."""
        self._send(numbers_of(row), self.next_round)
        self.next_round += 1

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, outcome: Outcome) -> None:
        """Send the accuracies as metrics, and files and pictures as artifacts."""
        measures = {f"summary/{name}": value for name, value in outcome.measures.items()}
        self._send(measures, self.next_round - 1)
        for name in ARTIFACTS:
            if (outcome.folder / name).exists():
                self._client.log_artifact(self._run, str(outcome.folder / name))
        with tempfile.TemporaryDirectory() as folder:
            for name, png in outcome.pictures().items():
                path = Path(folder, f"{name}.png")
                path.write_bytes(png)
                self._client.log_artifact(self._run, str(path))

    def close(self, ended: str) -> None:
        """Tell MLflow how the run ended."""
        if ended in STATUS:
            self._client.set_terminated(self._run, STATUS[ended])


def _read_note(file: Path) -> dict[str, Any] | None:
    """Read which run the folder is logged as; a damaged note is as good as none, and a new run is begun."""
    try:
        note: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return note if {"tracking_uri", "run_id"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _experiment_of(client: Any) -> str:
    """Find or make the experiment that MLflow's variables name, or ours."""
    given = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if given:
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _run_name(experiment: Experiment) -> str:
    return f"{experiment.algorithm.name}-{experiment.absence.scenario}-seed-{experiment.seed}"


def _tags(experiment: Experiment, folder: Path) -> dict[str, str]:
    """Tag a run by what one filters by, and by MLflow's own names for where it came from."""
    return {
        "algorithm": experiment.algorithm.name,
        "scenario": experiment.absence.scenario,
        "seed": str(experiment.seed),
        "data": experiment.data.name,
        "feddig.version": __version__,
        "feddig.results": str(folder.resolve()),
        "mlflow.source.name": "feddig",
        "mlflow.source.type": "LOCAL",
    }
