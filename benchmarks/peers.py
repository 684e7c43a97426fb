"""How long a round takes here, in a plain PyTorch loop, in Flower and in pfl: the same work on two CPU threads.

    python benchmarks/peers.py --out benchmarks/results/peers.json

Four silos hold 2,000 generated images each, and the size-matched model of 1.2 million parameters trains one epoch a
round by SGD in full precision; FedAvg weighs all silos alike. Everybody starts from the same weights and sees the
same batches (silo s shuffles in round r by `torch_stream(0, "batches", s, r)`), so everybody must end at the same
weights. Flower and pfl are installed into environments of their own under --work.

That all do the same work is checked: the weights may differ from the plain loop's by a ten-thousandth of their length.
FedDig keeps channels last, for which torch has other kernels that round otherwise, so a plain loop with channels last
runs too: it shows what that alone brings, and FedDig's weights are held against it. How far the ordinary plain
loop is from both, that is, from rounding alone, is written down as well.

A machine's speed drifts. So the plain loop and FedDig take turns round by round, the plain loop runs again after
each other peer, and a peer is compared with the plain rounds that ran beside it, or just before and after it.
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
from feddig.models.classifier import build_classifier
from feddig.models.flat import FlatNetwork
from feddig.seeds import torch_stream
from feddig.settings import ModeratorSettings, TrainingSettings

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"
SEED = 0
CLOSE = 1e-4
"""Farthest that weights may end from the plain loop's, as a share of their length."""
REQUIREMENTS = {"flower": "flwr[simulation]==1.41.*", "pfl": "pfl==0.6.0"}
PLAIN, LAST = "plain", "channels-last"
PEERS = (PLAIN, LAST, "feddig", *REQUIREMENTS)
LONGEST = 3600
"""Seconds after which a peer in another environment is given up."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PFL_PYTORCH_DEVICE": "cpu",
}
"""Nobody reports home, nothing is downloaded while it runs, and a GPU stays unused."""


class Peer(Protocol):
    """Anything that trains round by round in this process."""

    def train_round(self) -> None:
        """Train the next round."""
        ...

    def weights(self) -> list[Tensor]:
        """Give the weights as they are now, in the order of the layers."""
        ...


class FedDig:
    """This library, put together from its parts."""

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
        everybody = Absence(np.ones((SILOS, work.rounds), dtype=bool))
        engine = InProcessEngine(silos, everybody, workers, _no_digest)
        self._rounds = run_rounds(self._moderator, engine, recipe, range(work.rounds))

    def train_round(self) -> None:
        """Train the next round."""
        next(self._rounds)

    def weights(self) -> list[Tensor]:
        """Give the weights as they are now."""
        self._network.load(self._moderator.weights)
        return [tensor.clone() for tensor in self._network.tensors().values()]


def _no_digest(silo: Silo) -> Digest:
    raise AssertionError(f"FedAvg asks silo {silo.index} for no digest")


@dataclass(frozen=True)
class Run:
    """The seconds of one run's rounds, and of the plain rounds that it is compared with."""

    first: float
    later: Sequence[float]
    beside: Sequence[float]

    @property
    def ratio(self) -> float:
        """Its median round over the plain loop's."""
        return statistics.median(self.later) / statistics.median(self.beside)


@dataclass
class Line:
    """What is known of one peer."""

    name: str
    runs: list[Run] = field(default_factory=list)
    difference: float | None = None
    """|weights - plain weights| / |plain weights| after the last round; of the plain loop that stores as it does."""
    difference_from_ordinary: float | None = None
    """The same, of the ordinary plain loop."""
    difference_of_update: float | None = None
    """|weights - plain weights| / |plain weights - initial weights|, of the ordinary plain loop."""
    versions: dict[str, str] = field(default_factory=dict)
    failure: str | None = None

    def figures(self) -> dict[str, Any]:
        """Sum the runs up, as the table and the results file show them."""
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


def lay_down_work(folder: Path, images: int, rounds: int) -> Work:
    """Write what all peers read: a picture for each class, batch orders, first weights."""
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
            nn.init.kaiming_normal_(weight)  # torch's own start is a plateau that five rounds do not leave
    write_weights(folder / "initial.npz", list(model.state_dict().values()))
    return read_work(folder)


def take_turns(peers: Sequence[Peer], rounds: int) -> list[list[float]]:
    """Train peers round by round in turn, each round with another one first; give each one's seconds."""
    seconds: list[list[float]] = [[] for _ in peers]
    for round in range(rounds):
        turns = list(enumerate(peers))
        for place, peer in turns[round % len(peers) :] + turns[: round % len(peers)]:
            started = time.perf_counter()
            peer.train_round()
            seconds[place].append(time.perf_counter() - started)
    return seconds


def make_environment(folder: Path, requirement: str) -> Path:
    """Install a peer into a virtual environment, if that is not done yet, and give its Python."""
    python, ready = folder / "bin" / "python", folder / f"ready for {requirement}"
    if not ready.exists():
        make = [sys.executable, "-m", "venv", str(folder)]
        # only what all compute with: our other pins may clash with a peer's own
        pins = [
            line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(("torch=", "numpy="))
        ]
        install = [str(python), "-m", "pip", "install", "--quiet", *pins]
        # torch first: the pinned build is then already there when the peer asks for one
        for command in (make, install, [*install, requirement]):
            subprocess.run(command, check=True, capture_output=True, text=True)
        ready.touch()
    return python


def run_elsewhere(name: str, work: Path, python: Path) -> dict[str, Any]:
    """Run a peer in its environment, and read what it leaves in the work folder."""
    environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": str(HERE)}
    log, result = work / f"{name}.log", work / f"{name}.json"
    result.unlink(missing_ok=True)
    with log.open("w") as output:
        # a session of its own, so that whatever it starts can be ended with it
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
    """End what is left of the process group that this process began."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Give the length of the difference of two sets of weights."""
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm())


def length(weights: Sequence[Tensor]) -> float:
    """Give the length of weights."""
    return distance(weights, [torch.zeros_like(tensor) for tensor in weights])


class Comparison:
    """The peers side by side: runs them and gathers their lines."""

    def __init__(self, names: Sequence[str], folder: Path, images: int, rounds: int) -> None:
        self._folder, self._rounds = folder, rounds
        self.work = lay_down_work(folder / "work", images, rounds)
        self.lines = {name: Line(name) for name in PEERS if name in names}
        for name, versions in (PLAIN, {}), (LAST, {}), ("feddig", {"feddig": __version__}):
            if name in self.lines:
                self.lines[name].versions = {**versions, "torch": torch.__version__}
        self.blocks: list[float] = []
        """The plain loop's median round, each time it ran: this shows how the machine drifts."""
        self.losses: list[float] = []
        """The plain loop's mean loss in each round: this shows that training moves."""
        self._plain_weights: dict[str, list[Tensor]] = {}
        self._pythons: dict[str, Path] = {}

    def prepare(self) -> None:
        """Install the peers that need an environment; one that cannot be installed stays in the table."""
        for name, requirement in REQUIREMENTS.items():
            if name in self.lines:
                try:
                    self._pythons[name] = make_environment(self._folder / name, requirement)
                except (subprocess.SubprocessError, OSError) as error:
                    self._fail(name, "not installed", error)

    def measure(self) -> None:
        """Run every peer once on all images, and the plain loop between them."""
        before = self._measure_here(everybody=True)
        for name in list(self._pythons):
            result = self._run_elsewhere(name)
            if result is None:
                continue
            after = self._measure_here(everybody=False)
            line, seconds = self.lines[name], result["seconds"]
            line.versions = result["versions"]
            line.runs.append(Run(seconds[0], seconds[1:], [*before, *after]))
            self._compare(line, read_weights(self._folder / "work" / f"{name}.npz"), PLAIN)
            before = after

    def _measure_here(self, *, everybody: bool) -> Sequence[float]:
        """Run the plain loop, alone or in turns with all who train here; give the seconds of its later rounds."""
        peers: dict[str, Peer] = {PLAIN: PlainLoop(self.work)}
        if everybody:
            peers[LAST] = PlainLoop(self.work, channels_last=True)
        if everybody and "feddig" in self.lines:
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
        """Note how far weights are from those of the plain loops."""
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
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = next((line for line in said if line.startswith("ERROR: ")), said[-1])
        self.lines[name].failure = f"{what}: {reason.removeprefix('ERROR: ')}"
        self._pythons.pop(name, None)


def as_table(rows: Sequence[dict[str, Any]], title: str, caption: Sequence[str]) -> Table:
    """Build the table for a terminal; a peer that could not run has a row too, and its reason stands below."""
    failures = [f"{row['peer']} {row['failure']}" for row in rows if row["failure"]]
    table = Table(title=title, caption="\n".join([*caption, *failures]), caption_justify="left")
    for name in ("peer", "s a round", "range", "to plain", "over runs", "first", "differs"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for row in rows:
        table.add_row(row["peer"], *([row["failure"].split(":")[0]] if row["failure"] else cells(row)))
    return table


def cells(row: dict[str, Any]) -> list[str]:
    """Spell a peer's figures."""
    return [
        f"{row['seconds']:.3f}",
        f"{row['least']:.3f}-{row['most']:.3f}",
        f"{row['ratio_to_plain']:.3f}",
        f"{row['ratio_least']:.3f}-{row['ratio_most']:.3f}",
        f"{row['first_round']:.2f}",
        f"{row['difference']:.0e}",
    ]


def main() -> None:
    """Measure, print a table, write it down, and fail if weights differ."""
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
    # as an exception, so that a peer in another process is ended too
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
        sys.exit(f"weights end elsewhere than the plain loop's: {', '.join(elsewhere)}")


if __name__ == "__main__":
    main()
