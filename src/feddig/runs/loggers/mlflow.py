"""Log a run to MLflow: where its environment variables say, or else in its database in the working folder."""

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
from feddig.report.run_files import read_class_names
from feddig.runs.loggers.base import LAST_NUMBER, FinishedRun, numbers_of, settings_of

RUN_FILE = "mlflow.json"
"""Says as which MLflow run a results folder is logged."""
EXPERIMENT = "feddig"
RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Training waits for the log, so a server that does not answer must be noticed soon; MLflow's default is minutes."""
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
"""No telemetry, and no messages about the creation of the database."""
MAX_PARAMETERS = 100
"""MLflow accepts this many parameters in one call."""
ARTIFACTS = ("summary.json", "experiment.toml", "availability.csv", "report.html")
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
"""By how a run ended; a paused run stays RUNNING."""


class MlflowLog:
    """Settings as parameters, rounds as metrics with steps, summary and pictures as artifacts."""

    name = "MLflow"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        """Open the folder's existing log, or a new one."""
        for name, value in (RETRIES | QUIET).items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        self._classes = read_class_names(folder)
        known = _read_run_file(folder / RUN_FILE)
        # without the variable, a run that is resumed in another working folder uses its existing log
        uri = (
            get_tracking_uri() if "MLFLOW_TRACKING_URI" in os.environ or not known else known["tracking_uri"]
        )
        self._client = MlflowClient(tracking_uri=uri)
        if known and known["tracking_uri"] == uri:
            self._run = str(known["run_id"])
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._create_run(experiment, folder)
            facts = {"format_version": FORMAT_VERSION, "tracking_uri": uri, "run_id": self._run}
            write_atomically(folder / RUN_FILE, json.dumps(facts) + "\n")
        steps = [metric.step for metric in self._client.get_metric_history(self._run, LAST_NUMBER)]
        self.next_round = max(steps, default=-1) + 1

    def _create_run(self, experiment: Experiment, folder: Path) -> str:
        """Create a run with its tags and parameters."""
        run = self._client.create_run(
            _experiment_id(self._client), run_name=_run_name(experiment), tags=_tags(experiment, folder)
        )
        settings = [self._param(key, str(value)) for key, value in settings_of(experiment).items()]
        for start in range(0, len(settings), MAX_PARAMETERS):
            self._client.log_batch(run.info.run_id, params=settings[start : start + MAX_PARAMETERS])
        return str(run.info.run_id)

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Send a round's numbers in one call."""
        self._send(numbers_of(row, self._classes), self.next_round)
        self.next_round += 1

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, run: FinishedRun) -> None:
        """Send accuracies as metrics, and files and pictures as artifacts."""
        measures = {f"summary/{name}": value for name, value in run.measures.items()}
        self._send(measures, self.next_round - 1)
        for name in ARTIFACTS:
            if (run.folder / name).exists():
                self._client.log_artifact(self._run, str(run.folder / name))
        with tempfile.TemporaryDirectory() as folder:
            for name, png in run.pictures().items():
                path = Path(folder, f"{name}.png")
                path.write_bytes(png)
                self._client.log_artifact(self._run, str(path))

    def close(self, ended: str) -> None:
        """Set the status of the MLflow run."""
        if ended in STATUS:
            self._client.set_terminated(self._run, STATUS[ended])


def _read_run_file(file: Path) -> dict[str, Any] | None:
    """Read as which MLflow run the folder is logged; None, and so a new run, if the file is missing or damaged."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found if {"tracking_uri", "run_id"} <= found.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _experiment_id(client: Any) -> str:
    """Find or create the experiment that MLflow's variables name; without them, the experiment "feddig"."""
    given = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if given:
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _run_name(experiment: Experiment) -> str:
    return f"{experiment.algorithm.name}-{experiment.absence.scenario}-seed-{experiment.seed}"


def _tags(experiment: Experiment, folder: Path) -> dict[str, str]:
    """Return tags to filter by, and MLflow's own tags for the source of a run."""
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
