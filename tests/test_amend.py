"""A federation that changes after `init`: more rounds, silos that join, go or get another key, and pauses."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

pytest.importorskip("flwr", reason="needs the extra `flower`")

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import run
from feddig.cli import main
from feddig.commands.options import INTERRUPTED
from feddig.core import plus
from feddig.errors import FedDigError
from feddig.federation import client_app, engine, moderator
from feddig.federation.certificates import write_silo_key
from feddig.federation.client_app import OtherContractError
from feddig.federation.contract import Contract, read_contract, with_silos, write_contract
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.processes.moderator_process import is_finished
from feddig.federation.processes.processes import free_port
from feddig.federation.processes.up import _chosen
from feddig.federation.silo import open_silo
from feddig.federation.silo_data import check_folder, read_silo_file
from feddig.federation.status import Status, show_lines
from feddig.federation.wire import About, pack_question
from feddig.runs.results_folder import ResultsFolder
from federations import (
    SILENT,
    LocalGrid,
    answer_well,
    make_federation,
    node_of,
    organise,
    status,
    write_everywhere,
    write_message,
)
from folders import contents, rows, rows_without_times, tensors

pytestmark = pytest.mark.flower

EVERYBODY = [0, 1, 2]


class Killed(BaseException):
    """The moderator's process was killed."""


Make = Callable[..., FederationFolder]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for silos without long pauses, and train experts for a few steps."""
    monkeypatch.setattr(plus, "PASSES", 1)
    monkeypatch.setattr(plus, "LEAST_STEPS", 20)
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(engine, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(moderator, "LOOK_SECONDS", 0.01)


def make_organised(
    path: Path, rounds: int = 2, *, silos: int = 3, of: int = 3, **given: Any
) -> FederationFolder:
    """Make the first `silos` of a federation of `of`, with the organiser's files; the others are put next to it."""
    sections = {key: given.pop(key) for key in ("algorithm", "absence") if key in given}
    folder = make_federation(path, an_experiment(rounds, of, **sections), draw_tiny_dataset(), **given)
    contract = read_contract(folder.moderator.contract)
    for member in contract.members[silos:]:
        shutil.move(folder.silo(member.name).path, path.parent / member.name)
    experiment = with_silos(contract.experiment, silos)
    write_everywhere(folder, replace(contract, members=contract.members[:silos], experiment=experiment))
    organise(folder)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda name="federation", **given: make_organised(tmp_path / name, **given)


def an_experiment(rounds: int, silos: int, **sections: Any) -> Any:
    return make_tiny_experiment(
        **{"absence": {"scenario": "none"}, **sections},
        data={"silos": silos, "min_samples": 8},
        training={"rounds": rounds},
    )


def moderate(folder: FederationFolder, grid: LocalGrid, **options: Any) -> dict[str, Any]:
    return moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, **options)  # type: ignore[arg-type]


def do(*words: object) -> None:
    """Run `feddig federation` with these words."""
    with pytest.raises(SystemExit) as ended:
        main(["federation", *map(str, words)])
    assert ended.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["federation", *map(str, words)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def present(folder: FederationFolder) -> list[list[int]]:
    return [row["present"] for row in rows(folder.moderator.run)]


def log_of(folder: FederationFolder) -> str:
    return (folder.moderator.run / "log.txt").read_text(encoding="utf-8")


def done(folder: FederationFolder) -> int:
    return len(rows(folder.moderator.run)) if (folder.moderator.run / "metrics.jsonl").exists() else 0


def largest_difference(left: Path, right: Path) -> float:
    here, there = (tensors(folder / "model.safetensors") for folder in (left, right))
    assert here.keys() == there.keys()
    return max(float(np.abs(array - there[name]).max()) for name, array in here.items())


# --- more rounds


@pytest.mark.parametrize("name", ["feddig+adabest", "feddig-plus"])
def test_a_finished_run_that_is_extended_gives_what_a_longer_one_gives(make: Make, name: str) -> None:
    algorithm = {"name": name}
    longer, folder = make("longer", rounds=4, algorithm=algorithm), make(algorithm=algorithm)
    expected = moderate(longer, LocalGrid(longer, 3))
    moderate(folder, LocalGrid(folder, 3))
    before = rows(folder.moderator.run)
    do("extend", folder.path, "--rounds", 4)
    contract = read_contract(folder.moderator.contract)
    assert not is_finished(folder.moderator, contract)
    grid = LocalGrid(folder, 3)
    moderate(folder, grid, until=3)
    assert not ResultsFolder(folder.moderator.run).finished, "it is under way again"
    summary = moderate(folder, LocalGrid(folder, 3))
    assert rows(folder.moderator.run)[:2] == before
    assert min(round for _, kind, round in grid.sent if kind == "train") == 2
    there, here = contents(longer.moderator.run), contents(folder.moderator.run)
    assert here == there
    assert summary["accuracy"] == expected["accuracy"]
    assert (status(folder)["state"], status(folder)["rounds"]) == ("finished", 4)
    assert is_finished(folder.moderator, contract)


def test_rounds_only_grow(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(rounds=3)
    for rounds in (2, 3):
        said = refused(capsys, "extend", folder.path, "--rounds", rounds)
        assert "--rounds: 3 rounds are agreed on already; give more" in said


@pytest.mark.parametrize("words", [("extend", "--rounds", 9), ("add", "silo-9")])
def test_a_scenario_is_not_drawn_again_in_a_run(
    make: Make, capsys: pytest.CaptureFixture[str], words: tuple[Any, ...]
) -> None:
    folder = make(absence={"scenario": "sequential"})
    said = refused(capsys, words[0], folder.path, *words[1:])
    assert "absence.scenario: sequential is drawn for 2 rounds and 3 silos" in said
    assert read_contract(folder.contract).version == 1
    assert sorted(path.name for path in (folder.path / "silos").iterdir()) == ["silo-0", "silo-1", "silo-2"]


# --- members


@pytest.mark.parametrize("name", ["feddig+adabest", "feddig-plus"])
def test_a_silo_that_is_added_takes_part_as_one_that_comes_late(
    make: Make, tmp_path: Path, name: str
) -> None:
    folder = make(rounds=4, silos=3, of=4, algorithm={"name": name})
    moderate(folder, LocalGrid(folder, 3), until=2)
    do("add", folder.path, "silo-3")
    silo = folder.silo("silo-3")
    assert "feddig federation silo ." in silo.run_sheet.read_text(encoding="utf-8")
    shutil.copy(tmp_path / "silo-3" / "data.npz", silo.path)
    summary = moderate(folder, LocalGrid(folder, 4))
    assert present(folder) == [EVERYBODY, EVERYBODY, [0, 1, 2, 3], [0, 1, 2, 3]]
    table = tmp_path / "table.csv"
    table.write_text("1,1,1,1\n1,1,1,1\n1,1,1,1\n0,0,1,1\n", encoding="utf-8")
    whole = an_experiment(4, 4, algorithm={"name": name}, absence={"scenario": "file", "file": str(table)})
    expected = run(whole, tmp_path / "one process", device="cpu", dataset=draw_tiny_dataset())
    assert largest_difference(folder.moderator.run, tmp_path / "one process") <= 1e-5
    assert summary["accuracy"] == expected["accuracy"]
    assert summary["digests"] == expected["digests"]
    assert summary["silo_names"][3] == status(folder)["silos"][3]["name"] == "silo-3"
    assert [len(row["validation_accuracy"]) for row in rows(folder.moderator.run)] == [3, 3, 4, 4]
    assert (folder.moderator.run / "report.html").exists()


def test_a_silo_joins_with_its_own_key(make: Make, tmp_path: Path) -> None:
    folder, own = make(), tmp_path / "own" / "key"
    own.parent.mkdir()
    fingerprint = write_silo_key(own)
    do("add", folder.path, "west", "--key", own.with_name("key.pub"))
    assert read_contract(folder.moderator.contract).members[3].fingerprint == fingerprint
    assert not folder.silo("west").key.exists()
    assert folder.moderator.public_key("west").read_bytes() == own.with_name("key.pub").read_bytes()


def test_a_silo_with_images_of_its_own_joins_a_real_federation(tmp_path: Path) -> None:
    whole = FederationFolder(tmp_path / "hospitals")
    names = "a,b,c,d"
    real = ["--classes", "healthy,ill", "--image", "1x28x28", "--host", "moderator.example", "--no-privacy"]
    do("init", whole.path, "--names", names, *real)
    first = read_contract(whole.contract)
    do("add", whole.path, "west")
    contract, west = read_contract(whole.contract), whole.silo("west")
    assert not {"data", "absence"} & tomllib.loads(whole.contract.read_text(encoding="utf-8")).keys()
    assert contract.lasting_hash == first.lasting_hash
    own = read_silo_file(west.silo_file)
    assert (own.silo, own.name, own.data.validation, own.data.rehearsal) == (4, "west", 0.1, False)
    assert check_folder(west) == read_contract(west.contract)
    assert west.key.stat().st_mode & 0o077 == 0
    assert {path.name for path in west.path.iterdir()} == {
        path.name for path in whole.silo("a").path.iterdir()
    }
    assert "federation-3.toml" in west.run_sheet.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["feddig+feddyn", "feddig-plus"])
def test_a_silo_that_is_removed_and_whose_digest_stays_is_as_one_that_is_away(make: Make, name: str) -> None:
    away, folder = (make(of, rounds=4, algorithm={"name": name}) for of in ("away", "federation"))
    moderate(away, LocalGrid(away, 3), until=2)
    grid = LocalGrid(away, 3)
    grid.nodes.pop(2)
    contract = read_contract(away.moderator.contract)
    write_everywhere(away, replace(contract, digest_deadline=0.05))
    moderate(away, grid)
    moderate(folder, LocalGrid(folder, 3), until=2)
    do("remove", folder.path, "silo-2", "--digest", "stay")
    grid = LocalGrid(folder, 3)  # its node is still there
    moderate(folder, grid)
    assert rows_without_times(folder.moderator.run) == rows_without_times(away.moderator.run)
    assert {silo for silo, _, _ in grid.sent} == {0, 1}
    assert "missing: silo-2" not in log_of(folder)
    told = status(folder)["silos"][2]
    assert told["state"] == "removed"
    assert told["recalled"] == (name != "feddig-plus")


@pytest.mark.parametrize("name", ["feddig+feddyn", "feddig+adabest", "feddig-plus"])
def test_a_silo_that_is_removed_and_whose_digest_goes_leaves_nothing(make: Make, name: str) -> None:
    folder = make(rounds=4, algorithm={"name": name, "prior_correction": True})
    moderate(folder, LocalGrid(folder, 3), until=2)
    digest = ResultsFolder(folder.moderator.run).digest_path(2)
    assert digest.exists()
    do("remove", folder.path, "silo-2", "--digest", "go")
    assert not digest.exists()
    summary = moderate(folder, LocalGrid(folder, 3), until=3) or moderate(folder, LocalGrid(folder, 3))
    assert [(row["present"], row["recalled"]) for row in rows(folder.moderator.run)[2:]] == [([0, 1], [])] * 2
    assert set(summary["digests"]) == {"0", "1"}
    state = tensors(folder.moderator.run / "checkpoint" / "state.safetensors")
    assert state["samples"][2] == 0
    assert not [key for key in state if key.startswith("returned.2")]
    for key in ("dual", "drift"):
        assert not np.any(state.get(f"silo.2.{key}", 0))
    if name == "feddig-plus":
        assert state["rounds_trained"].tolist() == [4, 4, 0]
        two = make("two", silos=2, rounds=1, algorithm={"name": name})
        moderate(two, LocalGrid(two, 2))
        learned = tensors(two.moderator.run / "checkpoint" / "state.safetensors")["expert"]
        assert np.array_equal(state["expert"], learned), "it has learned again, from the other digests"


@pytest.mark.parametrize("name", ["feddig+feddyn", "feddig-plus"])
def test_a_silo_that_goes_before_the_first_round_counts_for_nothing(make: Make, name: str) -> None:
    """Also not in FedDyn's mean over all silos."""
    without, folder = (
        make(of, algorithm={"name": name}, silos=silos) for of, silos in (("two", 2), ("f", 3))
    )
    moderate(without, LocalGrid(without, 2))
    do("remove", folder.path, "silo-2", "--digest", "go")
    moderate(folder, LocalGrid(folder, 3))
    assert largest_difference(folder.moderator.run, without.moderator.run) == 0


def test_minima_count_the_silos_that_are_left(make: Make) -> None:
    folder = make(min_silos=3, start_silos=3)
    do("remove", folder.path, "silo-1", "--digest", "stay")
    moderate(folder, LocalGrid(folder, 3))
    assert present(folder) == [[0, 2]] * 2


def test_what_becomes_of_the_digest_must_be_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "remove", make().path, "silo-1")
    assert "Missing option '--digest'. Choose from: stay, go. See feddig federation remove --help." in said


def test_a_silo_may_be_removed_once_and_the_last_one_not(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make()
    do("remove", folder.path, "silo-0", "--digest", "stay")
    assert "silo-0: is removed already, and its digest stays in use" in refused(
        capsys, "remove", folder.path, "silo-0", "--digest", "stay"
    )
    do("remove", folder.path, "silo-0", "--digest", "go")
    said = refused(capsys, "remove", folder.path, "silo-0", "--digest", "stay")
    assert "silo[0].removed: silo-0 was removed, and its digest is deleted; add it under another name" in said
    assert "silo-0: is or was a silo of test" in refused(capsys, "add", folder.path, "silo-0")
    do("remove", folder.path, "silo-1", "--digest", "go")
    said = refused(capsys, "remove", folder.path, "silo-2", "--digest", "go")
    assert "silo: all are removed; keep at least one" in said
    with pytest.raises(FedDigError, match=r"silo-0 is removed in version 4, and is not asked for anything"):
        open_silo(folder.silo("silo-0").path, device="cpu")


def test_a_silo_with_another_key_is_the_same_silo(make: Make, tmp_path: Path) -> None:
    folder = make(rounds=4)
    moderate(folder, LocalGrid(folder, 3), until=2)
    silo, old = folder.silo("silo-1"), node_of(folder, 1, 999)
    (tmp_path / "new").mkdir()
    write_silo_key(tmp_path / "new" / "key")
    do("rekey", folder.path, "silo-1", tmp_path / "new" / "key.pub")
    assert silo.public_key.read_bytes() == (tmp_path / "new" / "key.pub").read_bytes()
    grid = LocalGrid(folder, 3)
    grid.strangers = [old]
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY] * 4
    assert "node 999: its key is of no silo in the contract" in log_of(folder)


# --- parties accept


def hand_out(folder: FederationFolder, path: Path) -> FederationFolder:
    """Copy the parties' folders, as if they lay on machines of their own."""
    shutil.copytree(folder.path, path)
    shutil.rmtree(path / "ca")
    return FederationFolder(path)


def test_parties_elsewhere_are_told_what_changes_and_accept_it(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make()
    elsewhere = hand_out(folder, tmp_path / "elsewhere")
    do("extend", folder.path, "--rounds", 5)
    do("add", folder.path, "west")
    (tmp_path / "sent").mkdir()
    for version in (2, 3):
        shutil.copy(folder.path / f"federation-{version}.toml", tmp_path / "sent")
    capsys.readouterr()
    parties = (elsewhere.moderator, elsewhere.silo("silo-0"))
    for party in parties:
        assert "give --yes" in refused(capsys, "accept", party.path, tmp_path / "sent" / "federation-2.toml")
        assert read_contract(party.contract).version == 1
        do("accept", party.path, tmp_path / "sent" / "federation-2.toml", "--yes")
        assert "version 1 -> 2\n  rounds 2 -> 5\n" in capsys.readouterr().out
    new = tmp_path / "sent" / "federation-3.toml"
    said = refused(capsys, "accept", elsewhere.moderator.path, new, "--yes")
    assert "the key of west is needed; put the west.pub that the organiser has next to this file" in said
    shutil.copy(folder.moderator.public_key("west"), tmp_path / "sent")
    for party in parties:
        do("accept", party.path, new, "--yes")
        assert "silo west joins, with the key " in capsys.readouterr().out
        assert party.contract.read_bytes() == folder.contract.read_bytes()
        assert read_contract(folder.contract).hash in party.run_sheet.read_text(encoding="utf-8")
    assert elsewhere.moderator.public_key("west").exists()


def another(change: Callable[[Contract], Contract]) -> Callable[[Contract, Contract], Contract]:
    return lambda old, new: change(new)


def with_experiment(contract: Contract, section: str, **changes: Any) -> Contract:
    experiment = contract.experiment
    return replace(
        contract,
        experiment=replace(experiment, **{section: replace(getattr(experiment, section), **changes)}),
    )


REFUSED: dict[str, tuple[Callable[[Contract, Contract], Contract], str]] = {
    "foreign": (another(lambda new: replace(new, name="other")), "is of other, and this is test"),
    "old": (lambda old, new: old, "is version 1, and version 1 is held already"),
    "skipped": (another(lambda new: replace(new, version=3)), "accept version 2 first"),
    "fork": (another(lambda new: replace(new, previous="0" * 64)), "follows another version 1"),
    "algorithm": (
        another(lambda new: with_experiment(new, "algorithm", name="fedavg")),
        "algorithm.name: feddig -> fedavg; that cannot change",
    ),
    "noise": (another(lambda new: with_experiment(new, "privacy", epsilon=99.0)), "privacy.epsilon"),
    "seed": (another(lambda new: replace(new, experiment=replace(new.experiment, seed=7))), "seed: 0 -> 7"),
    "classes": (another(lambda new: replace(new, classes=("a", "b", "c", "d"))), "federation.classes"),
    "encoder": (another(lambda new: replace(new, encoder_hash="0" * 64)), "federation.encoder_hash"),
    "fewer rounds": (another(lambda new: with_experiment(new, "training", rounds=1)), "fewer than the 2"),
    "first rounds": (another(lambda new: replace(new, first_rounds=9)), "do not fit the first version"),
    "renamed": (
        another(
            lambda new: replace(new, members=(replace(new.members[0], name="x"), *new.members[1:]))
        ),
        "silo[0].name: silo-0 must stay in its place",
    ),
    "order": (another(lambda new: replace(new, members=new.members[::-1])), "must stay in its place"),
    "key": (
        another(
            lambda new: replace(
                new,
                members=(
                    replace(new.members[0], fingerprint="0" * 64, first_fingerprint=new.members[0].fingerprint),
                    *new.members[1:],
                ),
            )
        ),
        "names another key for silo-0",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[SiloFolder, Contract]:
    """Give a silo's folder that holds a version, and the next version."""
    folder = make_organised(tmp_path_factory.mktemp("extended") / "federation")
    old, silo = read_contract(folder.contract), folder.silo("silo-0")
    do("extend", folder.path, "--rounds", 5)
    write_contract(silo.contract, old)
    return silo, read_contract(folder.contract)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_follow_or_cannot_change_is_refused(
    extended: tuple[SiloFolder, Contract], tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    silo, new = extended
    before, file = silo.contract.read_bytes(), tmp_path / "federation-2.toml"
    change, said = REFUSED[case]
    write_contract(file, change(read_contract(silo.contract), new))
    answer = refused(capsys, "accept", silo.path, file, "--yes")
    assert str(file) in answer
    assert said in answer
    assert silo.contract.read_bytes() == before


def test_terms_that_may_change_are_named(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make()
    old = read_contract(folder.contract)
    new = replace(
        old, version=2, previous=old.hash, training_deadline=5.0, min_silos=2, address="a:1", new_release=True,
        rounds_alone=1, start_silos=1, update_limit=2.0, digest_limit=3.0, digest_deadline=4.0, model_every=2,
    )  # fmt: skip
    assert new.lasting_hash == old.lasting_hash
    write_contract(tmp_path / "new.toml", new)
    do("accept", folder.silo("silo-1").path, tmp_path / "new.toml", "--yes")
    said = capsys.readouterr().out
    assert "  deadlines.training: 20.0 -> 5.0\n" in said
    assert "  federation.min_silos: left out -> 2\n" in said
    assert said.count(" -> ") == 11


def test_deadlines_limits_and_numbers_of_silos_change_in_a_run(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(rounds=4, training_deadline=0.2)
    silent = LocalGrid(folder, 3)
    silent.faults.set(1, "train", lambda message, silo: SILENT)
    silent.faults.set(2, "train", lambda message, silo: SILENT)
    with pytest.raises(Killed):
        moderate(folder, until_paused(folder, silent))
    do(
        "change",
        folder.path,
        "--training-deadline",
        30,
        "--min-silos",
        1,
        "--start-silos",
        1,
        "--model-every",
        3,
    )
    said = capsys.readouterr().out
    for line in (
        "deadlines.training: 0.2 -> 30.0",
        "federation.min_silos: left out -> 1",
        "model_every: left out -> 3",
    ):
        assert f"{line}\n" in said
    contract = read_contract(folder.path / "federation-2.toml")
    assert (contract.version, contract.training_deadline, contract.min_silos) == (2, 30.0, 1)
    assert folder.silo("silo-2").contract.read_bytes() == (folder.path / "federation-2.toml").read_bytes()
    alone = LocalGrid(folder, 1)
    moderate(folder, alone)
    assert present(folder) == [[0]] * 4
    assert [round for _, kind, round in alone.sent if kind == "query.model"] == [2, 3]

    said = refused(capsys, "change", folder.path, "--min-silos", 1)
    assert "nothing changes; give an option with another value than now" in said
    said = refused(capsys, "change", folder.path, "--start-silos", 4)
    assert "federation.start_silos: 4, but there are 3 silos" in said
    said = refused(capsys, "change", folder.path, "--training-deadline", "inf")
    assert "deadlines.training: inf is not a finite number" in said
    assert read_contract(folder.contract).version == 2


def until_paused(folder: FederationFolder, grid: LocalGrid) -> LocalGrid:
    """Let the moderator be killed when it has paused, or has done a round."""

    def watch(grid: LocalGrid) -> None:
        if folder.moderator.status.exists() and status(folder)["state"] == "paused":
            raise Killed
        assert not done(folder)

    grid.before = watch
    return grid


def test_a_folder_that_is_not_the_organisers_or_holds_another_version_is_refused(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make()
    elsewhere = hand_out(folder, tmp_path / "elsewhere")
    said = refused(capsys, "extend", elsewhere.path, "--rounds", 9)
    assert "is not the organiser's folder; give the one that `feddig federation init` wrote" in said
    said = refused(capsys, "accept", folder.path, folder.contract, "--yes")
    assert "give the folder of the moderator or of a silo" in said
    contract = read_contract(folder.contract)
    write_contract(folder.moderator.contract, replace(contract, training_deadline=1.0))
    said = refused(capsys, "extend", folder.path, "--rounds", 9)
    assert f"{folder.moderator.contract}: is another version than {folder.contract}" in said


def test_a_command_that_was_interrupted_can_be_given_again(make: Make) -> None:
    folder = make()
    old = read_contract(folder.contract)
    do("extend", folder.path, "--rounds", 5)
    after = folder.contract.read_bytes()
    write_contract(folder.contract, old)
    write_contract(folder.silo("silo-2").contract, old)
    do("extend", folder.path, "--rounds", 5)
    assert {path.read_bytes() for path in folder.path.rglob("federation*.toml")} == {after}


@pytest.mark.parametrize("agrees", [True, False])
def test_at_a_terminal_a_party_is_asked(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    def answer(question: str, *, abort: bool) -> None:
        if not agrees:
            raise typer.Abort

    folder = make()
    elsewhere = hand_out(folder, tmp_path / "elsewhere")
    do("extend", folder.path, "--rounds", 5)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", answer)
    with pytest.raises(SystemExit) as ended:
        main(["federation", "accept", str(elsewhere.moderator.path), str(folder.path / "federation-2.toml")])
    assert ended.value.code == (0 if agrees else INTERRUPTED)
    assert read_contract(elsewhere.moderator.contract).version == (2 if agrees else 1)


# --- what runs


def test_in_a_rehearsal_all_commands_know_who_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = FederationFolder(tmp_path / "trial")
    small = ["--set", "data.limit=300", "--set", "data.min_samples=24", "--port", free_port()]
    do("init", whole.path, "--silos", 2, *small)
    do("add", whole.path, "west")
    assert f"put its images as x_train, y_train, x_test and y_test into {whole.silo('west').path}" in (
        capsys.readouterr().out
    )
    do("remove", whole.path, "silo-1", "--digest", "stay")
    contract = read_contract(whole.contract)
    assert _chosen(whole, contract, None) == ["moderator", "silo-0", "west"]
    sheet = whole.moderator.run_sheet.read_text(encoding="utf-8")
    assert "The silos: silo-0, west." in sheet
    assert "waits for 2 of the 2 silos" in sheet
    shutil.copy(whole.silo("silo-1").path / "data.npz", whole.silo("west").path)
    capsys.readouterr()
    do("check", whole.path)
    said = capsys.readouterr().out
    assert "version 3: federation, 2 silos, " in said
    assert "silo-1" not in said
    do("status", whole.silo("silo-1").path)
    assert "silo 1, silo-1; it is removed" in capsys.readouterr().out
    assert "silo-1: is removed, and needs no key" in refused(
        capsys, "rekey", whole.path, "silo-1", whole.silo("west").public_key
    )


def ask_about(contract: Contract, folder: FederationFolder) -> Contract:
    """Ask silo 0's process about a contract; return the one under which it answers."""
    message = SimpleNamespace(content=pack_question(About("contract", contract.hash, contract.version)))
    context = SimpleNamespace(node_config={"folder": str(folder.silo("silo-0").path)})
    return client_app._deployed(message, context).contract  # type: ignore[arg-type]


def test_a_silo_that_runs_answers_under_the_version_it_had_until_it_is_restarted(make: Make) -> None:
    folder = make()
    client_app.open_folder.cache_clear()
    old = read_contract(folder.contract)
    assert ask_about(old, folder) == old
    for rounds in (4, 5):
        do("extend", folder.path, "--rounds", rounds)
    new = read_contract(folder.contract)
    assert ask_about(old, folder).hash == old.hash
    assert ask_about(new, folder).hash == new.hash
    client_app.open_folder.cache_clear()
    follows = "the silo holds version {} of the contract and the moderator follows version {}; run `feddig federation "
    there = "accept . federation-2.toml` in the {}'s folder"
    with pytest.raises(
        OtherContractError, match=re.escape(follows.format(3, 1) + there.format("moderator") + ", unless")
    ):
        ask_about(old, folder)
    write_contract(folder.silo("silo-0").contract, old)
    with pytest.raises(OtherContractError, match=re.escape(follows.format(1, 3) + there.format("silo"))):
        ask_about(new, folder)
    other = replace(old, training_deadline=1.0)
    differ = f"contract is {old.hash[:12]} and the moderator's {other.hash[:12]}, both version 1; put the"
    with pytest.raises(OtherContractError, match=differ):
        ask_about(other, folder)


@pytest.mark.parametrize("name", ["feddig", "fedavg"])
def test_a_silo_with_another_version_is_named_with_both_versions_and_the_remedy(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Also in the round in which the moderator resumes, where other refusals count as here."""
    folder = make(algorithm={"name": name})
    moderate(folder, LocalGrid(folder, 3))
    old = folder.contract.read_bytes()
    do("extend", folder.path, "--rounds", 4)
    file = folder.path / "federation-2.toml"
    behind = {1, 2}
    for number in behind:
        folder.silo(f"silo-{number}").contract.write_bytes(old)

    def agree(message: Any, silo: Any) -> Any:
        context = SimpleNamespace(node_config={"folder": str(silo.folder.path)})
        client_app._agreed(message, context)  # type: ignore[arg-type]
        return answer_well(message, silo)

    grid, told, lines = LocalGrid(folder, 3), list[Status](), list[str]()
    for silo in EVERYBODY:
        for kind in ("query.digest", "train"):
            grid.faults.set(silo, kind, agree)
    show = show_lines(lines.append)

    def watch(grid: LocalGrid) -> None:
        told.append(Status(status(folder)))
        show(told[-1])
        if {one["name"] for one in told[-1].content["silos"] if one["reason"]} == {"silo-1", "silo-2"}:
            while behind:
                number = behind.pop()
                do("accept", folder.silo(f"silo-{number}").path, file, "--yes")
                grid.restart(number)

    grid.before = watch
    client_app.open_folder.cache_clear()
    moderate(folder, grid)
    assert not behind
    assert present(folder) == [EVERYBODY] * 4
    said = (
        "silo-1 is broken: the silo holds version 1 of the contract and the moderator follows version 2; run `feddig "
        "federation accept . federation-2.toml` in the silo's folder"
    )
    assert f"WARNING silo 1, round 3: {said}; it is asked again in 5 s\n" in log_of(folder)
    assert lines.count(f"test: {said}") == 1
    (asked,) = {one.content["round"] for one in told if one.faults}
    assert asked == 2
    shown = next(one for one in told if one.faults)
    folder.moderator.status.write_text(json.dumps(shown.content), encoding="utf-8")
    capsys.readouterr()
    do("status", folder.path)
    assert f"\n{said}\n" in capsys.readouterr().out


# --- pauses


def test_no_round_begins_while_the_operator_lets_it_pause_also_after_a_restart(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(rounds=4)
    seen: list[tuple[str, int]] = []

    def watch(grid: LocalGrid) -> None:
        if done(folder) == 2 and not folder.moderator.pause.exists() and not seen:
            do("pause", folder.path)
        elif folder.moderator.pause.exists():
            seen.append((status(folder)["state"], done(folder)))
            if len(seen) == 10:
                raise Killed
            if len(seen) == 25:
                do("resume", folder.moderator.path)

    grid = LocalGrid(folder, 3)
    grid.before = watch
    with pytest.raises(Killed):
        moderate(folder, grid)
    grid = LocalGrid(folder, 3)
    grid.before = watch
    moderate(folder, grid)
    assert present(folder) == [EVERYBODY] * 4
    states, rounds = zip(*seen, strict=True)
    assert set(rounds) == {2}
    assert {"paused by the operator"} == {*states[3:9], *states[-8:]}
    said = f"paused by the operator; `feddig federation resume {folder.moderator.path}` goes on"
    assert f"WARNING round 3: {said}" in log_of(folder)
    assert said in capsys.readouterr().out
    assert "INFO round 3: the operator lets it go on" in log_of(folder)
    assert "is not paused" in refused(capsys, "resume", folder.path)


def test_the_status_says_that_the_operator_paused_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make()
    moderate(folder, LocalGrid(folder, 3), until=1)
    do("pause", folder.moderator.path)
    capsys.readouterr()
    do("status", folder.path)
    resume = f"feddig federation resume {folder.moderator.path}"
    assert f"paused by the operator; `{resume}` goes on" in capsys.readouterr().out
    do("status", folder.path, "--json")
    assert json.loads(capsys.readouterr().out)["version"] == 1
