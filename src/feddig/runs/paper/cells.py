"""Which runs the paper's tables and figures need, which of them are finished, and what the others cost.

A file NAME.toml describes one table or figure by its cells: settings on top of the common ones in paper.toml beside the
folder. In [[cells]] a list gives the values of an axis, and the cells are all combinations. Cells are compared by their
settings, so a run that several tables share is one cell. RESULTS/NAME.jsonl has a line for each finished cell.
"""

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feddig.errors import FileFormatError, SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import experiment_from_table, read_experiment, write_experiment
from feddig.files import FORMAT_VERSION, check_version, write_atomically
from feddig.settings import LoggingSettings

COSTS = "costs"
KINDS = ("accuracy", "silos", COSTS)
"""What a table shows: accuracies, also the accuracy of the silo that leaves, or bytes and seconds."""


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

    @property
    def name(self) -> str:
        """Name the cell for people."""
        experiment = self.experiment
        return (
            f"{experiment.algorithm.name}, {experiment.absence.scenario}, {experiment.data.name}, "
            f"seed {experiment.seed}"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the key as nested tables."""
        table = tomllib.loads(self.key)
        del table["format_version"], table["logging"]
        return table

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
    figure: str = ""
    """The kind of figure that shows it; empty if none does."""

    def finished(self, lines: Sequence["Line"]) -> dict[str, "Line"]:
        """Return the lines of finished cells by their keys; for a table of costs, those that were timed."""
        done = finished_cells(lines)
        if self.kind != COSTS:
            return done
        return {key: line for key, line in done.items() if "failure" in line or "seconds_per_round" in line}

    def with_seeds(self, seeds: Sequence[int]) -> "PaperTable":
        """Return the table with these seeds in place of its own."""
        chosen = (cell.with_seed(seed) for seed in seeds for cell in self.cells)
        return replace(self, cells=tuple({cell.key: cell for cell in chosen}.values()))


def read_tables(folder: Path) -> list[PaperTable]:
    """Read all tables of a folder."""
    _check_folder(folder)
    return [read_table(folder, path.stem) for path in sorted(folder.glob("*.toml"))]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise SettingError(
            f"{folder}: no such folder; run this in a copy of the repository, or give --experiments"
        )


def read_table(folder: Path, name: str) -> PaperTable:
    """Read the table NAME.toml of a folder; the common settings are in paper.toml beside the folder."""
    _check_folder(folder)
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
    return PaperTable(*facts, tuple(cells.values()), published, table.get("figure", ""))


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


Line = Mapping[str, Any]
"""A line of a result file."""


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
    done, known = table.finished(lines), seconds_by_kind(lines)
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
