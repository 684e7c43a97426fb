"""Measure the cost of a record epsilon: FedDig while silos leave in sequence, by epsilon, SpD and mixing.

    python benchmarks/privacy_table.py run --data-dir FOLDER --device cuda
    python benchmarks/privacy_table.py run --cells best --seeds 1,2 --data-dir FOLDER --device cuda
    python benchmarks/privacy_table.py table

Fashion-MNIST, first_results.py's settings, discrete Gaussian noise, same-label adjacency, delta 1e-6, a public
clip, and the same number of steps in a joint update for every SpD. Every silo has at least 2,048 samples: otherwise
seed 0 would leave one with 1,012, too few for a digest of 1,024, so seed 0 has another partition than in
first_results.py.

Each cell is a JSON file in OUT and is run once; repeat the command to continue. Cells run in order of interest.
`--share 1/2` runs every second cell, so that two processes can share a GPU. `--cells` takes names (which are printed),
`all`, or `best`: each epsilon's best cell of seed 0. `table` writes Markdown from the existing cells.
"""

import argparse
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from feddig.errors import DataError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import experiment_from_table
from feddig.files import write_atomically
from feddig.report.read_run import read_rounds
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run

EPSILONS = (8.0, math.inf, 1.0, 4.0, 32.0)
SAMPLES_PER_DIGEST = (64, 256, 16, 1024, 4)
MIXINGS = ("within-class", "random")
OUT = Path("benchmarks/results/privacy-table")
SETTINGS = (
    "data",
    "encoder",
    "clip_bound",
    "joint_steps",
    "classifier",
    "rounds",
    "lr",
    "batch",
    "limit",
    "min_samples",
)
MARK = "mean_250_299"
"""The measure that is compared: all silos are absent from round 250 on."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    mixing: str
    epsilon: float
    samples_per_digest: int
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.mixing}-{self.epsilon:g}-{self.samples_per_digest}-seed-{self.seed}"


def main() -> None:
    """Run cells or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cells", default="all")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--encoder", default="even")
    parser.add_argument("--clip-bound", type=float, default=350.0)
    parser.add_argument("--joint-steps", type=int, default=47, help="47: a pass over digests of four")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--classifier", default="size-matched")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--min-samples", type=int, default=2048, help="of every silo")
    parser.add_argument("--limit", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("results/privacy-table"))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.what == "table":
        print(table(read_rows(options.out)))
        return
    logging.getLogger("feddig").setLevel(logging.WARNING)
    place, count = map(int, options.share.split("/"))
    for cell in [*chosen(options)][place::count]:
        file = options.out / f"{cell.name}.json"
        if not file.exists():
            row = run_cell(cell, options)
            options.out.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(row, indent=1) + "\n")
            print(cell.name, row.get("refused") or row["accuracy"], flush=True)


def chosen(options: argparse.Namespace) -> Iterator[Cell]:
    """Return the selected cells, the most interesting first."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.cells == "best":
        for best in best_cells(read_rows(options.out)).values():
            yield from (
                Cell(best["mixing"], best["epsilon"], best["samples_per_digest"], seed) for seed in seeds
            )
        return
    names = None if options.cells == "all" else options.cells.split(",")
    for mixing in MIXINGS:
        for epsilon in EPSILONS:
            for samples in SAMPLES_PER_DIGEST:
                for cell in (Cell(mixing, epsilon, samples, seed) for seed in seeds):
                    if names is None or cell.name in names:
                        yield cell


def experiment_of(cell: Cell, options: argparse.Namespace) -> Experiment:
    """Return the paper's settings with this cell's noise; no setting depends on the data."""
    noise: dict[str, Any] = {"mechanism": "none"}
    if math.isfinite(cell.epsilon):
        noise = {"mechanism": "discrete-gaussian", "epsilon": cell.epsilon, "delta": 1e-6}
        noise["clip_bound"] = options.clip_bound
    table = {
        "seed": cell.seed,
        "algorithm": {"name": "feddig"},
        "data": {"name": options.data, "limit": options.limit, "min_samples": options.min_samples},
        "absence": {"scenario": "sequential"},
        "digest": {
            "encoder": options.encoder,
            "mixing": cell.mixing,
            "samples_per_digest": cell.samples_per_digest,
        },
        "privacy": noise,
        "model": {"classifier": options.classifier},
        "moderator": {"joint_steps": options.joint_steps},
        "training": {key: getattr(options, key) for key in ("rounds", "lr", "batch", "threads")},
    }
    return experiment_from_table(table).located(options.data_dir)


def run_cell(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Run or resume a cell, and return the row that is written."""
    folder, started = ResultsFolder(options.work / cell.name), time.perf_counter()
    row: dict[str, Any] = {"format_version": 1, **asdict(cell), "epsilon": str(cell.epsilon)}
    row |= {key: getattr(options, key) for key in SETTINGS}
    try:
        if folder.started:
            summary = resume(folder.path, device=options.device)
        else:
            summary = run(experiment_of(cell, options), folder.path, device=options.device)
    except DataError as error:  # a silo too small for a single digest
        return {**row, "refused": str(error)}
    kept = [folder.kept_digest(silo) for silo in range(len(summary["silo_test_accuracy"]))]
    digests = [digest for digest in kept if digest is not None]
    return {
        **row,
        **{key: summary[key] for key in ("accuracy", "device", "precision", "seconds_per_round", "versions")},
        "digests": sum(map(len, digests)),
        "samples": sum(digest.samples for digest in digests),
        "left_out": sum(int(str(digest.facts["left_out"])) for digest in digests),
        "noise_deviation": digests[0].facts.get("noise_deviation", 0.0),
        "curve": [round(value, 2) for value in read_rounds(folder.path).accuracies],
        "seconds": round(time.perf_counter() - started, 1),
    }


def read_rows(out: Path) -> list[dict[str, Any]]:
    """Read every cell that was run."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*-seed-*.json"))]
    return [{**row, "epsilon": float(row["epsilon"])} for row in rows]


def marked(row: dict[str, Any]) -> float:
    """Return the measure for comparing cells; a run of another length has only its last round."""
    accuracy = row["accuracy"]
    return float(accuracy["final"] if accuracy[MARK] is None else accuracy[MARK])


def best_cells(rows: Sequence[dict[str, Any]]) -> dict[float, dict[str, Any]]:
    """Return each epsilon's best cell of seed 0."""
    first = [row for row in rows if row["seed"] == 0 and "accuracy" in row]
    return {
        epsilon: max((row for row in first if row["epsilon"] == epsilon), key=marked)
        for epsilon in sorted({row["epsilon"] for row in first}, reverse=True)
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write the grid of seed 0, the samples left out, and the best cells over seeds, as Markdown."""
    sizes, lines = sorted(SAMPLES_PER_DIGEST), []
    heads = " | ".join(f"SpD {size}" for size in sizes)
    for mixing in MIXINGS:
        first = [row for row in rows if row["mixing"] == mixing and row["seed"] == 0]
        own = {(row["epsilon"], row["samples_per_digest"]): row for row in first}
        if not own:
            continue
        lines += [f"{mixing}:", "", f"| record epsilon | {heads} |", "|---|" + "---|" * len(sizes)]
        for epsilon in sorted(EPSILONS, reverse=True):
            lines.append(_line(_spell(epsilon), [_accuracy(own.get((epsilon, size))) for size in sizes]))
        left = [next((row for (_, s), row in own.items() if s == size), None) for size in sizes]
        lines += [_line("samples that stayed out", [_left_out(row) for row in left]), ""]
    lines += ["| record epsilon | best cell | seeds | accuracy |", "|---|---|---|---|"]
    for epsilon, best in best_cells(rows).items():
        same = [
            row
            for row in rows
            if "accuracy" in row
            and all(row[key] == best[key] for key in ("epsilon", "mixing", "samples_per_digest"))
        ]
        values = [marked(row) for row in same]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        where = f"{best['mixing']}, SpD {best['samples_per_digest']}"
        lines.append(
            _line(
                _spell(epsilon),
                [where, str(sorted(row["seed"] for row in same)), f"{fmean(values):.1f}{spread}"],
            )
        )
    return "\n".join(lines)


def _line(head: str, cells: Sequence[str]) -> str:
    return f"| {head} | " + " | ".join(cells) + " |"


def _spell(epsilon: float) -> str:
    return f"{epsilon:g}" if math.isfinite(epsilon) else "infinite (no noise)"


def _accuracy(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return "refused" if "refused" in row else f"{marked(row):.1f}"


def _left_out(row: dict[str, Any] | None) -> str:
    if row is None or "refused" in row:
        return ""
    return f"{row['left_out']:,} of {row['samples'] + row['left_out']:,}"


if __name__ == "__main__":
    main()
