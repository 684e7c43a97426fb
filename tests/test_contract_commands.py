"""Commands on a federation's folders: privacy, digest and audit by contract; evaluate with the moderator's model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import make_tiny_experiment
from feddig import Dataset, Digest, FedDigError, read_digest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.cli import main
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.federation.silo_data import write_silo_file
from federations import LocalGrid, make_federation, write_message

pytestmark = pytest.mark.flower

SOUND = (
    "privacy.mechanism=discrete-gaussian", "privacy.epsilon=8", "privacy.delta=1e-6", "privacy.clip_bound=350",
    "digest.encoder=even", "digest.samples_per_digest=8",
)  # fmt: skip

Give = Callable[..., tuple[int, str, str]]


@pytest.fixture
def give(capsys: pytest.CaptureFixture[str]) -> Give:
    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def whole(tmp_path: Path, give: Give) -> FederationFolder:
    """A federation of two silos for colour images of 24x40 pixels and five classes; the first one has data."""
    overrides = [word for setting in SOUND for word in ("--set", setting)]
    init = (
        "federation",
        "init",
        tmp_path / "f",
        "--silos",
        2,
        "--classes",
        "a,b,c,d,e",
        "--image",
        "3x24x40",
        "--host",
        "localhost",
    )
    assert give(*init, *overrides)[0] == 0
    folder = FederationFolder(tmp_path / "f")
    stream = np.random.default_rng(0)
    silo = folder.silo("silo-0")
    arrays = {
        f"x_{part}": stream.integers(0, 255, (80, 24, 40, 3), dtype=np.uint8) for part in ("train", "test")
    }
    labels = {f"y_{part}": np.arange(80) % 5 for part in ("train", "test")}
    np.savez(silo.path / "data.npz", **arrays, **labels)
    write_silo_file(silo.silo_file, silo=0, name="silo-0", data="data.npz", validation=None)
    return folder


def test_privacy_says_what_the_contract_promises(whole: FederationFolder, give: Give, tmp_path: Path) -> None:
    silo = whole.silo("silo-0")
    renamed = shutil.copy(silo.contract, tmp_path / "agreed.toml")
    said = [
        give("privacy", place, "--json")
        for place in (silo.path, silo.contract, whole.path, whole.moderator.path, renamed)
    ]
    assert len(set(said)) == 1
    code, out, err = said[0]
    assert (code, err) == (0, "")
    promised = json.loads(out)
    # four channels of a quarter of 24x40 pixels
    assert (promised["elements"], promised["classes"]) == (4 * 6 * 10, 5)
    assert (promised["record_epsilon"], promised["record_delta"]) == (8, 1e-6)
    assert promised["random"] == "system"
    for option, value in (("--set", "privacy.epsilon=1"), ("--classes", "4"), ("--channels", "1")):
        code, _, err = give("privacy", silo.path, option, value)
        assert (code, err.count("\n")) == (2, 1)
        assert f"{option}: cannot be given with {silo.path}: its contract decides that" in err


def test_a_silos_digest_is_made_and_shown_by_its_folder_or_contract(
    whole: FederationFolder, give: Give
) -> None:
    silo = whole.silo("silo-0")
    code, _, err = give("digest", "show", silo.path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"no such file yet; make it with `feddig digest make {silo.path}`" in err
    code, made, err = give("digest", "make", silo.contract, "--json")
    assert (code, err) == (0, "")
    assert json.loads(made)["digests"] == 10
    for place in (silo.digest, silo.path, silo.contract):
        assert give("digest", "show", place, "--json") == (0, made, "")


def test_an_audit_by_contract_is_that_of_the_silos_folder(
    whole: FederationFolder, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attacks are test_audit.py's subject; here it ends once the images are known."""
    seen = []

    def note(digest: Digest, **inputs: Any) -> None:
        seen.append((digest.hash, inputs["encoder"], *(len(inputs[name]) for name in ("members", "holdout"))))
        raise FedDigError("enough")

    monkeypatch.setattr("feddig.audit.inputs.load_inputs", note)
    silo = whole.silo("silo-0")
    assert give("digest", "make", silo.path, "--quiet") == (0, "", "")
    for place in (silo.path, silo.contract):
        assert "enough" in give("audit", place, "--out", whole.path / "audit", "--quiet")[2]
    assert seen == [(read_digest(silo.digest).hash, "even", 80, 80)] * 2


@pytest.mark.parametrize("name", ["fedavg", "feddig-plus"])
def test_a_federations_model_is_used_by_its_file_alone(
    name: str, tmp_path: Path, give: Give, tiny_dataset: Dataset
) -> None:
    experiment = make_tiny_experiment(
        algorithm={"name": name}, absence={"scenario": "none"}, training={"rounds": 2}
    )
    folder = make_federation(tmp_path / "f", experiment, tiny_dataset)
    grid: Any = LocalGrid(folder, 3)
    summary = moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message)
    shutil.copy(folder.moderator.run / "model.safetensors", tmp_path / "model.safetensors")
    words = (
        "evaluate",
        tmp_path / "model.safetensors",
        folder.moderator.test_set,
        "--device",
        "cpu",
        "--json",
    )
    code, out, err = give(*words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["accuracy"] == summary["accuracy"]["final"]
    assert [row["class"] for row in found["classes"]] == list(tiny_dataset.class_names)


def test_a_contract_alone_has_no_data(whole: FederationFolder, give: Give, tmp_path: Path) -> None:
    renamed = shutil.copy(whole.contract, whole.silo("silo-0").path / "agreed.toml")
    for place in (whole.contract, whole.path, whole.moderator.path, renamed):
        for words in (("digest", "make", place), ("digest", "show", place), ("audit", place, "--out", "x")):
            code, out, err = give(*words)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "a contract alone has no data and no digest" in err


def test_other_files_are_what_they_were(give: Give, tmp_path: Path) -> None:
    code, _, err = give("audit", tmp_path / "nothing", "--out", tmp_path / "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "is neither a silo's folder nor the contract in one" in err
    assert "is no digest file" in give("digest", "show", _write(tmp_path / "d.safetensors"))[2]
    assert "No such file" in give("digest", "show", tmp_path / "none.safetensors")[2]
    (tmp_path / "broken.toml").write_text("[federation", encoding="utf-8")
    code, _, err = give("privacy", tmp_path / "broken.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "broken.toml" in err


def _write(path: Path) -> Path:
    path.write_text("nothing", encoding="utf-8")
    return path
