"""TensorBoard and MLflow: their readers find the values of metrics.jsonl and summary.json."""

import importlib.util
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conftest import draw_tiny_dataset, make_tiny_experiment
from fake_log import FakeLog, use_fake_logs
from feddig import resume, run
from feddig.errors import FedDigError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.report.run_files import Classes
from feddig.runs.compare import grid, run_grid
from feddig.runs.loggers import base
from feddig.runs.loggers.base import LAST_NUMBER, numbers_of, open_logs, settings_of
from feddig.runs.progress import Silent

ROUNDS = 4
ROWS = [{"round": number} for number in range(ROUNDS)]
NAMES = Classes(["0", "1", "2", "3"], None, (), "")
"""Of the tiny data set; its silos have numbers only."""
SUMMARY = {"accuracy": {"final": 50.0}}


def tiny(**logs: bool) -> Experiment:
    return make_tiny_experiment(training={"rounds": ROUNDS}, logging=dict(logs))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# --- what is logged


def test_a_round_is_logged_by_name_without_unknown_numbers() -> None:
    row = {
        "round": 3,
        "test_accuracy": 50.0,
        "present": [0, 2],
        "recalled": [1],
        "validation_accuracy": [40.0, None, 60.0],
        "losses": {"silos": {"0": 0.5, "2": 0.25}, "recall": {"1": float("nan")}, "joint": None},
        "seconds": 2.0,
    }
    assert numbers_of(row) == {
        "test_accuracy": 50.0,
        "seconds": 2.0,
        "validation_accuracy/silo_0": 40.0,
        "validation_accuracy/silo_2": 60.0,
        "losses/silo_0": 0.5,
        "losses/silo_2": 0.25,
        "silos/recalled": 1.0,
        "silos/present": 2.0,
    }
    assert list(numbers_of(row))[-1] == LAST_NUMBER


def test_classes_and_silos_are_logged_by_their_names() -> None:
    row = {
        "round": 0,
        "test_accuracy": 50.0,
        "class_accuracy": [25.0, None, 75.0],
        "macro_f1": 48.0,
        "balanced_accuracy": 49.0,
        "auc": 0.75,
        "intervals": {"macro_f1": [44.0, 52.0], "auc": None},
        "present": [0],
        "recalled": [1],
        "validation_accuracy": [40.0, 60.0],
        "losses": {"silos": {"0": 0.5}, "recall": {"1": 0.25}, "joint": 0.75},
    }
    names = Classes(["T-shirt/top", "bag", "Ankle boot"], None, (), "", ["Basel", "Zürich"])
    assert numbers_of(row, names) == {
        "test_accuracy": 50.0,
        "macro_f1": 48.0,
        "balanced_accuracy": 49.0,
        "auc": 0.75,
        "intervals/macro_f1_low": 44.0,
        "intervals/macro_f1_high": 52.0,
        "class_accuracy/T-shirt_top": 25.0,
        "class_accuracy/Ankle_boot": 75.0,
        "validation_accuracy/Basel": 40.0,
        "validation_accuracy/Zürich": 60.0,
        "losses/Basel": 0.5,
        "losses/recall_Zürich": 0.25,
        "losses/joint": 0.75,
        "silos/recalled": 1.0,
        "silos/present": 1.0,
    }
    assert numbers_of(row)["class_accuracy/class_2"] == 75.0


def test_names_that_a_log_would_confuse_get_their_number() -> None:
    names = ["a b", "a/b", "A_B", "joint", "..", "x" * 300]
    row = {"present": [], "recalled": [], "class_accuracy": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
    found = numbers_of(row, Classes(names, None, (), ""))
    wanted = ["a_b", "a_b_1", "A_B_2", "joint_3", "_", "x" * 100]
    assert [name for name in found if name.startswith("class")] == [
        f"class_accuracy/{name}" for name in wanted
    ]


def test_settings_are_logged_as_in_toml() -> None:
    settings = settings_of(tiny())
    assert (settings["training.rounds"], settings["algorithm.name"]) == (ROUNDS, "feddig")
    assert settings["data.split"] == "[0.8, 0.1, 0.1]"
    assert "format_version" not in settings


# --- logs that fail, without any package


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeLog]:
    return use_fake_logs(monkeypatch)


def log_a_run(folder: Path) -> None:
    """Log a run of four rounds, of which one was done earlier, as the round loop does."""
    with open_logs(tiny(tensorboard=True), folder, ROWS[:1]) as logs:
        for row in ROWS[1:]:
            logs.round(row)
        logs.finish(SUMMARY)


def test_a_run_logs_each_round_and_its_end(opened: list[FakeLog], tmp_path: Path) -> None:
    summary = run(tiny(tensorboard=True), tmp_path / "run", dataset=draw_tiny_dataset())
    (log,) = opened
    assert log.rounds == list(range(ROUNDS))
    assert log.finished_run is not None
    assert log.finished_run.summary == summary
    assert log.ended == "finished"


def test_without_the_setting_nothing_is_opened(opened: list[FakeLog], tmp_path: Path) -> None:
    with open_logs(tiny(), tmp_path, ROWS) as logs:
        logs.finish(SUMMARY)
    assert opened == []


def test_a_log_that_fails_is_reported_once_and_never_ends_the_training(
    opened: list[FakeLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: FakeLog, row: Mapping[str, Any]) -> None:
        raise ConnectionError("the server\nis gone")

    monkeypatch.setattr(FakeLog, "log_round", fail)
    with caplog.at_level(logging.INFO, "feddig"):
        log_a_run(tmp_path)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "not logged from round 1 on (ConnectionError: the server)" in message
    assert opened[0].finished_run is None


def test_rounds_that_a_log_missed_are_logged_at_the_end(
    opened: list[FakeLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_round, calls = FakeLog.log_round, []

    def fail_once(self: FakeLog, row: Mapping[str, Any]) -> None:
        calls.append(row["round"])
        if calls == [0, 1]:
            raise ConnectionError("gone for a while")
        log_round(self, row)

    monkeypatch.setattr(FakeLog, "log_round", fail_once)
    log_a_run(tmp_path)
    assert calls == [0, 1, 1, 2, 3], "a failed log is called again only at the end"
    assert opened[0].rounds == list(range(ROUNDS))
    assert opened[0].finished_run is not None


def test_a_log_is_closed_as_paused_interrupted_or_failed(opened: list[FakeLog], tmp_path: Path) -> None:
    with open_logs(tiny(tensorboard=True), tmp_path, ROWS[:2]):
        pass
    assert (opened[0].ended, opened[0].finished_run) == ("paused", None)
    for error, ended in ((KeyboardInterrupt(), "interrupted"), (ValueError(), "failed")):
        with pytest.raises(type(error)), open_logs(tiny(tensorboard=True), tmp_path, ROWS[:2]):
            raise error
        assert opened[-1].ended == ended


def test_a_run_that_branched_off_another_logs_the_shared_rounds_too(
    opened: list[FakeLog], tmp_path: Path
) -> None:
    cells = grid(tiny(tensorboard=True), ["fedavg", "frozen"], ["forever"], [0], tmp_path)
    run_grid(cells, dataset=draw_tiny_dataset())
    for cell in cells:
        finished = [log for log in opened if log.folder == cell.path and log.ended == "finished"]
        assert [log.rounds for log in finished] == [list(range(ROUNDS))]
    assert "branched" in (cells[1].path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("setting", "extra"), [("tensorboard", "logging"), ("mlflow", "mlflow")])
def test_a_missing_package_is_an_error_before_anything_is_written(
    setting: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=rf"logging\.{setting}: .* pip install 'feddig\[{extra}\]'"):
        run(tiny(**{setting: True}), tmp_path / "run", dataset=draw_tiny_dataset())
    assert not (tmp_path / "run").exists()


def test_a_log_that_cannot_be_opened_ends_the_run_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(experiment: Experiment, folder: Path) -> FakeLog:
        raise OSError("no such server")

    monkeypatch.setattr(base, "LOGS", {"tensorboard": (refuse, "json", "logging")})
    with pytest.raises(FedDigError, match=r"cannot be opened \(OSError: no such server\).*--resume"):
        run(tiny(tensorboard=True), tmp_path / "run", dataset=draw_tiny_dataset())
    assert rows_in(tmp_path / "run") == []


# --- TensorBoard


@pytest.fixture
def read_events() -> Callable[[Path], Any]:
    """Read event files as TensorBoard does."""
    pytest.importorskip("tensorboard", reason="needs the extra `logging`")
    from tensorboard.backend.event_processing import event_accumulator

    everything = {event_accumulator.SCALARS: 0, event_accumulator.IMAGES: 0}

    def read(folder: Path) -> Any:
        return event_accumulator.EventAccumulator(
            str(folder / "tensorboard"), size_guidance=everything
        ).Reload()

    return read


def check_scalars(events: Any, rows: list[dict[str, Any]]) -> None:
    """Check that the event files hold each round once, with the numbers of metrics.jsonl."""
    wanted: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in numbers_of(row, NAMES).items():
            wanted.setdefault(name, []).append((row["round"], value))
    assert {
        "test_accuracy", "validation_accuracy/silo_0", "losses/joint", "losses/recall_0", "class_accuracy/3",
        "macro_f1",
    } <= wanted.keys()  # fmt: skip
    for name, values in wanted.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [step for step, _ in values], name
        assert [value for _, value in found] == pytest.approx([value for _, value in values], rel=1e-6), name


@pytest.mark.usefixtures("pictures")
def test_tensorboard_reads_a_whole_run(read_events: Callable[[Path], Any], tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder = tmp_path / "run"
    summary = run(tiny(tensorboard=True), folder, dataset=draw_tiny_dataset())
    events = read_events(folder)
    check_scalars(events, rows_in(folder))
    assert [event.value for event in events.Scalars("accuracy/final")] == pytest.approx(
        [summary["accuracy"]["final"]]
    )
    assert sorted(events.Tags()["images"]) == ["curves", "guidance"]
    assert events.Images("curves")[0].width == 960
    start = HParamsPluginData.FromString(
        events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    )
    parameters = start.session_start_info.hparams
    assert parameters["training.rounds"].number_value == ROUNDS
    assert parameters["algorithm.name"].string_value == "feddig"


def test_a_resumed_run_continues_its_log_without_a_step_twice(
    read_events: Callable[[Path], Any], tmp_path: Path
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "run"
    run(tiny(tensorboard=True), folder, dataset=draw_tiny_dataset(), until=2)
    # as after a kill: half of round 2 is written
    with SummaryWriter(folder / "tensorboard") as torn:
        torn.add_scalar("test_accuracy", 99.0, 2)
    resume(folder, dataset=draw_tiny_dataset())
    check_scalars(read_events(folder), rows_in(folder))


@pytest.mark.slow
def test_rounds_that_were_done_but_not_logged_are_logged_on_resuming(
    read_events: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(tiny(tensorboard=True), folder, dataset=draw_tiny_dataset(), until=2)
    shutil.rmtree(folder / "tensorboard")
    resume(folder, dataset=draw_tiny_dataset())
    check_scalars(read_events(folder), rows_in(folder))


# --- MLflow


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty MLflow database, which takes seconds."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason="needs the extra `mlflow`")
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def read_mlflow(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client of the database in the working folder, which MLflow uses by default."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    yield MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    # the log sets variables in this process
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        del os.environ[name]


def only_run(client: Any, name: str = "feddig") -> Any:
    experiment = client.get_experiment_by_name(name)
    (found,) = client.search_runs([experiment.experiment_id])
    return found


def check_metrics(client: Any, run_id: str, rows: list[dict[str, Any]]) -> None:
    for name in (
        "test_accuracy", "validation_accuracy/silo_1", "losses/joint", "seconds", "class_accuracy/3", LAST_NUMBER,
    ):  # fmt: skip
        found = [(each.step, each.value) for each in client.get_metric_history(run_id, name)]
        wanted = [(row["round"], numbers_of(row, NAMES)[name]) for row in rows]
        assert sorted(found) == wanted, name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow itself warns
@pytest.mark.usefixtures("pictures")
def test_mlflow_reads_a_whole_run(read_mlflow: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary = run(tiny(mlflow=True), folder, dataset=draw_tiny_dataset())
    found = only_run(read_mlflow)
    assert found.info.run_name == "feddig-sequential-seed-0"
    assert found.info.status == "FINISHED"
    assert found.data.params["training.rounds"] == str(ROUNDS)
    assert found.data.params["absence.scenario"] == "sequential"
    assert found.data.tags["algorithm"] == "feddig"
    assert found.data.metrics["summary/final"] == summary["accuracy"]["final"]
    check_metrics(read_mlflow, found.info.run_id, rows_in(folder))
    files = {each.path for each in read_mlflow.list_artifacts(found.info.run_id)}
    assert {"summary.json", "experiment.toml", "curves.png", "guidance.png", "report.html"} <= files
    copy = read_mlflow.download_artifacts(found.info.run_id, "summary.json", str(tmp_path))
    assert json.loads(Path(copy).read_text(encoding="utf-8")) == summary


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_continues_its_mlflow_run_from_any_folder(
    read_mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run(tiny(mlflow=True), folder, dataset=draw_tiny_dataset(), until=2)
    assert only_run(read_mlflow).info.status == "RUNNING"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume(folder, dataset=draw_tiny_dataset())
    found = only_run(read_mlflow)
    assert found.info.status == "FINISHED"
    check_metrics(read_mlflow, found.info.run_id, rows_in(folder))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflows_variables_set_the_server_and_the_name(
    read_mlflow: Any, empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    shutil.copy(empty_database, tmp_path / "other.db")
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "absence")
    run(tiny(mlflow=True), tmp_path / "run", dataset=draw_tiny_dataset(), until=1)
    assert only_run(MlflowClient(tracking_uri=uri), "absence").data.tags["seed"] == "0"
    assert read_mlflow.get_experiment_by_name("absence") is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_does_not_answer_is_an_error_before_training(
    read_mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(FedDigError, match=r"logging\.mlflow: cannot be opened"):
        run(tiny(mlflow=True), tmp_path / "run", dataset=draw_tiny_dataset())
    assert rows_in(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_database_that_fails_is_reported_once_and_the_run_finishes(
    read_mlflow: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class DropTable(Silent):
        """A log that drops the table of metrics after round 1."""

        def round(self, row: Mapping[str, Any]) -> None:
            if row["round"] == 1:
                with sqlite3.connect(tmp_path / "mlflow.db") as database:
                    database.execute("DROP TABLE metrics")

    with caplog.at_level(logging.INFO, "feddig"):
        summary = run(tiny(mlflow=True), tmp_path / "run", dataset=draw_tiny_dataset(), progress=DropTable())
    assert summary["rounds"] == len(rows_in(tmp_path / "run")) == ROUNDS
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == 1
    assert messages[0].startswith("MLflow: not logged from round 2 on (")
