"""FedDig+ against its parts and its rivals: learning rates chosen on validation data, then the marks.

    python benchmarks/feddig_plus.py emnist-byclass --data-dir FOLDER --methods plus --rates .001,.005
    python benchmarks/feddig_plus.py emnist-byclass --data-dir FOLDER --seeds 0,1,2,3,4 --rates best
    python benchmarks/feddig_plus.py emnist-byclass --table

A cell is a method, a scenario, a learning rate and a seed. Each finished cell is a line of OUT/<data set>.jsonl and is
skipped when the command is given again. Seed 100 chooses: its cells hold the validation accuracy, pooled over
the silos, and no test accuracy; those of other seeds hold test accuracy alone. `--rates best` takes the rate that is
best by seed 100: for nobody absent that of `none`, for all other scenarios that of `sequential`.

In FedDig+ the expert does not touch the classifier M's training. So at the end its runs also measure M alone ("model"),
the expert alone ("expert"), and all with a running average of M in M's place ("averaged"), which counts the last
quarter of the rounds most.
"""

import argparse
import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from first_results import experiment_of
from torch import Tensor

from feddig._version import __version__
from feddig.core.moderator import Moderator
from feddig.core.samples import RawSamples, accuracy
from feddig.core.training import run_rounds
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device
from feddig.files import write_atomically
from feddig.runs.build import Simulation, build_simulation

CHOOSING = 100
"""The seed that learning rates and settings are chosen with."""
LAST, TEN = 50, 10
"""Rounds that are averaged: at the end, and before the first leave for the run's own frozen model."""
PLUS = {"algorithm.name": "feddig-plus"}
PRIOR = {"algorithm.prior_correction": True}
METHODS: dict[str, Mapping[str, Any]] = {
    "plus": PLUS,
    "plus-no-votes": {**PLUS, "moderator.votes": 0.0},
    "plus-no-prior": {**PLUS, "algorithm.prior_correction": False},
    "plus-epsilon-8": {
        **PLUS,
        "privacy.mechanism": "discrete-gaussian",
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-6,
        "privacy.clip_bound": 350.0,
        "digest.encoder": "even",
        "digest.samples_per_digest": 64,
        "digest.mixing": "within-class",
    },
    "fedavg": {"algorithm.name": "fedavg"},
    "feddig": {"algorithm.name": "feddig"},
    "feddig-prior": {"algorithm.name": "feddig", **PRIOR},
    "feddig-votes": {"algorithm.name": "feddig", **PRIOR, "moderator.votes": 1.0},
    "digests-only": {"algorithm.name": "digests-only"},
}


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Change settings, given as section.key."""
    for key, value in settings.items():
        section, _, field = key.partition(".")
        experiment = replace(experiment, **{section: replace(getattr(experiment, section), **{field: value})})
    return experiment


def parts_of(moderator: Moderator, averaged: Tensor) -> dict[str, Tensor]:
    """Return the parts of FedDig+'s model, as weights of the network that is evaluated."""
    if moderator.expert is None:
        return {}
    whole = moderator.model()
    model, expert, with_average = whole.clone(), whole.clone(), whole.clone()
    classes, size = len(moderator.expert.parameters[-1]), len(averaged)
    model[:classes] = 1  # all classes are covered,
    model[classes + size :] = 0  # and the expert has no opinion
    expert[:classes] = 0
    with_average[classes : classes + size] = averaged
    return {"model": model, "expert": expert, "averaged": with_average}


def pooled_accuracy(simulation: Simulation, samples: Sequence[RawSamples]) -> float:
    """Return the share of these samples that the network classifies well, in percent."""
    right = [len(part) * (accuracy(simulation.network, part) or 0.0) for part in samples]
    return sum(right) / sum(map(len, samples))


def run_cell(experiment: Experiment) -> dict[str, Any]:
    """Run an experiment and return its facts and accuracies."""
    started, rounds = time.perf_counter(), experiment.training.rounds
    simulation = build_simulation(experiment)
    moderator, leave = simulation.moderator, simulation.absence.first_leave()
    samples = simulation.validation if experiment.seed == CHOOSING else [simulation.test]
    compared = {*range(rounds - LAST, rounds), *range((leave or 0) - TEN, leave or 0)}
    accuracies: dict[str, dict[int, float]] = {}
    averaged = moderator.weights.clone()
    engine = simulation.engine(simulation.make_digest)
    for result in run_rounds(moderator, engine, simulation.experiment.recipe, range(rounds), leave):
        averaged.lerp_(moderator.weights, 4 / (result.round + 4))
        if result.round not in compared and result.round % 20:
            continue
        models = {"whole": moderator.model()}
        if result.round in compared:
            models |= parts_of(moderator, averaged)
        for name, weights in models.items():
            simulation.network.load(weights)
            accuracies.setdefault(name, {})[result.round] = round(pooled_accuracy(simulation, samples), 2)
    return {
        "measured_on": "validation" if experiment.seed == CHOOSING else "test",
        "first_leave": leave,
        "accuracy": accuracies,
        "precision": simulation.experiment.training.precision,
        "device": describe_device(simulation.network.device),
        "versions": {"feddig": __version__, "torch": torch.__version__},
        "seconds": round(time.perf_counter() - started, 1),
    }


def at_the_end(cell: Mapping[str, Any], part: str = "whole") -> float:
    """Return the mean over the last rounds."""
    return fmean(list(cell["accuracy"][part].values())[-LAST:])


def before_the_leave(cell: Mapping[str, Any], part: str = "whole") -> float:
    """Return the mean over the last rounds before anybody leaves: the run's own frozen model."""
    leave = cell["first_leave"]
    return fmean(
        value for round, value in cell["accuracy"][part].items() if leave - TEN <= int(round) < leave
    )


def read_cells(file: Path) -> list[dict[str, Any]]:
    """Return the finished cells."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def best_rate(cells: Iterable[Mapping[str, Any]], method: str, scenario: str) -> float:
    """Return the learning rate that is best on validation data."""
    wanted = (method, "none" if scenario == "none" else "sequential", CHOOSING)
    tried = [cell for cell in cells if (cell["method"], cell["scenario"], cell["seed"]) == wanted]
    if not tried:
        raise SystemExit(
            f"{' '.join(map(str, wanted))}: no cells with this seed to choose a rate by; run those first"
        )
    return float(max(tried, key=at_the_end)["lr"])


STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""By the number of values: how many standard errors a 95 % interval reaches on each side."""


def scores(cells: Iterable[Mapping[str, Any]], scenario: str) -> dict[str, dict[int, float]]:
    """Return accuracy by name and seed: each method with its chosen rate, its parts, and the models that stopped."""
    cells = list(cells)
    found: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell["seed"] == CHOOSING or cell["scenario"] != scenario:
            continue
        method, seed = cell["method"], cell["seed"]
        if cell["lr"] != best_rate(cells, method, scenario):
            continue
        for part in cell["accuracy"]:
            name = method if part == "whole" else f"{method}, {part}"
            found.setdefault(name, {})[seed] = at_the_end(cell, part)
        if cell["first_leave"]:
            found.setdefault(f"{method}, stopped", {})[seed] = before_the_leave(cell)
    return found


def say(values: Sequence[float]) -> str:
    """Return the mean, with its 95 % interval where there are several values."""
    if len(values) < 2:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ± {STUDENT[len(values)] * stdev(values) / math.sqrt(len(values)):.1f}"


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for each scenario: accuracy, and how far FedDig+ is above it, paired by seed."""
    lines = []
    for scenario in sorted({cell["scenario"] for cell in cells if cell["seed"] != CHOOSING}):
        found = scores(cells, scenario)
        ours = found.get("plus", {})
        lines += [f"{scenario}:", "", "| | accuracy | FedDig+ above it | seeds |", "|---|---|---|---|"]
        for name, by_seed in sorted(found.items(), key=lambda item: -fmean(item[1].values())):
            above = [ours[seed] - value for seed, value in by_seed.items() if seed in ours]
            shown = say(above) if above and name != "plus" else ""
            lines.append(f"| {name} | {say([*by_seed.values()])} | {shown} | {len(by_seed)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the cells that are still to be run, or print what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--scenarios", default="sequential")
    parser.add_argument("--rates", default="0.001,0.003,0.005,0.01")
    parser.add_argument("--seeds", default=str(CHOOSING))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/feddig-plus"))
    parser.add_argument(
        "--table", action="store_true", help="run nothing; print a table of the finished cells"
    )
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    file = options.out / f"{options.name}.jsonl"
    if options.table:
        print(table(read_cells(file)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = product(
        map(int, options.seeds.split(",")),
        options.scenarios.split(","),
        options.methods.split(","),
        options.rates.split(","),
    )
    for seed, scenario, method, given in wanted:
        done = read_cells(file)
        rate = best_rate(done, method, scenario) if given == "best" else float(given)
        facts = {"method": method, "scenario": scenario, "lr": rate, "seed": seed}
        if any(facts.items() <= cell.items() for cell in done):
            continue
        settings = {**METHODS[method], "training.lr": rate, "absence.scenario": scenario}
        base = replace(experiment_of(options.name, options.rounds, "default"), seed=seed)
        cell = facts | run_cell(with_settings(base, settings).located(options.data_dir))
        write_atomically(file, "".join(json.dumps(each) + "\n" for each in [*done, cell]))
        ends = {part: round(at_the_end(cell, part), 2) for part in cell["accuracy"]}
        own = round(before_the_leave(cell), 2) if cell["first_leave"] else None
        print(*facts.values(), ends, "own frozen", own, cell["seconds"], flush=True)


if __name__ == "__main__":
    main()
