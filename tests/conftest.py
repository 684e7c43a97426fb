"""Give all tests one thread, one cache and Ctrl-C, and a tiny data set and experiment that train in a second."""

import os
import signal
import sys
from collections.abc import Callable, Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the processes that tests start

import numpy as np
import pytest
import torch

from browser import Browser, find_chromium
from feddig import Dataset, Experiment, dataset_from_arrays
from feddig.experiment.toml import experiment_from_table


def pytest_configure() -> None:
    """Undo an ignored SIGINT, which jobs in the background inherit: processes that tests start must hear Ctrl-C."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Run on one thread: tiny networks are fastest there, and every run gives the same bytes."""
    torch.set_num_threads(1)


@pytest.fixture
def pictures() -> None:
    """Let runs draw their curves in this test."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes most of a tiny run's time: its picture, and waiting for the disk and for silos."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    if contract := sys.modules.get("feddig.federation.contract"):  # not loaded where Flower is not installed
        monkeypatch.setattr(contract.Contract, "longest_stay", 0.0)
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("feddig.runs.outcome.draw_run", lambda path: None)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _own_ledgers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each test away from the user's ledgers, and from those of other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def draw_tiny_dataset(train: int = 240, test: int = 60, classes: int = 4, seed: int = 0) -> Dataset:
    """Draw grey 16x16 images whose class is the quarter of the image that is bright."""
    stream = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % classes
        images = stream.integers(0, 60, (count, 16, 16), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 8 * (label % 4 // 2), 8 * (label % 2)
            image[top : top + 8, left : left + 8] += np.uint8(120)
        return images[:, None], labels

    return dataset_from_arrays(*draw(train), *draw(test))


@pytest.fixture
def tiny_dataset() -> Dataset:
    return draw_tiny_dataset()


TINY = {
    "data": {"name": "tensors", "silos": 3, "skew": 0.5, "min_samples": 16},
    "absence": {"scenario": "sequential"},
    "algorithm": {"name": "feddig"},
    "model": {"classifier": "small"},
    "training": {"rounds": 8, "batch": 16, "lr": 0.05, "threads": 1},
}


def make_tiny_experiment(**sections: dict[str, object]) -> Experiment:
    """Build the tiny experiment with some sections' keys changed."""
    table = {name: {**keys, **sections.get(name, {})} for name, keys in TINY.items()}
    return experiment_from_table(table | {name: keys for name, keys in sections.items() if name not in TINY})


@pytest.fixture
def tiny_experiment() -> Callable[..., Experiment]:
    return make_tiny_experiment


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start Chromium once for all tests that use it."""
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found
