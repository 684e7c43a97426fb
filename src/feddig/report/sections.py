"""The parts of the page that tell one run, in their order.

The parts of the page about a run's silos: validation accuracy, absence and recall, classes.

What a run cost: bytes that silos sent, and time.

Guidance pictures next to class means.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from feddig.report.page_data import AWAY, HERE, MOST_SILOS, RECALLED, split_times, states, stretches
from feddig.report.pictures import as_address, read_pictures
from feddig.report.privacy_section import privacy_box
from feddig.report.read_run import Run
from feddig.report.run_settings import repeat_one
from feddig.report.tables import number_cell, percent_cell, sortable, text_cell


def run_sections(run: Run, number: int) -> str:
    """Tell one run; `number` is its place in the page's JSON block."""
    parts = (
        ("Validation accuracy of each silo", validation_section(run, number)),
        ("Who was away, who was recalled", silos_section(run)),
        ("Which silo holds which class", partition_section(run)),
        ("Guidance", guidance_section(run)),
        ("Privacy", privacy_box(run)),
        ("Bytes sent and time spent", cost_section(run)),
        ("Settings, and how to repeat the run", _settings(run)),
    )
    # by its key a live page knows a part again when another appears before it
    shown = "".join(
        f'<section data-key="{title}"><h3>{title}</h3>{body}</section>' for title, body in parts if body
    )
    return f"{notes(run.notes)}{shown}"


def notes(sentences: Sequence[str]) -> str:
    """Show what is missing."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return (
        f'<div class="notes" role="note" data-key="notes"><b>What is missing</b><ul>{items}</ul></div>'
        if items
        else ""
    )


def _settings(run: Run) -> str:
    if not run.settings:
        return '<p class="faint">experiment.toml is not there.</p>'
    return repeat(*repeat_one(run), versions=_versions(run))


def repeat(settings: str, command: str, versions: str = "") -> str:
    """Show settings to be saved as experiment.toml, and the command that repeats what they gave."""
    return (
        "<p>Save these settings as <code>experiment.toml</code>, then:</p>"
        f"{copied(command, 'command')}"
        f"<details data-print><summary>Settings</summary>{copied(settings, 'settings')}</details>"
        + (f'<p class="caption">{escape(versions)}</p>' if versions else "")
    )


def copied(text: str, what: str) -> str:
    """Show text as it is typed, with a button that copies it."""
    # a command is broken between its words, never within an option
    shown = (
        " ".join(f"<span>{escape(word)}</span>" for word in text.split(" "))
        if what == "command"
        else escape(text)
    )
    return (
        f'<div class="source {what}"><pre tabindex="0">{shown}</pre><button type="button" class="copy" '
        f'data-copy="text" aria-label="copy the {what}">Copy</button><span role="status" class="said"></span></div>'
    )


def _versions(run: Run) -> str:
    versions: Any = run.summary.get("versions")
    if not isinstance(versions, dict):
        return ""
    return f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."


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


def cost_section(run: Run) -> str:
    """Tell what a run cost: bytes sent, and seconds by what they were spent on."""
    digests, updates = sum(bytes_of(run, "digest")), sum(update_bytes(run))
    sent = ""
    if digests or updates:
        sent = (
            f"<p>All silos together sent <b>{spell_bytes(updates)}</b> of updates"
            + (f" and, once, <b>{spell_bytes(digests)}</b> of digests" if digests else " and no digests")
            + ".</p>"
        )
    elif run.finished:
        sent = "<p>Nothing was sent.</p>"
    if not run.rows:
        return sent
    parts = {name: sum(values) for name, values in split_times(run).items()}
    total = sum(parts.values())
    spoken = {
        "silos": "silos",
        "recall": "recall models",
        "joint": "joint update",
        "rest": "measuring and the rest",
    }
    said = "; ".join(f"{spoken[name]} {seconds:,.1f} s" for name, seconds in parts.items())
    bars = "".join(
        f'<span class="part {name}" style="flex-grow:{seconds / total:.4f}"></span>'
        for name, seconds in parts.items()
        if total and seconds / total > 0.001
    )
    device = run.summary.get("device")
    where = f" on {escape(str(device))}" if device else ""
    return (
        f'{sent}<div class="split" role="img" aria-label="{escape(said)}">{bars}</div>'
        f'<ul class="key">'
        + "".join(
            f'<li><i class="part {name}"></i>{spoken[name]} <b>{seconds:,.1f} s</b></li>'
            for name, seconds in parts.items()
        )
        + f'</ul><p class="caption">{len(run.rows)} rounds{where}. Recall models may train beside the silos; then the '
        "parts add up to more than the whole.</p>"
    )


def bytes_of(run: Run, kind: str) -> list[int]:
    """Give what each silo sends as its digest, or as one update."""
    told = run.summary.get("bytes")
    found = told.get(kind) if isinstance(told, dict) else None
    return [each if isinstance(each, int) else 0 for each in found] if isinstance(found, list) else []


def update_bytes(run: Run) -> list[int]:
    """Add up what each silo sent as updates: one in each round that it was there."""
    each = bytes_of(run, "update")
    rounds = run.trained.sum(axis=1).tolist()
    return [size * times for size, times in zip(each, rounds, strict=False)]


def spell_bytes(count: int | None) -> str:
    """Spell a number of bytes for people."""
    if count is None:
        return ""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"


def guidance_section(run: Run) -> str:
    """Show what the guidance producer makes of each class, beside the mean of its images."""
    if not (run.path / "guidance.safetensors").exists():
        return ""
    pictures = read_pictures(run.path, str(run.setting("model.guidance")))
    kinds = [("class mean", pictures.means), ("guidance", pictures.guidance)]
    there = [(title, images) for title, images in kinds if images is not None]
    classes = min((len(images) for _, images in there), default=0)
    names = [*run.classes.names, *(f"class {number}" for number in range(len(run.classes.names), classes))]
    cards = "".join(
        f"<figure>{_pair(there, number)}<figcaption>{escape(names[number])}</figcaption></figure>"
        for number in range(min(classes, MOST_CLASSES))
    )
    order = " beside ".join(title for title, _ in there)
    caption = (
        f"{order[:1].upper()}{order[1:]}: what the guidance producer makes of a class, whose mean feature is "
        "estimated from the digests. It is trained to help the classifier, not to look like the class."
        if pictures.guidance is not None
        else ""
    )
    missing = " ".join(pictures.missing)
    return f'<div class="cards">{cards}</div><p class="caption">{escape(f"{caption} {missing}".strip())}</p>'


def _pair(kinds: Sequence[tuple[str, np.ndarray]], number: int) -> str:
    return "".join(
        f'<img alt="{title}" src="{as_address(images[number])}" width="64" height="64">'
        for title, images in kinds
    )
