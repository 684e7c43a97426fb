"""An audit's folder: its figures in audit.json, its pictures, and the page that is made of both.

An audit's pictures: membership curves, and members beside what attacks recovered.

The tables of an audit's page: figures with their intervals and chance levels, and facts.

An audit as a page of the same kind as a run's: it opens offline, and all that users named is escaped.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullFormatter

from feddig.errors import FedDigError
from feddig.files import FORMAT_VERSION, write_atomically
from feddig.report.figures import COLOURS, STYLES, colour_of, show_light
from feddig.report.html_parts import OFFLINE
from feddig.report.run_files import read_object
from feddig.report.sections import copied
from feddig.report.tables import number_cell, sortable

FIGURES = "audit.json"
PAGE = "report.html"
PICTURES = {"membership": "membership.png", "inversion": "recovered.png"}
"""By the check that a picture belongs to: its file. The second shows members' own images."""


def is_audit(folder: Path) -> bool:
    """Say whether a folder is an audit's."""
    return (folder / FIGURES).is_file()


def write_audit(folder: Path, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> Path:
    """Write an audit's files, audit.json last: with it the audit is there. Give the page's place."""
    for name, png in pictures.items():
        write_atomically(folder / PICTURES[name], png)
    write_atomically(folder / PAGE, audit_page(report, pictures))
    write_atomically(folder / FIGURES, json.dumps(report, indent=2, allow_nan=False) + "\n")
    return folder / PAGE


def rebuild_page(folder: Path, out: Path | None = None) -> Path:
    """Make an audit's page again from its figures and pictures; pictures that are gone are left out."""
    report = read_object(folder / FIGURES)
    if isinstance(report, str):
        raise FedDigError(f"{folder}: {report}")
    files = {name: folder / file for name, file in PICTURES.items()}
    try:
        page = audit_page(report, {name: file.read_bytes() for name, file in files.items() if file.is_file()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedDigError(f"{folder}: {FIGURES} is damaged ({error!r}); make the audit again") from error
    place = out or folder / PAGE
    write_atomically(place, page)
    return place


FEWEST = 1e-3
"""The left end of the curves, whose axis is logarithmic: what counts is few false alarms."""
GAP = 2
"""Pixels between images."""


def draw_membership(curves: Mapping[str, np.ndarray]) -> bytes:
    """Draw true over false positives, a curve for each score."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, points) in enumerate(curves.items()):
        axes.plot(
            np.maximum(points[:, 0], FEWEST),
            points[:, 1],
            color=COLOURS[place % len(COLOURS)],
            linestyle=STYLES[place % len(STYLES)],
            linewidth=2,
            label=name,
            drawstyle="steps-post",
        )
    chance = np.geomspace(FEWEST, 1, 100)
    axes.plot(chance, chance, color="#888888", linewidth=1, label="chance")
    axes.set_xscale("log")
    # spelled by hand: powers of ten would need mathematical fonts
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(FEWEST, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("strangers taken for members (logarithmic)")
    axes.set_ylabel("members found (share)")
    axes.grid(alpha=0.25)
    # under the curves, which may be anywhere between the axes
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return _png(figure)


def draw_recovered(pictures: Mapping[str, np.ndarray]) -> bytes:
    """Draw a row for each digest: its members, then what each attack made of it."""
    columns = {name: _column(images) for name, images in pictures.items()}
    widths = [column.shape[1] for column in columns.values()]
    height = next(iter(columns.values())).shape[0]
    inches = 12 / sum(widths)
    figure = Figure(figsize=(12.6, height * inches + 0.9), layout=ConstrainedLayoutEngine(w_pad=0.06))
    row = figure.subplots(1, len(columns), width_ratios=widths, squeeze=False)[0]
    for axes, (name, column) in zip(row, columns.items(), strict=True):
        axes.imshow(column, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=9)
        axes.set_axis_off()
    return _png(figure)


def _column(images: np.ndarray) -> np.ndarray:
    """Lay [rows, images in a row, channels, height, width] out as one picture, white between images."""
    rows, across, channels, height, width = images.shape
    canvas = np.ones((rows * (height + GAP) - GAP, across * (width + GAP) - GAP, channels), dtype=np.float32)
    for row in range(rows):
        for place in range(across):
            top, left = row * (height + GAP), place * (width + GAP)
            canvas[top : top + height, left : left + width] = images[row, place].transpose(1, 2, 0)
    return canvas if channels == 3 else canvas[..., 0]


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    # no date or version inside: the same audit draws the same bytes
    figure.savefig(
        stream, format="png", dpi=100, metadata={"Software": f"feddig, format_version {FORMAT_VERSION}"}
    )
    return stream.getvalue()


HEADS = ("figure", "value", "interval", "chance or baseline", "p", "0 to 1")
TEXTS = (0, 2, 5)
"""The columns that are no numbers to sort by."""


def figures_table(name: str, figures: Sequence[Mapping[str, Any]], beyond: Sequence[str]) -> str:
    """Tabulate what a check measured; figures beyond chance are bold."""
    if not figures:
        return ""
    rows = (_row(each, is_beyond=each["name"] in beyond) for each in figures)
    return sortable(HEADS, rows, name, texts=TEXTS)


def _row(figure: Mapping[str, Any], *, is_beyond: bool) -> str:
    value, chance, tail = figure["value"], figure["chance"], figure["p_value"]
    cells = (
        f'<th scope="row">{escape(figure["name"])}</th>',
        number_cell(_float(value), spell(value)),
        f'<td class="interval">{_interval(figure["interval"])}</td>',
        number_cell(_float(chance), spell(chance)),
        number_cell(_float(tail), "< 0.0001" if isinstance(tail, float) and tail < 1e-4 else spell(tail)),
        f"<td>{_line(figure)}</td>",
    )
    return f"<tr{' class=beyond' if is_beyond else ''}>{''.join(cells)}</tr>"


def _line(figure: Mapping[str, Any]) -> str:
    """Draw a share on a line from 0 to 1: its interval, itself, and chance as a tick."""
    value, interval, chance = figure["value"], figure["interval"], figure["chance"]
    numbers = [value, *(interval or [])]
    if interval is None or not all(
        isinstance(each, float | int) and -0.01 <= each <= 1.01 for each in numbers
    ):
        return ""
    low, high = (100 * min(1.0, max(0.0, each)) for each in interval)
    tick = (
        f'<line x1="{100 * chance:.2f}" x2="{100 * chance:.2f}" y1="0" y2="12" class="chance"/>'
        if isinstance(chance, float | int) and 0 <= chance <= 1
        else ""
    )
    return (
        '<svg class="share" viewBox="-3 0 106 12" role="img" aria-label="value, interval and chance on a line from '
        '0 to 1"><line x1="0" x2="100" y1="6" y2="6" class="whole"/>'
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6" class="between"/>{tick}'
        f'<circle cx="{100 * value:.2f}" cy="6" r="3"/></svg>'
    )


def facts_table(facts: Mapping[str, Any]) -> str:
    """Tabulate facts by name, whatever lies in them."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name.replace("_", " "))}</th><td>{_value(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<div class="scroll" tabindex="0" role="region" aria-label="facts"><table class="told">{rows}</table></div>'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        apart = "<br>" if any(isinstance(each, str) for each in value) else ", "
        return apart.join(_value(each) for each in value)
    return f"<code>{escape(value)}</code>" if _is_long(value) else escape(spell(value))


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 60


def spell(value: Any) -> str:
    """Spell a number for people; "inf" is JSON's only way to be infinite."""
    if value is None:
        return ""
    if value == "inf":
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _float(value: Any) -> float | None:
    """Give what a column is sorted by."""
    return float(value) if isinstance(value, int | float) or value == "inf" else None


def _interval(interval: Any) -> str:
    return "" if interval is None else f"{spell(interval[0])} to {spell(interval[1])}"


WARNING = "This page shows members’ own images. Keep it at the silo."
NOT_COVERED = "All figures were computed from members; no epsilon covers this report."
MEMBERSHIP = "Members found against strangers taken for members."
RECOVERED = "A row is a digest: its members, and what each attack recovered from it."
GUIDANCE = " Guidance is what the moderator paints from it."
LEARNT = " It was learnt here, from these digests alone; that of a federation may show more."
NO_CHARTS: Mapping[str, Any] = {"groups": [], "runs": []}


def audit_page(report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Write the page of an audit; `pictures` are PNG files by the name of the check that they belong to."""
    checks: Sequence[Mapping[str, Any]] = report["checks"]
    silo, light = str(report["bound_to"]["silo"]), str(report["light"])
    warning = (
        f'<div class="notes" role="note"><b>{escape(WARNING)}</b></div>' if "inversion" in pictures else ""
    )
    main = (
        f'<section class="scenario"><p class="eyebrow">Audit of the digests of silo {escape(silo)}</p>'
        f'<h1 class="{colour_of(light)}">{_title(light, checks)}</h1><p class="lede">{escape(report["meaning"])}</p>'
        f"{warning}<p>Attacked: {escape(report['attacked'])}. {NOT_COVERED}</p>{_overview(checks)}</section>"
        + "".join(_section(check, _picture_of(check["name"], report, pictures)) for check in checks)
        + _bound(report)
        + _repeat(report)
    )
    return OFFLINE.around(f"Audit of silo {silo}: {light}", f"audit of silo {silo}", main, NO_CHARTS)


def _title(light: str, checks: Sequence[Mapping[str, Any]]) -> str:
    """Say the worst light, and how many checks have it."""
    worst = sum(check["light"] == light for check in checks)
    verb = "is" if worst == 1 else "are"
    return escape(f"{light.capitalize()}: {worst} of {len(checks)} checks {verb} {light}")


def _overview(checks: Sequence[Mapping[str, Any]]) -> str:
    lines = (
        f'<li><a href="#{escape(check["name"])}">{show_light(check["light"])} {check["number"]}. '
        f"{escape(check['title'])}</a></li>"
        for check in checks
    )
    return f'<nav aria-label="checks"><ul class="plain">{"".join(lines)}</ul></nav>'


def _picture_of(check: str, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Give the picture that belongs to a check, if there is one, with a line on what it shows."""
    if check not in pictures:
        return ""
    shown = [str(name) for name in report.get("pictured", [])]
    guided, learnt = (
        any(name.startswith("guidance") for name in shown),
        any(name.endswith("learnt here") for name in shown),
    )
    recovered = RECOVERED + GUIDANCE * guided + LEARNT * learnt
    return _picture(pictures[check], {"membership": MEMBERSHIP, "inversion": recovered}.get(check, check))


def _section(check: Mapping[str, Any], picture: str) -> str:
    beyond = check["beyond_chance"]
    tested = sum(each["p_value"] is not None for each in check["figures"])
    verdict = ""
    if tested:
        bold = ", in bold." if beyond else "."
        verdict = f'<p class="faint">{len(beyond)} of {tested} tested figures are beyond chance{bold}</p>'
    name = str(check["name"])
    return (
        f'<section id="{escape(name)}" class="check" data-light="{colour_of(check["light"])}">'
        f"<h2>{check['number']}. {escape(check['title'])} {show_light(check['light'])}</h2>"
        f"<p>{escape(check['sentence'])}</p>{verdict}{figures_table(name, check['figures'], beyond)}"
        f"{picture}"
        f"{_folded('Details', check['details'])}{_folded('Limits', check['limits'])}</section>"
    )


def _folded(title: str, facts: Mapping[str, Any]) -> str:
    return f"<details><summary>{title}</summary>{facts_table(facts)}</details>" if facts else ""


def _picture(png: bytes, caption: str) -> str:
    address = f"data:image/png;base64,{b64encode(png).decode()}"
    return (
        f'<figure class="picture"><img alt="{escape(caption)}" src="{address}">'
        f'<figcaption class="caption">{escape(caption)}</figcaption></figure>'
    )


def _bound(report: Mapping[str, Any]) -> str:
    sealed = {"report hash": report["hash"], "made": report["made"], "tests": report["tests"]}
    return (
        "<section><h2>What this report is about</h2><p>All that decided it: for other digests, data or settings it "
        f"says nothing.</p>{facts_table({**report['bound_to'], **sealed})}</section>"
    )


def _repeat(report: Mapping[str, Any]) -> str:
    command = report.get("command")
    if not isinstance(command, str):
        return ""
    return f"<section><h2>How to repeat it</h2>{copied(command, 'command')}</section>"
