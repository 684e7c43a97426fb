"""The result of a run, as Python and notebooks use it; it is read from the results folder and needs no torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from matplotlib.figure import Figure

from feddig.errors import FedDigError
from feddig.report.html_parts import PAGE
from feddig.report.pictures import plot_run
from feddig.report.read_run import Run, is_run, read_rounds
from feddig.report.run_files import read_summary

SHORT_NAMES = {
    "losses_silos": "loss_silo",
    "losses_recall": "loss_recall_silo",
    "losses_joint": "loss_joint",
    "validation_accuracy": "validation_silo",
    "present": "present_silo",
    "recalled": "recalled_silo",
}
"""How columns of `Result.history` begin, where not by their key in metrics.jsonl."""


class Result(dict[str, Any]):
    """The result of a run, as `run`, `resume` and `read_result` return it.

    It is also the dictionary of summary.json: `result["accuracy"]["final"]`. Of an unfinished run that dictionary is
    empty, and the other fields describe the rounds so far.
    """

    path: Path
    """The results folder."""

    def __init__(self, path: Path) -> None:
        finished = (path / "summary.json").exists()
        super().__init__(read_summary(path) if finished else {})
        self.path = path
        # of an unfinished run, read the rounds so far now, because it may go on
        self._read = None if finished else read_rounds(path, growing=True)

    def __repr__(self) -> str:
        return f"<Result {self.path}: {self.algorithm}, {self.scenario}, seed {self.seed}, {self._reached()}>"

    @property
    def _run(self) -> Run:
        if self._read is None:
            run = read_rounds(self.path)
            # a finished run may have been given more rounds since
            self._read = replace(run, rows=run.rows[: self.get("rounds")], summary=self)
        return self._read

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json, as a plain dictionary; empty until the run is finished."""
        return dict(self)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return bool(self)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self["algorithm"]) if self else self._run.algorithm

    @property
    def scenario(self) -> str:
        """The name of the absence scenario."""
        return str(self["scenario"]) if self else self._run.scenario

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self["seed"]) if self else self._run.seed

    @property
    def accuracy(self) -> float | None:
        """Accuracy after the last round, in percent; of an unfinished run, after its last finished round, if any.

        It is measured on test images; in a federation without them, on the validation images of the silos that are
        present. `summary["accuracy"]` holds all measures.
        """
        return self._measures.get("final")

    @property
    def before_first_leave(self) -> float | None:
        """Accuracy of the run's own model before the first silo leaves: what stopping there would have kept.

        It is the mean over the last ten rounds of 300 before that (in proportion in other runs, at least one round),
        the measure `frozen_own_mean_10`. None if no silo leaves.
        """
        return self._measures.get("frozen_own_mean_10")

    @property
    def _measures(self) -> Mapping[str, float | None]:
        return self["accuracy"] if self else self._run.measures

    @cached_property
    def history(self) -> dict[str, list[Any]]:
        """One column for each number of metrics.jsonl and one entry for each round: `pandas.DataFrame(result.history)`.

        Columns of silo 0 end with `silo_0`: `validation_silo_0`, `loss_silo_0`, `loss_recall_silo_0` (of its recall
        model), `present_silo_0` and `recalled_silo_0` (true or false). Another list, such as one of classes, has a
        column for each place: `class_accuracy_0`. An entry is None where the round has no such number.
        """
        return spread_rows(self._run.rows, self._run.silos)

    @property
    def page(self) -> Path | None:
        """The path of report.html; None if there is none, as in an unfinished run."""
        page = self.path / PAGE
        return page if page.exists() else None

    def plot(self) -> Figure:
        """Plot accuracy over rounds and which silos are away, as in curves.png; a notebook shows the figure."""
        if not self._run.rows:
            raise FedDigError(f"{self.path}: no round is finished yet, so there is nothing to plot")
        return plot_run(self._run)

    def _repr_html_(self) -> str:
        cells = {
            "algorithm": self.algorithm,
            "scenario": self.scenario,
            "seed": str(self.seed),
            "accuracy": self._reached(),
            "own model before the first leave": format_percent(self.before_first_leave),
        }
        head = "".join(f"<th>{name}</th>" for name in cells)
        body = "".join(f"<td>{escape(text)}</td>" for text in cells.values())
        return f"<table><tr>{head}</tr><tr>{body}</tr></table>{link_to(self.page)}"

    def _reached(self) -> str:
        """Say the accuracy, and of an unfinished run how far it is."""
        accuracy = format_percent(self.accuracy)
        if self.finished:
            return accuracy
        return f"{accuracy} after {len(self._run.rows)} of {self._run.planned_rounds} rounds"


def read_result(path: str | Path) -> Result:
    """Read the results folder of one run, finished or not."""
    path = Path(path)
    if not is_run(path):
        raise FedDigError(
            f"{path}: holds no run; give the folder of one, which in a comparison is three levels deeper"
        )
    return Result(path)


def spread_rows(rows: Sequence[Mapping[str, Any]], silos: int) -> dict[str, list[Any]]:
    """Return rows of metrics.jsonl as columns; None where a row lacks the column."""
    flat = [dict(_flatten("", _with_each_silo(row, silos))) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    columns = {name: [row.get(name) for row in flat] for name in names if name != "format_version"}
    # a list that is null in some rounds has columns for its entries, and needs none of its own
    lists = {name.rpartition("_")[0] for name in columns if name.rpartition("_")[2].isdecimal()}
    return {
        name: column
        for name, column in columns.items()
        if name not in lists or any(value is not None for value in column)
    }


def _with_each_silo(row: Mapping[str, Any], silos: int) -> dict[str, Any]:
    """Return a row that says of each silo whether it is in a list of silo numbers."""
    listed = {key: set(row[key]) for key in ("present", "recalled") if key in row}
    return {**row, **{key: [silo in found for silo in range(silos)] for key, found in listed.items()}}


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers in nested lists and dictionaries, each with its column."""
    if isinstance(value, Mapping | list):
        name = SHORT_NAMES.get(name, name)
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flatten(f"{name}_{key}" if name else str(key), inner)
    else:
        yield SHORT_NAMES.get(name, name), value


def format_percent(value: float | None) -> str:
    """Format a percentage; a dash if there is none."""
    return "–" if value is None else f"{value:.1f} %"


def link_to(page: Path | None) -> str:
    """Return a link to a report page for a notebook; nothing if there is none."""
    if page is None:
        return ""
    # Jupyter opens paths that are relative to the notebook
    return f'<p><a href="{escape(quote(page.as_posix(), safe="/:"))}" target="_blank">{escape(str(page))}</a></p>'
