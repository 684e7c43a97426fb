"""The parts of the page about a run's silos: validation accuracy, absence and recall, classes."""

from collections.abc import Sequence
from html import escape

import numpy as np

from feddig.report.cost_section import bytes_of, spell_bytes, update_bytes
from feddig.report.page_data import AWAY, HERE, MOST_SILOS, RECALLED, states, stretches
from feddig.report.runs import Run
from feddig.report.sortable import number_cell, percent_cell, sortable, text_cell

MOST_ROWS = 100
"""Silos in a table; a page for a thousand stays readable."""
MOST_STRETCHES = 5
"""Absences of a silo that are told one by one."""
MOST_CLASSES = 128


def validation_section(run: Run, number: int) -> str:
    """Make room for the curves of each silo; `number` is the run's place in the JSON block."""
    if not any(value is not None for row in run.validation for value in row):
        return '<p class="faint">No validation accuracy was measured.</p>'
    caption = (
        "Each panel is a silo; the scale is the same in all. Where the bar under a curve is hatched, a recall model "
        "stood in."
        if run.silos <= MOST_SILOS
        else f"{run.silos:,} silos: median, middle 80 % and extremes in each round."
    )
    return f'<figure data-chart="validation" data-run="{number}"></figure><p class="caption">{caption}</p>'


def silos_section(run: Run) -> str:
    """Tabulate the silos: when they were away and recalled, how good the model is for them, what they sent."""
    if not run.silos:
        return ""
    table = states(run)
    kept = [("test_split", "own test"), ("digest", "digest"), ("updates", "updates")]
    tests, digests, updates = _tests(run), bytes_of(run, "digest"), update_bytes(run)
    known = {"test_split": bool(tests), "digest": any(digests), "updates": bool(updates)}
    heads = [
        "silo",
        "samples",
        "rounds there",
        "away",
        "recalled",
        "validation",
    ]
    heads += [title for key, title in kept if known[key]]
    rows = []
    last = run.validation[-1] if run.validation else []
    for silo in range(min(run.silos, MOST_ROWS)):
        size = run.classes.sizes[silo] if silo < len(run.classes.sizes) else None
        cells = [
            text_cell(run.silo_names[silo]),
            number_cell(size, f"{size:,}" if size is not None else ""),
            number_cell(there := int((table[silo] == HERE).sum()), str(there)),
            text_cell(_ranges(table[silo], (AWAY, RECALLED))),
            text_cell(_ranges(table[silo], (RECALLED,))),
            percent_cell(last[silo] if silo < len(last) else None),
        ]
        if known["test_split"]:
            cells.append(percent_cell(tests[silo] if silo < len(tests) else None))
        for key, values in (("digest", digests), ("updates", updates)):
            if known[key]:
                count = values[silo] if silo < len(values) else None
                cells.append(number_cell(count, spell_bytes(count)))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    caption = (
        "Training samples; rounds there; rounds away and recalled; accuracy in percent of the last model on its "
        "validation and test images; bytes that it sent."
    )
    caption += f" The first {MOST_ROWS} of {run.silos:,} silos." if run.silos > MOST_ROWS else ""
    return f'{sortable(heads, rows, "silos", texts=(0, 3, 4))}<p class="caption">{caption}</p>'


def _ranges(row: np.ndarray, wanted: Sequence[int]) -> str:
    """Spell the rounds of these states, as 13–19, 25."""
    found = [(start, end) for start, end, is_wanted in stretches(np.isin(row, wanted).tolist()) if is_wanted]
    told = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in found[:MOST_STRETCHES]]
    more = len(found) - MOST_STRETCHES
    return ", ".join(told) + (f" and {more} more time{'' if more == 1 else 's'}" if more > 0 else "")


def _tests(run: Run) -> list[float | None]:
    found = run.summary.get("silo_test_accuracy")
    if not isinstance(found, list):
        return []
    return [float(value) if isinstance(value, int | float) else None for value in found]


def partition_section(run: Run) -> str:
    """Tabulate training samples by silo and class, the more the darker."""
    counts, names = run.classes.counts, list(run.classes.names)
    if counts is None:
        return f'<p class="faint">{escape(run.classes.told)}</p>'
    most = max(1, int(counts.max()))
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names[:MOST_CLASSES])
    rows = []
    for silo, row in enumerate(counts[:MOST_SILOS]):
        cells = "".join(
            f'<td style="--share:{count / most:.2f}">{count or ""}</td>'
            for count in row[:MOST_CLASSES].tolist()
        )
        name = run.silo_names[silo] if silo < run.silos else f"silo {silo}"
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    cut = f" Shown are {MOST_SILOS} of {len(counts):,} silos." if len(counts) > MOST_SILOS else ""
    cut += f" Shown are {MOST_CLASSES} of {len(names):,} classes." if len(names) > MOST_CLASSES else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="silo by class"><table class="heat">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="caption">{escape(run.classes.told)}{cut}</p>'
    )
