"""The result reaches the silos: the final model is sent, checked and kept, and a silo's part ends with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Error, RecordDict

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig.cli import main
from feddig.errors import FedDigError
from feddig.federation import engine, moderator, requests
from feddig.federation.check import read_silo_status
from feddig.federation.client_app import describe_end, is_finished, take_model
from feddig.federation.contract import Contract, read_contract, write_contract
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.processes.moderator_process import lacking
from feddig.federation.status import Status, describe
from feddig.federation.wire import About, SentModel, WireError, pack_model_file
from feddig.files import pack_tensors, read_tensors
from federations import SILENT, LocalGrid, make_federation, status, write_message

pytestmark = pytest.mark.flower

ROUNDS = 3


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for silos, and ask them again, without long pauses."""
    for module, name in ((engine, "LOOK_SECONDS"), (moderator, "LOOK_SECONDS"), (requests, "BROKEN_SECONDS")):
        monkeypatch.setattr(module, name, 0.01)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FederationFolder]:
    def make_one(**given: Any) -> FederationFolder:
        algorithm = {"name": given.pop("algorithm", "feddig")}
        experiment = make_tiny_experiment(
            absence={"scenario": "none"},
            algorithm=algorithm,
            training={"rounds": ROUNDS},
            moderator={"joint_steps": 2},
        )
        return make_federation(tmp_path / "federation", experiment, draw_tiny_dataset(), **given)

    return make_one


Make = Callable[..., FederationFolder]


def moderate(folder: FederationFolder, grid: LocalGrid, **options: Any) -> None:
    moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, **options)  # type: ignore[arg-type]


def silo(folder: FederationFolder, number: int) -> tuple[SiloFolder, Contract]:
    own = folder.silo(f"silo-{number}")
    return own, read_contract(own.contract)


def result(folder: FederationFolder) -> bytes:
    return (folder.moderator.run / "model.safetensors").read_bytes()


def received(folder: FederationFolder) -> list[int]:
    return [one["silo"] for one in status(folder)["silos"] if one["received"]]


def asked(grid: LocalGrid, number: int) -> list[int]:
    """Return after how many rounds a silo was sent a model."""
    return [round + 1 for one, kind, round in grid.sent if (one, kind) == (number, "query.model")]


@pytest.mark.parametrize(
    "algorithm", ["feddig", "fedavg", "digests-only", pytest.param("feddig-plus", marks=pytest.mark.slow)]
)
def test_every_silo_gets_the_bytes_of_the_final_model_and_can_use_it(
    make: Make, algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(algorithm=algorithm)
    grid = LocalGrid(folder, 3)
    moderate(folder, grid)
    assert received(folder) == [0, 1, 2]
    assert status(folder)["state"] == "finished"
    for number in range(3):
        own, contract = silo(folder, number)
        assert own.model.read_bytes() == result(folder)
        assert is_finished(own, contract)
        assert asked(grid, number) == [ROUNDS]
    own, contract = silo(folder, 1)
    trains = contract.experiment.recipe.silos_train
    part = f", answered {ROUNDS} of them" if trains else ""
    assert describe_end(own, contract) == f"finished: {ROUNDS} rounds{part}; the model is in {own.model}"
    told = read_silo_status(own)
    assert (told["finished"], told["model"]) == (True, str(own.model))
    assert told["rounds_trained"] == (ROUNDS if trains else 0)
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(own.model), str(own.path / "data.npz"), "--json"])
    assert not ended.value.code, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["accuracy"] >= 0


def test_rounds_that_a_silo_missed_are_not_counted_and_a_restart_forgets_none(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    node = grid.nodes[1]

    def come_and_go(grid: LocalGrid) -> None:
        rounds = status(folder)["round"]
        grid.nodes.pop(1, None)
        if rounds != 1:
            grid.nodes[1] = node

    grid.before = come_and_go
    moderate(folder, grid, until=2)
    grid.before = lambda grid: None
    grid.restart(1)
    moderate(folder, grid)
    assert describe_end(*silo(folder, 1)).startswith(f"finished: {ROUNDS} rounds, answered 2 of them;")
    assert describe_end(*silo(folder, 0)).startswith(f"finished: {ROUNDS} rounds, answered 3 of them;")


def test_the_moderator_stays_until_a_silo_that_was_away_has_the_model(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contract, "longest_stay", 60.0)
    folder = make()
    grid = LocalGrid(folder, 3)
    states = []

    def leave_and_return(grid: LocalGrid) -> None:
        told = status(folder)
        if told["round"] == 1:
            grid.nodes.pop(2, None)
        if told["state"] == "sending":
            states.append(told["missing"])
        if len(states) == 5:
            grid.restart(2)

    grid.before = leave_and_return
    moderate(folder, grid)
    assert states[0] == ["silo-0", "silo-1", "silo-2"]
    assert states[4] == ["silo-2"]
    assert received(folder) == [0, 1, 2]
    assert asked(grid, 0) == asked(grid, 2) == [ROUNDS]


def test_who_lacks_the_model_is_named_and_gets_it_when_the_moderator_is_started_again(make: Make) -> None:
    folder = make()
    grid = LocalGrid(folder, 3)
    grid.before = lambda grid: grid.nodes.pop(2, None) if status(folder)["round"] == 1 else None
    moderate(folder, grid)
    assert received(folder) == [0, 1]
    assert lacking(folder.moderator, read_contract(folder.moderator.contract)) == {2}
    assert not is_finished(*silo(folder, 2))
    said = (folder.moderator.run / "log.txt").read_text(encoding="utf-8")
    assert "the final model did not reach silo-2; start the moderator again" in said
    assert describe(Status(status(folder))).endswith("  without the final model: silo-2")
    grid = LocalGrid(folder, 3)
    moderate(folder, grid)
    assert grid.sent == [(2, "query.model", ROUNDS - 1)]
    assert received(folder) == [0, 1, 2]
    assert not lacking(folder.moderator, read_contract(folder.moderator.contract))
    assert status(folder)["state"] == "finished"
    assert status(folder)["accuracy"] is not None
    assert "without" not in describe(Status(status(folder)))


def test_a_moderator_that_is_stopped_while_it_sends_the_model_has_finished(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contract, "longest_stay", 60.0)
    folder = make()
    grid = LocalGrid(folder, 3)

    def leave_and_stop(grid: LocalGrid) -> None:
        if status(folder)["round"] == 1:
            grid.nodes.pop(2, None)
        if status(folder)["state"] == "sending" and status(folder)["missing"] == ["silo-2"]:
            raise SystemExit(1)

    grid.before = leave_and_stop
    with pytest.raises(SystemExit):
        moderate(folder, grid)
    assert status(folder)["state"] == "finished"
    assert received(folder) == [0, 1]
    said = (folder.moderator.run / "log.txt").read_text(encoding="utf-8")
    assert "the final model did not reach silo-2; start the moderator again" in said


@pytest.mark.parametrize(
    "answer", [SILENT, Error(2, "its disk is full"), RecordDict()], ids=["lost", "broken", "no receipt"]
)
def test_a_silo_that_did_not_take_the_model_is_sent_it_again(
    make: Make, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contract, "longest_stay", 60.0)
    folder = make(training_deadline=0.5)
    grid = LocalGrid(folder, 3)
    left = [answer]

    def fail_once(message: Any, silo: Any) -> Any:
        if left:
            return left.pop()
        return take_model(silo.folder, silo.contract, silo.number, message.content)

    grid.faults.set(1, "query.model", fail_once)
    moderate(folder, grid)
    assert received(folder) == [0, 1, 2]
    assert asked(grid, 1) == [ROUNDS, ROUNDS]
    assert asked(grid, 0) == [ROUNDS]


def test_models_between_rounds_are_sent_if_the_contract_says_so(make: Make) -> None:
    folder = make(model_every=1)
    own, contract = silo(folder, 0)
    grid = LocalGrid(folder, 3)
    moderate(folder, grid, until=2)
    assert asked(grid, 0) == [1, 2]
    between = own.model.read_bytes()
    assert not is_finished(own, contract)
    moderate(folder, grid)
    assert asked(grid, 0) == [1, 2, 3]
    assert between != own.model.read_bytes() == result(folder)
    assert replace(contract, model_every=None).lasting_hash == contract.lasting_hash
    assert "model_every" not in replace(contract, model_every=None).text


# --- what a silo refuses


@pytest.fixture
def finished(make: Make) -> FederationFolder:
    folder = make()
    moderate(folder, LocalGrid(folder, 3))
    return folder


def changed(folder: FederationFolder, change: Callable[[dict[str, Any], dict[str, str]], None]) -> bytes:
    """Return the final model's file with other tensors or facts, and with the hash that fits them."""
    tensors, facts = read_tensors(folder.moderator.run / "model.safetensors", "model")
    change(tensors, facts)
    return pack_tensors("model", tensors, facts)


def first(tensors: dict[str, Any], encoder: bool = False) -> str:
    return next(name for name in sorted(tensors) if name.startswith("encoder/") == encoder)


def ruin(tensors: dict[str, Any], facts: dict[str, str]) -> None:
    tensors[first(tensors)] = np.full_like(tensors[first(tensors)], np.nan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (ruin, "NaN or infinity"),
        (lambda tensors, facts: tensors.pop(first(tensors)), "nothing for "),
        (lambda tensors, facts: tensors.update(more=np.zeros(3)), r"float64\[3\] for more, not nothing"),
        (
            lambda tensors, facts: tensors.update({first(tensors, True): 1 + tensors[first(tensors, True)]}),
            "another encoder",
        ),
        (lambda tensors, facts: facts.update(classes='["a", "b"]'), "has classes"),
        (lambda tensors, facts: facts.update(classifier="os:system"), "has classifier os:system"),
    ],
    ids=["NaN", "less", "more", "encoder", "classes", "code"],
)
def test_a_silo_refuses_another_network_than_its_contracts(
    finished: FederationFolder, change: Any, said: str
) -> None:
    own, contract = silo(finished, 0)
    own.model.unlink()
    own.finished.unlink()
    packed = pack_model_file(SentModel(changed(finished, change), ROUNDS), About("contract", contract.hash))
    with pytest.raises(FedDigError, match=said):
        take_model(own, contract, 0, packed)
    assert not own.model.exists()
    assert not is_finished(own, contract)


def test_a_silo_refuses_a_model_of_a_round_that_the_contract_does_not_name(
    finished: FederationFolder,
) -> None:
    own, contract = silo(finished, 0)
    for rounds, every in ((1, None), (ROUNDS + 1, None), (1, 2), (0, 1)):
        packed = pack_model_file(SentModel(result(finished), rounds), About("contract", contract.hash))
        with pytest.raises(FedDigError, match=f"a model after round {rounds}; the contract says"):
            take_model(own, replace(contract, model_every=every), 0, packed)


def test_a_silo_keeps_the_first_final_model_whatever_comes_later(finished: FederationFolder) -> None:
    own, contract = silo(finished, 0)
    kept = own.model.read_bytes()

    def scale(tensors: dict[str, Any], facts: dict[str, str]) -> None:
        tensors[first(tensors)] = 2 * tensors[first(tensors)]

    about = About("contract", contract.hash)
    with pytest.raises(FedDigError, match="the federation has ended with model"):
        take_model(own, contract, 0, pack_model_file(SentModel(changed(finished, scale), ROUNDS), about))
    take_model(own, contract, 0, pack_model_file(SentModel(kept, ROUNDS), about))  # its receipt was lost
    assert own.model.read_bytes() == kept


def test_a_silo_refuses_too_many_bytes_and_a_wrong_hash(finished: FederationFolder) -> None:
    own, contract = silo(finished, 0)
    about = About("contract", contract.hash)
    with pytest.raises(WireError, match="more than"):
        take_model(own, contract, 0, pack_model_file(SentModel(bytes(5_000_000), ROUNDS), about))
    packed = pack_model_file(SentModel(result(finished), ROUNDS), about)
    packed["facts"] = ConfigRecord({**packed.config_records["facts"], "sha256": "0" * 64})
    with pytest.raises(WireError, match="does not match its SHA-256"):
        take_model(own, contract, 0, packed)


def test_under_another_contract_the_federation_has_not_ended(finished: FederationFolder) -> None:
    own, contract = silo(finished, 0)
    write_contract(own.contract, replace(contract, training_deadline=9.0))
    assert is_finished(own, read_contract(own.contract))
    training = replace(contract.experiment.training, rounds=ROUNDS + 1)
    write_contract(
        own.contract, replace(contract, experiment=replace(contract.experiment, training=training))
    )
    assert not is_finished(own, read_contract(own.contract))
