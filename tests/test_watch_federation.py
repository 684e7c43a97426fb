"""Watching a federation: its folder as a real moderator writes it, while it moderates and after."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig import Dataset, Experiment
from feddig.commands.watch import open_page
from feddig.federation.folders import FederationFolder
from feddig.federation.moderator import moderate_federation
from feddig.report import live
from federations import LocalGrid, make_federation, write_message
from folders import rows

pytestmark = pytest.mark.flower


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(live, "CACHE_FACTOR", 0.0)


@pytest.fixture
def federation(
    tmp_path: Path, tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> FederationFolder:
    experiment = tiny_experiment(absence={"scenario": "none"}, training={"rounds": 4})
    return make_federation(tmp_path / "federation", experiment, tiny_dataset)


def moderate(folder: FederationFolder, grid: LocalGrid, until: int | None = None) -> None:
    moderate_federation(grid, folder.moderator.path, device="cpu", write=write_message, until=until)  # type: ignore[arg-type]


def told(page: live.LivePage) -> dict[str, Any]:
    return dict(json.loads(page.state()))


def data_of(page: live.LivePage) -> dict[str, Any]:
    text = page.page()[0].decode()
    return dict(json.loads(text.split('id="data">')[1].split("</script>")[0]))


@pytest.mark.slow
def test_a_federation_is_watched_from_before_its_start_to_its_end(federation: FederationFolder) -> None:
    page = open_page(federation.path)
    assert told(page)["state"] == "waiting"
    assert "Waiting for a run" in page.page()[0].decode()
    grid = LocalGrid(federation, 3)
    seen: list[tuple[str, list[float]]] = []

    def look(grid: LocalGrid) -> None:
        # the page of every moment can be made, also of one in which a round is done and its table is not
        groups = data_of(page)["groups"]
        seen.append((told(page)["message"], groups[0]["curves"][0]["mean"] if groups else []))

    grid.before = look
    moderate(federation, grid, until=2)
    assert any(says.startswith("live, round 0 of 4; ") for says, _ in seen)
    assert any(
        says.startswith("live, round 1 of 4; ") and "here: silo-0 silo-1 silo-2" in says for says, _ in seen
    )
    known = [row["accuracy"] for row in rows(federation.moderator.run)]
    assert known[:1] in [[pytest.approx(value, abs=0.01) for value in curve] for _, curve in seen]
    # stopped: what the moderator said of itself last is no longer so
    assert told(page)["message"] == "stopped at round 2 of 4: no process is working on it now"
    assert "after 2 of 4 rounds" in page.page()[0].decode()
    assert data_of(page)["groups"][0]["rounds"] == 4, "the chart has room for the rounds to come"
    assert data_of(page)["runs"][0]["silos"] == ["silo-0", "silo-1", "silo-2"]
    del grid.nodes[1]
    moderate(federation, grid)
    assert any("here: silo-0 silo-2  away: silo-1" in says for says, _ in seen)
    assert told(page)["message"] == "ended: all 4 rounds are done"
    known = [row["accuracy"] for row in rows(federation.moderator.run)]
    assert data_of(page)["groups"][0]["curves"][0]["mean"] == pytest.approx(known, abs=0.01)
    bars = data_of(page)["groups"][0]["strip"]["bars"]
    assert bars[1] == [2, 1, 2, 2], "two rounds here, two recalled"


def test_the_moderators_own_folder_can_be_watched_too(federation: FederationFolder, tmp_path: Path) -> None:
    moderate(federation, LocalGrid(federation, 3), until=1)
    moved = tmp_path / "elsewhere"
    shutil.copytree(federation.moderator.path, moved)
    page = open_page(moved)
    assert told(page)["message"].startswith("stopped at round 1 of 4")
    assert data_of(page)["runs"][0]["silos"] == ["silo-0", "silo-1", "silo-2"]


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_status_costs_the_names_alone(content: str, federation: FederationFolder) -> None:
    moderate(federation, LocalGrid(federation, 3), until=1)
    federation.moderator.status.write_text(content, encoding="utf-8")
    page = open_page(federation.path)
    assert told(page)["message"].startswith("stopped at round 1 of 4")
    assert data_of(page)["runs"][0]["silos"] == ["silo 0", "silo 1", "silo 2"]


def test_nothing_of_a_silo_is_looked_at(federation: FederationFolder) -> None:
    """A silo's folder may hold a million images, or another's results."""
    moderate(federation, LocalGrid(federation, 3), until=1)
    shutil.copytree(federation.moderator.run, federation.silo("silo-0").path / "results")
    assert len(data_of(open_page(federation.path))["runs"]) == 1
