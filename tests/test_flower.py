"""FedDig on Flower's engines: the results equal those of a run in one process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from documented import ROOT, commands_of, pages
from feddig import run
from feddig.experiment.toml import experiment_from_table, write_experiment

pytest.importorskip("flwr", reason="needs the extra `flower`")

pytestmark = [pytest.mark.flower, pytest.mark.process]

BASES = ("fedavg", "fedprox", "fednova", "feddyn", "adabest")

EXPERIMENT = {
    "data": {"name": "fashion-mini", "limit": 400, "silos": 3},
    # of three silos, the first is absent in the second round and returns in the third
    "absence": {"scenario": "round-robin"},
    "model": {"classifier": "small"},
    "training": {"rounds": 3, "batch": 32, "lr": 0.003, "threads": 1},
}

# in a separate process, because Ray leaves threads and handlers behind
SCRIPT = """
import sys
from pathlib import Path
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from feddig.experiment.toml import read_experiment
from feddig.federation.client_app import app as client
from feddig.federation.server_app import moderate

server = ServerApp()

@server.main()
def main(grid, context):
    for file in sys.argv[1:]:
        moderate(grid, read_experiment(file), Path(file).with_suffix(""), deadline=120)

resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
run_simulation(server, client, num_supernodes=3, backend_config=resources)
"""


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set a separate FLWR_HOME, and end the processes that Flower leaves running."""
    home = tmp_path / "flower"
    monkeypatch.setenv("FLWR_HOME", str(home))
    yield home
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended meanwhile
        if str(home).encode() in command:
            os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds left-over processes in /proc")
@pytest.mark.usefixtures("quiet", "own_home")
def test_flwr_run_runs_the_example_unchanged(tmp_path: Path) -> None:
    commands = [command for page in pages() for command in commands_of(page)]
    command = next(command for command in commands if command.words[0] == "flwr")
    # as many silos as the command starts supernodes
    experiment = experiment_from_table({**EXPERIMENT, "data": {**EXPERIMENT["data"], "silos": 4}})
    (tmp_path / "mine.toml").write_text(write_experiment(experiment), encoding="utf-8")
    flwr = Path(sys.executable).with_name("flwr")
    done = subprocess.run(
        [flwr, *(word.replace("/home/me", str(tmp_path)) for word in command.words[1:])],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PATH": f"{flwr.parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    summary = json.loads((tmp_path / "results" / "mine" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["algorithm"], summary["rounds"]) == ("feddig-plus", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_every_algorithm_gives_in_flowers_simulation_what_it_gives_in_one_process(tmp_path: Path) -> None:
    files, names = [], [*(f"feddig+{base}" for base in BASES), "feddig-plus"]
    for name in names:
        experiment = experiment_from_table({**EXPERIMENT, "algorithm": {"name": name}})
        summary = run(experiment, tmp_path / "here" / name, device="cpu")
        assert summary["rounds"] == 3
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_bytes((tmp_path / "here" / name / "experiment.toml").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in names:
        for file in (tmp_path / "here" / name).glob("*.safetensors"):
            here, there = load_file(file), load_file(tmp_path / name / file.name)
            assert here.keys() == there.keys()
            for key, tensor in here.items():
                assert float((tensor - there[key]).abs().max()) <= 1e-5
