"""The runs behind the paper's tables and figures: which there are, which are finished, what they cost.

A file NAME.toml describes one table or figure by its cells: settings on top of the common ones in paper.toml beside the
folder. In [[cells]] a list gives the values of an axis, and the cells are all combinations. A finished cell is one
line of RESULTS/NAME.jsonl. Cells are compared by their settings, so a run that several tables share is run once.
"""

import itertools
import json
import logging
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from feddig.core.absence import PAPER_ROUNDS, Absence, read_absence
from feddig.errors import DivergenceError, FedDigError, FileFormatError, SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import choose_device, describe_device
from feddig.experiment.toml import experiment_from_table, read_experiment, write_experiment
from feddig.files import FORMAT_VERSION, check_version, content_hash, write_atomically
from feddig.runs.progress import Progress
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run
from feddig.settings import LoggingSettings

log = logging.getLogger("feddig")

KINDS = ("accuracy", "silos", "costs")
"""What a table shows: accuracies, also the accuracy of the silo that leaves, or bytes and seconds."""
TEN = 10
"""Rounds over which a silo's validation accuracy is averaged."""

Line = Mapping[str, Any]
"""A line of a result file."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    experiment: Experiment

    @property
    def key(self) -> str:
        """The settings that decide its numbers, as text; two cells with the same text are one run."""
        experiment = self.experiment
        # folders, precision and threads belong to the machine, and a path that is set is not searched for
        whole = replace(experiment, data=replace(experiment.data, path="-")).resolved()
        return write_experiment(
            replace(
                whole,
                data=replace(whole.data, path=None),
                digest=replace(whole.digest, encoder=experiment.digest.encoder),
                model=replace(whole.model, classifier=experiment.model.classifier),
                training=replace(whole.training, precision=None, threads=0),
                logging=LoggingSettings(),
            )
        )

    @property
    def cost_kind(self) -> str:
        """What the seconds of a round depend on; cells of one kind take about the same time."""
        experiment, recipe = self.experiment, self.experiment.recipe
        encoder = experiment.digest.encoder if recipe.sees_features or recipe.collects_digests else ""
        work = (recipe.silos_train, recipe.recall, recipe.joint, recipe.expert, encoder)
        return f"{experiment.data.name} {experiment.model.classifier} {experiment.training.batch} {work}"

    def with_seed(self, seed: int) -> "Cell":
        """Return the same cell with another seed."""
        return Cell(replace(self.experiment, seed=seed))


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper."""

    name: str
    title: str
    """Where it is in the paper."""
    about: str
    kind: str
    rows: tuple[str, ...]
    """The settings that tell its rows apart."""
    cells: tuple[Cell, ...]
    published: Mapping[str, Mapping[str, Sequence[float]]]
    """The paper's means, and deviations where it has them: by scenario (or by what is measured) and algorithm."""

    def with_seeds(self, seeds: Sequence[int]) -> "PaperTable":
        """Return the table with these seeds in place of its own."""
        chosen = (cell.with_seed(seed) for seed in seeds for cell in self.cells)
        return replace(self, cells=tuple({cell.key: cell for cell in chosen}.values()))


def read_tables(folder: Path) -> list[PaperTable]:
    """Read all tables of a folder."""
    if not folder.is_dir():
        raise SettingError(
            f"{folder}: no such folder; run this in a copy of the repository, or give --experiments"
        )
    return [read_table(folder, path.stem) for path in sorted(folder.glob("*.toml"))]


def read_table(folder: Path, name: str) -> PaperTable:
    """Read the table NAME.toml of a folder; the common settings are in paper.toml beside the folder."""
    path = folder / f"{name}.toml"
    if not path.exists():
        known = [other.stem for other in folder.glob("*.toml")]
        raise SettingError(f"{name}: no such table or figure in {folder}; {nearest(name, known)}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        groups = table["cells"]
        facts = (name, table["title"], table["about"], table["kind"], tuple(table["rows"]))
    except (ValueError, KeyError) as error:
        raise SettingError(f"{path}: not a table of the paper ({error!r})") from None
    if table["kind"] not in KINDS:
        raise SettingError(f"{path}: kind: {table['kind']!r} is not known; {nearest(table['kind'], KINDS)}")
    common = _flat(table.get("settings", {}))
    cells: dict[str, Cell] = {}
    for group in groups:
        for settings in _combinations(_flat(group)):
            chosen = {**common, **settings}
            try:
                experiment = read_experiment(
                    folder.parent / "paper.toml", [f"{key}={_toml(value)}" for key, value in chosen.items()]
                )
            except SettingError as error:
                raise SettingError(f"{path}: {error}") from None
            cell = Cell(experiment)
            cells.setdefault(cell.key, cell)
    published = {
        scenario: {name: value if isinstance(value, list) else [value] for name, value in row.items()}
        for scenario, row in table.get("published", {}).items()
    }
    return PaperTable(*facts, tuple(cells.values()), published)


def _flat(table: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
    """Spell nested tables as section.key."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{outer}{key}.") if isinstance(value, Mapping) else {f"{outer}{key}": value}
    return flat


def _combinations(group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """List the combinations of the axes; the seed changes last, so that the first seed is complete first."""
    names = sorted(group, key=lambda name: name != "seed")
    axes = [group[name] if isinstance(group[name], list) else [group[name]] for name in names]
    for values in itertools.product(*axes):
        yield dict(zip(names, values, strict=True))


def _toml(value: Any) -> str:
    return json.dumps(value)  # for the plain values that settings have, JSON is TOML


# --- results


def read_lines(results: Path) -> list[Line]:
    """Read all result files of a folder, which may not exist yet."""
    lines = []
    for path in sorted(results.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                line = json.loads(text)
                check_version(path, line["format_version"])
                line["key"] = Cell(experiment_from_table(line["settings"])).key
            except (ValueError, KeyError, TypeError, SettingError) as error:
                raise FileFormatError(
                    f"{path}, line {number}: not a finished cell ({error}); remove the line and run the cell again"
                ) from None
            lines.append(line)
    return lines


def finished_cells(lines: Sequence[Line]) -> dict[str, Line]:
    """Return the lines of finished cells by their keys; other lines only say how long a round takes."""
    return {line["key"]: line for line in lines if "accuracy" in line or "failure" in line}


def seconds_by_kind(lines: Sequence[Line]) -> dict[tuple[str, str], float]:
    """Return the seconds of a round by kind of cell and device; what was measured last counts."""
    return {
        (Cell(experiment_from_table(line["settings"])).cost_kind, line["device"]): line["seconds_per_round"]
        for line in lines
        if "seconds_per_round" in line
    }


def remaining_seconds(
    table: PaperTable, lines: Sequence[Line]
) -> tuple[list[Cell], dict[str, tuple[float, int]]]:
    """Return the cells that are not finished; and by device their seconds, as far as known, and how many are not."""
    done, known = finished_cells(lines), seconds_by_kind(lines)
    left = [cell for cell in table.cells if cell.key not in done]
    costs = {}
    for device in dict.fromkeys(device for _, device in known):
        each = [(known.get((cell.cost_kind, device)), cell.experiment.training.rounds) for cell in left]
        seconds = sum(one * rounds for one, rounds in each if one is not None)
        unknown = sum(one is None for one, _ in each)
        if unknown < len(left):
            costs[device] = (seconds, unknown)
    return left, costs


def keep(results: Path, table: str, line: Line) -> None:
    """Add a line to a table's result file."""
    path = results / f"{table}.jsonl"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomically(path, before + json.dumps({"format_version": FORMAT_VERSION, **line}) + "\n")


# --- runs


class OutOfTimeError(FedDigError):
    """A run that was interrupted because its time is over; it goes on when it is started again."""


@dataclass(frozen=True)
class Runner:
    """Runs cells one after the other and keeps each at once."""

    table: PaperTable
    results: Path
    work: Path
    """For the results folders of the runs, which may be deleted once their cells are finished."""
    device: str = "auto"
    data_dir: Path | None = None
    until: float | None = None
    """When to stop, by time.monotonic()."""
    progress: Callable[[], Progress] | None = None

    def run(self, say: Callable[[str], None]) -> list[str]:
        """Run the cells that are not finished; return what failed. `say` is told what happens."""
        device = describe_device(choose_device(self.device))
        failures: list[str] = []
        for cell in self.table.cells:
            lines = read_lines(self.results)
            if cell.key in finished_cells(lines):
                continue
            needed = seconds_by_kind(lines).get((cell.cost_kind, device))
            if self.until is not None:
                left = self.until - time.monotonic()
                whole = (needed or 0.0) * cell.experiment.training.rounds
                if left <= 0 or whole > left:
                    say(
                        f"stopped: {_name(cell)} takes about {whole:.0f} s, and {max(left, 0):.0f} s are left"
                    )
                    break
            try:
                line = self._run(cell)
            except OutOfTimeError as error:
                say(f"stopped: {_name(cell)}: {error}")
                break
            except DivergenceError as error:
                line = {"settings": _settings(cell), "device": device, "failure": str(error)}
            except FedDigError as error:
                failures.append(f"{_name(cell)}: {error}")
                log.warning("%s", failures[-1])
                continue
            keep(self.results, self.table.name, line)
            say(f"finished: {_name(cell)}: {_result(line)}")
        return failures

    def time(self, say: Callable[[str], None]) -> None:
        """Train the first rounds of one cell of each kind, and keep how long a round takes."""
        device = choose_device(self.device)
        for cell in self.table.cells:
            if (cell.cost_kind, describe_device(device)) in seconds_by_kind(read_lines(self.results)):
                continue
            # on a GPU the first round compiles and records
            rounds = 2 if device.type == "cuda" else 1
            self._train(cell, rounds)
            folder = ResultsFolder(self._folder(cell))
            seconds = round(folder.metrics()[rounds - 1]["seconds"], 4)
            line = {
                "settings": _settings(cell),
                "device": describe_device(device),
                "versions": {"torch": torch.__version__},
                "seconds_per_round": seconds,
            }
            keep(self.results, self.table.name, line)
            say(f"timed: {_name(cell)}: {seconds:.2f} s a round")

    def _folder(self, cell: Cell) -> Path:
        experiment = cell.experiment
        place = f"seed-{experiment.seed}-{content_hash(cell.key.encode())[:8]}"
        return self.work / experiment.algorithm.name / experiment.absence.scenario / place

    def _train(self, cell: Cell, until: int | None = None) -> dict[str, Any]:
        folder = self._folder(cell)
        shown = self.progress() if self.progress else None
        watched = None if self.until is None else _Deadline(self.until, shown)
        experiment = cell.experiment.located(self.data_dir)
        if ResultsFolder(folder).started:
            return resume(folder, device=self.device, progress=watched or shown, until=until)
        return run(experiment, folder, device=self.device, progress=watched or shown, until=until)

    def _run(self, cell: Cell) -> Line:
        summary, folder = self._train(cell), ResultsFolder(self._folder(cell))
        rows = folder.metrics()
        curve = [row["test_accuracy"] for row in rows]
        absence = read_absence(folder.path / "availability.csv")
        measures = {
            **{
                name: summary["accuracy"][name]
                for name in ("absence_mean", "frozen_own", "frozen_own_mean_10")
            },
            "mean_251_259": _mean_in_proportion(curve, 251, 259),
            "mean_250_299": _mean_in_proportion(curve, 250, 299),
        }
        return {
            "settings": _settings(cell),
            **{name: summary[name] for name in ("data", "precision", "device", "versions", "bytes")},
            "bases": folder.experiment().algorithm.bases,
            "seconds_per_round": round(summary["seconds_per_round"], 4),
            "digest_bytes": _digest_bytes(folder, cell.experiment.data.silos),
            "measures": {name: value and round(value, 3) for name, value in measures.items()},
            "silos": _silos(absence, [row["validation_accuracy"] for row in rows]),
            "accuracy": [round(value, 2) for value in curve],
        }


class _Deadline:
    """Passes progress on, and interrupts the run after the first round that ends too late."""

    def __init__(self, until: float, shown: Progress | None) -> None:
        self._until, self._shown, self._rounds = until, shown, 0

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Pass it on."""
        self._rounds = rounds
        if self._shown:
            self._shown.start(experiment, done, rounds, events)

    def round(self, row: Mapping[str, Any]) -> None:
        """Pass it on; the round's checkpoint is written by now."""
        if self._shown:
            self._shown.round(row)
        if time.monotonic() > self._until and row["round"] + 1 < self._rounds:
            raise OutOfTimeError(f"the time is over after round {row['round'] + 1} of {self._rounds}")

    def stop(self) -> None:
        """Pass it on."""
        if self._shown:
            self._shown.stop()


def _settings(cell: Cell) -> dict[str, Any]:
    table = tomllib.loads(cell.key)
    del table["format_version"], table["logging"]
    return table


def _name(cell: Cell) -> str:
    experiment = cell.experiment
    return (
        f"{experiment.algorithm.name}, {experiment.absence.scenario}, {experiment.data.name}, "
        f"seed {experiment.seed}"
    )


def _result(line: Line) -> str:
    if "failure" in line:
        return str(line["failure"])
    return f"{line['accuracy'][-1]:.1f} % at the end, {line['seconds_per_round']:.3f} s a round"


def _mean_in_proportion(curve: Sequence[float], first: int, last: int) -> float | None:
    """Average these rounds of 300, in a run of another length the rounds at the same share of it."""
    chosen = [
        value for round, value in enumerate(curve) if first <= round * PAPER_ROUNDS / len(curve) <= last
    ]
    return fmean(chosen) if chosen else None


def _silos(absence: Absence, validation: Sequence[Sequence[float | None]]) -> dict[str, Any] | None:
    """Return each silo's validation accuracy before the first leave and in the last rounds of absence."""
    leave = absence.first_leave()
    if leave is None:
        return None

    def mean_of(rounds: Sequence[int]) -> list[float | None]:
        by_silo = zip(*(validation[round] for round in rounds), strict=True)
        return [None if None in values else round(fmean(values), 2) for values in by_silo]

    away = [silo for silo in range(absence.silos) if absence.away[silo, leave]]
    before = range(max(0, leave - TEN), leave)
    return {"leaves": away, "before": mean_of(before), "away": mean_of(absence.absence_rounds()[-TEN:])}


def _digest_bytes(folder: ResultsFolder, silos: int) -> dict[str, int] | None:
    """Return what all digests take as they are sent, with numbers of two bytes, and these compressed."""
    digests = [digest for silo in range(silos) if (digest := folder.kept_digest(silo)) is not None]
    if not digests:
        return None
    halves = [
        part.half().numpy().tobytes() for digest in digests for part in (digest.features, digest.labels)
    ]
    return {
        "digests": sum(map(len, digests)),
        "float32": sum(digest.size for digest in digests),
        "float16": sum(map(len, halves)),
        "float16_compressed": sum(len(zlib.compress(part)) for part in halves),
    }
