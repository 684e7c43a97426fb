"""The contract of a federation: written, read again, hashed, and refused in one line when something is wrong."""

import hashlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from feddig.errors import FedDigError, SettingError
from feddig.experiment.toml import experiment_from_table
from feddig.federation.contract import (
    DIGEST_LIMIT,
    UPDATE_LIMIT,
    Contract,
    Member,
    check_possible,
    read_contract,
    with_silos,
    with_silos_own_data,
    write_contract,
)
from feddig.files import write_atomically
from feddig.settings import AbsenceSettings

KEYS = ("a" * 64, "b" * 64)


def a_contract(**changes: object) -> Contract:
    table = {
        "data": {"silos": 2},
        "algorithm": {"name": "feddig"},
        "privacy": {"random": "system"},
        "model": {"classifier": "size-matched"},
        "training": {"rounds": 300, "batch": 256, "lr": 0.001},
    }
    experiment = experiment_from_table(table).resolved()
    contract = Contract(
        name="hospitals",
        members=(Member("north", KEYS[0]), Member("south", KEYS[1])),
        experiment=experiment,
        image_shape=(1, 28, 28),
        classes=("sick", 'so "so"', "well"),
        encoder_hash="c" * 64,
        training_deadline=90.0,
        digest_deadline=30.5,
        address="moderator.example:9092",
        update_limit=10.0,
    )
    return replace(contract, **changes)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    write_contract(path, a_contract())
    return path


def test_a_contract_is_read_as_it_was_written(file: Path) -> None:
    assert read_contract(file) == a_contract()


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_hash": None},
        {"new_release": True},
        {"classes": ("a", "b")},
        {"update_limit": None},
        {"update_limit": 2.5},
        {"digest_limit": 0.5},
        {"min_silos": 1, "start_silos": 2, "rounds_alone": 3},
        {"version": 3, "previous": "d" * 64, "first_rounds": 7, "first_silos": 1},
        {"members": (Member("north", KEYS[0], "e" * 64), Member("south", KEYS[1], removed="stay"))},
    ],
)
def test_optional_and_changed_fields_are_read_as_written(tmp_path: Path, changes: dict[str, object]) -> None:
    write_contract(tmp_path / "c.toml", a_contract(**changes))
    assert read_contract(tmp_path / "c.toml") == a_contract(**changes)


def test_a_contract_without_a_limit_keeps_its_hash_and_has_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    write_contract(file, a_contract(update_limit=None))
    added_since = r"(update|digest)_limit|_silos|rounds_alone|version = [^1]|previous|first_|removed"
    assert not re.search(added_since, file.read_text(encoding="utf-8"))
    found = read_contract(file)
    assert found.hash == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found.longest_update == UPDATE_LIMIT
    assert found.largest_digest == DIGEST_LIMIT * 10**6
    assert a_contract(digest_limit=0.5).largest_digest == 500_000


def test_by_default_a_round_needs_more_than_half_of_the_silos_and_the_first_waits_for_all() -> None:
    contract = a_contract()
    assert [contract.needed_silos(expected) for expected in range(6)] == [0, 1, 2, 2, 3, 3]
    assert [contract.silos_to_start(expected) for expected in range(3)] == [0, 1, 2]
    agreed = a_contract(min_silos=2, start_silos=1)
    assert [agreed.needed_silos(expected) for expected in range(4)] == [0, 1, 2, 2]
    assert [agreed.silos_to_start(expected) for expected in range(3)] == [0, 1, 1]


def test_the_hash_is_that_of_the_file_and_changes_with_it(file: Path) -> None:
    contract = read_contract(file)
    assert contract.hash == hashlib.sha256(file.read_bytes()).hexdigest()
    others = [a_contract(training_deadline=91.0), a_contract(name="x"), a_contract(classes=("a", "b"))]
    assert len({contract.hash, *(other.hash for other in others)}) == 4


def test_a_moderator_continues_under_a_contract_of_an_older_release() -> None:
    # printed for this contract by the code of commit 3cbb9b5, before there were expert, votes, groups and the sentence
    older = "b76359f7d7671d1768808fea4dab658a11fc2d59b883e270fc9a81489a7d784a"
    assert a_contract().lasting_hash == a_contract(address="other.example:1").lasting_hash == older
    assert a_contract(min_silos=1, start_silos=1, rounds_alone=9).lasting_hash == older
    assert a_contract(name="x").lasting_hash != older


@pytest.mark.parametrize("own", [False, True], ids=["rehearsal", "real data"])
def test_all_versions_of_a_contract_are_of_one_run(own: bool) -> None:
    first = a_contract_for_real_data() if own else a_contract()
    training = replace(first.experiment.training, rounds=999)
    members = (
        Member("north", "e" * 64, first_fingerprint=KEYS[0]),
        Member("south", KEYS[1], removed="go"),
        *(Member(f"new-{place}", f"{place}" * 64) for place in range(4)),
    )
    later = replace(
        first,
        members=members,
        experiment=with_silos(replace(first.experiment, training=training), 6),
        version=5,
        previous="d" * 64,
        first_rounds=first.experiment.training.rounds,
        first_silos=2,
    )
    assert later.lasting_hash == first.lasting_hash
    assert replace(later, first_rounds=998).lasting_hash != first.lasting_hash
    assert replace(later, first_silos=None).lasting_hash != first.lasting_hash
    moved = replace(later, experiment=replace(later.experiment, seed=1))
    assert moved.lasting_hash != first.lasting_hash
    assert later.active == (0, 2, 3, 4, 5)
    assert later.gone == [1]


def a_contract_for_real_data(**changes: object) -> Contract:
    experiment = replace(a_contract().experiment, absence=AbsenceSettings(scenario="none"))
    return a_contract(experiment=with_silos_own_data(experiment, 2), **changes)


def test_a_contract_for_real_data_has_no_settings_of_a_simulation(tmp_path: Path) -> None:
    contract = a_contract_for_real_data()
    write_contract(tmp_path / "c.toml", contract)
    assert not {"data", "absence"} & tomllib.loads((tmp_path / "c.toml").read_text(encoding="utf-8")).keys()
    assert read_contract(tmp_path / "c.toml") == contract
    assert contract.hash == hashlib.sha256((tmp_path / "c.toml").read_bytes()).hexdigest()


def test_a_run_goes_on_when_the_settings_of_a_simulation_are_taken_out_of_its_contract() -> None:
    contract = a_contract_for_real_data()
    data = replace(contract.experiment.data, name="fashion-mini")
    older = a_contract(experiment=replace(contract.experiment, data=data))
    assert older.hash != contract.hash
    # printed for this contract by the code of commit a30a73c, which wrote [data] and [absence]
    assert (
        older.lasting_hash
        == contract.lasting_hash
        == "77fad180015d098fb31debe895d25f3fdc806cc790f0740f9c7427e33eeaf26c"
    )
    assert a_contract_for_real_data(name="x").lasting_hash != contract.lasting_hash


def test_what_follows_from_the_rounds_may_be_left_out_of_a_contract_and_what_follows_from_data_may_not() -> (
    None
):
    for name in ("feddig+adabest", "feddig+fednova"):
        check_possible(experiment_from_table({"algorithm": {"name": name}}))
    with pytest.raises(SettingError, match=r"algorithm\.feddyn\.alpha: must be in the contract"):
        check_possible(experiment_from_table({"algorithm": {"name": "feddyn"}}))


def test_a_contract_for_real_data_simulates_no_absence(tmp_path: Path) -> None:
    write_contract(tmp_path / "c.toml", a_contract_for_real_data())
    with (tmp_path / "c.toml").open("a", encoding="utf-8") as stream:
        stream.write('[absence]\nscenario = "early"\n')
    with pytest.raises(FedDigError, match=r"absence\.scenario: 'early' simulates absence"):
        read_contract(tmp_path / "c.toml")


def test_the_files_that_it_names_lie_next_to_it_on_every_machine(tmp_path: Path) -> None:
    experiment = a_contract().experiment
    digest = replace(experiment.digest, encoder=str(tmp_path / "here" / "encoder.safetensors"))
    data = replace(experiment.data, path="/somebody/s/images")
    contract = a_contract(experiment=replace(experiment, digest=digest, data=data))
    for place in ("one", "two"):
        write_contract(tmp_path / place / "federation.toml", contract)
    one, two = (read_contract(tmp_path / place / "federation.toml") for place in ("one", "two"))
    assert one.experiment.digest.encoder == str(tmp_path / "one" / "encoder.safetensors")
    assert one.experiment.data.path is None
    assert one.hash == two.hash == contract.hash
    assert b"somebody" not in (tmp_path / "one" / "federation.toml").read_bytes()


FAULTS = {
    "nmae = 1": ("federation.nmae: unknown key; did you mean 'federation.name'?", 'name = "hospitals"'),
    'name = "../x"': ("federation.name: '../x' cannot be a name", 'name = "hospitals"'),
    'address = "nowhere"': ("federation.address: 'nowhere' is no host and port", 'address = "moderator.example:9092"'),
    'address = ":0"': ("federation.address", 'address = "moderator.example:9092"'),
    "image_shape = [28, 28]": ("federation.image_shape: [28, 28] is not", "image_shape = [1, 28, 28]"),
    "image_shape = [1, 28, true]": ("federation.image_shape", "image_shape = [1, 28, 28]"),
    'classes = ["a"]': ("federation.classes: ['a'] must be at least two", 'classes = ["sick", "so \\"so\\"", "well"]'),
    'classes = ["a", "a"]': ("federation.classes: 'a' is listed twice", 'classes = ["sick", "so \\"so\\"", "well"]'),
    'encoder_hash = "cc"': ("federation.encoder_hash: 'cc' is not a SHA-256", f'encoder_hash = "{"c" * 64}"'),
    "new_release = 1": ("federation.new_release: 1 is not true or false", "new_release = false"),
    "update_limit = 0": ("federation.update_limit: 0 is out of range; it must be above 0", "update_limit = 10.0"),
    "update_limit = inf": ("federation.update_limit: inf", "update_limit = 10.0"),
    "digest_limit = -1": ("federation.digest_limit: -1 is out of range; it must be above 0", "new_release = false"),
    "min_silos = 0": ("federation.min_silos: 0 is out of range; it must be at least 1", "new_release = false"),
    "min_silos = 3": ("federation.min_silos: 3, but there are 2 silos; set it to 2 or fewer", "new_release = false"),
    "start_silos = true": ("federation.start_silos: True is not a whole number", "new_release = false"),
    "start_silos = 9": ("federation.start_silos: 9, but there are 2 silos", "new_release = false"),
    "rounds_alone = -1": ("federation.rounds_alone: -1 is out of range; it must be at least 0", "new_release = false"),
    "training = 0": ("deadlines.training: 0 is out of range; it must be above 0", "training = 90.0"),
    "training = inf": ("deadlines.training: inf", "training = 90.0"),
    'training = "x"': ("deadlines.training: 'x'", "training = 90.0"),
    'name = "NORTH"': ("silo.name: 'NORTH' is listed twice", 'name = "south"'),
    f'fingerprint = "{KEYS[0]}"': ("silo.fingerprint", f'fingerprint = "{KEYS[1]}"'),
    'fingerprint = "x"': ("silo[1].fingerprint: 'x' is not a SHA-256", f'fingerprint = "{KEYS[1]}"'),
    "silos = 3": ("data.silos: 3, but there are 2 tables [[silo]]", "silos = 2"),
    "rounds = -1": ("training.rounds", "rounds = 300"),
    "version = 0": ("federation.version: 0 is out of range; it must be at least 1", "new_release = false"),
    "version = 2": ("federation.previous: from version 2 on it must be there", "new_release = false"),
    f'previous = "{KEYS[0]}"': ("federation.previous: from version 2 on", "new_release = false"),
    f'fingerprint = "{KEYS[1]}"\nremoved = "gone"': ("silo[1].removed: 'gone'", f'fingerprint = "{KEYS[1]}"'),
    "[deadlinse]": ("deadlines: there must be a table [deadlines]", "[deadlines]"),
    "format_version = 9": ("format_version 9", "format_version = 1"),
    "= =": ("not valid TOML", "format_version = 1"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_one_line_that_names_file_and_field(file: Path, wrong: str) -> None:
    said, right = FAULTS[wrong]
    text = file.read_text(encoding="utf-8")
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong), encoding="utf-8")
    with pytest.raises(FedDigError) as raised:
        read_contract(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value).strip() or "TOML" in str(raised.value)


@pytest.mark.parametrize("left_out", ["[federation]", "[[silo]]"])
def test_a_missing_table_is_named(file: Path, left_out: str) -> None:
    text = file.read_text(encoding="utf-8")
    write_atomically(file, text[: text.index(left_out)])
    with pytest.raises(FedDigError, match=r"federation|silo"):
        read_contract(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedDigError, match=r"federation\.toml: no such contract"):
        read_contract(tmp_path / "federation.toml")


def test_a_silo_is_found_by_its_name() -> None:
    assert a_contract().number("south") == 1
    with pytest.raises(FedDigError, match="did you mean 'south'"):
        a_contract().number("suoth")
