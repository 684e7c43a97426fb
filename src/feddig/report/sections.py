"""Build the sections of a page that describe one run."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from feddig.report.class_section import MAX_CLASSES, class_section
from feddig.report.html_parts import (
    head_cell,
    number_cell,
    percent_cell,
    png_url,
    repeat_instructions,
    sortable_table,
    text_cell,
)
from feddig.report.page_data import (
    AWAY,
    HERE,
    MAX_SILOS,
    RECALLED,
    silo_states,
    split_into_periods,
    split_times,
)
from feddig.report.pictures import image_png, read_class_pictures
from feddig.report.privacy_section import privacy_section
from feddig.report.read_run import Run, repeat_run
from feddig.report.run_files import finite

MAX_ROWS = 100
"""Silos in a table."""
MAX_PERIODS = 5
"""Absences of a silo that are listed one by one."""


def run_sections(run: Run, number: int) -> str:
    """Return all sections about a run; `number` is the run's place in the page's JSON block."""
    parts = (
        ("Validation accuracy of each silo", _validation_section(run, number)),
        ("Absence and recall of each silo", _silos_section(run)),
        ("Accuracy of each class", class_section(run, number)),
        ("Training samples of each silo and class", _classes_section(run)),
        ("Guidance", _guidance_section(run)),
        ("Privacy", privacy_section(run)),
        ("Bytes sent and time spent", _cost_section(run)),
        ("Settings, and how to repeat the run", _settings_section(run)),
    )
    # a live page recognises a section by its key when another appears before it
    shown = "".join(
        f'<section data-key="{title}"><h3>{title}</h3>{body}</section>' for title, body in parts if body
    )
    return f"{_notes(run)}{shown}"


def _notes(run: Run) -> str:
    if not run.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    return f'<div class="notes" role="note" data-key="notes"><b>Missing or damaged</b><ul>{items}</ul></div>'


def _validation_section(run: Run, number: int) -> str:
    if not any(value is not None for row in run.validation for value in row):
        return '<p class="faint">No validation accuracy was measured.</p>'
    caption = (
        "One panel for each silo, all on the same scale. Where the bar under a curve is hatched, a recall model "
        "replaced the silo."
        if run.silos <= MAX_SILOS
        else f"{run.silos:,} silos: median, middle 80 % and extremes in each round."
    )
    return f'<figure data-chart="validation" data-run="{number}"></figure><p class="caption">{caption}</p>'


def _silos_section(run: Run) -> str:
    if not run.silos:
        return ""
    states = silo_states(run)
    tests, digests, updates = _silo_tests(run), _bytes_sent(run, "digest"), _update_bytes(run)
    sent = {"digest": digests if any(digests) else [], "updates": updates}
    heads = ["silo", "samples", "rounds here", "away", "recalled", "validation"]
    heads += ["own test"] if tests else []
    heads += [name for name, sizes in sent.items() if sizes]
    last = run.validation[-1] if run.validation else []
    rows = []
    for silo in range(min(run.silos, MAX_ROWS)):
        size = _at(run.classes.sizes, silo)
        rounds_here = int((states[silo] == HERE).sum())
        cells = [
            text_cell(run.silo_names[silo]),
            number_cell(size, "" if size is None else f"{size:,}"),
            number_cell(rounds_here, str(rounds_here)),
            text_cell(_format_rounds(states[silo], (AWAY, RECALLED))),
            text_cell(_format_rounds(states[silo], (RECALLED,))),
            percent_cell(_at(last, silo)),
        ]
        if tests:
            cells.append(percent_cell(_at(tests, silo)))
        cells += [
            number_cell(_at(sizes, silo), _format_bytes(_at(sizes, silo))) for sizes in sent.values() if sizes
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    caption = (
        "Training samples; number of rounds in which the silo was here; rounds in which it was away and recalled; "
        "accuracy in percent of the last model on its validation and test images; bytes that it sent."
    )
    caption += f" The first {MAX_ROWS} of {run.silos:,} silos." if run.silos > MAX_ROWS else ""
    table = sortable_table(heads, rows, "silos", text_columns=(0, 3, 4))
    return f'{table}<p class="caption">{caption}</p>'


def _at(values: Sequence[Any], silo: int) -> Any:
    return values[silo] if silo < len(values) else None


def _format_rounds(row: np.ndarray, wanted: Sequence[int]) -> str:
    """Return the rounds of these states as text, such as 13–19, 25."""
    found = [
        (start, end)
        for start, end, is_wanted in split_into_periods(np.isin(row, wanted).tolist())
        if is_wanted
    ]
    texts = [str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in found[:MAX_PERIODS]]
    more = len(found) - MAX_PERIODS
    return ", ".join(texts) + (f" and {more} more time{'' if more == 1 else 's'}" if more > 0 else "")


def _silo_tests(run: Run) -> list[float | None]:
    found = run.summary.get("silo_test_accuracy")
    return [finite(value) for value in found] if isinstance(found, list) else []


def _classes_section(run: Run) -> str:
    counts, names = run.classes.counts, list(run.classes.names)
    if counts is None:
        return f'<p class="faint">{escape(run.classes.source)}</p>'
    most = max(1, int(counts.max()))
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names[:MAX_CLASSES])
    rows = []
    for silo, row in enumerate(counts[:MAX_SILOS]):
        cells = "".join(
            f'<td style="--share:{count / most:.2f}">{count or ""}</td>'
            for count in row[:MAX_CLASSES].tolist()
        )
        name = run.silo_names[silo] if silo < run.silos else f"silo {silo}"
        rows.append(f"<tr>{head_cell(name)}{cells}</tr>")
    cut = f" The first {MAX_SILOS} of {len(counts):,} silos." if len(counts) > MAX_SILOS else ""
    cut += f" The first {MAX_CLASSES} of {len(names):,} classes." if len(names) > MAX_CLASSES else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="silo by class"><table class="heat">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="caption">{escape(run.classes.source)}{cut}</p>'
    )


def _guidance_section(run: Run) -> str:
    if not (run.path / "guidance.safetensors").exists():
        return ""
    pictures = read_class_pictures(run.path, str(run.setting("model.guidance")))
    columns = [("class mean", pictures.means), ("guidance", pictures.guidance)]
    shown = [(title, images) for title, images in columns if images is not None]
    classes = min((len(images) for _, images in shown), default=0)
    names = [*run.classes.names, *(f"class {number}" for number in range(len(run.classes.names), classes))]
    cards = []
    for number in range(min(classes, MAX_CLASSES)):
        images = "".join(
            f'<img alt="{title}" src="{png_url(image_png(images[number]))}" width="64" height="64">'
            for title, images in shown
        )
        cards.append(f"<figure>{images}<figcaption>{escape(names[number])}</figcaption></figure>")
    order = " beside ".join(title for title, _ in shown)
    caption = (
        f"{order[:1].upper()}{order[1:]}: what the guidance producer makes of a class, whose mean feature is "
        "estimated from the digests. It is trained to help the classifier, not to look like the class."
        if pictures.guidance is not None
        else ""
    )
    text = f"{caption} {' '.join(pictures.missing)}".strip()
    return f'<div class="cards">{"".join(cards)}</div><p class="caption">{escape(text)}</p>'


def _cost_section(run: Run) -> str:
    digests, updates = sum(_bytes_sent(run, "digest")), sum(_update_bytes(run))
    sent = ""
    if digests or updates:
        sent = (
            f"<p>All silos together sent <b>{_format_bytes(updates)}</b> of updates"
            + (f" and, once, <b>{_format_bytes(digests)}</b> of digests" if digests else " and no digests")
            + ".</p>"
        )
    elif run.finished:
        sent = "<p>Nothing was sent.</p>"
    if not run.rows:
        return sent
    parts = {name: sum(values) for name, values in split_times(run).items()}
    total = sum(parts.values())
    labels = {
        "silos": "silos",
        "recall": "recall models",
        "joint": "joint update",
        "rest": "measuring and the rest",
    }
    summary = "; ".join(f"{labels[name]} {seconds:,.1f} s" for name, seconds in parts.items())
    bars = "".join(
        f'<span class="part {name}" style="flex-grow:{seconds / total:.4f}"></span>'
        for name, seconds in parts.items()
        if total and seconds / total > 0.001
    )
    legend = "".join(
        f'<li><i class="part {name}"></i>{labels[name]} <b>{seconds:,.1f} s</b></li>'
        for name, seconds in parts.items()
    )
    device = run.summary.get("device")
    where = f" on {escape(str(device))}" if device else ""
    return (
        f'{sent}<div class="split" role="img" aria-label="{escape(summary)}">{bars}</div>'
        f'<ul class="key">{legend}</ul><p class="caption">{len(run.rows)} rounds{where}. Recall models may train at '
        "the same time as the silos; then the parts add up to more than the whole.</p>"
    )


def _bytes_sent(run: Run, kind: str) -> list[int]:
    """Return what each silo sends as its digest, or as one update."""
    stored = run.summary.get("bytes")
    found = stored.get(kind) if isinstance(stored, dict) else None
    return [each if isinstance(each, int) else 0 for each in found] if isinstance(found, list) else []


def _update_bytes(run: Run) -> list[int]:
    """Return what each silo sent as updates: one update in each round in which it was present."""
    rounds = run.trained.sum(axis=1).tolist()
    return [size * count for size, count in zip(_bytes_sent(run, "update"), rounds, strict=False)]


def _format_bytes(count: int | None) -> str:
    if count is None:
        return ""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"


def _settings_section(run: Run) -> str:
    if not run.settings:
        return '<p class="faint">experiment.toml is missing.</p>'
    versions = run.summary.get("versions")
    made_with = (
        f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."
        if isinstance(versions, dict)
        else ""
    )
    return repeat_instructions(*repeat_run(run), made_with)
