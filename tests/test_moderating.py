"""A whole federation over a grid in this process: silos that fail in every way, and a moderator that is cut off."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Error, RecordDict
from safetensors.torch import load_file

from fake_log import use_fake_logs
from feddig import Dataset, Experiment, FedDigError, run
from feddig.core import moderator
from feddig.core.absence import read_absence
from feddig.digest.digest_file import read_digest, write_digest
from feddig.federation import requests
from feddig.federation.contract import read_contract
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.wire import (
    pack_bytes,
    pack_digest,
    pack_reply,
    read_bytes,
    read_digest_of,
    read_request,
)
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import MADE, RELEASE, RESEND
from feddig.report.read_run import read_rounds, read_runs
from feddig.report.run_files import read_class_names
from federations import (
    SILENT,
    LocalGrid,
    answer_well,
    make_federation,
    node_of,
    status,
    write_everywhere,
    write_message,
)
from folders import rows, rows_without_times, tensors

pytestmark = pytest.mark.flower

BASES = ("fedavg", "fedprox", "fednova", "feddyn", "adabest")
Make = Callable[..., FederationFolder]
Give = Callable[..., Experiment]


@pytest.fixture
def make(tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset) -> Make:
    def make_one(
        *, terms: dict[str, Any] | None = None, test_set: bool = True, **sections: Any
    ) -> FederationFolder:
        sections = {"absence": {"scenario": "none"}, **sections}
        sections["training"] = {"rounds": 4, **sections.get("training", {})}
        experiment = tiny_experiment(**sections)
        return make_federation(
            tmp_path / "federation", experiment, tiny_dataset, test_set=test_set, **(terms or {})
        )

    return make_one


def moderate(folder: FederationFolder, grid: LocalGrid, **options: Any) -> dict[str, Any]:
    return moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, **options)  # type: ignore[arg-type]


def log_of(folder: FederationFolder) -> str:
    return (folder.moderator.run / "log.txt").read_text(encoding="utf-8")


def largest_difference(left: Path, right: Path) -> float:
    here, there = load_file(left), load_file(right)
    assert here.keys() == there.keys()
    return max(float((tensor - there[name]).abs().max()) for name, tensor in here.items())


# --- the same numbers as in one process


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("scenario", ["sequential", "round-robin"])
def test_a_federation_gives_what_one_process_gives(
    make: Make, tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset, base: str, scenario: str
) -> None:
    sections = {"algorithm": {"name": f"feddig+{base}"}, "absence": {"scenario": scenario}}
    folder = make(**sections, training={"rounds": 3})
    summary = moderate(folder, LocalGrid(folder, 3))
    there = tmp_path / "one process"
    experiment = tiny_experiment(**sections, training={"rounds": 3})
    expected = run(experiment, there, device="cpu", dataset=tiny_dataset)
    for file in ("model.safetensors", "guidance.safetensors"):
        assert largest_difference(folder.moderator.run / file, there / file) <= 1e-5
    assert summary["accuracy"] == expected["accuracy"]
    for key in ("class_accuracy", "macro_f1", "balanced_accuracy", "auc", "intervals"):
        assert summary[key] == expected[key], key
    assert [row["class_accuracy"] for row in rows(folder.moderator.run)] == [
        row["class_accuracy"] for row in rows(there)
    ]
    assert summary["digests"] == expected["digests"]
    table = (there / "availability.csv").read_text(encoding="utf-8")
    assert (folder.moderator.run / "availability.csv").read_text(encoding="utf-8") == table


@pytest.mark.parametrize("name", ["fedavg", "feddig+feddyn", "feddig-plus+fednova"])
def test_class_shares_and_votes_give_what_they_give_in_one_process(
    make: Make, tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset, name: str
) -> None:
    """Without digests the silos reply once with their class counts; with digests they never do."""
    sections = {
        "algorithm": {"name": name, "prior_correction": True},
        "absence": {"scenario": "sequential"},
        "moderator": {"votes": 0.5},
        "training": {"rounds": 4},
    }
    folder = make(**sections)
    moderate(folder, LocalGrid(folder, 3))
    run(tiny_experiment(**sections), tmp_path / "one", device="cpu", dataset=tiny_dataset)
    model = "model.safetensors"
    assert largest_difference(folder.moderator.run / model, tmp_path / "one" / model) <= 1e-5


def test_a_silo_that_never_trains_sends_its_digest_and_silos_measure_the_committee(
    make: Make, tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset
) -> None:
    """The moderator has no test images, so silos evaluate the model that is sent: M, expert and coverage."""
    table = tmp_path / "table.csv"
    table.write_text("1,1,1,1\nd,d,d,d\n1,1,0,1\n")
    absence = {"scenario": "file", "file": str(table)}
    sections = {"algorithm": {"name": "feddig-plus"}, "absence": absence}
    folder = make(**sections, test_set=False)
    shutil.copy(table, folder.moderator.path)
    moderate(folder, LocalGrid(folder, 3))
    whole = tiny_experiment(**sections, training={"rounds": 4})
    run(whole, tmp_path / "one", device="cpu", dataset=tiny_dataset)
    model = "model.safetensors"
    assert largest_difference(folder.moderator.run / model, tmp_path / "one" / model) <= 1e-5
    there, here = read_rounds(folder.moderator.run), read_rounds(tmp_path / "one")
    assert [row["present"] for row in there.rows] == [[0, 2], [0, 2], [0], [0, 2]]
    assert len(list((folder.moderator.run / "digests").glob("*.safetensors"))) == 3
    for measured, expected in zip(there.validation, here.validation, strict=True):
        assert measured == [
            value if measured[silo] is not None else None for silo, value in enumerate(expected)
        ]
        assert measured[0] is not None
        assert measured[1] is None


@pytest.mark.parametrize("base", BASES)
def test_what_really_happened_can_be_replayed_in_one_process(
    make: Make, tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset, base: str
) -> None:
    """Silo 1 fails twice and is sent, when it is back, the state that its stand-ins left."""
    algorithm = {"name": f"feddig+{base}"}
    folder = make(algorithm=algorithm)
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [1, 2])
    moderate(folder, grid)
    table = folder.moderator.run / "availability.csv"
    assert read_absence(table, silos=3, rounds=4).present.astype(int).tolist() == [
        [1, 1, 1, 1],
        [1, 0, 0, 1],
        [1, 1, 1, 1],
    ]
    absence = {"scenario": "file", "file": str(table)}
    experiment = tiny_experiment(algorithm=algorithm, absence=absence, training={"rounds": 4})
    run(experiment, tmp_path / "replayed", device="cpu", dataset=tiny_dataset)
    assert (
        largest_difference(
            folder.moderator.run / "model.safetensors", tmp_path / "replayed" / "model.safetensors"
        )
        <= 1e-5
    )


def test_the_moderator_logs_every_round_also_after_it_was_cut_off(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = use_fake_logs(monkeypatch)
    folder = make(logging={"tensorboard": True})
    moderate(folder, LocalGrid(folder, 3), until=2)
    summary = moderate(folder, LocalGrid(folder, 3))
    first, second = logs
    assert (first.rounds, first.ended, first.finished_run) == ([0, 1], "paused", None)
    assert (second.rounds, second.ended) == ([0, 1, 2, 3], "finished")
    assert second.finished_run is not None
    assert second.finished_run.summary == summary


# --- silos that fail


def another_silos_number(message: Any, silo: Any) -> RecordDict:
    request = read_request(message.content, len(silo.site.network.vector))
    return pack_reply(replace(silo.train(request), silo=0))


def changed(**changes: Callable[[Any], Any]) -> Callable[[Any, Any], RecordDict]:
    def answer(message: Any, silo: Any) -> RecordDict:
        reply = silo.train(read_request(message.content, len(silo.site.network.vector)))
        return pack_reply(replace(reply, **{name: change(reply) for name, change in changes.items()}))

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lambda message, silo: SILENT,
        lambda message, silo: Error(5, "gone"),
        lambda message, silo: Error(2, "an exception"),
        lambda message, silo: RecordDict(),
        changed(update=lambda reply: torch.full_like(reply.update, float("nan"))),
        changed(update=lambda reply: torch.full_like(reply.update, 1e30)),
        changed(update=lambda reply: 1e6 * reply.update),
        changed(update=lambda reply: reply.update[:-1]),
        changed(round=lambda reply: reply.round - 1),
        another_silos_number,
    ],
    ids=[
        "silent",
        "killed",
        "exception",
        "empty",
        "NaN",
        "huge",
        "large",
        "wrong shape",
        "earlier round",
        "another's number",
    ],
)
def test_without_a_valid_reply_a_silo_is_recalled_and_counted_again_when_it_is_back(
    make: Make, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BROKEN_SECONDS", 0.0)
    folder = make(terms={"training_deadline": 0.5})
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "train", answer, [1])
    moderate(folder, grid)
    found = rows(folder.moderator.run)
    assert found[1]["present"] == [0, 2]
    assert found[1]["recalled"] == [1]
    assert found[0]["present"] == found[3]["present"] == [0, 1, 2]
    assert "silo 1, round 2" in log_of(folder)


def test_a_silo_that_is_away_is_not_waited_for_and_comes_back_by_its_key(make: Make) -> None:
    folder = make(training={"rounds": 6})
    grid = LocalGrid(folder, 3)

    def leave_and_return(grid: LocalGrid) -> None:
        done = len(rows(folder.moderator.run)) if (folder.moderator.run / "metrics.jsonl").exists() else 0
        if done == 2:
            grid.nodes.pop(2, None)
        if done == 4 and 2 not in grid.nodes:
            grid.restart(2)
            grid.nodes[2] = replace(grid.nodes[2], node_id=999)

    grid.before = leave_and_return
    moderate(folder, grid)
    assert [row["present"] for row in rows(folder.moderator.run)] == [
        [0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2],
    ]  # fmt: skip
    assert [row["recalled"] for row in rows(folder.moderator.run)] == [[], [], [2], [2], [], []]
    assert [(silo, kind) for silo, kind, round in grid.sent if round in (2, 3)] == [
        (0, "train"), (1, "train"), (0, "train"), (1, "train"),
    ]  # fmt: skip
    # it was asked for its digest again and sent the same bytes, which cost it nothing
    assert (2, "query.digest", 4) in grid.sent
    ledger = Ledger(folder.silo("silo-2").ledger).entries()
    assert [entry.kind for entry in ledger] == [MADE, RELEASE, RESEND]
    assert len({entry.digest for entry in ledger}) == 1


def test_who_is_away_is_recalled_while_the_others_train_and_who_fails_after_that(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(training={"rounds": 2}, terms={"min_silos": 1})
    grid = LocalGrid(folder, 3)
    happened: list[str] = []
    asked, recalled, real = threading.Event(), threading.Event(), moderator.train_locally

    def train(*given: Any, who: str, **rest: Any) -> Any:
        if who == "recall of silo 2, round 2":
            assert asked.wait(20), "nobody is asked before the recall is done"
        trained = real(*given, who=who, **rest)
        happened.append(who)
        if who == "recall of silo 2, round 2":
            recalled.set()
        return trained

    def answer_after_the_recall(message: Any, silo: Any) -> RecordDict:
        asked.set()
        assert recalled.wait(20), "nobody is recalled before all have answered"
        happened.append("silo 0 answers")
        return answer_well(message, silo)

    def leave(grid: LocalGrid) -> None:
        if (folder.moderator.run / "metrics.jsonl").exists() and rows(folder.moderator.run):
            grid.nodes.pop(2, None)

    monkeypatch.setattr(moderator, "train_locally", train)
    grid.before = leave
    grid.faults.set(0, "train", answer_after_the_recall, [1])
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [1])
    moderate(folder, grid)
    assert [one for one in happened if not one.startswith("joint")] == [
        "recall of silo 2, round 2",
        "silo 0 answers",
        "recall of silo 1, round 2",
    ]
    assert sorted(rows(folder.moderator.run)[1]["recalled"]) == [1, 2]


def test_a_late_reply_is_dropped_and_told_of(make: Make) -> None:
    folder = make(terms={"training_deadline": 1.0})
    grid = LocalGrid(folder, 3)
    kept: list[Any] = []

    def too_slow(message: Any, silo: Any) -> object:
        kept.append(answer_well(message, silo))
        return SILENT

    def arrive(grid: LocalGrid) -> None:
        for name in grid.names(1, "train", 1) if kept else ():
            grid.late[name] = kept.pop()

    grid.faults.set(1, "train", too_slow, [1])
    grid.faults.set(1, "query.silo", lambda message, silo: SILENT, [1])
    grid.before = arrive
    moderate(folder, grid)
    assert "silo 1: its reply of round 2 came late and is dropped" in log_of(folder)
    assert rows(folder.moderator.run)[1]["present"] == [0, 2]
    # it may have been busy with round 1 still, so it was not asked in round 2, and recalled at once
    assert (1, "train", 2) not in grid.sent
    assert [row["present"] for row in rows(folder.moderator.run)][3] == [0, 1, 2]


def test_with_nobody_left_rounds_go_on_by_recall_if_the_contract_says_so(make: Make) -> None:
    folder = make(training={"rounds": 5}, terms={"rounds_alone": 4})
    grid = LocalGrid(folder, 3)

    def all_leave(grid: LocalGrid) -> None:
        if len(rows(folder.moderator.run)) if (folder.moderator.run / "metrics.jsonl").exists() else 0:
            grid.nodes.clear()

    grid.before = all_leave
    summary = moderate(folder, grid)
    found = rows(folder.moderator.run)
    assert summary["rounds"] == 5
    assert [row["present"] for row in found] == [[0, 1, 2], [], [], [], []]
    assert found[-1]["recalled"] == [0, 1, 2]
    assert found[-1]["parameter_norm"] != found[0]["parameter_norm"]


def test_no_round_is_burned_before_the_first_silo_has_come(make: Make) -> None:
    folder = make(terms={"digest_deadline": 0.5, "start_silos": 1, "min_silos": 1})
    grid = LocalGrid(folder, 3)
    nodes, looks = dict(grid.nodes), []
    grid.nodes = {}

    def come(grid: LocalGrid) -> None:
        looks.append(status(folder)["state"] if folder.moderator.status.exists() else None)
        if len(looks) == 6:
            grid.nodes[1] = nodes[1]

    grid.before = come
    moderate(folder, grid)
    assert looks[1:6] == ["waiting"] * 5
    assert [row["present"] for row in rows(folder.moderator.run)] == [[1]] * 4
    told = {one["silo"]: one["state"] for one in status(folder)["silos"]}
    assert told == {0: "never seen", 1: "here", 2: "never seen"}


# --- digests


def test_a_corrupted_digest_is_refused_and_its_silo_does_not_train_before_it_has_sent_a_sound_one(
    make: Make,
) -> None:
    folder = make(terms={"start_silos": 2})
    grid = LocalGrid(folder, 3)

    def corrupted(message: Any, silo: Any) -> RecordDict:
        content = silo.give_digest()
        file = read_bytes(content, "digest", "file", 10**9)
        return RecordDict({"digest": pack_bytes("file", file[:-2] + bytes([file[-2] ^ 1]) + file[-1:])})

    grid.faults.set(1, "query.digest", corrupted, [0, 1])
    moderate(folder, grid)
    assert [row["present"] for row in rows(folder.moderator.run)] == [[0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert [row["recalled"] for row in rows(folder.moderator.run)] == [[]] * 4
    assert "silo 1, round 1: its digest is refused" in log_of(folder)


def test_a_digest_of_huge_numbers_is_refused_and_the_others_go_on(make: Make) -> None:
    folder = make(terms={"start_silos": 2})
    grid = LocalGrid(folder, 3)
    honest = read_digest_of(grid.silo(1).give_digest(), 1)
    huge = replace(honest, features=honest.features * 1e30)
    grid.faults.set(1, "query.digest", lambda message, silo: pack_digest(huge))
    moderate(folder, grid)
    assert [row["present"] for row in rows(folder.moderator.run)] == [[0, 2]] * 4
    assert "silo 1, round 1: its digest is refused: its features reach" in log_of(folder)


def test_a_digest_of_another_silo_is_refused(make: Make) -> None:
    folder = make(terms={"start_silos": 2})
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "query.digest", lambda message, silo: grid.silo(0).give_digest(), [0])
    moderate(folder, grid)
    assert rows(folder.moderator.run)[0]["present"] == [0, 2]
    assert "it is of silo 0, not 1" in log_of(folder)


@pytest.mark.parametrize("new_release", [False, True])
def test_another_digest_than_the_held_one_needs_a_contract_that_allows_it(
    make: Make, new_release: bool
) -> None:
    folder = make(terms={"new_release": new_release})
    moderate(folder, LocalGrid(folder, 3), until=2)
    held = folder.moderator.run / "digests" / "silo-1.safetensors"
    before = read_digest(held)
    other = replace(before, features=before.features + 1)
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "query.digest", lambda message, silo: pack_digest(other))
    moderate(folder, grid)
    assert read_digest(held).hash == (other if new_release else before).hash
    assert ("the contract allows no new release" in log_of(folder)) == (not new_release)
    # its key still says who it is
    assert rows(folder.moderator.run)[3]["present"] == [0, 1, 2]


def test_a_new_release_survives_a_kill_before_the_next_checkpoint(make: Make) -> None:
    folder = make(terms={"new_release": True})
    moderate(folder, LocalGrid(folder, 3), until=2)
    held = folder.moderator.run / "digests" / "silo-1.safetensors"
    digest = read_digest(held)
    write_digest(held, replace(digest, features=digest.features + 1))
    assert moderate(folder, LocalGrid(folder, 3))["rounds"] == 4


def test_the_expert_learns_a_new_release_that_came_before_a_kill(make: Make) -> None:
    folder = make(terms={"new_release": True}, algorithm={"name": "feddig-plus"})
    moderate(folder, LocalGrid(folder, 3), until=2)
    silo = folder.silo("silo-1")
    first = read_digest(silo.digest)
    second = replace(first, labels=first.labels.roll(1, 1))
    # a silo sends only what its ledger has noted
    Ledger(silo.ledger).release(second.hash, second.promise, "the moderator of test")
    for held in (folder.moderator.run / "digests" / "silo-1.safetensors", silo.digest):
        write_digest(held, second)
    moderate(folder, LocalGrid(folder, 3))
    learned = [row["losses"]["joint"] is not None for row in rows(folder.moderator.run)]
    assert learned == [True, False, True, False]


def test_with_nobody_there_feddig_plus_waits_because_digests_train_nothing(make: Make) -> None:
    folder = make(algorithm={"name": "feddig-plus"})
    grid = LocalGrid(folder, 3)
    everybody, looks = dict(grid.nodes), []

    def go_and_come(grid: LocalGrid) -> None:
        done = len(rows(folder.moderator.run)) if (folder.moderator.run / "metrics.jsonl").exists() else 0
        if done == 2:
            looks.append(done)
            grid.nodes.clear()
            if len(looks) > 3:
                grid.nodes.update(everybody)

    grid.before = go_and_come
    moderate(folder, grid)
    assert len(looks) > 3
    assert [row["present"] for row in rows(folder.moderator.run)] == [[0, 1, 2]] * 4


def test_the_ledger_notes_both_releases_and_each_resend(make: Make) -> None:
    folder = make(terms={"new_release": True})
    silo = folder.silo("silo-1")
    moderate(folder, LocalGrid(folder, 3), until=1)
    first = read_digest(silo.digest)
    second = replace(first, features=first.features + 1)
    Ledger(silo.ledger).release(second.hash, second.promise, "the moderator of test")
    write_digest(silo.digest, second)
    moderate(folder, LocalGrid(folder, 3), until=2)
    moderate(folder, LocalGrid(folder, 3))
    noted = [(entry.kind, entry.digest) for entry in Ledger(silo.ledger).entries()]
    assert noted[:3] == [(MADE, first.hash), (RELEASE, first.hash), (RELEASE, second.hash)]
    assert set(noted[3:]) == {(RESEND, second.hash)}


def test_a_digest_of_more_bytes_than_agreed_does_not_leave_its_silo_and_is_not_in_the_ledger(
    make: Make,
) -> None:
    folder = make(terms={"digest_limit": 0.001})
    with pytest.raises(FedDigError, match=r"bytes, and the moderator takes no more than 1,000; agree on"):
        LocalGrid(folder, 3).silo(1).give_digest()
    assert not folder.silo("silo-1").ledger.exists()


def test_one_that_is_sent_all_the_same_is_refused_and_the_others_go_on(make: Make) -> None:
    folder = make(terms={"digest_limit": 1.0, "start_silos": 2})
    grid = LocalGrid(folder, 3)
    honest = read_digest_of(grid.silo(1).give_digest(), 1)
    times = 1 + 1_000_000 // honest.size
    long = replace(
        honest, features=torch.cat([honest.features] * times), labels=torch.cat([honest.labels] * times)
    )
    grid.faults.set(1, "query.digest", lambda message, silo: pack_digest(long))
    moderate(folder, grid)
    assert [row["present"] for row in rows(folder.moderator.run)] == [[0, 2]] * 4
    assert "silo 1, round 1: its digest is refused: its digest has 1," in log_of(folder)


def test_a_silo_that_lost_its_digest_makes_no_second_one_by_itself(make: Make) -> None:
    folder = make()
    silo = folder.silo("silo-1")
    grid = LocalGrid(folder, 3)

    def given() -> bytes:
        return read_bytes(grid.silo(1).give_digest(), "digest", "file", 10**9)

    first = given()
    assert given() == first
    silo.digest.unlink()
    # seeded noise gives the same bytes, which is no second release
    assert given() == first
    silo.digest.unlink()
    contract = read_contract(silo.contract)
    reseeded = replace(contract.experiment, digest=replace(contract.experiment.digest, seed=99))
    write_everywhere(folder, replace(contract, experiment=reseeded))
    grid.restart(1)
    with pytest.raises(FedDigError, match="the ledger says that it was released"):
        grid.silo(1).give_digest()
    write_everywhere(folder, replace(contract, experiment=reseeded, new_release=True))
    grid.restart(1)
    assert given() != first


def test_a_digest_over_the_budget_does_not_stay(make: Make) -> None:
    folder = make(privacy={"mechanism": "none", "budget_epsilon": 1.0})
    with pytest.raises(FedDigError, match="not released"):
        LocalGrid(folder, 3).silo(0).give_digest()
    assert not folder.silo("silo-0").digest.exists()


SOUND = {
    "mechanism": "discrete-gaussian",
    "epsilon": 1.0,
    "delta": 1e-6,
    "clip_bound": 350.0,
    "random": "system",
    "budget_epsilon": 1.2,
}


def test_two_federations_over_the_same_data_share_its_budget(
    tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset
) -> None:
    """Each has a budget of 1.2 and releases 1; the data's own ledger adds them up."""
    first, second = (
        make_federation(
            tmp_path / name, tiny_experiment(privacy=SOUND), tiny_dataset, rehearsal=False, name=name
        )
        for name in ("first", "second")
    )
    shutil.copy(first.silo("silo-0").path / "data.npz", second.silo("silo-0").path / "data.npz")
    given = LocalGrid(first, 3).silo(0).give_digest()
    with pytest.raises(FedDigError, match="would then be charged epsilon"):
        LocalGrid(second, 3).silo(0).give_digest()
    assert not list(second.silo("silo-0").released.glob("*.safetensors"))
    assert LocalGrid(first, 3).silo(0).give_digest().keys() == given.keys()
    ledger = LocalGrid(second, 3).silo(0).ledger
    noted = [(entry.kind, entry.recipient) for entry in Ledger(ledger).entries()]
    assert noted == [(kind, "the moderator of first") for kind in (MADE, RELEASE, RESEND)]


def test_a_silo_sends_no_digest_that_its_ledger_did_not_see_made(
    tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset
) -> None:
    folder = make_federation(tmp_path / "f", tiny_experiment(privacy=SOUND), tiny_dataset, rehearsal=False)
    silo, grid = folder.silo("silo-0"), LocalGrid(folder, 3)
    grid.silo(0).give_digest()
    digest = read_digest(silo.digest)
    write_digest(silo.digest, replace(digest, features=digest.features.flip(0), labels=digest.labels.flip(0)))
    with pytest.raises(FedDigError, match="was not made here"):
        grid.silo(0).give_digest()
    write_digest(silo.digest, replace(digest, facts={**digest.facts, "epsilon": 9.0}))
    with pytest.raises(FedDigError, match=r"was made with epsilon 9\.0, and the contract says 1\.0"):
        grid.silo(0).give_digest()


def test_a_digest_that_has_not_left_costs_nothing(
    tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be audited, thrown away and made again; the process may also die before the file is written."""
    folder = make_federation(tmp_path / "f", tiny_experiment(privacy=SOUND), tiny_dataset, rehearsal=False)

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    silo = LocalGrid(folder, 3).silo(0)
    with monkeypatch.context() as patch:
        patch.setattr("feddig.federation.silo.write_digest", die)
        with pytest.raises(KeyboardInterrupt):
            silo.make_digest()
    silo.make_digest()
    with pytest.raises(FedDigError, match="exists already"):
        silo.make_digest()
    silo.folder.digest.unlink()
    silo.give_digest()
    entries = Ledger(silo.ledger).entries()
    assert [entry.kind for entry in entries] == [MADE, MADE, MADE, RELEASE]
    assert [entry.composed_epsilon for entry in entries] == [0, 0, 0, 1]
    assert read_digest(silo.folder.digest).hash == entries[-1].digest
    silo.folder.digest.unlink()
    with pytest.raises(FedDigError, match="the ledger says that it was released"):
        silo.give_digest()


def test_a_silo_has_a_budget_of_its_own(tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset) -> None:
    privacy = {**SOUND, "budget_epsilon": 100.0}
    folder = make_federation(tmp_path / "f", tiny_experiment(privacy=privacy), tiny_dataset, rehearsal=False)
    file = folder.silo("silo-0").silo_file
    file.write_text(file.read_text() + "budget_epsilon = 0.5\n")
    with pytest.raises(FedDigError, match=r"its budget is epsilon 0\.5"):
        LocalGrid(folder, 3).silo(0).give_digest()
    file.write_text(file.read_text().replace("0.5", "true"))
    with pytest.raises(FedDigError, match=r"data\.budget_epsilon: True is not a number"):
        LocalGrid(folder, 3).silo(0)


@pytest.mark.parametrize(
    ("privacy", "terms", "said"),
    [
        ({}, {}, r"privacy\.random: for real data, choose.* or agree on federation\.no_privacy"),
        ({**SOUND, "random": "seeded"}, {}, r"privacy\.random: for real data, choose"),
        (
            {"random": "seeded"},
            {"no_privacy": True},
            r"privacy\.random: the contract's seed would let everybody",
        ),
        ({"random": "system"}, {}, r"privacy\.mechanism: for real data, choose"),
    ],
)
def test_a_silo_refuses_a_contract_that_gives_its_data_away_unsaid(
    tmp_path: Path,
    tiny_experiment: Give,
    tiny_dataset: Dataset,
    privacy: dict[str, Any],
    terms: dict[str, Any],
    said: str,
) -> None:
    folder = make_federation(
        tmp_path / "f", tiny_experiment(privacy=privacy), tiny_dataset, rehearsal=False, **terms
    )
    with pytest.raises(FedDigError, match=rf"federation\.toml: {said}"):
        LocalGrid(folder, 3).silo(0)


def test_without_privacy_a_silo_goes_on_if_the_contract_says_so(
    tmp_path: Path, tiny_experiment: Give, tiny_dataset: Dataset
) -> None:
    experiment = tiny_experiment(privacy={"random": "system"})
    folder = make_federation(tmp_path / "f", experiment, tiny_dataset, rehearsal=False, no_privacy=True)
    LocalGrid(folder, 3).silo(0).give_digest()
    contract = folder.silo("silo-0").contract.read_text()
    assert contract.startswith(
        "# A record is promised nothing: paper-laplace bounds no record's epsilon. Not covered: "
    )
    assert "\nno_privacy = true\n" in contract


def test_who_comes_first_is_asked_for_its_digest_while_others_are_awaited(make: Make) -> None:
    folder = make(terms={"digest_deadline": 2.0}, training={"rounds": 1})
    grid = LocalGrid(folder, 3)
    last, seen = grid.nodes.pop(2), []

    def come(grid: LocalGrid) -> None:
        seen.append([silo for silo, kind, _ in grid.sent if kind == "query.digest"])
        if len(seen) == 3:
            grid.nodes[2] = last

    grid.before = come
    moderate(folder, grid)
    assert seen[2] == [0, 1]
    assert rows(folder.moderator.run)[0]["present"] == [0, 1, 2]


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "discrete-gaussian"])
def test_sound_noise_is_agreed_on_to_the_last_fact(make: Make, mechanism: str) -> None:
    gaussian = {"delta": 1e-5} if mechanism == "discrete-gaussian" else {}
    privacy = {"mechanism": mechanism, "epsilon": 8.0, "clip_bound": 2.0, "random": "system", **gaussian}
    folder = make(privacy=privacy, training={"rounds": 1})
    assert moderate(folder, LocalGrid(folder, 3))["digests"]["0"]["mechanism"] == mechanism
    assert rows(folder.moderator.run)[0]["present"] == [0, 1, 2]


# --- a moderator that is cut off


class Cut(BaseException):
    """Stands for kill -9: nothing of ours may catch it."""


@pytest.mark.parametrize(
    ("place", "base"),
    [
        ("train", "feddyn"),
        ("train", "adabest"),
        ("evaluate", "feddyn"),
        ("joint", "feddyn"),
        ("metrics", "feddyn"),
        ("checkpoint", "feddyn"),
        ("digest", "feddyn"),
    ],
)
def test_a_moderator_that_is_cut_off_goes_on_as_if_nothing_had_happened(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, base: str
) -> None:
    folder = make(algorithm={"name": f"feddig+{base}"}, training={"rounds": 4}, test_set=place != "evaluate")
    uncut = FederationFolder(tmp_path / "uncut")
    shutil.copytree(folder.path, uncut.path)
    moderate(uncut, LocalGrid(uncut, 3))
    whole = uncut.moderator.run
    grid = LocalGrid(folder, 3)

    def cut(*_: Any, **__: Any) -> Any:
        raise Cut

    with monkeypatch.context() as patch:
        if place in ("train", "evaluate"):
            grid.faults.set(1, place, cut, [2])
        elif place == "digest":
            grid.faults.set(2, "query.digest", cut, [0])
        else:
            name = {
                "joint": "feddig.core.moderator.Moderator.joint_update",
                "metrics": "feddig.runs.results_folder.ResultsFolder.append_metrics",
                "checkpoint": "feddig.runs.results_folder.ResultsFolder.write_checkpoint",
            }[place]
            target = __import__(name.rsplit(".", 2)[0], fromlist=["x"])
            owner = getattr(target, name.split(".")[-2])
            real = getattr(owner, name.split(".")[-1])
            calls: list[int] = []

            def third(self: Any, *args: Any) -> Any:
                calls.append(1)
                return cut() if len(calls) == 3 else real(self, *args)

            patch.setattr(owner, name.split(".")[-1], third)
        with pytest.raises(Cut):
            moderate(folder, grid)
    done = rows(folder.moderator.run) if (folder.moderator.run / "metrics.jsonl").exists() else []
    again = LocalGrid(folder, 3)
    summary = moderate(folder, again)
    assert summary["rounds"] == 4
    trained_again = {round for _, kind, round in again.sent if kind == "train"}
    assert min(trained_again) >= len(done) - 1
    for file in ("model.safetensors", "guidance.safetensors"):
        assert largest_difference(folder.moderator.run / file, whole / file) == 0
    assert rows_without_times(folder.moderator.run) == rows_without_times(whole)


def test_a_digest_that_came_in_a_round_that_was_cut_off_is_still_held(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)

    def cut(message: Any, silo: Any) -> Any:
        raise Cut

    grid.faults.set(0, "train", cut, [0])
    with pytest.raises(Cut):
        moderate(folder, grid)
    assert status(folder)["state"] == "stopped"
    again = LocalGrid(folder, 3)
    again.nodes.pop(2)
    contract = read_contract(folder.moderator.contract)
    write_everywhere(folder, replace(contract, start_silos=2))
    moderate(folder, again)
    assert rows(folder.moderator.run)[0]["recalled"] == [2]


def test_a_run_goes_on_only_with_the_contract_it_was_begun_with(make: Make) -> None:
    folder = make()
    moderate(folder, LocalGrid(folder, 3), until=1)
    contract = read_contract(folder.moderator.contract)
    other = replace(contract.experiment, training=replace(contract.experiment.training, lr=0.01))
    write_everywhere(folder, replace(contract, experiment=other))
    with pytest.raises(FedDigError, match="begun with another contract"):
        moderate(folder, LocalGrid(folder, 3))
    write_everywhere(
        folder,
        replace(contract, training_deadline=9.0, address="elsewhere:9092", update_limit=99.0, min_silos=1),
    )
    assert moderate(folder, LocalGrid(folder, 3))["rounds"] == 4


def test_a_finished_federation_just_gives_its_summary(make: Make) -> None:
    folder = make(training={"rounds": 1})
    summary = moderate(folder, LocalGrid(folder, 3))
    grid = LocalGrid(folder, 3)
    assert moderate(folder, grid) == json.loads(json.dumps(summary))
    assert not grid.sent


# --- who is who, and what is told


def test_a_node_whose_key_is_not_in_the_contract_gets_nothing(make: Make) -> None:
    folder = make(training={"rounds": 2})
    grid = LocalGrid(folder, 3)
    other = make_stranger(folder)
    grid.strangers = [replace(other, node_id=7), replace(other, node_id=8, public_key=b"no key")]
    moderate(folder, grid)
    assert log_of(folder).count("its key is of no silo in the contract") == 2
    assert {silo for silo, _, _ in grid.sent} == {0, 1, 2}


def make_stranger(folder: FederationFolder) -> Any:
    from feddig.federation.certificates import write_silo_key

    silo = folder.silo("silo-9")
    silo.path.mkdir()
    write_silo_key(silo.key)
    return node_of(folder, 9, 7)


@pytest.mark.usefixtures("pictures")
def test_without_a_test_set_accuracy_is_the_present_silos_validation_and_says_so(make: Make) -> None:
    folder = make(test_set=False)
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [1])
    grid.faults.set(2, "evaluate", lambda message, silo: RecordDict(), [2])
    summary = moderate(folder, grid)
    found = rows(folder.moderator.run)
    assert [row["accuracy_of"] for row in found] == ["validation"] * 4
    assert [row["test_accuracy"] for row in found] == [None] * 4
    assert found[1]["validation_accuracy"][1] is None
    assert found[2]["validation_accuracy"][2] is None
    scores = [(grid.silo(silo).validation, found[3]["validation_accuracy"][silo]) for silo in range(3)]
    images = sum(len(samples) for samples, _ in scores)
    expected = sum(len(samples) * score for samples, score in scores) / images
    assert found[3]["accuracy"] == pytest.approx(expected)
    assert summary["accuracy_of"] == status(folder)["accuracy_of"] == "validation"
    assert summary["accuracy"]["final"] == found[3]["accuracy"]
    assert not any("class_accuracy" in row for row in found)
    assert summary["class_accuracy"] == {"final": None, "frozen_own": None}
    assert not any(summary["intervals"].values())
    assert read_rounds(folder.moderator.run).accuracies == [row["accuracy"] for row in found]
    assert (folder.moderator.run / "curves.png").exists()


def test_a_round_in_which_nobody_can_measure_leaves_a_gap(make: Make) -> None:
    folder = make(test_set=False, terms={"rounds_alone": 1})
    grid = LocalGrid(folder, 3)
    for silo in range(3):
        grid.faults.set(silo, "train", lambda message, silo: Error(5, "gone"), [1])
    summary = moderate(folder, grid)
    assert rows(folder.moderator.run)[1]["accuracy"] is None
    assert summary["accuracy"]["final"] is not None
    assert summary["accuracy"]["absence_mean"] is None


def test_the_status_tells_who_is_here_and_whose_digest_is_held(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    seen: list[Any] = []

    def watch(grid: LocalGrid) -> None:
        if folder.moderator.status.exists():
            seen.append(status(folder))
        if (folder.moderator.run / "metrics.jsonl").exists() and len(rows(folder.moderator.run)) == 2:
            grid.nodes.pop(1, None)

    grid.before = watch
    moderate(folder, grid)
    last = status(folder)
    assert (last["state"], last["round"], last["rounds"], last["accuracy_of"]) == ("finished", 4, 4, "test")
    assert last["accuracy"] == rows(folder.moderator.run)[-1]["test_accuracy"]
    away = last["silos"][1]
    assert (away["state"], away["away_since_round"], away["recalled"]) == ("away", 2, True)
    held = read_digest(folder.moderator.run / "digests" / "silo-1.safetensors")
    assert away["digest"] == held.hash
    assert last["silos"][0]["away_since_round"] is None
    assert seen[0]["state"] == "waiting"
    assert tensors(folder.moderator.run / "model.safetensors")


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"algorithm": {"name": "frozen"}}, "algorithm.name"),
        ({"absence": {"scenario": "forever"}}, "absence.scenario"),
    ],
)
def test_what_a_federation_cannot_do_is_refused(make: Make, sections: Any, reason: str) -> None:
    folder = make(**sections)
    with pytest.raises(FedDigError, match=reason):
        moderate(folder, LocalGrid(folder, 3))


def test_a_strength_that_follows_from_the_silos_sizes_must_be_agreed_on(make: Make) -> None:
    folder = make(algorithm={"name": "feddig+feddyn"})
    contract = read_contract(folder.moderator.contract)
    algorithm = replace(contract.experiment.algorithm, bases={})
    write_everywhere(folder, replace(contract, experiment=replace(contract.experiment, algorithm=algorithm)))
    with pytest.raises(FedDigError, match=r"algorithm.feddyn.alpha: must be in the contract"):
        moderate(folder, LocalGrid(folder, 3))


@pytest.mark.parametrize("test_set", [True, False])
def test_the_results_name_classes_and_silos_and_count_test_images(test_set: bool, make: Make) -> None:
    folder = make(test_set=test_set, training={"rounds": 1})
    moderate(folder, LocalGrid(folder, 3))
    contract = read_contract(folder.moderator.contract)
    found = read_class_names(folder.moderator.run)
    assert (found.names, found.silo_names) == (
        list(contract.classes),
        [member.name for member in contract.members],
    )
    assert found.tests == [15 * test_set] * 4
    (run,) = read_runs([folder.moderator.run])
    assert run.classes.names == found.names
    assert run.classes.counts is not None, "counted by the labels of digests"
    assert len(run.classes.counts) == 3


def test_a_plain_algorithm_needs_no_digests(make: Make) -> None:
    folder = make(algorithm={"name": "fedavg"})
    grid = LocalGrid(folder, 3)
    grid.faults.set(1, "train", lambda message, silo: Error(5, "gone"), [1])
    summary = moderate(folder, grid)
    assert {kind for _, kind, _ in grid.sent} == {"train", "query.model"}
    assert rows(folder.moderator.run)[1]["recalled"] == []
    assert summary["digests"] == {}
