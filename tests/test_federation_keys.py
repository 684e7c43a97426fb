"""Silos that make their own keys: the federation is set up from their public keys only."""

import json
import shutil
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.errors import FedDigError
from feddig.federation.certificates import read_fingerprint, read_key_fingerprint
from feddig.federation.contract import UPDATE_LIMIT, read_contract
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.silo_data import check_folder
from folders import error_line, run_feddig

pytestmark = pytest.mark.flower

NAMES = ("east", "north")
REAL = ("--classes", "ill,well", "--image", "1x16x16", "--no-privacy", "--host", "localhost")


def feddig(*arguments: object) -> None:
    assert run_feddig("federation", *arguments) == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return error_line(capsys, "federation", *arguments)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return the folder with the public keys that the silos sent."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in NAMES:
        feddig("key", tmp_path / "homes" / name)
        shutil.copyfile(tmp_path / "homes" / name / "key.pub", folder / f"{name}.pub")
    return folder


@pytest.fixture
def whole(tmp_path: Path, keys: Path) -> FederationFolder:
    feddig("init", tmp_path / "federation", "--keys", keys, *REAL)
    return FederationFolder(tmp_path / "federation")


def test_a_silo_makes_its_own_key_and_sees_its_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feddig("key", tmp_path / "north")
    silo = SiloFolder(tmp_path / "north")
    printed = capsys.readouterr().out
    assert read_fingerprint(silo.public_key) == read_key_fingerprint(silo.key) == printed.split()[-1]
    assert stat.S_IMODE(silo.key.stat().st_mode) == 0o600
    before = silo.key.read_bytes()
    assert "key: exists; a new key" in refused(capsys, "key", tmp_path / "north")
    assert silo.key.read_bytes() == before
    feddig("key", tmp_path / "south", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["fingerprint"] == read_fingerprint(Path(report["public_key"]))


def test_a_federation_of_own_keys_holds_no_silos_private_key(
    whole: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = read_contract(whole.contract)
    assert [member.name for member in contract.members] == list(NAMES)
    assert contract.update_limit == UPDATE_LIMIT
    for member in contract.members:
        home = SiloFolder(tmp_path / "homes" / member.name)
        assert member.fingerprint == read_key_fingerprint(home.key)
        assert whole.moderator.public_key(member.name).read_bytes() == home.public_key.read_bytes()
        assert "`feddig federation\n   key`" in whole.silo(member.name).run_sheet.read_text(encoding="utf-8")
    private = [path for path in whole.path.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert sorted(path.name for path in private) == ["ca.key", "server.key"]
    capsys.readouterr()
    feddig("check", whole.path)
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"{name}: only the silo has its key, and checks its own folder" for name in NAMES]


def test_a_silo_runs_only_with_the_key_that_it_made(whole: FederationFolder, tmp_path: Path) -> None:
    silo = whole.silo("north")
    with pytest.raises(
        FedDigError, match=r"key: is missing; put the key there that `feddig federation key` made"
    ):
        check_folder(silo)
    shutil.copyfile(tmp_path / "homes" / "east" / "key", silo.key)
    with pytest.raises(FedDigError, match=r"key: does not belong to key\.pub"):
        check_folder(silo)
    silo.key.write_text("nonsense", encoding="utf-8")
    with pytest.raises(FedDigError, match=r"key: is no private key"):
        check_folder(silo)
    shutil.copyfile(tmp_path / "homes" / "north" / "key", silo.key)
    check_folder(silo)


def test_names_set_the_silos_order(tmp_path: Path, keys: Path) -> None:
    feddig("init", tmp_path / "f", "--keys", keys, "--names", "north,east", *REAL)
    contract = read_contract(tmp_path / "f" / "federation.toml")
    assert [member.name for member in contract.members] == ["north", "east"]
    assert contract.members[0].fingerprint == read_fingerprint(keys / "north.pub")


def test_a_mistake_with_keys_is_one_line_and_leaves_nothing(
    tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "f"
    (tmp_path / "none").mkdir()
    capsys.readouterr()
    assert "--keys: a rehearsal" in refused(capsys, "init", target, "--keys", keys)
    assert "holds no NAME.pub" in refused(capsys, "init", target, "--keys", tmp_path / "none", *REAL)
    wanted = ("--names", "north,west")
    assert "west.pub: is no public key" in refused(capsys, "init", target, "--keys", keys, *wanted, *REAL)
    shutil.copyfile(keys / "north.pub", keys / "west.pub")
    assert "is listed twice; each silo needs a key of its own" in refused(
        capsys, "init", target, "--keys", keys, *REAL
    )
    shutil.copyfile(tmp_path / "homes" / "north" / "key", keys / "west.pub")
    assert "west.pub: is no public key" in refused(capsys, "init", target, "--keys", keys, *REAL)
    assert not target.exists()
