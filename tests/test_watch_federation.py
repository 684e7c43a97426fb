"""Watch a federation's folder that a real moderator writes, during the run and afterwards."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig.commands.watch import open_page
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.report import live
from federations import LocalGrid, make_federation, write_message
from folders import rows
from report_folders import page_data

pytestmark = pytest.mark.flower


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the folder again for every request."""
    monkeypatch.setattr(live, "MIN_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(live, "CACHE_FACTOR", 0.0)


def make(path: Path) -> FederationFolder:
    experiment = make_tiny_experiment(absence={"scenario": "none"}, training={"rounds": 4})
    return make_federation(path, experiment, draw_tiny_dataset())


@pytest.fixture(scope="module")
def after_one_round(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    federation = make(tmp_path_factory.mktemp("federations") / "federation")
    moderate(federation, LocalGrid(federation, 3), until=1)
    return federation


@pytest.fixture
def federation(after_one_round: FederationFolder, tmp_path: Path) -> FederationFolder:
    """Copy a federation after its first round, so that a test can change it."""
    shutil.copytree(after_one_round.path, tmp_path / "federation")
    return FederationFolder(tmp_path / "federation")


def moderate(folder: FederationFolder, grid: LocalGrid, until: int | None = None) -> None:
    moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, until=until)  # type: ignore[arg-type]


def state_of(page: live.LivePage) -> dict[str, Any]:
    return dict(json.loads(page.state()))


def data_of(page: live.LivePage) -> dict[str, Any]:
    return page_data(page.page()[0].decode())


@pytest.mark.slow
def test_a_federation_is_watched_from_before_its_start_to_its_end(tmp_path: Path) -> None:
    federation = make(tmp_path / "federation")
    page = open_page(federation.path)
    assert state_of(page)["state"] == "waiting"
    assert "Waiting for a run" in page.page()[0].decode()
    grid = LocalGrid(federation, 3)
    seen: list[tuple[str, list[float]]] = []

    def look(grid: LocalGrid) -> None:
        # the page can be requested at any time, also between a round and its table
        groups = data_of(page)["groups"]
        seen.append((state_of(page)["message"], groups[0]["curves"][0]["mean"] if groups else []))

    grid.before = look
    moderate(federation, grid, until=2)
    assert any(message.startswith("live, round 0 of 4; ") for message, _ in seen)
    assert any(
        message.startswith("live, round 1 of 4; ") and "replied: silo-0, silo-1, silo-2" in message
        for message, _ in seen
    )
    known = [row["accuracy"] for row in rows(federation.moderator.run)]
    assert known[:1] in [[pytest.approx(value, abs=0.01) for value in curve] for _, curve in seen]
    # stopped: the moderator's last status is out of date
    assert state_of(page)["message"] == "stopped at round 2 of 4: no process is working on it now"
    assert "after 2 of 4 rounds" in page.page()[0].decode()
    assert data_of(page)["groups"][0]["rounds"] == 4, "the chart has room for future rounds"
    assert data_of(page)["runs"][0]["silos"] == ["silo-0", "silo-1", "silo-2"]
    del grid.nodes[1]
    moderate(federation, grid)
    assert any("replied: silo-0, silo-2  recalled: silo-1" in message for message, _ in seen)
    assert state_of(page)["message"] == "ended: all 4 rounds are done"
    known = [row["accuracy"] for row in rows(federation.moderator.run)]
    assert data_of(page)["groups"][0]["curves"][0]["mean"] == pytest.approx(known, abs=0.01)
    bars = data_of(page)["groups"][0]["strip"]["bars"]
    assert bars[1] == [2, 1, 2, 2], "present in two rounds, recalled in two"


def test_the_moderators_own_folder_can_be_watched_too(federation: FederationFolder, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(federation.moderator.path, moved)
    page = open_page(moved)
    assert state_of(page)["message"].startswith("stopped at round 1 of 4")
    assert data_of(page)["runs"][0]["silos"] == ["silo-0", "silo-1", "silo-2"]


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_status_costs_names_only_where_the_results_lack_them(
    content: str, federation: FederationFolder
) -> None:
    federation.moderator.status.write_text(content, encoding="utf-8")
    page = open_page(federation.path)
    assert state_of(page)["message"].startswith("stopped at round 1 of 4")
    assert data_of(page)["runs"][0]["silos"] == ["silo-0", "silo-1", "silo-2"]
    (federation.moderator.run / "classes.json").unlink()  # as in a folder of an older release
    page = open_page(federation.path)
    assert state_of(page)["message"].startswith("stopped at round 1 of 4")
    assert data_of(page)["runs"][0]["silos"] == ["silo 0", "silo 1", "silo 2"]


def test_folders_of_silos_are_not_searched(federation: FederationFolder) -> None:
    """A silo's folder may contain a million images or results of another federation."""
    shutil.copytree(federation.moderator.run, federation.silo("silo-0").path / "results")
    assert len(data_of(open_page(federation.path))["runs"]) == 1
