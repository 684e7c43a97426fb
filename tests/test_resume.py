"""A run that is interrupted at any point and resumed ends with the same bytes as an uninterrupted run."""

import itertools
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import Dataset, Experiment, FedDigError, Networks, demo_experiment, read_experiment, resume, run
from feddig.errors import FileFormatError
from feddig.experiment.setup import lay_out
from feddig.experiment.toml import write_experiment
from feddig.models.encoder import load_encoder
from feddig.report.read_run import read_runs
from folders import (
    contents,
    error_line,
    header,
    rows,
    rows_without_times,
    run_feddig,
    snapshot,
    start_feddig,
    start_python,
    wait_until,
)

ROUNDS = 4
"""Rounds of the tiny run: all silos are present in the first, then one fewer in each round."""


def smaller_dataset() -> Dataset:
    """Draw half of the tiny data set, because these tests are many runs."""
    return draw_tiny_dataset(120, 40)


@pytest.fixture
def tiny_dataset() -> Dataset:
    return smaller_dataset()


def tiny(algorithm: str = "feddig", **sections: dict[str, object]) -> Experiment:
    training = {"rounds": ROUNDS, "batch": 32}
    return make_tiny_experiment(algorithm={"name": algorithm}, training=training, **sections)


@pytest.fixture(scope="module")
def tiny_contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the contents of the uninterrupted tiny run."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    run(tiny(), folder, dataset=smaller_dataset())
    return contents(folder)


# --- interrupted between rounds


@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "feddyn", "frozen", "centralised", "digests-only", "feddig+fednova", "feddig+adabest"],
)
def test_a_run_stopped_after_every_round_ends_as_one_that_was_not(
    algorithm: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    """Check that an algorithm's whole state is in the checkpoint."""
    experiment = tiny(algorithm, absence={"scenario": "temporary"})
    run(experiment, tmp_path / "straight", dataset=tiny_dataset)
    run(experiment, tmp_path / "pieces", dataset=tiny_dataset, until=1)
    for rounds in range(2, ROUNDS):
        assert resume(tmp_path / "pieces", dataset=tiny_dataset, until=rounds) == {}
        assert len(rows(tmp_path / "pieces")) == rounds
    summary = resume(tmp_path / "pieces", dataset=tiny_dataset)
    assert summary["rounds"] == ROUNDS
    assert contents(tmp_path / "pieces") == contents(tmp_path / "straight")


def test_sample_weights_of_silos_that_are_away_are_remembered(tiny_dataset: Dataset, tmp_path: Path) -> None:
    # FedDyn averages the duals of all silos, so the sizes of absent silos count
    own = {"name": "feddyn", "weighting": "samples"}
    experiment = make_tiny_experiment(algorithm=own, training={"rounds": 6})
    run(experiment, tmp_path / "straight", dataset=tiny_dataset)
    run(experiment, tmp_path / "pieces", dataset=tiny_dataset, until=3)
    resume(tmp_path / "pieces", dataset=tiny_dataset)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "straight")


def test_the_log_tells_of_the_resumption(tiny_dataset: Dataset, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset, until=2)
    resume(tmp_path / "run", dataset=tiny_dataset)
    assert "resumed after 2 rounds" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")


# --- crashes at exact points


class Crash(BaseException):
    """Simulates a power cut; the program must not catch it."""


@contextmanager
def crash_at(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, *, done: bool = False
) -> Iterator[None]:
    """Make one call of a function crash, by its number from 1: before its work, or after it if `done`."""
    real, calls = pkgutil.resolve_name(name), itertools.count(1)

    def crashing(*arguments: object) -> object:
        now = next(calls) == number
        if now and not done:
            raise Crash
        result = real(*arguments)
        if now:
            raise Crash
        return result

    with monkeypatch.context() as patch:
        patch.setattr(name, crashing)
        yield


def advance(folder: Path, dataset: Dataset) -> None:
    """Resume the run if it has begun; start it if not."""
    if (folder / "experiment.toml").exists():
        resume(folder, dataset=dataset)
    else:
        run(tiny(), folder, dataset=dataset)


FOLDER = "feddig.runs.results_folder.ResultsFolder"
POINTS = [
    *(("os.replace", number, False) for number in range(1, 18)),
    pytest.param(
        "os.replace",
        3,
        True,
    ),
    *((f"{FOLDER}.append_metrics", number, True) for number in range(1, ROUNDS + 1)),
    (f"{FOLDER}.append_metrics", 1, False),
    *(
        (f"{FOLDER}.{name}", 1, True)
        for name in ("create", "drop_rows_after", "keep_digest", "write_checkpoint")
    ),
    (f"{FOLDER}.write_summary", 1, True),
]


@pytest.mark.parametrize(("name", "number", "done"), POINTS)
def test_a_crash_at_any_point_loses_nothing(
    name: str,
    number: int,
    done: bool,
    tiny_contents: dict[str, object],
    tiny_dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with crash_at(monkeypatch, name, number, done=done), pytest.raises(Crash):
        advance(tmp_path / "run", tiny_dataset)
    advance(tmp_path / "run", tiny_dataset)
    assert contents(tmp_path / "run") == tiny_contents
    assert not list((tmp_path / "run").rglob(".*")), "the crash leaves no temporary file"


def test_the_points_above_cover_all_replaced_files(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run replaces 3 files of settings, metrics, 2 files of classes, 3 digests, 4 states, 2 models and 2 reports."""
    replaced = []
    real = os.replace
    monkeypatch.setattr("os.replace", lambda part, path: replaced.append(Path(path).name) or real(part, path))
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    assert replaced == [
        "partition.csv",
        "availability.csv",
        "experiment.toml",
        "metrics.jsonl",
        "classes.json",
        "class_means.safetensors",
        *(f"silo-{silo}.safetensors" for silo in range(3)),
        *["state.safetensors"] * ROUNDS,
        "model.safetensors",
        "guidance.safetensors",
        "summary.json",
        "report.html",
    ]


def test_a_run_that_crashes_many_times_still_finishes(
    tiny_contents: dict[str, object], tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt writes at most three files more than the last."""
    for _ in range(30):
        try:
            with crash_at(monkeypatch, "os.replace", 4):
                advance(tmp_path / "run", tiny_dataset)
            break
        except Crash:
            continue
    assert contents(tmp_path / "run") == tiny_contents


def test_digests_with_the_systems_entropy_are_made_once(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh noise on the same data would be a second release."""
    experiment = tiny(privacy={"random": "system"})
    with crash_at(monkeypatch, "os.replace", 10), pytest.raises(Crash):
        run(experiment, tmp_path / "run", dataset=tiny_dataset)
    made = snapshot(tmp_path / "run" / "digests")
    assert len(made) == 3, "the crash came after the digests and before the first checkpoint"
    resume(tmp_path / "run", dataset=tiny_dataset)
    assert snapshot(tmp_path / "run" / "digests") == made


# --- more rounds

MORE = ROUNDS + 2


def written_at_once(algorithm: str, availability: Path, rounds: int = MORE) -> Experiment:
    """Return the experiment whose availability is that of an extended run."""
    return make_tiny_experiment(
        algorithm={"name": algorithm},
        training={"rounds": rounds, "batch": 32},
        absence={"scenario": "file", "file": str(availability)},
    )


def without_settings(folder: Path) -> dict[str, object]:
    return {name: found for name, found in contents(folder).items() if name != "experiment.toml"}


@pytest.mark.parametrize("algorithm", ["fedavg", "feddig", "feddig-plus", "frozen"])
def test_an_extended_run_equals_one_that_had_these_rounds_from_the_start(
    algorithm: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(tiny(algorithm), folder, dataset=tiny_dataset)
    before = contents(folder)
    summary = resume(folder, dataset=tiny_dataset, rounds=MORE)
    assert summary["rounds"] == MORE
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["rounds"] == MORE
    assert rows_without_times(folder)[:ROUNDS] == before["metrics.jsonl"]
    digests = {name: found for name, found in before.items() if name.startswith("digests")}
    assert digests.items() <= contents(folder).items()
    old = str(before["availability.csv"], "utf-8").splitlines()[2:]
    new = (folder / "availability.csv").read_text(encoding="utf-8").splitlines()[2:]
    assert new == [line + 2 * line[-2:] for line in old], "later rounds are as the last one"
    run(written_at_once(algorithm, folder / "availability.csv"), tmp_path / "once", dataset=tiny_dataset)
    assert without_settings(folder) == without_settings(tmp_path / "once")


def test_the_settings_of_an_extended_run_repeat_it(tiny_dataset: Dataset, tmp_path: Path) -> None:
    """The rounds of the scenario and AdaBest's beta stay those of the start."""
    run(tiny("feddig+adabest"), tmp_path / "run", dataset=tiny_dataset)
    started = read_experiment(tmp_path / "run" / "experiment.toml")
    resume(tmp_path / "run", dataset=tiny_dataset, rounds=MORE)
    extended = read_experiment(tmp_path / "run" / "experiment.toml")
    assert (started.absence.rounds, extended.absence.rounds) == (None, ROUNDS)
    assert extended.training.rounds == MORE
    assert extended.algorithm.bases == started.algorithm.bases
    run(extended, tmp_path / "again", dataset=tiny_dataset)
    assert contents(tmp_path / "again") == contents(tmp_path / "run")
    measures = read_runs([tmp_path / "run"])[0].measures
    (tmp_path / "run" / "summary.json").unlink()
    assert read_runs([tmp_path / "run"])[0].measures == measures, "the page computes what the summary has"
    assert resume(tmp_path / "run", dataset=tiny_dataset)["accuracy"] == measures


def test_an_interrupted_run_is_extended_in_pieces(tiny_dataset: Dataset, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "pieces", dataset=tiny_dataset, until=2)
    assert resume(tmp_path / "pieces", dataset=tiny_dataset, rounds=MORE, until=ROUNDS + 1) == {}
    assert resume(tmp_path / "pieces", dataset=tiny_dataset)["rounds"] == MORE, (
        "a plain resume knows the rounds"
    )
    run(tiny(), tmp_path / "straight", dataset=tiny_dataset)
    resume(tmp_path / "straight", dataset=tiny_dataset, rounds=MORE - 1)
    resume(tmp_path / "straight", dataset=tiny_dataset, rounds=MORE)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "straight")


def test_a_run_that_is_far_from_its_end_may_get_fewer_rounds_and_then_its_own_again(
    tiny_dataset: Dataset, tiny_contents: dict[str, object], tmp_path: Path
) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset, until=1)
    assert resume(tmp_path / "run", dataset=tiny_dataset, rounds=2)["rounds"] == 2
    assert resume(tmp_path / "run", dataset=tiny_dataset, rounds=ROUNDS)["rounds"] == ROUNDS
    assert contents(tmp_path / "run") == tiny_contents


@pytest.mark.parametrize("name", ["availability.csv", "experiment.toml"])
@pytest.mark.parametrize("done", [True, False])
def test_an_extension_that_crashes_loses_nothing(
    name: str, done: bool, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    resume(tmp_path / "straight", dataset=tiny_dataset, rounds=MORE)
    number = ["availability.csv", "experiment.toml"].index(name) + 1
    with crash_at(monkeypatch, "os.replace", number, done=done), pytest.raises(Crash):
        resume(tmp_path / "run", dataset=tiny_dataset, rounds=MORE)
    shutil.copytree(tmp_path / "run", tmp_path / "plain")
    planned = MORE if (name, done) == ("experiment.toml", True) else ROUNDS
    assert resume(tmp_path / "plain", dataset=tiny_dataset)["rounds"] == planned
    resume(tmp_path / "run", dataset=tiny_dataset, rounds=MORE)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")
    if planned == MORE:
        assert contents(tmp_path / "plain") == contents(tmp_path / "straight")


@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_rounds_that_are_done_already_are_one_line(
    rounds: int, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    before = snapshot(tmp_path / "run")
    with pytest.raises(FedDigError) as caught:
        resume(tmp_path / "run", dataset=tiny_dataset, rounds=rounds)
    assert (
        str(caught.value)
        == f"--rounds: {ROUNDS} rounds of {tmp_path / 'run'} are done already; give more than 4"
    )
    assert snapshot(tmp_path / "run") == before


def test_a_finished_run_without_its_checkpoint_is_not_trained_again(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    before = snapshot(tmp_path / "run")
    with pytest.raises(FedDigError, match=r"state\.safetensors: is missing"):
        resume(tmp_path / "run", dataset=tiny_dataset, rounds=MORE)
    assert snapshot(tmp_path / "run") == before


def test_the_run_of_a_federation_is_extended_by_its_contract(tiny_dataset: Dataset, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    (tmp_path / "run" / "partition.csv").unlink()
    with pytest.raises(FedDigError, match=r"gets more rounds by `feddig federation extend`"):
        resume(tmp_path / "run", dataset=tiny_dataset, rounds=MORE)


def test_an_extension_that_is_refused_leaves_the_finished_run(tiny_dataset: Dataset, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    before = snapshot(tmp_path / "run")
    with pytest.raises(FedDigError, match="another data set"):
        resume(tmp_path / "run", dataset=draw_tiny_dataset(120, 40, seed=1), rounds=MORE)
    after = snapshot(tmp_path / "run")
    assert {**after, "log.txt": 0} == {**before, "log.txt": 0}


def test_a_run_is_extended_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    small = ["--set", "data.limit=300", "--set", "training.threads=1", "--set", "algorithm.name=fedavg",
             "--set", "data.skew=10", "--set", "training.rounds=2"]  # fmt: skip
    assert "--rounds: goes with --resume" in error_line(
        capsys, "run", *small, "--rounds", "3", "--out", folder
    )
    assert run_feddig("run", *small, "--quiet", "--out", folder) == 0
    assert run_feddig("run", "--resume", folder, "--rounds", "3") == 0
    assert "rounds 3 to 3" in capsys.readouterr().err
    assert len(rows(folder)) == 3
    assert "3 rounds" in error_line(capsys, "run", "--resume", folder, "--rounds", "3")


# --- killed processes

KILLED = ["--set", "data.limit=1000", "--set", "data.skew=1.0", "--set", "training.rounds=6",
          "--set", "training.threads=1", "--set", "training.batch=64", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def demo_contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the contents of the same run, uninterrupted and in this process."""
    folder = tmp_path_factory.mktemp("never") / "run"
    settings = [text for flag, text in itertools.pairwise(KILLED) if flag == "--set"]
    run(demo_experiment(settings), folder, device="cpu")
    return contents(folder)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def finish(arguments: list[object]) -> str:
    process = start_feddig(arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def rounds_in_checkpoint(folder: Path) -> int:
    path = folder / "checkpoint" / "state.safetensors"
    return int(header(path)["rounds"]) if path.exists() else 0


@pytest.mark.slow
def test_a_process_killed_twice_ends_with_the_same_bytes(
    demo_contents: dict[str, object], tmp_path: Path
) -> None:
    """Kill it after the first checkpoint and in a later round."""
    folder = tmp_path / "run"
    process = start_feddig(["run", *KILLED, "--quiet", "--out", folder])
    wait_until(lambda: rounds_in_checkpoint(folder) >= 1, pause=0.003, process=process)
    kill(process)
    assert not (folder / "summary.json").exists()

    process = start_feddig(["run", "--resume", folder, "--quiet", "--device", "cpu"])
    wait_until(lambda: rounds_in_checkpoint(folder) >= 3, pause=0.003, process=process)
    time.sleep(0.03)
    kill(process)
    assert 3 <= rounds_in_checkpoint(folder) < 6

    assert finish(["run", "--resume", folder, "--quiet", "--device", "cpu"]) == f"{folder}\n"
    assert contents(folder) == demo_contents


DYING_PROGRAM = """
import os, signal, sys
import feddig.files, feddig.runs.results_folder

def die():
    os.kill(os.getpid(), signal.SIGKILL)

{how}
from feddig.cli import main
main(sys.argv[1:])
"""

DEATHS = {
    "before experiment.toml is in place": """
replace = os.replace
os.replace = lambda part, path: die() if str(path).endswith("experiment.toml") else replace(part, path)
""",
    "with a row of metrics but no checkpoint": """
append = feddig.runs.results_folder.ResultsFolder.append_metrics
def append_and_die(self, row):
    append(self, row)
    if row["round"] == 2:
        die()
feddig.runs.results_folder.ResultsFolder.append_metrics = append_and_die
""",
    "with half a row of metrics": """
def write_half(self, row):
    with (self.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"format_version": 1, "round": 0, "test_acc')
    die()
feddig.runs.results_folder.ResultsFolder.append_metrics = write_half
""",
    "with half a checkpoint": """
replace, seen = os.replace, []
def replace_or_die(part, path):
    if str(path).endswith("state.safetensors"):
        seen.append(path)
        if len(seen) == 3:
            os.truncate(part, 100)
            die()
    replace(part, path)
os.replace = replace_or_die
""",
}


IN_EVERY_TEST_RUN = ("with a row of metrics but no checkpoint",)
"""The others are slow; tests above simulate such crashes without a process."""


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in IN_EVERY_TEST_RUN else pytest.mark.slow) for how in DEATHS]
)
def test_a_process_killed_at_a_critical_point_ends_with_the_same_bytes(
    how: str, demo_contents: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    arguments = ["run", *KILLED, "--quiet", "--out", folder]
    process = start_python(["-c", DYING_PROGRAM.format(how=DEATHS[how]), *arguments])
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert folder.exists()

    if (folder / "experiment.toml").exists():
        arguments = ["run", "--resume", folder, "--device", "cpu", "--quiet"]
    assert run_feddig(*arguments) == 0
    assert contents(folder) == demo_contents


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_process_killed_at_random_times_ends_with_the_same_bytes(
    seed: int, demo_contents: dict[str, object], tmp_path: Path
) -> None:
    folder, dice = tmp_path / "run", random.Random(seed)
    for _ in range(4):
        begun = (folder / "experiment.toml").exists()
        arguments = ["--resume", folder, "--device", "cpu"] if begun else [*KILLED, "--out", folder]
        process = start_feddig(["run", *arguments, "--quiet"])
        time.sleep(dice.uniform(0.5, 6.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            break
    if (folder / "experiment.toml").exists():
        finish(["run", "--resume", folder, "--device", "cpu"])
    else:
        finish(["run", *KILLED, "--out", folder])
    assert contents(folder) == demo_contents


def test_ctrl_c_says_how_to_go_on_and_exits_with_130(
    demo_contents: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start_feddig(["run", *KILLED, "--quiet", "--out", folder])
    wait_until(lambda: rounds_in_checkpoint(folder) >= 1, pause=0.003, process=process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert f"continue with: feddig run --resume {folder}" in errors.splitlines()
    assert "Traceback" not in errors
    assert run_feddig("run", "--resume", folder, "--device", "cpu", "--quiet") == 0
    assert contents(folder) == demo_contents


# --- damaged before resuming


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny run after two of its four rounds."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    run(tiny(), folder, dataset=smaller_dataset(), until=2)
    return folder


@pytest.fixture
def halfway(cut_off: Path, tmp_path: Path) -> Path:
    """Copy that run, so that a test can damage it."""
    shutil.copytree(cut_off, tmp_path / "run")
    return tmp_path / "run"


def refusal(folder: Path, dataset: Dataset) -> str:
    """Resume, expect an error of one line, check that only the log changed, and return the error."""
    before = {name: found for name, found in snapshot(folder).items() if name != "log.txt"}
    with pytest.raises(FedDigError) as caught:
        resume(folder, dataset=dataset)
    after = {name: found for name, found in snapshot(folder).items() if name != "log.txt"}
    assert before == after
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x01
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "overwritten": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "scratched in its header": lambda path: flip(path, 12),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["checkpoint/state.safetensors", "digests/silo-1.safetensors"])
def test_a_damaged_checkpoint_or_digest_is_refused_by_name(
    damage: str, name: str, halfway: Path, tiny_dataset: Dataset
) -> None:
    DAMAGES[damage](halfway / name)
    assert str(halfway / name) in refusal(halfway, tiny_dataset)


def test_a_digest_with_a_single_wrong_bit_is_refused(halfway: Path, tiny_dataset: Dataset) -> None:
    flip(halfway / "digests" / "silo-1.safetensors", -600)
    assert "does not match its hash" in refusal(halfway, tiny_dataset)


def test_a_checkpoint_with_a_single_wrong_bit_is_refused(halfway: Path, tiny_dataset: Dataset) -> None:
    flip(halfway / "checkpoint" / "state.safetensors", -600)
    refusal(halfway, tiny_dataset)


def test_a_digest_that_was_exchanged_is_refused(halfway: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    other = tmp_path / "other"
    run(tiny(digest={"seed": 7}), other, dataset=tiny_dataset, until=1)
    shutil.copy(other / "digests" / "silo-1.safetensors", halfway / "digests")
    assert "not the digest that the checkpoint refers to" in refusal(halfway, tiny_dataset)


def test_a_digest_that_is_missing_is_refused(halfway: Path, tiny_dataset: Dataset) -> None:
    (halfway / "digests" / "silo-2.safetensors").unlink()
    assert "silo-2.safetensors" in refusal(halfway, tiny_dataset)


def test_another_file_in_the_checkpoints_place_is_refused(halfway: Path, tiny_dataset: Dataset) -> None:
    shutil.copy(halfway / "digests" / "silo-0.safetensors", halfway / "checkpoint" / "state.safetensors")
    assert "not a FedDig checkpoint file" in refusal(halfway, tiny_dataset)


@pytest.mark.parametrize("name", ["partition.csv", "availability.csv"])
def test_a_changed_partition_or_absence_is_refused_by_name(
    name: str, halfway: Path, tiny_dataset: Dataset
) -> None:
    text = (halfway / name).read_text(encoding="utf-8")
    (halfway / name).write_text(text.replace("0,1", "0,0", 1), encoding="utf-8")
    assert refusal(halfway, tiny_dataset).startswith(f"{halfway / name}: differs")


def test_other_labels_are_noticed_by_the_partition(halfway: Path) -> None:
    assert "partition.csv: differs" in refusal(halfway, draw_tiny_dataset(116, 40))


def test_other_images_with_the_same_labels_are_noticed(halfway: Path) -> None:
    assert "another data set" in refusal(halfway, draw_tiny_dataset(120, 40, seed=1))


@pytest.mark.parametrize(
    ("now", "then"),
    [('classifier = "small"', 'classifier = "size-matched"'), ('"feddig"', '"feddig+feddyn"')],
)
def test_an_experiment_that_no_longer_fits_the_checkpoint_is_refused(
    now: str, then: str, halfway: Path, tiny_dataset: Dataset
) -> None:
    text = (halfway / "experiment.toml").read_text(encoding="utf-8")
    assert text.count(now) == 1
    (halfway / "experiment.toml").write_text(text.replace(now, then), encoding="utf-8")
    refusal(halfway, tiny_dataset)


def test_metrics_that_lack_rows_are_refused(halfway: Path, tiny_dataset: Dataset) -> None:
    lines = (halfway / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in ([], lines[:1], lines[1:], lines[::-1]):
        (halfway / "metrics.jsonl").write_text("".join(kept), encoding="utf-8")
        assert "metrics.jsonl: lacks rows of the 2 rounds" in refusal(halfway, tiny_dataset)
    (halfway / "metrics.jsonl").unlink()
    assert "metrics.jsonl: lacks rows of the 2 rounds" in refusal(halfway, tiny_dataset)


def test_a_damaged_row_that_is_needed_is_refused_by_its_line(halfway: Path, tiny_dataset: Dataset) -> None:
    first, second = (halfway / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (halfway / "metrics.jsonl").write_text(f"{first}\n{second[:40]}\n", encoding="utf-8")
    assert "metrics.jsonl: line 2 is damaged" in refusal(halfway, tiny_dataset)


@pytest.mark.parametrize("row", [b"\xff\xfe\x00\n", b"17\n"], ids=["not text", "not an object"])
def test_a_row_that_is_something_else_is_refused_by_its_line(
    row: bytes, halfway: Path, tiny_dataset: Dataset
) -> None:
    first, _ = (halfway / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (halfway / "metrics.jsonl").write_bytes(first + row)
    refusal(halfway, tiny_dataset)


@pytest.mark.parametrize(
    "tail", ['{"format_version": 1, "round": 2, "test_acc', '{"format_version": 1, "round": 2}\n', "\n\n"]
)
def test_rows_after_the_checkpoint_whole_or_half_are_replaced(
    tail: str, halfway: Path, tiny_dataset: Dataset, tiny_contents: dict[str, object]
) -> None:
    with (halfway / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(tail)
    resume(halfway, dataset=tiny_dataset)
    assert contents(halfway) == tiny_contents


# --- what resume and run refuse


def test_a_finished_run_gives_its_summary_and_is_not_touched(tiny_dataset: Dataset, tmp_path: Path) -> None:
    summary = run(tiny(), tmp_path / "run", dataset=tiny_dataset)
    before = snapshot(tmp_path / "run")
    again = resume(tmp_path / "run", dataset=tiny_dataset)
    assert again == summary
    assert snapshot(tmp_path / "run") == before
    assert again == resume(tmp_path / "run"), "not even the data is needed"


def test_run_and_resume_give_the_same_summary(tiny_dataset: Dataset, tmp_path: Path) -> None:
    summary = run(tiny("fedavg"), tmp_path / "run", dataset=tiny_dataset)
    assert resume(tmp_path / "run", dataset=tiny_dataset) == summary


@pytest.mark.parametrize("there", [True, False])
def test_resuming_where_nothing_was_begun_is_refused(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "run").mkdir()
    with pytest.raises(FileFormatError, match=r"holds no experiment\.toml, so there is nothing to resume"):
        resume(tmp_path / "run")


def test_a_damaged_summary_is_refused_by_name(halfway: Path) -> None:
    (halfway / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"summary\.json: cannot be read"):
        resume(halfway)


@pytest.mark.parametrize("more", [["e.toml"], ["--set", "seed=1"], ["--out", "elsewhere"]])
def test_resume_takes_neither_a_file_nor_set_nor_out(
    more: list[str], halfway: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(halfway)
    assert "--resume takes neither" in error_line(capsys, "run", "--resume", halfway, *more)
    assert snapshot(halfway) == before


@pytest.mark.parametrize("name", ["partition.csv", "experiment.toml", "checkpoint/state.safetensors"])
def test_a_missing_file_is_one_line_on_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_feddig(
        "run", "--set", "data.limit=300", "--set", "training.rounds=2", "--set", "training.threads=1",
        "--set", "algorithm.name=fedavg", "--set", "data.skew=10", "--set", "absence.scenario=none",
        "--quiet", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0
    whole = contents(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    if name.startswith("checkpoint"):
        # restarts from the first round
        assert run_feddig("run", "--resume", tmp_path / "run", "--quiet") == 0
        assert contents(tmp_path / "run") == whole
    else:
        assert str(tmp_path / "run") in error_line(capsys, "run", "--resume", tmp_path / "run", "--quiet")


def test_a_run_is_not_overwritten(halfway: Path, tiny_dataset: Dataset) -> None:
    before = snapshot(halfway)
    with pytest.raises(FedDigError, match="holds a run already; continue it with --resume"):
        run(tiny(), halfway, dataset=tiny_dataset)
    assert snapshot(halfway) == before


@pytest.mark.parametrize(
    "belongings",
    [
        ["thesis.tex"],
        ["metrics.jsonl", "thesis.tex"],
        ["digests/silo-0.safetensors", "data/x.npz"],
        [".hidden"],
    ],
)
def test_a_folder_with_something_else_in_it_is_refused_and_nothing_deleted(
    belongings: list[str], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    for name in belongings:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("years of work", encoding="utf-8")
    before = snapshot(tmp_path / "mine")
    with pytest.raises(
        FedDigError, match=r"mine: is not empty \(it holds '.*'\); choose another --out, a new folder"
    ):
        run(tiny(), tmp_path / "mine", dataset=tiny_dataset)
    assert snapshot(tmp_path / "mine") == before


@pytest.mark.parametrize(
    "belonging",
    ["digests/silo-0.safetensors", "digests/notes/thesis.tex", "checkpoint/my-model.pt", "log.txt"],
)
def test_a_users_own_files_under_names_like_ours_are_not_deleted(
    belonging: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    """`feddig digest make --out mine/digests/...` and then `feddig run --out mine` must not lose the digest."""
    (tmp_path / "mine" / belonging).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "mine" / belonging).write_text("years of work", encoding="utf-8")
    with suppress(FedDigError):
        run(tiny(), tmp_path / "mine", dataset=tiny_dataset)
    assert (tmp_path / "mine" / belonging).read_text(encoding="utf-8").startswith("years of work")


def test_a_file_in_the_folders_place_is_refused(tiny_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("years of work", encoding="utf-8")
    with pytest.raises(FedDigError, match="choose another --out"):
        run(tiny(), tmp_path / "mine", dataset=tiny_dataset)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "years of work"


def test_an_empty_folder_may_be_used(tiny_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run(tiny("fedavg"), tmp_path / "run", dataset=tiny_dataset)
    assert (tmp_path / "run" / "summary.json").exists()


def test_the_empty_working_folder_may_be_used(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(tiny("fedavg"), ".", dataset=tiny_dataset)
    assert (tmp_path / "summary.json").is_file()


def test_what_a_killed_start_left_is_cleared_away(
    tiny_contents: dict[str, object], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".starting").touch()
    (folder / "partition.csv").write_text("# feddig partition, format_version 1\n", encoding="utf-8")
    (folder / ".experiment.toml.abc.part").write_text(write_experiment(tiny())[:50], encoding="utf-8")
    run(tiny(), folder, dataset=tiny_dataset)
    assert contents(folder) == tiny_contents
    assert not list(folder.glob(".*")), "no part of a file is left"


def test_parts_of_files_are_cleared_away_on_resuming(halfway: Path, tiny_dataset: Dataset) -> None:
    (halfway / "checkpoint" / ".state.safetensors.abc.part").write_bytes(b"half")
    resume(halfway, dataset=tiny_dataset)
    assert not list(halfway.rglob("*.part"))


def test_the_encoder_of_a_run_is_found_again_from_another_folder(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    encoder = files("feddig.models.encoders") / "grey.safetensors"
    (tmp_path / "here" / "mine.safetensors").write_bytes(encoder.read_bytes())
    monkeypatch.chdir(tmp_path / "here")
    run(tiny(digest={"encoder": "mine.safetensors"}), tmp_path / "run", dataset=tiny_dataset, until=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(tmp_path / "run", dataset=tiny_dataset)["rounds"] == tiny().training.rounds


def test_the_saved_experiment_is_what_is_resumed(halfway: Path, tiny_dataset: Dataset) -> None:
    assert read_experiment(halfway / "experiment.toml") == lay_out(tiny(), tiny_dataset).experiment
    assert json.loads(header(halfway / "checkpoint" / "state.safetensors")["digests"]).keys() == {
        "0",
        "1",
        "2",
    }


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_two_processes_do_not_work_on_one_run(halfway: Path, tiny_dataset: Dataset) -> None:
    import fcntl

    before = snapshot(halfway)
    with (halfway / "log.txt").open("a") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        assert "another process is working" in refusal(halfway, tiny_dataset)
    assert snapshot(halfway).keys() == before.keys()
    resume(halfway, dataset=tiny_dataset)


def test_another_encoder_is_noticed_when_a_run_is_resumed(halfway: Path, tiny_dataset: Dataset) -> None:
    other = load_encoder("default", 1)
    with torch.no_grad():
        next(iter(other.parameters())).mul_(1.5)
    with pytest.raises(FedDigError, match="another encoder"):
        resume(halfway, dataset=tiny_dataset, networks=Networks(encoder=other))
