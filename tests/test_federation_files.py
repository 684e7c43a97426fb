"""`federation init`: the files of each party, the data of a rehearsal; and how the status is shown."""

import configparser
import importlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

pytest.importorskip("flwr", reason="needs the extra `flower`")

from cryptography import x509

from documented import ROOT
from feddig._version import __version__
from feddig.cli import main
from feddig.commands.options import INTERRUPTED
from feddig.core.messages import Request
from feddig.data.mmap import choose
from feddig.digest.digest_file import read_digest
from feddig.errors import FedDigError
from feddig.experiment.setup import lay_out
from feddig.federation.certificates import read_fingerprint
from feddig.federation.contract import Contract, read_contract
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.processes import moderator_process, up
from feddig.federation.processes.moderator_process import MOST_FAILURES, Failures
from feddig.federation.processes.up import choose_display
from feddig.federation.silo import open_silo
from feddig.federation.silo_data import load_silo_data, load_test_set, read_silo_file, write_silo_file
from feddig.federation.status import Show, Status, show_lines
from feddig.files import state_folder
from feddig.models.encoder import encoder_hash, load_encoder, save_encoder
from feddig.models.train_encoder import make_encoder
from feddig.privacy.ledger import Ledger
from public_sets import write_idx

pytestmark = pytest.mark.flower

SMALL = ["--set", "data.limit=400", "--set", "training.rounds=3"]


def init(folder: Path, *options: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["federation", "init", str(folder), *map(str, options)])
    assert ended.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["federation", *map(str, arguments)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    folder = tmp_path_factory.mktemp("federations") / "hospitals"
    init(folder, "--names", "north,south", "--name", "hospitals", "--host", "moderator.example", *SMALL)
    return FederationFolder(folder)


def test_every_party_gets_the_same_contract_and_what_it_needs(rehearsed: FederationFolder) -> None:
    whole = rehearsed
    contract = read_contract(whole.contract)
    assert [member.name for member in contract.members] == ["north", "south"]
    assert contract.address == "moderator.example:9092"
    assert contract.image_shape == (1, 28, 28)
    assert len(contract.classes) == 10
    assert contract.encoder_hash == encoder_hash(load_encoder("default", 1))
    parts = [whole.moderator.contract, *(silo.contract for silo in whole.silos(["north", "south"]))]
    assert {path.read_bytes() for path in parts} == {whole.contract.read_bytes()}
    for member in contract.members:
        silo = whole.silo(member.name)
        assert read_fingerprint(silo.public_key) == member.fingerprint
        assert read_fingerprint(whole.moderator.public_key(member.name)) == member.fingerprint
        assert contract.hash in silo.run_sheet.read_text(encoding="utf-8")
        assert "feddig federation silo ." in silo.run_sheet.read_text(encoding="utf-8")
    assert "feddig federation moderator ." in whole.moderator.run_sheet.read_text(encoding="utf-8")


INSTRUCTIONS = ("FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "CMD")


def read_containerfile(text: str) -> dict[str, list[str]]:
    """Return the arguments of each kind of instruction, in order; check what every such file of ours has."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: dict[str, list[str]] = {}
    for line in filter(None, lines):
        name, _, rest = line.partition(" ")
        assert name in INSTRUCTIONS, line
        assert rest.strip(), line
        found.setdefault(name, []).append(rest)
    assert lines[0] == f"FROM {found['FROM'][0]}"
    # of Debian, small, and of a Python that the package accepts
    assert re.fullmatch(r"python:3\.(11|12|13)-slim", *found["FROM"])
    assert len(found["CMD"]) == 1
    assert lines[-1].startswith("CMD ")
    return found


def test_the_container_of_the_repository_runs_the_demo_and_not_as_root() -> None:
    """It cannot be built here: check what its instructions name."""
    from test_commands import parse

    create_command = pytest.importorskip("pip._internal.commands").create_command
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    found = read_containerfile(text)
    *copied, target = found["COPY"][0].split()
    assert target == "./"
    for name in [*copied, *(line.split()[0] for line in found["COPY"][1:])]:
        assert (ROOT / name).exists(), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml", "constraints.txt"} == set(copied)
    (run,) = found["RUN"]
    steps = [shlex.split(step) for step in run.split("&&")]
    for step in steps[:2]:
        options, names = create_command("install").parse_args(step[2:])
        assert step[:2] == ["pip", "install"]
        assert options.constraints == ["constraints.txt"]
        assert names in (["torch"], ["."])
    (user,) = found["USER"]
    assert user not in ("root", "0")
    assert ["useradd", "--create-home", user] in steps
    (volume,) = found["VOLUME"]
    assert ["install", "-d", "-o", user, volume] in steps
    assert found["WORKDIR"][-1] == volume
    program, *words = json.loads(found["CMD"][0])
    assert program in project["scripts"]
    context = parse(words)
    assert context.command.name == "compare"
    assert Path(context.params["out"]) == Path(volume, "demo")
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndemo: ")[1].splitlines()[1]
    assert words[:-1] == shlex.split(recipe)[1:-1], "the same as `make demo`"
    assert "://" not in text, "it names no host"


@pytest.mark.parametrize("party", ["moderator", "silo"])
def test_a_party_can_run_as_a_service_and_in_a_container(
    rehearsed: FederationFolder, party: str, tmp_path: Path
) -> None:
    from test_commands import parse

    folder = rehearsed.moderator if party == "moderator" else rehearsed.silo("north")
    text, container, sheet = (
        path.read_text(encoding="utf-8") for path in (folder.unit, folder.container, folder.run_sheet)
    )
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(text)
    service = unit["Service"]
    assert (service["Restart"], service["KillMode"]) == ("on-failure", "mixed")
    assert service["SuccessExitStatus"] == str(INTERRUPTED)
    program, *words = service["ExecStart"].split()
    built = read_containerfile(container)
    assert built["COPY"] == [f"feddig-{__version__}-py3-none-any.whl /tmp/"]
    command = json.loads(built["CMD"][0])
    assert Path(program).name == command[0] == "feddig"
    for given in (words, command[1:]):
        context = parse(given)
        assert (context.command.name, context.params["folder"]) == (party, ".")
    assert f"feddig-{__version__}-py3-none-any.whl[flower]" in container
    assert f'pip install "./feddig-{__version__}-py3-none-any.whl[flower]"' in sheet
    assert f"`feddig-{party}.service`" in sheet
    assert "`Containerfile`" in sheet
    assert "{" not in text + container
    if (tool := shutil.which("systemd-analyze")) is not None:
        copy = tmp_path / folder.unit.name
        copy.write_text(text.replace(program, sys.executable), encoding="utf-8")
        done = subprocess.run([tool, "verify", "--man=no", copy], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_moderators_folder_of_the_last_release_gets_the_app_of_this_one(
    rehearsed: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ModeratorFolder(tmp_path / "moderator")
    shutil.copytree(rehearsed.moderator.path, folder.path)
    folder.app.mkdir()
    old = '[tool.flwr.app.components]\nserverapp = "feddig.flower.server_app:app"\n'
    (folder.app / "pyproject.toml").write_text(old, encoding="utf-8")

    def stop(*_: object) -> None:
        raise FedDigError("as far as the SuperLink")

    monkeypatch.setattr(moderator_process, "_start_superlink", stop)
    with pytest.raises(FedDigError, match="as far as the SuperLink"):
        moderator_process.run_moderator(folder, Event())
    project = tomllib.loads((folder.app / "pyproject.toml").read_text(encoding="utf-8"))
    components = project["tool"]["flwr"]["app"]["components"]
    assert set(components) == {"serverapp", "clientapp"}
    for place in components.values():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_only_owners_can_read_secrets_and_nobody_gets_the_authoritys_key(
    rehearsed: FederationFolder,
) -> None:
    whole = rehearsed
    secrets = [whole.ca_key, whole.moderator.key, whole.silo("north").key, whole.silo("south").key]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    contents = [path.read_bytes() for path in secrets]
    for path in whole.path.rglob("*"):
        if path.is_file() and path not in secrets:
            assert not any(secret in path.read_bytes() for secret in contents), path
    trust = ssl.create_default_context(cafile=str(whole.silo("north").ca))
    assert trust.cert_store_stats()["x509_ca"] == 1


def test_a_rehearsal_splits_the_data_as_one_process_does(rehearsed: FederationFolder) -> None:
    contract = read_contract(rehearsed.contract)
    layout = lay_out(contract.experiment)
    assert layout.experiment == contract.experiment, "the contract leaves nothing open"
    for number, rows in enumerate(layout.training_rows()):
        file = read_silo_file(rehearsed.silo(contract.members[number].name).silo_file)
        train, validation = load_silo_data(file, contract)
        wanted = layout.dataset.train
        assert np.array_equal(train.pixels[:], choose(wanted.pixels, rows))
        assert np.array_equal(train.labels, wanted.labels[rows])
        apart = layout.partition.shares[number].validation
        assert np.array_equal(validation.labels, wanted.labels[apart])
    test = load_test_set(rehearsed.moderator.test_set, contract)
    assert test is not None
    assert np.array_equal(test.labels, layout.dataset.test.labels)


def test_a_silos_folder_can_be_moved(rehearsed: FederationFolder, tmp_path: Path) -> None:
    moved = SiloFolder(tmp_path / "elsewhere")
    shutil.copytree(rehearsed.silo("south").path, moved.path)
    file = read_silo_file(moved.silo_file)
    assert (file.silo, file.name, file.data.path) == (1, "south", moved.path / "data.npz")
    train, validation = load_silo_data(file, read_contract(moved.contract))
    assert len(train) > len(validation) > 0


def test_no_federation_is_overwritten_and_a_failure_leaves_no_files(
    rehearsed: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(rehearsed.path.parent.iterdir())
    said = refused(capsys, "init", rehearsed.path, "--silos", 2)
    assert ": exists; choose a new folder" in said
    assert sorted(rehearsed.path.parent.iterdir()) == before
    said = refused(capsys, "init", tmp_path / "x", "--names", "a b,c", *SMALL)
    assert "'a b' cannot be a name" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--silos: say how many silos"),
        (["--silos", 3, "--names", "a,b"], "--names: 2 names, but --silos 3"),
        (["--silos", 2, "--classes", "a,b"], "--classes and --image: belong together"),
        (["--silos", 2, "--classes", "a,b", "--image", "28x28"], "--image: '28x28' is not a shape"),
        (["--names", "a,b,a"], "--names: 'a' is listed twice; give each one its own name"),
        (
            ["--names", "a,A", *SMALL],
            "'A' is listed twice; each silo needs a name that differs in more than capitals",
        ),
        (["--silos", 2, "--classes", "x,x", "--image", "1x28x28"], "--classes: 'x' is listed twice"),
        (["--silos", 2, "--classes", "x", "--image", "1x28x28"], "--classes: only 'x'; give at least two"),
        (
            ["--silos", 2, "--classes", "a,b", "--image", "1x28x28", "--no-privacy"],
            "--host: silos on other machines need the moderator's host name or address; give it, or localhost",
        ),
        (
            ["--silos", 2, "--host", "a:99"],
            "--host: 'a:99' is no host name or address; write it as moderator.example",
        ),
        (["--silos", 2, "--rehearse", "fashion-mimi"], "did you mean 'fashion-mini'"),
        (["--silos", 2, "--min-silos", 3], "federation.min_silos: 3, but there are 2 silos"),
        (["--silos", 2, "--digest-deadline", "inf"], "deadlines.digest: inf is not a finite number"),
        (["--silos", 2, "--set", "algorithm.name=centralised"], "algorithm.name: centralised"),
        (["--silos", 2, "--set", "data.split=[1, 0, 0]"], "data.split: leaves silo 0 without validation"),
        (
            ["--silos", 2, "--classes", "a,b", "--image", "1x28x28", "--set", "privacy.random=seeded"],
            "privacy.random: everybody who knows the seed can remove",
        ),
        (
            ["--silos", 2, "--classes", "a,b", "--image", "1x28x28", "--set", "algorithm.name=feddig+feddyn"],
            "algorithm.feddyn.alpha",
        ),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[object], said: str
) -> None:
    assert said in refused(capsys, "init", tmp_path / "f", *options)
    assert not (tmp_path / "f").exists()


REAL = ["--silos", 2, "--classes", "ill,well", "--image", "1x16x16", "--host", "localhost"]
SOUND = [
    word
    for key in ("mechanism=discrete-gaussian", "epsilon=8", "delta=1e-6", "clip_bound=350")
    for word in ("--set", f"privacy.{key}")
]


@pytest.mark.parametrize("algorithm", ["feddig", "fedavg"])
def test_a_real_federation_begins_when_somebody_has_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    words = [*REAL, "--set", f"algorithm.name={algorithm}"]
    said = refused(capsys, "init", tmp_path / "f", *words)
    key = "privacy.mechanism" if algorithm == "feddig" else "algorithm.name"
    assert f"{key}: for real data, choose. A record is promised nothing" in said
    assert not (tmp_path / "f").exists()
    init(tmp_path / "f", *words, "--no-privacy")
    assert "A record is promised nothing" in capsys.readouterr().out


def test_a_rehearsal_of_ones_own_images_stays_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images_of(tmp_path / "own", {"cat": 25, "dog": 25})
    keys = ("name=folder", f"path={tmp_path / 'own'}", "partition=iid", "min_samples=8")
    own = ["--silos", 2, *(word for key in keys for word in ("--set", f"data.{key}"))]
    said = refused(capsys, "init", tmp_path / "f", *own, "--host", "moderator.example")
    assert "--host: your own images are split among the folders of a rehearsal" in said
    init(tmp_path / "f", *own)


def test_how_many_silos_are_waited_for_is_agreed_on(tmp_path: Path) -> None:
    init(tmp_path / "f", "--silos", 3, *SMALL, "--min-silos", 1, "--start-silos", 2, "--rounds-alone", 5)
    contract = read_contract(tmp_path / "f" / "federation.toml")
    assert (contract.min_silos, contract.start_silos, contract.rounds_alone) == (1, 2, 5)


def test_everybody_reads_what_a_record_is_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "f", *REAL, *SOUND)
    promise = (
        "A record is promised epsilon 8 and delta 1e-06 for the digest, and its class is public. Not covered: updates "
        "of the model, losses and validation accuracies. A record is one image, not one patient."
    )
    assert promise in capsys.readouterr().out
    whole = FederationFolder(tmp_path / "f")
    for file in (whole.moderator.run_sheet, whole.silo("silo-0").run_sheet, whole.silo("silo-1").contract):
        assert promise in file.read_text()
    assert read_contract(whole.contract).experiment.promises_privacy


@pytest.fixture
def with_photos(tmp_path: Path) -> SiloFolder:
    """The folder of a silo in a real federation, with images."""
    init(tmp_path / "f", *REAL, "--classes", "cat,dog", *SOUND)
    silo = FederationFolder(tmp_path / "f").silo("silo-0")
    stream = np.random.default_rng(0)
    for name, number in itertools.product(("cat", "dog"), range(200)):
        (silo.path / "data" / name).mkdir(parents=True, exist_ok=True)
        pixels = stream.integers(0, 255, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(silo.path / "data" / name / f"{name}{number}.png")
    return silo


@pytest.mark.process
@pytest.mark.slow
def test_of_two_processes_that_make_a_silos_digest_at_once_one_is_refused(with_photos: SiloFolder) -> None:
    words = [sys.executable, "-m", "feddig", "digest", "make", str(with_photos.path)]
    started = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2]
    assert "exists already" in "".join(said)
    (ledger,) = (state_folder() / "ledgers").glob("*.jsonl")
    assert [entry.kind for entry in Ledger(ledger).entries()] == ["made"]


def test_a_silo_makes_its_digest_and_audits_it_before_it_leaves(
    tmp_path: Path, with_photos: SiloFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run sheet says: three commands, of which the third, which connects, is not given here."""
    silo = with_photos
    sheet = silo.run_sheet.read_text()
    assert sheet.index("feddig digest make .") < sheet.index("feddig audit . --out audit")
    assert sheet.index("feddig audit .") < sheet.index("feddig federation silo .")

    def give(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    out = tmp_path / "audit"
    assert "make it with `feddig digest make" in give("audit", silo.path, "--out", out)[1]
    assert give("digest", "make", silo.path)[0] == 0
    assert silo.digest.exists()
    assert "exists already" in give("digest", "make", silo.path)[1]
    assert "--all-data: " in give("digest", "make", silo.path, "--all-data")[1]
    code, said = give("audit", silo.path, "--out", out, "--quick", "--no-pictures", "--canaries", 1000)
    assert code == 0
    assert f"feddig federation silo {silo.path}" in said or f"feddig digest make {silo.path}" in said
    assert json.loads((out / "audit.json").read_text())["command"].startswith(f"feddig audit {silo.path} ")


def test_a_real_federation_holds_no_data_and_every_party_gets_its_encoder(tmp_path: Path) -> None:
    encoder = make_encoder(1, 0, 2)
    save_encoder(tmp_path / "ours.safetensors", encoder, {})
    options = ["--set", f"digest.encoder={tmp_path / 'ours.safetensors'}"]
    init(tmp_path / "f", *REAL, "--no-privacy", *options)
    whole = FederationFolder(tmp_path / "f")
    contract = read_contract(whole.silo("silo-1").contract)
    assert contract.experiment.privacy.random == "system"
    assert contract.experiment.absence.scenario == "none"
    assert contract.encoder_hash == encoder_hash(encoder)
    assert Path(contract.experiment.digest.encoder) == whole.silo("silo-1").path / "ours.safetensors"
    assert Path(contract.experiment.digest.encoder).is_file()
    assert not list(whole.path.rglob("*.npz"))
    assert load_test_set(whole.moderator.test_set, contract) is None


def test_a_real_contract_holds_no_settings_of_a_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text('[data]\nname = "cifar10"\nsilos = 9\nskew = 0.7\n', encoding="utf-8")
    words = [*REAL, "--no-privacy", "--experiment", file]
    said = refused(capsys, "init", tmp_path / "f", *words, "--set", "absence.scenario=early")
    assert "absence.scenario: 'early' simulates absence" in said
    assert sorted(tmp_path.iterdir()) == [file]
    init(tmp_path / "f", *words)
    whole = FederationFolder(tmp_path / "f")
    assert not {"data", "absence"} & tomllib.loads(whole.contract.read_text(encoding="utf-8")).keys()
    contract = read_contract(whole.contract)
    assert (contract.experiment.data.name, contract.experiment.data.silos) == ("own", 2)
    assert contract.address == "localhost:9092"


@pytest.fixture
def small_contract(tmp_path: Path) -> Contract:
    init(tmp_path / "f", *REAL, "--classes", "cat,dog,owl", "--no-privacy")
    return read_contract(tmp_path / "f" / "federation.toml")


def images_of(folder: Path, counts: dict[str, int], side: int = 16) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((side, side), 10 * number, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_a_silo_may_lack_classes_and_keeps_the_contracts_numbers(
    tmp_path: Path, small_contract: Contract
) -> None:
    images_of(tmp_path / "own", {"dog": 20, "owl": 20})
    write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data="own", validation=0.25)
    train, validation = load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)
    assert set(train.labels) == {1, 2}
    assert (len(train), len(validation)) == (30, 10)


@pytest.mark.parametrize("kind", ["folder", "npz", "idx"])
@pytest.mark.parametrize("replaced", [0, 7, 39])
def test_replacing_a_record_changes_no_other_records_part(
    tmp_path: Path, small_contract: Contract, kind: str, replaced: int
) -> None:
    """If it did, the sensitivity that an epsilon rests on would be wrong."""

    def parts(name: str, labels: np.ndarray) -> list[set[int]]:
        own = tmp_path / name
        pixels = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None], (40, 16, 16))
        if kind == "folder":
            for image, label in zip(pixels, labels, strict=True):
                place = own / small_contract.classes[label] / f"{image.max()}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.ascontiguousarray(image)).save(place)
        elif kind == "npz":
            own = tmp_path / f"{name}.npz"
            np.savez(own, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
        else:
            for part in ("train", "t10k"):
                write_idx(own / f"{part}-images-idx3-ubyte", pixels)
                write_idx(own / f"{part}-labels-idx1-ubyte", labels.astype(np.uint8))
        write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data=own.name, validation=0.25)
        found = load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)
        return [{int(image.max()) for image in part.pixels} for part in found]

    labels = np.arange(40) % 3
    other = labels.copy()
    other[replaced] = (other[replaced] + 1) % 3
    before = parts("before", labels)
    assert before == parts("after", other)
    assert len(before[1]) == 10


def test_a_silo_saves_one_part_and_grey_images_in_colour(tmp_path: Path, small_contract: Contract) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (20, 16, 16), dtype=np.uint8)
    pixels, labels = np.stack([grey] * 3, axis=3), np.arange(20) % 3
    np.savez(tmp_path / "own.npz", x_train=pixels, y_train=labels)
    np.savez(tmp_path / "test.npz", x_test=pixels, y_test=labels)
    write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data="own.npz", validation=0.25)
    train, validation = load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)
    assert (train.pixels.shape, len(validation)) == ((15, 1, 16, 16), 5)
    test = load_test_set(tmp_path / "test.npz", small_contract)
    assert test is not None
    assert np.array_equal(test.pixels[:, 0], grey)
    write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data="own.npz", validation=None)
    with pytest.raises(FedDigError, match=r"x_test: no such array.*data\.validation"):
        load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)


def test_images_that_do_not_fit_the_contract_are_refused(tmp_path: Path, small_contract: Contract) -> None:
    images_of(tmp_path / "own", {"dog": 20, "fox": 20})
    write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data="own", validation=0.1)
    with pytest.raises(FedDigError, match="the class 'fox' is not in the contract"):
        load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)
    pixels, labels = np.zeros((9, 12, 12), np.uint8), np.zeros(9)
    np.savez(tmp_path / "own.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    write_silo_file(tmp_path / "silo.toml", silo=0, name="silo-0", data="own.npz", validation=None)
    with pytest.raises(FedDigError, match=r"images are \[1, 12, 12\].* contract says \[1, 16, 16\]"):
        load_silo_data(read_silo_file(tmp_path / "silo.toml"), small_contract)
    np.savez(tmp_path / "test.npz", x_test=np.zeros((2, 16, 16), np.uint8), y_test=np.array([0, 3]))
    with pytest.raises(FedDigError, match="a label 3"):
        load_test_set(tmp_path / "test.npz", small_contract)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('silo = -1\nname = "a"\n[data]\npath = "x"', "silo: -1"),
        ('silo = 0\n[data]\npath = "x"', "name: is missing; it is the name of the silo"),
        ('silo = 0\nname = "a"\n[data]\n', "data.path: is missing; it is the place of the images"),
        (
            'silo = 0\nname = "a"\n[data]\npath = "x"\nvalidation = 1',
            "data.validation: 1 is out of range; it must be below 1",
        ),
        ('silo = 0\nname = "a"\n[data]\npaht = "x"', "data.paht: unknown key; did you mean 'data.path'"),
        ('silo = 0\nname = "a"\ndata = 1', "data: must be a table"),
    ],
)
def test_a_fault_in_silo_toml_is_named(tmp_path: Path, wrong: str, said: str) -> None:
    (tmp_path / "silo.toml").write_text(f"format_version = 1\n{wrong}\n", encoding="utf-8")
    with pytest.raises(FedDigError) as raised:
        read_silo_file(tmp_path / "silo.toml")
    assert said in str(raised.value)
    assert "silo.toml" in str(raised.value)


STATUS: dict[str, Any] = {
    "format_version": 1, "federation": "hospitals", "pid": 2**22, "state": "training", "round": 4, "rounds": 9,
    "accuracy": 61.234, "accuracy_of": "test", "updated": "2030-01-01T00:00:00+00:00", "missing": [],
    "silos": [
        {"silo": 0, "name": "north", "state": "here", "away_since_round": None, "digest": "d" * 64, "replied": True,
         "recalled": False},
        {"silo": 1, "name": "south", "state": "away", "away_since_round": 3, "digest": "e" * 64, "replied": False,
         "recalled": True},
    ],
}  # fmt: skip


def ask_status(folder: Path, *options: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["federation", "status", str(folder), *options])
    assert ended.value.code == 0


def test_status_shows_who_is_here_and_whose_digest_is_held(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed.moderator.status.write_text(json.dumps(STATUS), encoding="utf-8")
    for folder in (rehearsed.path, rehearsed.moderator.path):
        ask_status(folder)
        said = capsys.readouterr().out
        assert "hospitals: training, the moderator does not run" in said
        assert "round 4 of 9  accuracy 61.2 % (test)  replied: north  recalled: south" in said
        assert "dddddddddddd" in said
        assert re.search(r"away +│ 4 +│", said), "for people rounds count from 1"
    ask_status(rehearsed.path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told == {**STATUS, "running": False}


def test_while_a_moderator_starts_again_status_says_so(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed.moderator.status.write_text(json.dumps(STATUS | {"state": "stopped"}), encoding="utf-8")
    monkeypatch.setattr("feddig.federation.status.running", lambda *_: [1])
    ask_status(rehearsed.path)
    assert "hospitals: stopped, the moderator is starting or ending\n" in capsys.readouterr().out


def test_another_process_is_not_taken_for_the_moderator(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed.moderator.status.write_text(json.dumps(STATUS | {"pid": os.getppid()}), encoding="utf-8")
    ask_status(rehearsed.path, "--json")
    assert json.loads(capsys.readouterr().out)["running"] is False


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 2}', '{"format_version": 1}'])
def test_a_damaged_status_is_one_line(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    rehearsed.moderator.status.write_text(content, encoding="utf-8")
    assert "status.json" in refused(capsys, "status", rehearsed.path)
    rehearsed.moderator.status.unlink()


def test_before_anything_is_reported_status_says_so(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed.moderator.status.unlink(missing_ok=True)
    ask_status(rehearsed.path)
    assert capsys.readouterr().out.startswith("hospitals: not started; start it with ")
    monkeypatch.setattr("feddig.federation.status.running", lambda *_: [1])
    ask_status(rehearsed.path)
    assert capsys.readouterr().out.startswith("hospitals: starting; ")
    ask_status(rehearsed.moderator.path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told == {"federation": "hospitals", "state": "starting", "running": True}


def test_in_a_silos_folder_status_tells_what_this_silo_knows(
    rehearsed: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = SiloFolder(tmp_path / "south")
    shutil.copytree(rehearsed.silo("south").path, folder.path)
    ask_status(folder.path)
    said = capsys.readouterr().out
    contract = read_contract(folder.contract)
    assert "hospitals: silo 1, south; its node does not run; start it with" in said
    assert f"contract: {contract.hash}, version 1, moderator at moderator.example:9092" in said
    assert said.splitlines()[-4:] == [
        "digest: not made yet",
        "last answered: none of 3 rounds",
        "trained in 0 rounds; model: not sent yet",
        "ledger: no release is noted yet",
    ]

    silo = open_silo(folder.path, device="cpu")
    silo.give_digest()
    silo.train(Request(1, 1, silo.site.worker.network.weights(), {}))
    ask_status(folder.path)
    said = capsys.readouterr().out
    assert f"digest: {read_digest(folder.digest).hash[:12]}, " in said
    assert "last answered: round 2 of 3 rounds" in said
    assert f"ledger: {folder.ledger}, a record was charged epsilon inf" in said
    ask_status(folder.path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["running"], told["last_answered_round"]) == ("south", False, 1)


def test_a_renewed_certificate_is_for_the_same_hosts_and_the_same_authority(
    rehearsed: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = FederationFolder(tmp_path / "copy")
    shutil.copytree(rehearsed.path, whole.path)
    old = x509.load_pem_x509_certificate(whole.moderator.certificate.read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["federation", "renew", str(whole.path), "--days", "700"])
    assert ended.value.code == 0
    new = x509.load_pem_x509_certificate(whole.moderator.certificate.read_bytes())
    assert new.not_valid_after_utc > old.not_valid_after_utc
    names = [each.extensions.get_extension_for_class(x509.SubjectAlternativeName) for each in (old, new)]
    assert names[0] == names[1]
    new.verify_directly_issued_by(x509.load_pem_x509_certificate(whole.silo("north").ca.read_bytes()))
    assert stat.S_IMODE(whole.moderator.key.stat().st_mode) == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(whole.moderator.certificate, whole.moderator.key)
    whole.ca_key.unlink()
    assert "ca.key: is no key" in refused(capsys, "renew", whole.path)


@pytest.mark.parametrize("command", ["init", "key", "up", "moderator", "silo", "renew", "status"])
def test_every_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["federation", command, "--help"])
    assert ended.value.code == 0
    assert f"feddig federation {command}" in capsys.readouterr().out


def test_up_names_a_party_that_is_not_there(
    rehearsed: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean 'north'" in refused(capsys, "up", rehearsed.path, "--only", "nort")
    assert "no such contract" in refused(capsys, "up", tmp_path)
    moved = FederationFolder(tmp_path / "copy")
    shutil.copytree(rehearsed.path, moved.path)
    moved.moderator.key.unlink()
    assert "server.key: is missing" in refused(capsys, "up", moved.path)


def test_a_party_is_run_in_its_own_folder(
    rehearsed: FederationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, moderator, silo = rehearsed.path, rehearsed.moderator.path, rehearsed.silo("north").path
    assert f"the whole federation's folder; give {moderator}\n" in refused(capsys, "moderator", whole)
    assert "is a silo's folder; run `feddig federation silo` there" in refused(capsys, "moderator", silo)
    for other in (whole, moderator):
        assert f"{other}: is no silo's folder" in refused(capsys, "silo", other)
    for other in (moderator, silo):
        assert f"{other}: does not hold the folders of all parties" in refused(capsys, "up", other)
    for command in ("pause", "resume"):
        assert "is a silo's folder; only the moderator can" in refused(capsys, command, silo)
    assert not (silo / "pause").exists()


def test_up_has_nothing_to_do_when_all_rounds_are_done(
    rehearsed: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = FederationFolder(tmp_path / "copy")
    shutil.copytree(rehearsed.path, done.path)
    done.moderator.status.write_text(json.dumps(STATUS | {"state": "finished"}), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["federation", "up", str(done.path)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == str(done.moderator.run)


def test_the_moderator_gives_up_only_when_no_round_gets_done(tmp_path: Path) -> None:
    folder = ModeratorFolder(tmp_path)
    failures = Failures(folder)
    waits = [failures.add("it fell over") for _ in range(MOST_FAILURES - 1)]
    assert waits == [1.0, 2.0, 4.0, 8.0]
    folder.status.write_text(json.dumps(STATUS), encoding="utf-8")
    assert failures.add("it fell over again") == 1.0, "four rounds were done meanwhile"
    for _ in range(MOST_FAILURES - 2):
        failures.add("it fell over")
    with pytest.raises(FedDigError, match=r"5 times without finishing a round \(it fell over\)"):
        failures.add("it fell over")


def test_progress_is_a_line_when_something_changes() -> None:
    written = io.StringIO()
    with choose_display(Console(file=written), quiet=False) as show:
        show(Status(STATUS))
        show(Status(STATUS | {"updated": "later"}))
        show(Status(STATUS | {"round": 5}))
    lines = written.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "hospitals: round 4 of 9",
        "hospitals: round 5 of 9",
    ]
    with choose_display(Console(file=written, force_terminal=True), quiet=False) as show:
        show(Status(STATUS))
    assert "61.2 %" in written.getvalue()


def test_a_pause_is_a_line_that_names_who_is_missing_and_is_said_once() -> None:
    said: list[str] = []
    show, paused = show_lines(said.append), {"state": "paused", "missing": ["south"]}
    for change in ({}, paused, {"state": "training"}, paused, {"round": 5}):
        show(Status(STATUS | change))
    assert [line.split("  ")[0] for line in said] == [
        "hospitals: round 4 of 9",
        "hospitals: paused, missing: south",
        "hospitals: round 5 of 9",
    ]


def test_the_moderators_console_tells_each_round_with_its_time_and_the_result(
    rehearsed: FederationFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = ModeratorFolder(tmp_path / "moderator")
    shutil.copytree(rehearsed.moderator.path, folder.path)

    def run(folder: ModeratorFolder, stopping: Event, show: Show) -> bool:
        for content in (STATUS, STATUS | {"round": 9, "state": "finished"}):
            folder.status.write_text(json.dumps(content), encoding="utf-8")
            show(Status(content))
        folder.run.mkdir()
        (folder.run / "report.html").touch()
        return True

    monkeypatch.setattr(moderator_process, "run_moderator", run)
    with pytest.raises(SystemExit) as ended:
        main(["federation", "moderator", str(folder.path)])
    assert ended.value.code == 0
    said = capsys.readouterr()
    first, last = said.err.splitlines()
    assert re.fullmatch(
        r"20\d\d-\S+ \S+ INFO hospitals: round 4 of 9  accuracy 61\.2 % \(test\)  replied: north  recalled: south",
        first,
    )
    assert " INFO hospitals: round 9 of 9  " in last
    page = folder.run / "report.html"
    assert said.out == f"{folder.run}: 9 rounds, accuracy 61.2 % (test)\npage     {page}\n"


def test_a_finished_federation_prints_its_page_and_last_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FederationFolder(tmp_path).moderator.run
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    monkeypatch.setattr("feddig.federation.processes.up.up", lambda *_, **__: True)
    for words, said in (([], f"page     {folder / 'report.html'}\n{folder}\n"), (["--quiet"], "")):
        with pytest.raises(SystemExit) as ended:
            main(["federation", "up", str(tmp_path), *words])
        assert (ended.value.code, capsys.readouterr().out) == (0, said)


def test_up_lets_no_more_silos_load_at_a_time_than_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "f", "--silos", 5, *SMALL)
    whole = FederationFolder(tmp_path / "f")
    logs = [whole.silo(f"silo-{silo}").logs / "node.log" for silo in range(5)]
    logs[3].parent.mkdir(exist_ok=True)
    logs[3].write_text("what its last node said\n")
    began: list[list[bool]] = []

    def launch(command: str, folder: Path, log_file: Path) -> subprocess.Popen[bytes]:
        program = "sleep 3"
        if command == "silo":
            began.append([log.exists() and "ready" in log.read_text() for log in logs])
            program = f"sleep .3; mkdir -p '{folder}/logs'; echo ready >> '{folder}/logs/node.log'; sleep 2"
        return subprocess.Popen(["sh", "-c", program])

    monkeypatch.setattr(up, "_launch", launch)
    monkeypatch.setattr(up, "AT_ONCE", 2)
    assert not up.up(whole, Event())
    loading = [order - sum(ready) for order, ready in enumerate(began)]
    assert len(began) == 5
    assert max(loading) == 1


def test_status_of_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no federation's folder" in refused(capsys, "status", tmp_path)


def test_an_experiment_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--silos", 2, "--experiment", tmp_path / "none.toml")
    assert "no such experiment file" in refused(capsys, "init", tmp_path / "f", *options)
