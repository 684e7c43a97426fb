"""The Flower apps that we ship and write: `flwr run -c` can set every key that they read."""

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


class RecordingConfig(dict[str, Any]):
    """A run configuration that records which keys are read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def declared_config(app: Path) -> dict[str, Any]:
    """Return the run configuration that an app declares; Flower refuses to set other keys."""
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], set[str]]:
    """Return a function that runs the moderator's app up to its first round and returns the keys that it read."""
    started: list[str] = []
    monkeypatch.setattr(server_app, "moderate_federation", lambda *_: started.append("federation"))
    monkeypatch.setattr(server_app, "moderate", lambda *_, **__: started.append("simulation"))

    def run(values: dict[str, Any]) -> set[str]:
        config = RecordingConfig(values)
        server_app.main(None, SimpleNamespace(run_config=config))  # type: ignore[arg-type]
        assert started.pop() == ("federation" if values.get("folder") else "simulation")
        return config.read

    return run


def test_the_example_declares_every_key_that_its_app_reads(
    run_with: Callable[[dict[str, Any]], set[str]], tmp_path: Path
) -> None:
    keys = declared_config(EXAMPLE)
    read = run_with(keys) | run_with({**keys, "folder": str(tmp_path)})
    assert {"folder", "experiment", "out", "deadline"} <= read
    assert read <= keys.keys()


def test_the_app_of_a_federation_declares_every_key_that_it_reads(
    run_with: Callable[[dict[str, Any]], set[str]], tmp_path: Path
) -> None:
    write_app(tmp_path / "app")
    keys = declared_config(tmp_path / "app")
    assert run_with({**keys, "folder": str(tmp_path)}) <= keys.keys()
