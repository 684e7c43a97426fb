"""Run a grid of algorithms, scenarios and seeds; train what several of them share only once.

Two cells of the grid that would do the same in their first rounds (say FedAvg with nobody absent and
FedAvg with silos leaving from round 100) are one run up to there. A branch is an interrupted run,
copied: the copy gets its own experiment and availability, and both are resumed.
"""

import itertools
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from feddig.core.absence import Absence
from feddig.core.recipe import Recipe
from feddig.data.dataset import Dataset
from feddig.data.partition import Partition
from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout, Networks, lay_out
from feddig.experiment.toml import demo_experiment, read_experiment, write_experiment
from feddig.files import write_atomically
from feddig.report.page import TableRow, to_columns, to_html, write_comparison
from feddig.report.pictures import plot_curves
from feddig.report.read_run import read_rounds
from feddig.runs.outcome import write_page
from feddig.runs.progress import GridProgress
from feddig.runs.result import Result, link_to
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run

COMPARED = ("fedavg", "frozen", "feddig", "feddig-plus")
"""The algorithms of a comparison that names none, beside the experiment's own."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    experiment: Experiment
    path: Path


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its result, or why there is none."""

    cell: Cell
    summary: Result | None
    failure: str = ""


def grid(
    experiment: Experiment | str | Path,
    algorithms: Sequence[str],
    scenarios: Sequence[str],
    seeds: Sequence[int],
    out: str | Path,
) -> list[Cell]:
    """Return the cells of a grid, each with its folder `OUT/<algorithm>/<scenario>/seed-<n>`.

    The experiment may be given as its file.
    """
    if not isinstance(experiment, Experiment):
        experiment = read_experiment(experiment)
    out, cells = Path(out), []
    for seed, scenario, algorithm in itertools.product(seeds, scenarios, algorithms):
        settled = replace(
            experiment,
            seed=seed,
            algorithm=replace(experiment.algorithm, name=algorithm),
            absence=replace(
                experiment.absence,
                scenario=scenario,
                file=experiment.absence.file if scenario == "file" else None,
            ),
        )
        cells.append(Cell(settled, out / algorithm / scenario / f"seed-{seed}"))
    return cells


def run_grid(
    cells: Sequence[Cell],
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
    partition: Partition | None = None,
    progress: GridProgress | None = None,
) -> list[Outcome]:
    """Run all cells that are not finished; a cell that fails does not stop the others.

    `dataset`, `networks` and `partition` replace what the experiments name.
    """
    shown = progress or GridProgress()

    def advance(cell: Cell, until: int | None = None) -> Result:
        if ResultsFolder(cell.path).started:
            return resume(
                cell.path, device=device, dataset=dataset, networks=networks, progress=shown, until=until
            )
        return run(
            cell.experiment,
            cell.path,
            device=device,
            dataset=dataset,
            networks=networks,
            partition=partition,
            progress=shown,
            until=until,
        )

    outcomes = []
    plans = [_Plan.of(lay_out(cell.experiment, dataset, device, partition)) for cell in cells]
    for cell, plan in zip(cells, plans, strict=True):
        _check_same(cell, plan)
    branches = _branches(plans)
    starts = _starts(cells, plans, branches)
    shown.plan([plan.trained(start) for plan, start in zip(plans, starts, strict=True)])
    origins: dict[int, str] = {}
    for place, cell in enumerate(cells):
        folder = ResultsFolder(cell.path)
        try:
            if folder.finished:
                outcomes.append(Outcome(cell, Result(cell.path)))
                continue
            shown.begin(place, plans[place].experiment, origins.get(place) or _origin(folder))
            for at, child in sorted(
                (at, child) for child, (parent, at) in branches.items() if parent == place
            ):
                if not ResultsFolder(cells[child].path).started and folder.rounds_done <= at:
                    advance(cell, until=at)
                    with suppress(FedDigError):  # a child that cannot be branched fails when it is run itself
                        _branch(folder, cells[child], plans[child])
                        origins[child] = f"branched from {folder.path} after {_rounds(at)}"
            result = advance(cell)
            outcomes.append(Outcome(cell, result))
            shown.finish(result["accuracy"]["final"])
        except FedDigError as error:
            shown.fail(cell.path, str(error))
            outcomes.append(Outcome(cell, None, str(error)))
    return outcomes


_RoundPlan = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]
"""A round: which silos train, which are recalled, whose digests are held, whether there is a joint update."""


@dataclass(frozen=True)
class _Plan:
    """Everything that decides a cell's weights: what is constant, and what each round does."""

    constant: str
    rounds: tuple[_RoundPlan, ...]
    experiment: Experiment
    availability: str
    given: str
    """The partition, as its file, if it was given in Python."""
    frozen_from: int | None
    """The round from which nothing is trained, if there is one."""

    @classmethod
    def of(cls, layout: Layout) -> "_Plan":
        experiment, recipe, absence = layout.experiment, layout.experiment.recipe, layout.absence
        frozen_from = absence.first_leave() if recipe.frozen else None
        rounds: list[_RoundPlan] = []
        for round in range(absence.rounds):
            if frozen_from is not None and round >= frozen_from:
                rounds.append(((), (), (), False))
                continue
            here = _decisive_silos(recipe, absence, round)
            away = [silo for silo in range(absence.silos) if absence.away[silo, round]]
            recalled = tuple(away) if recipe.recall else ()
            held = tuple(np.flatnonzero(absence.joined[:, round]).tolist()) if recipe.collects_digests else ()
            rounds.append((tuple(here), recalled, held, recipe.joint))
        given = layout.partition.to_csv() if experiment.data.partition == "given" else ""
        return cls(
            _constant(experiment, recipe), tuple(rounds), experiment, absence.to_csv(), given, frozen_from
        )

    def trained(self, start: int) -> range:
        """Return the rounds from this one on that are trained."""
        return range(start, len(self.rounds) if self.frozen_from is None else self.frozen_from)

    def shared_rounds(self, other: "_Plan") -> int:
        """Return the number of first rounds in which both do the same."""
        if self.constant != other.constant:
            return 0
        pairs = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(self.rounds, other.rounds, strict=True)
        )
        return len(list(pairs))


def _decisive_silos(recipe: Recipe, absence: Absence, round: int) -> list[int]:
    """Return the silos whose presence in a round matters."""
    if recipe.centralised:
        return []  # the pooled data is always present
    if not recipe.silos_train:
        return [silo for silo in range(absence.silos) if absence.joined[silo, round]]
    return absence.here(round)


def _constant(experiment: Experiment, recipe: Recipe) -> str:
    """Return as text what decides the weights in every round; names and absence belong to the rounds."""
    traits = (recipe.base, recipe.sees_features, recipe.expert, recipe.silos_train, recipe.centralised)
    neutral = replace(
        experiment,
        absence=replace(experiment.absence, scenario="none", order="index", file=None, rounds=None),
        algorithm=replace(experiment.algorithm, name="fedavg"),
    )
    return f"{traits}\n{write_experiment(neutral)}"


def _branches(plans: Sequence[_Plan]) -> dict[int, tuple[int, int]]:
    """Find for each cell the earlier one it shares most rounds with: child -> (parent, shared rounds)."""
    branches = {}
    for child, plan in enumerate(plans):
        shared = [(plan.shared_rounds(plans[parent]), -parent) for parent in range(child)]
        most, parent = max(shared, default=(0, 0))
        if most > 0:
            branches[child] = (-parent, min(most, len(plan.rounds) - 1))
    return branches


def _starts(
    cells: Sequence[Cell], plans: Sequence[_Plan], branches: Mapping[int, tuple[int, int]]
) -> list[int]:
    """Return how many rounds of each cell are finished, or will be copied from the cell that it branches from."""
    starts: list[int] = []
    for place, (cell, plan) in enumerate(zip(cells, plans, strict=True)):
        folder, start = ResultsFolder(cell.path), 0
        if folder.finished:
            start = len(plan.rounds)
        elif folder.started:
            with suppress(FedDigError):  # a damaged checkpoint is reported when the cell is resumed
                start = folder.rounds_done
        elif place in branches:
            parent, at = branches[place]
            start = at if starts[parent] <= at else 0
        starts.append(start)
    return starts


def _origin(folder: ResultsFolder) -> str:
    done = folder.rounds_done if folder.started else 0
    return f"resumed after {_rounds(done)}" if done else "started"


def _rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)


def _branch(parent: ResultsFolder, child: Cell, plan: _Plan) -> None:
    """Copy an interrupted run into the child's folder; its experiment.toml is written last."""
    folder = ResultsFolder(child.path)
    folder.create()
    for name in ("digests", "checkpoint"):
        if (parent.path / name).exists():
            shutil.copytree(parent.path / name, child.path / name)
    shutil.copy(parent.path / "metrics.jsonl", child.path)
    partition = (parent.path / "partition.csv").read_text(encoding="utf-8")
    folder.write_setup(plan.experiment, partition, plan.availability)
    write_atomically(
        child.path / "log.txt", f"branched from {parent.path} after {_rounds(parent.rounds_done)}\n"
    )


def _check_same(cell: Cell, plan: _Plan) -> None:
    """Refuse to resume a folder that was started with other settings."""
    folder = ResultsFolder(cell.path)
    if not folder.started:
        return
    # resolved, because older versions left out keys that they did not know
    found, wanted = _flat(folder.experiment().resolved()), _flat(plan.experiment)
    for key in dict.fromkeys([*wanted, *found]):
        if found.get(key) != wanted.get(key):
            raise FedDigError(
                f"{cell.path}: was run with {key} = {found.get(key)!r}, now {wanted.get(key)!r}; "
                "choose another --out"
            )
    if plan.given and plan.given != folder.read_partition().to_csv():
        raise FedDigError(f"{cell.path}: was run with another partition; choose another --out")


def _flat(experiment: Experiment) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section, settings in vars(experiment).items():
        if section not in ("seed", "logging"):  # the seed is in the path, and logging changes no number
            values |= {f"{section}.{key}": value for key, value in vars(settings).items()}
    own = values.pop("algorithm.bases")
    values |= {
        f"algorithm.{base}.{key}": value for base, table in own.items() for key, value in table.items()
    }
    return values


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of a comparison. A notebook shows its table."""

    path: Path
    """The folder of the comparison; each run has its results folder in it."""
    outcomes: Sequence[Outcome]
    """What became of each run, failed ones too."""
    rows: Sequence[TableRow]
    """The rows of the table, as objects."""
    pictures: Sequence[Path]
    """The paths of the pictures, one for each scenario."""
    page: Path | None
    """The path of report.html, which describes all runs in the folder; None if it could not be written."""

    def __repr__(self) -> str:
        return f"<Comparison {self.path}: {len(self.outcomes)} runs, {len(self.failures)} failed>"

    @property
    def table(self) -> dict[str, list[Any]]:
        """The columns of table.csv, one entry for each algorithm and scenario: `pandas.DataFrame(comparison.table)`.

        `algorithm`, `scenario`, `seeds` (that finished), `failed`, then for each measure its mean over seeds and its
        sample standard deviation, such as `final_mean` and `final_sd`; None where a seed did not reach it.
        """
        return to_columns(self.rows)

    @property
    def results(self) -> list[Result]:
        """The results of the finished runs."""
        return [outcome.summary for outcome in self.outcomes if outcome.summary is not None]

    @property
    def accuracy(self) -> dict[tuple[str, str], float]:
        """For each algorithm and scenario that finished: accuracy after the last round, in percent, mean over seeds."""
        found = ((row, row.values["final"]) for row in self.rows)
        return {(row.algorithm, row.scenario): value[0] for row, value in found if value is not None}

    @property
    def history(self) -> dict[str, list[Any]]:
        """The columns of each result's `history`, one run below the other, after `algorithm`, `scenario` and `seed`."""
        every = [result.history for result in self.results]
        names = dict.fromkeys(name for history in every for name in history)
        rounds = [len(history["round"]) for history in every]
        runs = [(result, count) for result, count in zip(self.results, rounds, strict=True)]
        columns: dict[str, list[Any]] = {
            which: [value for result, count in runs for value in [getattr(result, which)] * count]
            for which in ("algorithm", "scenario", "seed")
        }
        for name in names:
            parts = zip(every, rounds, strict=True)
            columns[name] = [value for history, count in parts for value in history.get(name, [None] * count)]
        return columns

    @property
    def failures(self) -> dict[Path, str]:
        """For the folder of each run that failed: why."""
        return {each.cell.path: each.failure for each in self.outcomes if each.summary is None}

    def plot(self, scenario: str | None = None) -> Figure:
        """Plot accuracy over rounds and which silos are away in a scenario, or in the only one."""
        found = list(dict.fromkeys(result.scenario for result in self.results))
        if not found:
            raise FedDigError(f"{self.path}: no run is finished, so there is nothing to plot")
        if scenario is None and len(found) == 1:
            scenario = found[0]
        if scenario not in found:
            raise FedDigError(f"{self.path}: plot() needs one of its scenarios: {', '.join(found)}")
        runs = [read_rounds(result.path) for result in self.results if result.scenario == scenario]
        return plot_curves(runs, scenario)

    def _repr_html_(self) -> str:
        failures = "".join(f"<p>{escape(f'{path}: {why}')}</p>" for path, why in self.failures.items())
        return f"{to_html(self.rows)}{failures}{link_to(self.page)}"


def compare(
    experiment: Experiment | str | Path | None = None,
    algorithms: Sequence[str] | None = None,
    scenarios: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: str | Path = "results/compare",
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
    partition: Partition | None = None,
    progress: GridProgress | None = None,
) -> Comparison:
    """Run a grid of algorithms, scenarios and seeds, and tabulate it in `out`, as `feddig compare` does.

    The experiment, or its file, is the demo's unless given. Scenario and seed are the experiment's unless given;
    algorithms are then fedavg, frozen, feddig, feddig-plus and the experiment's. Finished runs in `out` are kept, and a
    run that fails does not stop the others. `dataset`, `networks` and `partition` replace what the experiment names.
    """
    out = Path(out)
    if out.is_file():
        raise FedDigError(f"{out}: is a file; give a new folder")
    if ResultsFolder(out).started:
        raise FedDigError(f"{out}: holds a run; give another folder for the comparison")
    if not isinstance(experiment, Experiment):
        experiment = demo_experiment() if experiment is None else read_experiment(experiment)
    names = (*COMPARED, experiment.algorithm.name) if algorithms is None else algorithms
    places = (experiment.absence.scenario,) if scenarios is None else scenarios
    numbers = (experiment.seed,) if seeds is None else seeds
    cells = grid(
        experiment,
        _distinct("algorithms", names, "feddig"),
        _distinct("scenarios", places, "sequential"),
        [int(seed) for seed in _distinct("seeds", numbers, 0)],
        out,
    )
    outcomes = run_grid(
        cells, device=device, dataset=dataset, networks=networks, partition=partition, progress=progress
    )
    summaries = [
        (each.cell.experiment.algorithm.name, each.cell.experiment.absence.scenario, each.summary)
        for each in outcomes
    ]
    rows, pictures = write_comparison(out, summaries, [each.cell.path for each in outcomes if each.summary])
    return Comparison(out, outcomes, rows, pictures, write_page(out))


def _distinct(name: str, given: Sequence[Any], example: str | int) -> list[Any]:
    """Return the entries of a list, each once."""
    if isinstance(given, str) or not isinstance(given, Collection) or len(given) == 0:
        raise FedDigError(f"{name}: {given!r} is not a list with at least one entry, such as [{example!r}]")
    return list(dict.fromkeys(given))
