"""Measure the time of a round here, in a plain PyTorch loop, in Flower and in pfl: the same work on two CPU threads.

    python benchmarks/peers.py --out benchmarks/results/peers.json

Four silos have 2,000 generated images each; the size-matched model of 1.2 million parameters trains one epoch per
round by SGD in full precision; FedAvg weights all silos equally. All peers start from the same weights and use the
same batches (silo s shuffles in round r by `torch_stream(0, "batches", s, r)`), so all must end with the same
weights. Flower and pfl are installed into separate environments under --work.

The benchmark checks that all do the same work: weights may differ from the plain loop's by at most a ten-thousandth of
their length. FedDig stores channels last, for which torch has other kernels that round differently. So a plain loop
with channels last runs too: it shows the effect of that alone, and FedDig's weights are compared with it. The distance
of both from the ordinary plain loop, which is rounding only, is reported as well.

A machine's speed drifts. So the plain loop and FedDig alternate round by round, the plain loop runs again after each
other peer, and a peer is compared with the plain rounds that alternate with it, or run just before and after it.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from peers.plain import (
    BATCH,
    CLASSES,
    LEARNING_RATE,
    MOMENTUM,
    SHAPE,
    SILOS,
    THREADS,
    PlainLoop,
    Work,
    build_model,
    load,
    read_weights,
    read_work,
    write_weights,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from feddig import __version__
from feddig.core.absence import Absence
from feddig.core.algorithms import BASES
from feddig.core.engine import InProcessEngine
from feddig.core.moderator import Moderator
from feddig.core.recipe import read_recipe
from feddig.core.samples import ImageSource, RawSamples
from feddig.core.silo import Silo
from feddig.core.training import run_rounds
from feddig.core.workers import build_workers
from feddig.data.dataset import Images
from feddig.digest.digest import Digest
from feddig.experiment.setup import describe_device
from feddig.models.flat import FlatNetwork
from feddig.models.networks import build_classifier
from feddig.seeds import torch_stream
from feddig.settings import ModeratorSettings, TrainingSettings

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"
SEED = 0
CLOSE = 1e-4
"""The largest distance from the plain loop's weights, as a share of their length."""
REQUIREMENTS = {"flower": "flwr[simulation]==1.41.*", "pfl": "pfl==0.6.0"}
PLAIN, LAST = "plain", "channels-last"
PEERS = (PLAIN, LAST, "feddig", *REQUIREMENTS)
LONGEST = 3600
"""Seconds after which a peer in another environment is stopped."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PFL_PYTORCH_DEVICE": "cpu",
}
"""Turn off telemetry, downloads during a run, and GPUs."""


class Peer(Protocol):
    """A peer that trains round by round in this process."""

    def train_round(self) -> None:
        """Train the next round."""
        ...

    def weights(self) -> list[Tensor]:
        """Return the current weights in the order of the layers."""
        ...


class FedDig:
    """This library, built from its parts."""

    def __init__(self, work: Work) -> None:
        device = torch.device("cpu")
        classifier = build_classifier("size-matched", SHAPE, CLASSES, None)
        load(classifier, work.initial)
        self._network = FlatNetwork(classifier, device)
        workers = build_workers(self._network, bf16=False, record=False)
        base, recipe = BASES["fedavg"](), read_recipe("fedavg")
        training = TrainingSettings(
            rounds=work.rounds, batch=BATCH, lr=LEARNING_RATE, momentum=MOMENTUM, precision="fp32"
        )
        pixels = (work.images.flatten(0, 1) * 255).round().byte().numpy()
        source = ImageSource(Images(pixels, work.labels.flatten().numpy()), None, device)
        every = np.arange(len(source)).reshape(SILOS, -1)
        silos = [
            Silo(index, RawSamples(source, rows), base, training, SEED) for index, rows in enumerate(every)
        ]
        self._moderator = Moderator(
            silos=SILOS, algorithm=base, workers=workers, guidance_producer=None, training=training,
            settings=ModeratorSettings(), weighting="equal", seed=SEED,
        )  # fmt: skip
        all_peers = Absence(np.ones((SILOS, work.rounds), dtype=bool))
        engine = InProcessEngine(silos, all_peers, workers, _no_digest)
        self._rounds = run_rounds(self._moderator, engine, recipe, range(work.rounds))

    def train_round(self) -> None:
        """Train the next round."""
        next(self._rounds)

    def weights(self) -> list[Tensor]:
        """Return the current weights."""
        self._network.load(self._moderator.weights)
        return [tensor.clone() for tensor in self._network.tensors().values()]


def _no_digest(silo: Silo) -> Digest:
    raise AssertionError(f"FedAvg asks silo {silo.index} for no digest")


@dataclass(frozen=True)
class Run:
    """The seconds of a run's rounds, and of the plain rounds that it is compared with."""

    first: float
    later: Sequence[float]
    beside: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median round divided by the plain loop's."""
        return statistics.median(self.later) / statistics.median(self.beside)


@dataclass
class Line:
    """The results of one peer."""

    name: str
    runs: list[Run] = field(default_factory=list)
    difference: float | None = None
    """|weights - plain weights| / |plain weights| after the last round, of the plain loop of this storage order."""
    difference_from_ordinary: float | None = None
    """The same for the ordinary plain loop."""
    difference_of_update: float | None = None
    """|weights - plain weights| / |plain weights - initial weights| for the ordinary plain loop."""
    versions: dict[str, str] = field(default_factory=dict)
    failure: str | None = None

    def figures(self) -> dict[str, Any]:
        """Summarise the runs for the table and the results file."""
        head = {"peer": self.name, "versions": self.versions, "failure": self.failure}
        if not self.runs:
            return head
        later = [second for run in self.runs for second in run.later]
        beside = [second for run in self.runs for second in run.beside]
        ratios = [run.ratio for run in self.runs]
        return head | {
            "seconds": statistics.median(later),
            "least": min(later),
            "most": max(later),
            "ratio_to_plain": statistics.median(later) / statistics.median(beside),
            "ratio_least": min(ratios),
            "ratio_most": max(ratios),
            "first_round": self.runs[0].first,
            "difference": self.difference,
            "difference_from_ordinary": self.difference_from_ordinary,
            "difference_of_update": self.difference_of_update,
            "runs": [asdict(run) for run in self.runs],
        }


def write_work(folder: Path, images: int, rounds: int) -> Work:
    """Write the files that all peers read: a picture for each class, batch orders, initial weights."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(SEED)
    labels = draw.integers(0, CLASSES, (SILOS, images))
    squares = draw.integers(0, 2, (CLASSES, SHAPE[0], 4, 4), dtype=np.uint8)
    pictures = np.kron(squares, np.full((SHAPE[1] // 4, SHAPE[2] // 4), 200, dtype=np.uint8))
    orders = [
        [
            torch.randperm(images, generator=torch_stream(SEED, "batches", silo, round))
            for silo in range(SILOS)
        ]
        for round in range(rounds)
    ]
    np.savez(folder / "work.npz", pixels=pictures[labels], labels=labels, orders=np.array(orders))
    torch.manual_seed(SEED)
    model = build_model()
    for weight in model.parameters():
        if weight.dim() > 1:
            # torch's default weights start on a plateau that lasts more than five rounds
            nn.init.kaiming_normal_(weight)
    write_weights(folder / "initial.npz", list(model.state_dict().values()))
    return read_work(folder)


def take_turns(peers: Sequence[Peer], rounds: int) -> list[list[float]]:
    """Train peers in turn, each round with another one first; return the seconds of each."""
    seconds: list[list[float]] = [[] for _ in peers]
    for round in range(rounds):
        turns = list(enumerate(peers))
        for place, peer in turns[round % len(peers) :] + turns[: round % len(peers)]:
            started = time.perf_counter()
            peer.train_round()
            seconds[place].append(time.perf_counter() - started)
    return seconds


def make_environment(folder: Path, requirement: str) -> Path:
    """Install a peer into a virtual environment, unless it is there, and return its Python."""
    python, ready = folder / "bin" / "python", folder / f"ready for {requirement}"
    if not ready.exists():
        make = [sys.executable, "-m", "venv", str(folder)]
        # pin only the common packages, because our other pins may conflict with a peer's
        pins = [
            line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(("torch=", "numpy="))
        ]
        install = [str(python), "-m", "pip", "install", "--quiet", *pins]
        # install torch first, so that the peer uses the pinned build
        for command in (make, install, [*install, requirement]):
            subprocess.run(command, check=True, capture_output=True, text=True)
        ready.touch()
    return python


def run_elsewhere(name: str, work: Path, python: Path) -> dict[str, Any]:
    """Run a peer in its environment, and read its result from the work folder."""
    environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": str(HERE)}
    log, result = work / f"{name}.log", work / f"{name}.json"
    result.unlink(missing_ok=True)
    with log.open("w") as output:
        # use a separate session, so that all its processes can be ended
        process = subprocess.Popen(
            [str(python), "-m", f"peers.with_{name}", str(work.resolve())],
            env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(LONGEST)
        finally:
            end_session(process.pid)
            process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, f"peers.with_{name}", stderr=log.read_text())
    return json.loads(result.read_text())


def end_session(leader: int) -> None:
    """End the remaining processes of this process's group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the norm of the difference of two sets of weights."""
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm())


def length(weights: Sequence[Tensor]) -> float:
    """Return the norm of weights."""
    return distance(weights, [torch.zeros_like(tensor) for tensor in weights])


class Comparison:
    """Runs the peers and collects their results."""

    def __init__(self, names: Sequence[str], folder: Path, images: int, rounds: int) -> None:
        self._folder, self._rounds = folder, rounds
        self.work = write_work(folder / "work", images, rounds)
        self.lines = {name: Line(name) for name in PEERS if name in names}
        for name, versions in (PLAIN, {}), (LAST, {}), ("feddig", {"feddig": __version__}):
            if name in self.lines:
                self.lines[name].versions = {**versions, "torch": torch.__version__}
        self.blocks: list[float] = []
        """The plain loop's median round of each run, which shows the drift of the machine."""
        self.losses: list[float] = []
        """The plain loop's mean loss in each round, which shows that training has an effect."""
        self._plain_weights: dict[str, list[Tensor]] = {}
        self._pythons: dict[str, Path] = {}

    def prepare(self) -> None:
        """Install the peers that need an environment; one that cannot be installed keeps its row in the table."""
        for name, requirement in REQUIREMENTS.items():
            if name in self.lines:
                try:
                    self._pythons[name] = make_environment(self._folder / name, requirement)
                except (subprocess.SubprocessError, OSError) as error:
                    self._fail(name, "not installed", error)

    def measure(self) -> None:
        """Run every peer once, and the plain loop between them."""
        before = self._measure_here(all_peers=True)
        for name in list(self._pythons):
            result = self._run_elsewhere(name)
            if result is None:
                continue
            after = self._measure_here(all_peers=False)
            line, seconds = self.lines[name], result["seconds"]
            line.versions = result["versions"]
            line.runs.append(Run(seconds[0], seconds[1:], [*before, *after]))
            self._compare(line, read_weights(self._folder / "work" / f"{name}.npz"), PLAIN)
            before = after

    def _measure_here(self, *, all_peers: bool) -> Sequence[float]:
        """Run the plain loop, alone or with all peers of this process in turn; return its later rounds' seconds."""
        peers: dict[str, Peer] = {PLAIN: PlainLoop(self.work)}
        if all_peers:
            peers[LAST] = PlainLoop(self.work, channels_last=True)
        if all_peers and "feddig" in self.lines:
            peers["feddig"] = FedDig(self.work)
        seconds = take_turns(list(peers.values()), self._rounds)
        beside = seconds[0][1:]
        self.blocks.append(statistics.median(beside))
        for (name, peer), each in zip(peers.items(), seconds, strict=True):
            if name in (PLAIN, LAST):
                self._plain_weights[name] = peer.weights()
            line = self.lines[name]
            line.runs.append(Run(each[0], each[1:], beside))
            self._compare(line, peer.weights(), LAST if name == "feddig" else name)
        self.losses = peers[PLAIN].losses  # type: ignore[attr-defined]
        return beside

    def _compare(self, line: Line, weights: Sequence[Tensor], with_whom: str) -> None:
        """Record the distances of weights from those of the plain loops."""
        ordinary = self._plain_weights[PLAIN]
        same = self._plain_weights.get(with_whom, ordinary)
        line.difference = distance(weights, same) / length(same)
        line.difference_from_ordinary = distance(weights, ordinary) / length(ordinary)
        line.difference_of_update = distance(weights, ordinary) / distance(ordinary, self.work.initial)

    def _run_elsewhere(self, name: str) -> dict[str, Any] | None:
        """Run a peer in its environment; one that fails is not run again."""
        try:
            return run_elsewhere(name, self._folder / "work", self._pythons[name])
        except (subprocess.SubprocessError, OSError) as error:
            self._fail(name, "did not run", error)
            return None

    def _fail(self, name: str, what: str, error: Exception) -> None:
        printed = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = next((line for line in printed if line.startswith("ERROR: ")), printed[-1])
        self.lines[name].failure = f"{what}: {reason.removeprefix('ERROR: ')}"
        self._pythons.pop(name, None)


def as_table(rows: Sequence[dict[str, Any]], title: str, caption: Sequence[str]) -> Table:
    """Build the table for a terminal; a peer that could not run has a row, and its reason is below."""
    failures = [f"{row['peer']} {row['failure']}" for row in rows if row["failure"]]
    table = Table(title=title, caption="\n".join([*caption, *failures]), caption_justify="left")
    for name in ("peer", "s a round", "range", "to plain", "over runs", "first", "differs"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for row in rows:
        table.add_row(row["peer"], *([row["failure"].split(":")[0]] if row["failure"] else cells(row)))
    return table


def cells(row: dict[str, Any]) -> list[str]:
    """Format a peer's figures."""
    return [
        f"{row['seconds']:.3f}",
        f"{row['least']:.3f}-{row['most']:.3f}",
        f"{row['ratio_to_plain']:.3f}",
        f"{row['ratio_least']:.3f}-{row['ratio_most']:.3f}",
        f"{row['first_round']:.2f}",
        f"{row['difference']:.0e}",
    ]


def main() -> None:
    """Measure, print a table, write it to a file, and fail if weights differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="of feddig,flower,pfl; both plain loops always run"
    )
    parser.add_argument("--images", type=int, default=2000, help="at each silo")
    parser.add_argument("--rounds", type=int, default=5, help="in a run; the first is counted apart")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer")
    parser.add_argument(
        "--work", type=Path, default=Path("results/peers"), help="environments and exchanged files"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = {PLAIN, LAST, *options.peers.split(",")}
    if names - set(PEERS) or options.rounds < 2:
        parser.error("--peers: choose of feddig,flower,pfl; --rounds: at least 2")
    torch.set_num_threads(THREADS)
    # raise an exception, so that a peer in another process is ended too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    comparison = Comparison(sorted(names), options.work, options.images, options.rounds)
    comparison.prepare()
    for _ in range(options.repeats):
        comparison.measure()
    rows = [line.figures() for line in comparison.lines.values()]
    device = f"{describe_device(torch.device('cpu'))}, {torch.backends.cpu.get_cpu_capability()}"
    parameters = sum(tensor.numel() for tensor in comparison.work.initial)
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    caption = [
        device,
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"plain loop each time it ran: {', '.join(f'{one:.3f}' for one in comparison.blocks)} s",
    ]
    title = f"{SILOS} silos x {options.images:,} images, {parameters:,} parameters, batch {BATCH}, fp32"
    Console().print(as_table(rows, title, caption))
    if options.out:
        result = {
            "format_version": 1,
            "command": "python benchmarks/peers.py",
            "silos": SILOS,
            "images_at_each": options.images,
            "parameters": parameters,
            "batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "rounds": options.rounds,
            "device": device,
            "versions": {"python": platform.python_version()} | versions,
            "plain_losses": comparison.losses,
            "plain_blocks": comparison.blocks,
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    if elsewhere := [row["peer"] for row in rows if row.get("difference", 0.0) > CLOSE]:
        sys.exit(f"weights differ from the plain loop's: {', '.join(elsewhere)}")


if __name__ == "__main__":
    main()
