"""A silo answers what its contract allows, each round once, whatever its moderator asks."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig import Dataset, Experiment, FedDigError
from feddig.core.messages import Request
from feddig.core.silo import Silo
from feddig.federation.contract import read_contract
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.silo import Arrays, DeployedSilo, answer_once, open_silo
from feddig.federation.wire import pack_reply
from federations import LocalGrid, make_federation, write_everywhere, write_message
from folders import rows

pytestmark = pytest.mark.flower

ROUNDS = 3
Make = Callable[..., FederationFolder]


@pytest.fixture
def make(
    tmp_path: Path, tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> Callable[..., FederationFolder]:
    def make_one(*, test_set: bool = True, **sections: Any) -> FederationFolder:
        sections = {"absence": {"scenario": "none"}, "training": {"rounds": ROUNDS}, **sections}
        experiment = tiny_experiment(**sections)
        return make_federation(tmp_path / "federation", experiment, tiny_dataset, test_set=test_set)

    return make_one


def open_first(folder: FederationFolder) -> DeployedSilo:
    """Open silo 0 as a new process does."""
    return open_silo(folder.silo("silo-0").path, device="cpu")


def ask(silo: DeployedSilo, round: int = 0, *, number: int = 0, shift: float = 0.0) -> Request:
    """Write a request to train a model; `shift` makes it another model."""
    return Request(number, round, draw(len(silo.site.worker.network.vector)) + shift, {})


def ask_score(silo: DeployedSilo, round: int = 0, *, number: int = 0, shift: float = 0.0) -> Request:
    """Write a request to evaluate a model."""
    return Request(number, round, draw(len(silo.site.network.vector)) + shift, {})


def draw(parameters: int) -> torch.Tensor:
    return 0.05 * torch.randn(parameters, generator=torch.Generator().manual_seed(0))


def bytes_of(silo: DeployedSilo, request: Request) -> bytes:
    return pack_reply(silo.train(request)).array_records["model"]["update"].data


# --- what the contract does not allow


@pytest.mark.parametrize("name", ["digests-only", "digest-expert"])
def test_a_silo_does_not_train_where_silos_do_not_train(make: Make, name: str) -> None:
    silo = open_first(make(algorithm={"name": name}))
    with pytest.raises(
        FedDigError, match=f"silos do not train with {name}, but the moderator asks for it in round 1"
    ):
        silo.train(ask(silo))


@pytest.mark.parametrize("round", [ROUNDS, 999_999])
def test_it_knows_no_rounds_but_those_of_the_contract(make: Make, round: int) -> None:
    silo = open_first(make())
    told = f"training.rounds is 3, but the moderator asks for round {round + 1}"
    with pytest.raises(FedDigError, match=told):
        silo.train(ask(silo, round))
    with pytest.raises(FedDigError, match=told):
        silo.evaluate(ask_score(silo, round))
    silo.train(ask(silo, ROUNDS - 1))


def test_it_neither_trains_nor_evaluates_under_another_number(make: Make) -> None:
    silo = open_first(make())
    with pytest.raises(FedDigError, match="takes silo 0 for silo 1"):
        silo.train(ask(silo, number=1))
    with pytest.raises(FedDigError, match="takes silo 0 for silo 1"):
        silo.evaluate(ask_score(silo, number=1))


def test_it_makes_no_digest_where_none_are_collected(make: Make) -> None:
    """The model of fedavg-large has an encoder, so there could be a digest."""
    folder = make(algorithm={"name": "fedavg-large"})
    with pytest.raises(FedDigError, match="fedavg-large collects no digests, but the moderator asks for one"):
        open_first(folder).give_digest()
    assert not folder.silo("silo-0").digest.exists()


def test_exact_class_counts_are_not_told_where_digests_tell_them(make: Make) -> None:
    silo = open_first(make(algorithm={"name": "feddig-plus"}))
    with pytest.raises(FedDigError, match="class counts come from digests"):
        silo.train(replace(ask(silo), wants_class_counts=True))


def test_a_contract_that_no_moderator_can_run_is_refused_by_silos_too(make: Make) -> None:
    with pytest.raises(FedDigError, match=r"algorithm.name: frozen is a control for simulations"):
        open_first(make(algorithm={"name": "frozen"}))


# --- each round once


def test_a_repeated_request_gets_the_same_bytes_in_a_new_process_without_training(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(algorithm={"name": "fedavg", "prior_correction": True})
    request = replace(ask(open_first(folder), 1), wants_class_counts=True)
    first = open_first(folder).train(request)
    monkeypatch.setattr(Silo, "train", lambda *_: pytest.fail("it trains again"))
    again = open_first(folder).train(request)
    assert pack_reply(again).object_id == pack_reply(first).object_id
    assert again.seconds == first.seconds > 0
    assert first.class_counts is not None
    assert float(first.class_counts.sum()) == first.samples


def test_another_model_in_the_same_round_and_any_model_in_an_earlier_one_are_refused(make: Make) -> None:
    folder = make(algorithm={"name": "fedavg", "prior_correction": True})
    silo = open_first(folder)
    silo.train(ask(silo, 1))
    answered = "silo 0 has answered round 2 and does not answer another request of round"
    for request in (
        ask(silo, 1, shift=1e-6),
        replace(ask(silo, 1), state={"h": torch.ones(1)}),
        replace(ask(silo, 1), class_counts=torch.ones(4)),
        replace(ask(silo, 1), wants_class_counts=True),
        ask(silo, 0),
    ):
        with pytest.raises(FedDigError, match=f"{answered} {request.round + 1}; the moderator must continue"):
            open_first(folder).train(request)
    silo.train(ask(silo, 2))


def test_one_model_is_evaluated_in_a_round_as_often_as_it_is_asked_for(make: Make) -> None:
    folder = make(test_set=False)
    silo = open_first(folder)
    silo.train(ask(silo, 1))
    first = silo.evaluate(ask_score(silo, 1))
    assert open_first(folder).evaluate(ask_score(silo, 1)) == first
    assert first.samples == len(silo.validation)
    for request in (ask_score(silo, 1, shift=0.1), ask_score(silo, 0)):
        with pytest.raises(FedDigError, match="has answered round 2"):
            open_first(folder).evaluate(request)
    silo.evaluate(ask_score(silo, 2, shift=0.1))


def test_a_silo_that_is_killed_while_it_trains_has_not_answered(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> Any:
        raise Killed

    folder = make()
    silo = open_first(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Silo, "train", die)
        with pytest.raises(Killed):
            silo.train(ask(silo))
    assert bytes_of(open_first(folder), ask(silo, shift=0.1))


def test_what_cannot_be_kept_is_not_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    silo = open_first(make())
    with monkeypatch.context() as patch:
        patch.setattr("feddig.files.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            silo.train(ask(silo))


def test_of_two_requests_at_once_one_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "answers" / "update.safetensors"
    training, asked_again, refused = threading.Event(), threading.Event(), []

    def slowly() -> Arrays:
        training.set()
        assert asked_again.wait(10)
        return {"update": np.ones(1)}

    def ask_again() -> None:
        assert training.wait(10)
        asked_again.set()
        try:
            answer_once(file, Request(0, 0, torch.ones(2), {}), lambda: {"update": np.zeros(1)})
        except FedDigError as error:
            refused.append(str(error))

    other = threading.Thread(target=ask_again)
    other.start()
    assert answer_once(file, Request(0, 0, torch.zeros(2), {}), slowly)["update"] == 1
    other.join(10)
    assert len(refused) == 1


def test_a_damaged_answer_is_no_reason_to_answer_again(make: Make) -> None:
    folder = make()
    silo = open_first(folder)
    silo.train(ask(silo))
    (file,) = folder.silo("silo-0").answers.glob("*-update.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FedDigError, match=r"update.safetensors: not a readable safetensors file"):
        silo.train(ask(silo))


# --- contracts and runs


def test_deadlines_may_change_in_a_run_and_another_contract_has_answers_of_its_own(make: Make) -> None:
    folder = make()
    contract, silo = read_contract(folder.moderator.contract), open_first(folder)
    first = bytes_of(silo, ask(silo, 1))
    write_everywhere(folder, replace(contract, training_deadline=9.0, address="there:9092", new_release=True))
    with pytest.raises(FedDigError, match="has answered round 2"):
        open_first(folder).train(ask(silo, 0))
    assert bytes_of(open_first(folder), ask(silo, 1)) == first
    other = replace(contract.experiment, training=replace(contract.experiment.training, lr=0.01))
    write_everywhere(folder, replace(contract, experiment=other))
    assert bytes_of(open_first(folder), ask(silo, 0)) != first
    write_everywhere(folder, contract)
    with pytest.raises(FedDigError, match="has answered round 2"):
        open_first(folder).train(ask(silo, 0))


def test_a_moderator_that_begins_again_gets_no_second_answers(make: Make) -> None:
    folder = make(test_set=False)
    # with the default the moderator would wait for answers for ever
    write_everywhere(folder, replace(read_contract(folder.moderator.contract), rounds_alone=ROUNDS))

    def moderate() -> list[dict[str, Any]]:
        moderate_federation(LocalGrid(folder, 3), folder.moderator.path, device="cpu", write=write_message)  # type: ignore[arg-type]
        return rows(folder.moderator.run)

    assert [row["present"] for row in moderate()] == [[0, 1, 2]] * ROUNDS
    shutil.rmtree(folder.moderator.run)
    again = moderate()
    # the last round is asked about another model than before
    assert [row["present"] for row in again] == [[]] * ROUNDS
    assert [row["recalled"] for row in again] == [[0, 1, 2]] * ROUNDS
    assert "silo 2, round 1: silo-2 is broken" in (folder.moderator.run / "log.txt").read_text(
        encoding="utf-8"
    )
