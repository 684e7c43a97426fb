"""A federation that waits: for all silos before the first round, for enough of them in each, and what it says then."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Error, RecordDict

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig.federation import engine, requests
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.status import Status
from federations import SILENT, LocalGrid, answer_well, make_federation, status, write_message
from folders import rows, rows_without_times

pytestmark = pytest.mark.flower

EVERYBODY = [0, 1, 2]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for silos, and ask them again, without long pauses."""
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(engine, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(requests, "BROKEN_SECONDS", 0.02)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FederationFolder]:
    def make_one(name: str = "federation", rounds: int = 4, **given: Any) -> FederationFolder:
        sections = {key: given.pop(key) for key in ("algorithm", "absence") if key in given}
        experiment = make_tiny_experiment(
            **{"absence": {"scenario": "none"}, **sections}, training={"rounds": rounds}
        )
        return make_federation(tmp_path / name, experiment, draw_tiny_dataset(), **given)

    return make_one


Make = Callable[..., FederationFolder]


def moderate(folder: FederationFolder, grid: LocalGrid, **options: Any) -> dict[str, Any]:
    return moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, **options)  # type: ignore[arg-type]


def log_of(folder: FederationFolder) -> str:
    return (folder.moderator.run / "log.txt").read_text(encoding="utf-8")


def done(folder: FederationFolder) -> int:
    return len(rows(folder.moderator.run)) if (folder.moderator.run / "metrics.jsonl").exists() else 0


def present(folder: FederationFolder) -> list[list[int]]:
    return [row["present"] for row in rows(folder.moderator.run)]


class Script:
    """Lets nodes leave once some rounds are done, and come back after the moderator has looked a few times."""

    def __init__(self, folder: FederationFolder, rounds: int, leave: list[int], looks: int = 5) -> None:
        self._folder, self._rounds, self._leave, self._looks = folder, rounds, leave, looks
        self.seen: list[tuple[str, list[str], int]] = []
        """State, missing silos and rounds done, at each look while they were away."""

    def __call__(self, grid: LocalGrid) -> None:
        if done(self._folder) < self._rounds or len(self.seen) > self._looks:
            return
        told = status(self._folder)
        self.seen.append((told["state"], told["missing"], told["round"]))
        for silo in self._leave:
            grid.nodes.pop(silo, None)
        if len(self.seen) > self._looks:
            for silo in self._leave:
                grid.restart(silo)


@pytest.mark.parametrize("leave", [EVERYBODY, [1, 2]])
def test_with_too_few_silos_it_pauses_names_the_missing_and_goes_on_by_itself(
    make: Make, leave: list[int]
) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    grid.before = script = Script(folder, 2, leave)
    moderate(folder, grid)
    names = [f"silo-{silo}" for silo in leave]
    assert set(map(str, script.seen[2:])) == {str(("paused", names, 2))}, "no round is done meanwhile"
    assert present(folder) == [EVERYBODY] * 4
    said = log_of(folder)
    assert f"WARNING round 3: paused until more silos are here; missing: {', '.join(names)}" in said
    assert "INFO round 3: enough silos are here; it goes on" in said
    assert status(folder)["state"] == "finished"
    assert status(folder)["missing"] == []


def test_one_silo_of_three_may_be_away(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    grid.before = Script(folder, 2, [1], looks=100)
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY, EVERYBODY, [0, 2], [0, 2]]
    assert "paused" not in log_of(folder)


def failing(times: int, answer: Any) -> Callable[[Any, Any], Any]:
    """Answer in this way so many times, and well after that."""
    left = [times]

    def give(message: Any, silo: Any) -> Any:
        left[0] -= 1
        return answer if left[0] >= 0 else answer_well(message, silo)

    return give


@pytest.mark.parametrize("answer", [SILENT, Error(5, "gone")], ids=["silent", "error"])
def test_a_round_that_too_few_silos_answered_is_repeated_and_not_burned(make: Make, answer: Any) -> None:
    whole = make("whole")
    moderate(whole, LocalGrid(whole, 3))
    folder = make(training_deadline=0.3)
    grid = LocalGrid(folder, 3)
    for silo in EVERYBODY:
        grid.faults.set(silo, "train", failing(2, answer), [1])
    moderate(folder, grid)
    assert rows_without_times(folder.moderator.run) == rows_without_times(whole.moderator.run)
    assert grid.sent.count((0, "train", 1)) == 3
    assert (
        "round 2: 0 silos replied and it needs 2; missing: silo-0, silo-1, silo-2; they are asked again"
        in log_of(folder)
    )


def test_a_broken_silo_is_named_is_not_here_and_is_asked_again_after_growing_pauses(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(rounds=14)
    grid, states = LocalGrid(folder, 3), set()
    clock = [0.0]
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep))
    monkeypatch.setattr(requests, "BROKEN_SECONDS", 1.5)

    def tick(grid: LocalGrid) -> None:
        told = status(folder)
        states.add((told["round"], told["silos"][1]["state"], Status(told).attendance))
        clock[0] = told["round"]

    grid.before = tick
    grid.faults.set(1, "train", failing(3, Error(2, "it could not answer")), range(2, 14))
    moderate(folder, grid)
    asked = [round + 1 for silo, kind, round in grid.sent if (silo, kind) == (1, "train")]
    assert asked == [1, 2, 3, 5, 8, 14], "after 1.5 s, 3 s and 6 s; a round takes 1 s"
    assert [round + 1 for round, here in enumerate(present(folder)) if 1 in here] == [1, 2, 14]
    assert (4, "broken", "replied: silo-0, silo-2  recalled: silo-1  broken: silo-1") in states
    said = log_of(folder)
    assert said.count("silo-1 is broken") == 3
    assert "WARNING silo 1, round 5: silo-1 is broken: it could not answer; it is asked again in 3 s" in said
    assert "INFO silo 1 (silo-1) answers again" in said
    assert status(folder)["silos"][1]["state"] == "here"


def test_broken_silos_do_not_count_as_here(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    for silo in (1, 2):
        grid.faults.set(silo, "train", failing(4, Error(2, "it could not answer")), range(1, 4))
    seen = set()
    grid.before = lambda grid: seen.add((status(folder)["state"], *status(folder)["missing"]))
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY] * 4
    assert ("paused", "silo-1", "silo-2") in seen
    assert log_of(folder).count("silo-2 is broken") == 4
    assert grid.sent.count((0, "train", 1)) == 1


def test_a_silo_whose_data_is_broken_at_the_start_is_asked_until_it_is_mended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BROKEN_SECONDS", 0.0)  # so it is asked in every round, however short
    folder = make(start_silos=2)
    grid = LocalGrid(folder, 3)
    data = folder.silo("silo-2").path / "data.npz"
    content = data.read_bytes()
    data.write_bytes(b"nothing")

    def mend(grid: LocalGrid) -> None:
        if done(folder) == 2:
            data.write_bytes(content)

    grid.before = mend
    moderate(folder, grid)
    assert present(folder)[:2] == [[0, 1]] * 2
    assert present(folder)[-1] == EVERYBODY
    assert "silo 2, round 1: silo-2 is broken" in log_of(folder)


def test_who_replied_is_not_asked_again_and_who_came_back_meanwhile_is_not_recalled(make: Make) -> None:
    """Silo 2 is away when round 3 begins and silo 1 fails in it; silo 2 comes back and makes it a round."""
    folder = make()
    grid = LocalGrid(folder, 3)
    grid.before = Script(folder, 2, [2], looks=1)
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [2])
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY, EVERYBODY, [0, 2], EVERYBODY]
    assert [row["recalled"] for row in rows(folder.moderator.run)] == [[], [], [1], []]
    assert grid.sent.count((0, "train", 2)) == 1


def test_a_silo_that_comes_for_the_first_time_in_a_pause_takes_part_and_its_digest_is_held(
    make: Make,
) -> None:
    folder = make(start_silos=2)
    grid = LocalGrid(folder, 3)
    new = grid.nodes.pop(2)

    def join(grid: LocalGrid) -> None:
        if grid.sent.count((1, "train", 1)) == 2:
            grid.nodes[2] = new

    grid.before = join
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [1, 2])
    moderate(folder, grid)
    assert present(folder) == [[0, 1], [0, 2], [0, 2], EVERYBODY]
    assert (folder.moderator.run / "digests" / "silo-2.safetensors").exists()
    assert set(json.loads((folder.moderator.run / "summary.json").read_text())["digests"]) == {"0", "1", "2"}


def test_working_alone_for_some_rounds_is_a_choice_of_the_contract(make: Make) -> None:
    folder = make(rounds=6, rounds_alone=2)
    grid = LocalGrid(folder, 3)
    grid.before = script = Script(folder, 2, EVERYBODY, looks=6)
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY, EVERYBODY, [], [], EVERYBODY, EVERYBODY]
    assert rows(folder.moderator.run)[3]["recalled"] == EVERYBODY
    assert script.seen[-1] == ("paused", ["silo-0", "silo-1", "silo-2"], 4)


def test_a_restarted_moderator_has_not_forgotten_that_it_worked_alone(make: Make) -> None:
    folder = make(rounds=6, rounds_alone=2, digest_deadline=0.2)
    grid = LocalGrid(folder, 3)
    grid.before = Script(folder, 2, EVERYBODY, looks=100)
    moderate(folder, grid, until=4)
    grid = LocalGrid(folder, 3)
    grid.before = Script(folder, 4, EVERYBODY)
    moderate(folder, grid)
    assert "round 5: paused until more silos are here; missing: silo-0, silo-1, silo-2" in log_of(folder)
    assert present(folder)[4:] == [EVERYBODY] * 2


@pytest.mark.parametrize(("start", "needed"), [(None, 3), (2, 2)])
def test_the_first_round_waits_for_all_or_as_many_as_agreed_and_says_who_is_missing(
    make: Make, start: int | None, needed: int
) -> None:
    folder = make(rounds=1, start_silos=start, min_silos=1, digest_deadline=0.05)
    grid = LocalGrid(folder, 3)
    coming: dict[int, Any] = {20: (1, grid.nodes.pop(1)), 40: (2, grid.nodes.pop(2))}
    looks: list[str] = []

    def come(grid: LocalGrid) -> None:
        looks.append(status(folder)["state"])
        if len(looks) in coming:
            silo, node = coming[len(looks)]
            grid.nodes[silo] = node

    grid.before = come
    moderate(folder, grid)
    assert set(looks) <= {"waiting", "collecting", "sending"}
    assert present(folder) == [EVERYBODY[:needed]]
    said = log_of(folder)
    assert "round 1: waiting until more silos are here; missing: silo-1, silo-2" in said
    assert ("missing: silo-2" in said) == (needed == 3)


@pytest.mark.parametrize("answer", [Error(2, "no"), RecordDict()], ids=["broken", "invalid"])
def test_a_silo_whose_digest_is_refused_is_not_asked_for_it_all_the_time(
    make: Make, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BROKEN_SECONDS", 5.0)
    folder = make(rounds=1, start_silos=3)
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "query.digest", lambda message, silo: answer)
    looks = []

    def mend(grid: LocalGrid) -> None:
        looks.append(1)
        if len(looks) == 30:
            grid.faults.answers.clear()
            grid.faults.rounds.clear()
            grid.restart(1)

    grid.before = mend
    moderate(folder, grid)
    assert grid.sent.count((1, "query.digest", 0)) == 2
    assert present(folder) == [EVERYBODY]


def test_silos_that_the_schedule_leaves_out_are_not_missing(make: Make, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("1,1,1,0\n1,0,0,0\n1,0,1,0\n")
    folder = make(absence={"scenario": "file", "file": str(table)})
    (folder.moderator.path / "table.csv").write_text(table.read_text())
    moderate(folder, LocalGrid(folder, 3))
    assert present(folder) == [EVERYBODY, [0], [0, 2], []]
    assert "missing" not in log_of(folder)


def test_a_schedule_that_is_shorter_than_the_run_stays_as_in_its_last_round(
    make: Make, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("1,1,1\n1,0,0\n1,0,1\n")
    folder = make(absence={"scenario": "file", "file": str(table), "rounds": 3})
    (folder.moderator.path / "table.csv").write_text(table.read_text())
    moderate(folder, LocalGrid(folder, 3))
    assert present(folder) == [EVERYBODY, [0], [0, 2], [0, 2]]


def test_where_silos_do_not_train_they_may_leave_when_all_have_sent_their_digests(make: Make) -> None:
    folder = make(algorithm={"name": "digests-only"})
    grid = LocalGrid(folder, 3)
    late = grid.nodes.pop(2)
    looks = []

    def come_and_go(grid: LocalGrid) -> None:
        looks.append(1)
        if len(looks) == 5:
            grid.nodes = {2: late}
        if done(folder):
            grid.nodes.clear()

    grid.before = come_and_go
    moderate(folder, grid)
    assert len(json.loads((folder.moderator.run / "summary.json").read_text())["digests"]) == 3
    assert present(folder) == [[2], [], [], []]


def test_fedavg_alone_still_needs_somebody(make: Make) -> None:
    """Without digests a round without silos would change nothing."""
    folder = make(algorithm={"name": "fedavg"}, rounds_alone=9)
    grid = LocalGrid(folder, 3)
    grid.before = Script(folder, 2, EVERYBODY)
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY] * 4


def test_the_log_has_one_line_for_each_round_with_time_and_level(make: Make) -> None:
    folder = make(rounds=3)
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [2])
    moderate(folder, grid)
    lines = log_of(folder).splitlines()
    assert all(line[:2] == "20" and line.split()[2] in ("INFO", "WARNING") for line in lines)
    (last,) = [line for line in lines if " round 3 of 3  " in line]
    accuracy = rows(folder.moderator.run)[-1]["accuracy"]
    assert last.endswith(
        f" INFO round 3 of 3  accuracy {accuracy:.1f} % (test)  replied: silo-0, silo-2  recalled: silo-1"
    )


@pytest.fixture
def broken(make: Make, monkeypatch: pytest.MonkeyPatch) -> FederationFolder:
    folder = make(rounds=1)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("feddig.core.moderator.Moderator.aggregate", fail)
    return folder


def test_a_traceback_has_a_sentence_before_it(broken: FederationFolder) -> None:
    with pytest.raises(ZeroDivisionError):
        moderate(broken, LocalGrid(broken, 3))
    before, _, _ = log_of(broken).partition("\nTraceback")
    assert before.splitlines()[-1].endswith("fault of the program; report it")
