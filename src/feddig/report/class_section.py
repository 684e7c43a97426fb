"""Show the accuracy of each class over rounds: which silo held the class, and did the class survive its leaving?"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from feddig.report.curve_styles import CurveStyle
from feddig.report.html_parts import head_cell, number_cell, percent_cell, sortable_table, text_cell
from feddig.report.measures import SHOWN, say_measures, wilson_interval
from feddig.report.read_run import Run
from feddig.report.run_files import COUNTED, finite

MAX_CLASSES = 128
"""Classes that are drawn and listed."""
FEW_CLASSES = 4
"""Up to this many classes are drawn as lines, more as a heat map."""
MAX_VALUES = 50_000
"""Accuracies in all heat maps of a page; with more, each map shows only some of its rounds."""


NO_BREAK = "\u00a0"
"""A space at which no line breaks."""


@dataclass(frozen=True)
class ClassFate:
    """What became of a class; None where something is not known."""

    name: str
    holder: int | None
    """The silo that held most of its training samples."""
    share: float | None
    """The share of these samples that this silo held, in percent."""
    before: float | None
    """Its accuracy in percent, of the model before the first leave of any silo."""
    end: float | None
    interval: tuple[float, float] | None

    @property
    def change(self) -> float | None:
        """Points from the first leave to the end."""
        return None if self.before is None or self.end is None else self.end - self.before


def class_curves(run: Run) -> list[list[float | None]]:
    """Return the accuracy of each class in percent, class x round; empty where no round has it."""
    rows = [row.get("class_accuracy") for row in run.rows]
    known = [row for row in rows if isinstance(row, list)]
    classes = len(known[-1]) if known else 0
    return [
        [finite(row[number]) if isinstance(row, list) and number < len(row) else None for row in rows]
        for number in range(min(classes, MAX_CLASSES))
    ]


def heat_step(runs: Sequence[Run]) -> int:
    """Return how many rounds a column of the page's heat maps stands for."""
    curves = map(class_curves, runs)
    values = sum(len(each) * len(each[0]) for each in curves if len(each) > FEW_CLASSES)
    return max(1, -(-values // MAX_VALUES))


def class_data(run: Run, step: int) -> dict[str, Any] | None:
    """Return the numbers of a run's chart; of a heat map in whole percent, one column for `step` rounds."""
    curves = class_curves(run)
    if not curves:
        return None
    lines, rounds = len(curves) <= FEW_CLASSES, len(run.rows)
    step = 1 if lines else step
    # the last round of each step, so that the chart ends with the last round
    shown = [min(start + step, rounds) - 1 for start in range(0, rounds, step)]
    values = [[_rounded(row[at], 1 if lines else None) for at in shown] for row in curves]
    fates = class_fates(run)
    return {
        "lines": lines,
        # the palette's first colours, each with a pattern of its own
        "dashes": [CurveStyle(number, number).css_dash for number in range(len(curves))] if lines else None,
        "names": [fate.name for fate in fates],
        "holders": [_describe_holder(run, fate) for fate in fates],
        "left": [_first_leave(run, fate.holder) for fate in fates],
        "rounds": rounds,
        "step": step,
        "values": values,
    }


def _rounded(value: float | None, digits: int | None) -> float | None:
    return None if value is None else round(value, digits)


def class_fates(run: Run) -> list[ClassFate]:
    """Return what became of each class."""
    curves, (names, counts, tests) = class_curves(run), _known(run)
    leave = _begin_of_absence(run)
    fates = []
    for number, curve in enumerate(curves):
        holder = share = interval = None
        if counts is not None and (total := int(counts[:, number].sum())):
            holder = int(counts[:, number].argmax())
            share = 100 * int(counts[holder, number]) / total
        end = curve[-1]
        if end is not None and number < len(tests) and tests[number]:
            interval = wilson_interval(end, tests[number])
        before = curve[leave - 1] if leave else None
        fates.append(ClassFate(names[number], holder, share, before, end, interval))
    return fates


def class_section(run: Run, number: int) -> str:
    """Return the chart and the table of classes; `number` is the run's place in the page's JSON block."""
    fates = class_fates(run)
    if not fates:
        return ""
    drawn = f'<figure data-chart="classes" data-run="{number}"></figure>'
    sentences = " ".join((_describe_whole(run), _describe_loss(run, fates)))
    return f"<p>{sentences}</p>{drawn}{_caption(run, fates)}{_table(run, fates)}"


def _known(run: Run) -> tuple[Sequence[str], np.ndarray | None, Sequence[int]]:
    """Return names, training samples (silo x class) and test images, as far as they fit the measured classes."""
    classes = max((len(row.get("class_accuracy") or ()) for row in run.rows), default=0)
    found = run.classes
    names = found.names if len(found.names) == classes else [f"class {each}" for each in range(classes)]
    fits = found.counts is not None and found.counts.shape[1] == classes and len(found.counts) <= run.silos
    # noise on the labels of digests can make a count negative
    counts = found.counts.clip(0) if found.counts is not None and fits else None
    return names, counts, found.tests if len(found.tests) == classes else ()


def _begin_of_absence(run: Run) -> int | None:
    """Return the round of the first leave, if that round is done."""
    leave = None if run.absence is None else run.absence.first_leave()
    return leave if leave is not None and leave < len(run.rows) else None


def _leaves(run: Run, silo: int) -> list[tuple[int, int]]:
    """Return when a silo that had trained was away, as first round and round after the last, in the rounds done."""
    if run.absence is None:
        return []
    row = run.absence.present[silo, : len(run.rows)]
    # before its first training it was not away, it had not come yet
    away = np.logical_or.accumulate(row) & ~row
    edges = np.flatnonzero(np.diff(away.astype(int), prepend=0, append=0))
    return [(int(start), int(end)) for start, end in list(pairwise(edges))[::2]]


def _first_leave(run: Run, silo: int | None) -> int | None:
    leaves = [] if silo is None else _leaves(run, silo)
    return leaves[0][0] if leaves else None


def _describe_leaves(run: Run, silo: int) -> str:
    if run.absence is not None and not run.absence.present[silo, : len(run.rows)].any():
        return "has not trained"
    leaves = _leaves(run, silo)
    if not leaves:
        return "stayed"
    (start, end), more = leaves[0], len(leaves) - 1
    text = str(start) if end >= len(run.rows) else f"{start}, back at {end}"
    return text + (f" and {more} more time{'' if more == 1 else 's'}" if more else "")


def _describe_holder(run: Run, fate: ClassFate) -> str | None:
    if fate.holder is None:
        return None
    return f"{run.silo_names[fate.holder]} held {fate.share:.0f} %"


def _describe_whole(run: Run) -> str:
    """Say how the last model does on all classes together."""
    last, tests = run.rows[-1], _known(run)[2]
    accuracy = finite(last.get("test_accuracy"))
    # rows of older releases have no intervals
    own = None if accuracy is None or not sum(tests) else wilson_interval(accuracy, sum(tests))
    intervals = {"accuracy": own, **(last.get("intervals") or {})}
    values = {key: finite(last.get("test_accuracy" if key == "accuracy" else key)) for key, *_ in SHOWN}
    parts = [
        f"{title} <b>{value.replace(' ', NO_BREAK)}</b>" + (f" (95 % interval {ends})" if ends else "")
        for title, value, ends in say_measures(values, intervals)
    ]
    return f"{'At the end' if run.finished else 'So far'}: {', '.join(parts)}." if parts else ""


def _describe_loss(run: Run, fates: Sequence[ClassFate]) -> str:
    """Say which class lost most since the first leave."""
    changes = [(change, fate) for fate in fates if (change := fate.change) is not None]
    if not changes:
        return ""
    fallen = sum(change < 0 for change, _ in changes)
    if not fallen:
        return "No class is below its accuracy before the first leave."
    change, fate = min(changes, key=lambda each: each[0])
    about = f"{_signed(change)} points"
    if fate.holder is not None and (left := _first_leave(run, fate.holder)) is not None:
        about += f"; {_describe_holder(run, fate)} of it and left at round {left}"
    which = (
        "is below its accuracy before the first leave:"
        if fallen == 1
        else "are below their accuracy before the first leave, most of all"
    )
    return f"{fallen} of {len(changes)} classes {which} “{escape(fate.name)}” ({escape(about)})."


def _caption(run: Run, fates: Sequence[ClassFate]) -> str:
    lines = len(fates) <= FEW_CLASSES
    text = "Percent of each class’s test images that the model gets right; below, which silos were here."
    if any(_first_leave(run, fate.holder) is not None for fate in fates):
        mark = "A circle on a line" if lines else "A bar in a row"
        text += f" {mark}: the silo that held most of that class leaves."
    text += _cut(run)
    return f'<p class="caption">{escape(text)} <span class="hint">Arrow keys move the marker.</span></p>'


def _cut(run: Run) -> str:
    classes = max(len(row.get("class_accuracy") or ()) for row in run.rows)
    return f" The first {MAX_CLASSES} of {classes:,} classes." if classes > MAX_CLASSES else ""


def _table(run: Run, fates: Sequence[ClassFate]) -> str:
    held = any(fate.holder is not None for fate in fates)
    left = _begin_of_absence(run) is not None
    # a holder that never trained has not left, but the class was not learnt from it either
    told = left or any(
        fate.holder is not None and _describe_leaves(run, fate.holder) != "stayed" for fate in fates
    )
    measured = any(fate.interval is not None for fate in fates)
    heads = ["class"]
    heads += ["held most", "its share", *(["left at"] if told else [])] if held else []
    heads += ["before 1st leave"] if left else []
    heads += ["at the end" if run.finished else "so far"]
    heads += ["95 % interval"] if measured else []
    heads += ["change"] if left else []
    rows = []
    for fate in fates:
        cells = [head_cell(fate.name)]
        if held:
            known = fate.holder is not None
            cells.append(text_cell(run.silo_names[fate.holder] if fate.holder is not None else ""))
            cells.append(number_cell(fate.share, f"{fate.share:.0f} %" if known else ""))
            if told:
                cells.append(text_cell("" if fate.holder is None else _describe_leaves(run, fate.holder)))
        if left:
            cells.append(percent_cell(fate.before))
        cells.append(percent_cell(fate.end))
        if measured:
            interval = "" if fate.interval is None else "{:.1f}–{:.1f}".format(*fate.interval)
            cells.append(f'<td class="interval">{interval}</td>')
        if left:
            change = fate.change
            value = None if change is None else round(change, 3)
            cells.append(number_cell(value, "" if value is None else _signed(value)))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    texts = [
        place
        for place, head in enumerate(heads)
        if head in ("class", "held most", "left at", "95 % interval")
    ]
    caption = "Accuracy in percent."
    if held:
        caption += " “held most” is the silo with the largest share of the class’s training samples."
        caption += "" if run.classes.source == COUNTED else f" {run.classes.source}"
    if measured:
        caption += (
            " The interval follows from the number of test images alone; another seed may lie outside it."
        )
    return f'{sortable_table(heads, rows, "classes", texts)}<p class="caption">{escape(caption)}</p>'


def _signed(points: float) -> str:
    # a true minus sign is as wide as a plus
    return f"{points:+.1f}".replace("-", "−")
