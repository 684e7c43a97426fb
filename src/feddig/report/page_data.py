"""The numbers behind the page's charts, as the JSON block that its script draws them from."""

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from feddig.report.grouping import Curve, Group
from feddig.report.read_run import Run

MOST_SILOS = 64
"""Up to so many silos are drawn one by one; more are drawn as shares and quantiles."""
MOST_VALUES = 300_000
"""Validation accuracies in a page; with more, runs are drawn by their quantiles."""
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
NOT_YET, HERE, RECALLED, AWAY = range(4)
"""The states of the absence strip, as the script knows them."""
USUAL = ("feddig", "fedavg")
"""The curves that have the first colours, whether they are there or not."""
GREY, DASHES = 7, 4
"""The last of the style sheet's colours, and how many kinds of dashes the script draws."""
DIGITS = 2
"""Of a percentage: finer than one image of ten thousand."""


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Gather what the charts show: a chart for each group, and the details of each run."""
    runs = all_runs(groups)
    one_by_one = sum(run.silos * len(run.rows) for run in runs) <= MOST_VALUES
    curves = [curve for group in groups for curve in group.curves]
    names = list(dict.fromkeys(curve.name for curve in curves if curve.algorithm != "frozen"))
    return {
        "groups": [_group(group, names) for group in groups],
        "runs": [_details(run, one_by_one=one_by_one) for run in runs],
    }


def all_runs(groups: Sequence[Group]) -> list[Run]:
    """List the runs in the page's order."""
    return [run for group in groups for curve in group.curves for run in curve.runs]


def as_json_block(data: Any) -> str:
    """Spell data so that nothing in it can end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _group(group: Group, names: Sequence[str]) -> dict[str, Any]:
    first = group.main.runs[0]
    curves = []
    for curve in group.curves:
        several = len(curve.runs) > 1
        curves.append(
            {
                "name": curve.name,
                **_look(curve, names),
                "seeds": curve.seeds,
                "mean": [_rounded(fmean(values)) if values else None for values in curve.by_round],
                "low": [_rounded(min(values, default=None)) for values in curve.by_round]
                if several
                else None,
                "high": [_rounded(max(values, default=None)) for values in curve.by_round]
                if several
                else None,
            }
        )
    return {
        "title": group.title,
        "measured": first.measured_on,
        "rounds": max(run.planned for curve in group.curves for run in curve.runs),
        "curves": curves,
        "strip": _strip(first),
    }


def _look(curve: Curve, names: Sequence[str]) -> dict[str, int]:
    """Give a curve the same colour and dashes in every chart of the page, and the usual ones in every page."""
    if curve.algorithm == "frozen":
        return {"colour": GREY, "dash": 2}
    if curve.name in USUAL:
        return {"colour": USUAL.index(curve.name), "dash": USUAL.index(curve.name)}
    place = [name for name in names if name not in USUAL].index(curve.name)
    return {
        "colour": len(USUAL) + place % (GREY - len(USUAL)),
        "dash": (len(USUAL) + place) % DASHES,
    }


def _details(run: Run, *, one_by_one: bool) -> dict[str, Any]:
    is_each = one_by_one and run.silos <= MOST_SILOS
    table = _by_silo(run)
    return {
        "silos": run.silo_names if run.silos <= MOST_SILOS else [],
        "strip": _strip(run),
        "validation": [[_rounded(value) for value in row] for row in table.tolist()] if is_each else None,
        "ribbon": None if is_each else _ribbon(table),
        "times": split_times(run),
    }


def _by_silo(run: Run) -> np.ndarray:
    """Lay validation accuracy out as silo x round, not a number where it was not measured."""
    table = np.full((run.silos, len(run.rows)), np.nan)
    for round, row in enumerate(run.validation):
        found = np.array([np.nan if value is None else value for value in row[: run.silos]], dtype=float)
        table[: len(found), round] = found
    return table


def _ribbon(table: np.ndarray) -> list[list[float | None]]:
    """Give quantiles over silos, a row each."""
    columns = (column[~np.isnan(column)] for column in table.T)
    found = [
        np.quantile(column, QUANTILES) if column.size else [np.nan] * len(QUANTILES) for column in columns
    ]
    return [[_rounded(float(value)) for value in row] for row in np.transpose(found)] if found else []


def states(run: Run) -> np.ndarray:
    """Say of each silo and round done (or planned, if none is done) what the strip shows."""
    if run.absence is None:
        return np.zeros((0, 0), dtype=int)
    rounds = min(run.absence.rounds, len(run.rows)) or run.absence.rounds
    table = np.where(run.absence.away, AWAY, NOT_YET)[:, :rounds]
    table[run.absence.present[:, :rounds]] = HERE
    recalled = run.recalled[:, :rounds]
    table[:, : recalled.shape[1]][recalled] = RECALLED
    return table


def stretches(row: Sequence[int]) -> list[tuple[int, int, int]]:
    """Cut a silo's states into stretches: first round, round after the last, state."""
    edges = [0, *(place for place in range(1, len(row)) if row[place] != row[place - 1]), len(row)]
    return [(start, end, int(row[start])) for start, end in pairwise(edges) if end > start]


def _strip(run: Run) -> dict[str, Any]:
    table = states(run)
    if len(table) > MOST_SILOS:
        counts = [(table == state).sum(axis=0).tolist() for state in (NOT_YET, HERE, RECALLED, AWAY)]
        return {"silos": len(table), "names": None, "bars": None, "counts": counts}
    # lengths and states in turn: half as many bytes as where each stretch begins and ends
    bars = [
        [number for start, end, state in stretches(row) for number in (end - start, state)]
        for row in table.tolist()
    ]
    return {"silos": len(table), "names": run.silo_names, "bars": bars, "counts": None}


def split_times(run: Run) -> dict[str, list[float]]:
    """Split each round's seconds: waiting for silos, recall, joint update, and the rest, measuring mostly."""

    def column(key: str) -> list[float]:
        return [_seconds(row.get(key)) for row in run.rows]

    silos, recall, joint = column("seconds_silos"), column("seconds_recall"), column("seconds_joint")
    # recall models may train beside the silos, and then the parts add up to more than the whole
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
