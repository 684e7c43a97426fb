"""The Flower apps that we ship and write: whatever run configuration they read, `flwr run -c` can set."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation import server_app
from feddig.federation.flower_1_41.control import write_app

pytestmark = pytest.mark.flower

EXAMPLE = Path(__file__).parents[1] / "examples" / "federation"


class Watched(dict[str, Any]):
    """A run configuration that notes what is read of it."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def declared(app: Path) -> dict[str, Any]:
    """Give the run configuration that an app declares; Flower refuses to set anything else."""
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], set[str]]:
    """Give a function that runs the moderator's app up to its first round, and tells what it read."""
    started: list[str] = []
    monkeypatch.setattr(server_app, "moderate_federation", lambda *_: started.append("federation"))
    monkeypatch.setattr(server_app, "moderate", lambda *_, **__: started.append("simulation"))

    def run(values: dict[str, Any]) -> set[str]:
        config = Watched(values)
        server_app.main(None, SimpleNamespace(run_config=config))  # type: ignore[arg-type]
        assert started.pop() == ("federation" if values.get("folder") else "simulation")
        return config.read

    return run


def test_the_example_declares_every_key_that_its_app_reads(
    run_with: Callable[[dict[str, Any]], set[str]], tmp_path: Path
) -> None:
    keys = declared(EXAMPLE)
    read = run_with(keys) | run_with({**keys, "folder": str(tmp_path)})
    assert {"folder", "experiment", "out", "deadline"} <= read
    assert read <= keys.keys()


def test_so_does_the_app_of_a_federation(
    run_with: Callable[[dict[str, Any]], set[str]], tmp_path: Path
) -> None:
    write_app(tmp_path / "app")
    keys = declared(tmp_path / "app")
    assert run_with({**keys, "folder": str(tmp_path)}) <= keys.keys()
