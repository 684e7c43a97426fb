"""Compute the numbers that a page's charts are drawn from; they go into the page as one JSON block."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from feddig.report.class_section import class_data, heat_step
from feddig.report.grouping import Curve, Group, all_runs
from feddig.report.read_run import Run

MAX_SILOS = 64
"""Up to this many silos are drawn one by one; more are drawn as shares and quantiles."""
MAX_VALUES = 300_000
"""Validation accuracies in a page; with more, all runs are drawn as quantiles."""
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
NOT_YET, HERE, RECALLED, AWAY = range(4)
"""The states of the absence strip; the script uses the same numbers."""
FIXED_COLOURS = ("feddig", "fedavg")
"""These curves always have the first colours, even where only one of them is present."""
GREY, DASHES = 7, 4
"""The number of the style sheet's last colour, and the number of dash patterns in the script."""
DIGITS = 2
"""Of a percentage: finer than one image of ten thousand."""


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the numbers of all charts: one chart for each group, and the details of each run."""
    runs = all_runs(groups)
    silo_by_silo = sum(run.silos * len(run.rows) for run in runs) <= MAX_VALUES
    step = heat_step(runs)
    curves = [curve for group in groups for curve in group.curves]
    names = list(dict.fromkeys(curve.name for curve in curves if curve.algorithm != "frozen"))
    return {
        "groups": [_group_data(group, names) for group in groups],
        "runs": [
            {**_run_data(run, silo_by_silo=silo_by_silo), "classes": class_data(run, step)} for run in runs
        ],
    }


def _group_data(group: Group, names: Sequence[str]) -> dict[str, Any]:
    first = group.main.runs[0]
    curves = []
    for curve in group.curves:
        low = high = None
        if len(curve.runs) > 1:
            low = [_rounded(min(values, default=None)) for values in curve.by_round]
            high = [_rounded(max(values, default=None)) for values in curve.by_round]
        mean = [_rounded(fmean(values)) if values else None for values in curve.by_round]
        curves.append(
            {
                "name": curve.name,
                **_style(curve, names),
                "seeds": curve.seeds,
                "mean": mean,
                "low": low,
                "high": high,
            }
        )
    return {
        "title": group.title,
        "measured": first.measured_on,
        "rounds": max(run.planned_rounds for curve in group.curves for run in curve.runs),
        "curves": curves,
        "strip": _strip(first),
    }


def _style(curve: Curve, names: Sequence[str]) -> dict[str, int]:
    """Return a curve's colour and dashes, which are the same in every chart of the page."""
    if curve.algorithm == "frozen":
        return {"colour": GREY, "dash": 2}
    if curve.name in FIXED_COLOURS:
        number = FIXED_COLOURS.index(curve.name)
        return {"colour": number, "dash": number}
    number = [name for name in names if name not in FIXED_COLOURS].index(curve.name)
    fixed = len(FIXED_COLOURS)
    return {"colour": fixed + number % (GREY - fixed), "dash": (fixed + number) % DASHES}


def _run_data(run: Run, *, silo_by_silo: bool) -> dict[str, Any]:
    silo_by_silo = silo_by_silo and run.silos <= MAX_SILOS
    table = _validation_by_silo(run)
    return {
        "silos": run.silo_names if run.silos <= MAX_SILOS else [],
        "strip": _strip(run),
        "validation": [[_rounded(value) for value in row] for row in table.tolist()]
        if silo_by_silo
        else None,
        "ribbon": None if silo_by_silo else _quantiles(table),
        "times": split_times(run),
    }


def _validation_by_silo(run: Run) -> np.ndarray:
    """Return validation accuracy as silo x round, NaN where it was not measured."""
    table = np.full((run.silos, len(run.rows)), np.nan)
    for round, row in enumerate(run.validation):
        found = np.array([np.nan if value is None else value for value in row[: run.silos]], dtype=float)
        table[: len(found), round] = found
    return table


def _quantiles(table: np.ndarray) -> list[list[float | None]]:
    """Return the quantiles over silos, one row for each quantile."""
    columns = (column[~np.isnan(column)] for column in table.T)
    found = [
        np.quantile(column, QUANTILES) if column.size else [np.nan] * len(QUANTILES) for column in columns
    ]
    return [[_rounded(float(value)) for value in row] for row in np.transpose(found)] if found else []


def silo_states(run: Run) -> np.ndarray:
    """Return the state of each silo in each round that is done (or planned, if none is done)."""
    if run.absence is None:
        return np.zeros((0, 0), dtype=int)
    rounds = min(run.absence.rounds, len(run.rows)) or run.absence.rounds
    table = np.where(run.absence.away, AWAY, NOT_YET)[:, :rounds]
    table[run.absence.present[:, :rounds]] = HERE
    recalled = run.recalled[:, :rounds]
    table[:, : recalled.shape[1]][recalled] = RECALLED
    return table


def split_into_periods(row: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split a row into periods of equal values: first round, round after the last, value."""
    edges = [0, *(place for place in range(1, len(row)) if row[place] != row[place - 1]), len(row)]
    return [(start, end, int(row[start])) for start, end in pairwise(edges) if end > start]


def _strip(run: Run) -> dict[str, Any]:
    table = silo_states(run)
    if len(table) > MAX_SILOS:
        counts = [(table == state).sum(axis=0).tolist() for state in (NOT_YET, HERE, RECALLED, AWAY)]
        return {"silos": len(table), "names": None, "bars": None, "counts": counts}
    # lengths and states in turn take half the bytes of starts, ends and states
    bars = [
        [number for start, end, state in split_into_periods(row) for number in (end - start, state)]
        for row in table.tolist()
    ]
    return {"silos": len(table), "names": run.silo_names, "bars": bars, "counts": None}


def split_times(run: Run) -> dict[str, list[float]]:
    """Split each round's seconds into silos, recall, joint update and the rest, which is mostly measuring."""

    def column(key: str) -> list[float]:
        return [_seconds(row.get(key)) for row in run.rows]

    silos, recall, joint = column("seconds_silos"), column("seconds_recall"), column("seconds_joint")
    # recall models may train at the same time as the silos; then the parts add up to more than the whole
    rest = [
        max(0.0, whole - sum(parts))
        for whole, *parts in zip(column("seconds"), silos, recall, joint, strict=True)
    ]
    parts = {"silos": silos, "recall": recall, "joint": joint, "rest": rest}
    return {name: [round(value, 4) for value in values] for name, values in parts.items()}


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(value, DIGITS)
