"""Build the HTML that all pages share: the page around its content, tables, notes and copy buttons."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from feddig._version import __version__
from feddig.files import FORMAT_VERSION
from feddig.report.curve_styles import colour_rules
from feddig.report.measures import MeanAndDeviation, format_mean

PAGE = "report.html"
RATING_SHAPES = {"green": "●", "amber": "▲", "red": "■"}
"""Ratings differ in shape too, for readers who cannot see the colours and for print."""


def say_page(page: Path) -> str:
    """Return the line by which every command says where it wrote a page."""
    return f"page     {page}"


@dataclass(frozen=True)
class PageTemplate:
    """A kind of page: the files of each of its scripts, and whether the scripts may send requests to its server."""

    scripts: Sequence[Sequence[str]]
    may_fetch: bool = False

    @cached_property
    def policy(self) -> str:
        """The Content-Security-Policy: only the page's own style, scripts and pictures are allowed."""
        hashes = " ".join(f"'sha256-{_hash(_script(names))}'" for names in self.scripts)
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
        return f"{policy}; connect-src 'self'" if self.may_fetch else policy

    def render(self, title: str, about: str, main: str, data: Mapping[str, Any]) -> str:
        """Return the page: `main` is HTML, `title` and `about` are plain text, `data` goes to the charts."""
        scripts = "".join(f"<script>{_script(names)}</script>\n" for names in self.scripts)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{self.policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="generator" content="feddig {__version__}, format_version {FORMAT_VERSION}">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{escape(title)}</title>\n<style>{colour_rules()}{_asset('report.css')}</style></head>\n<body>\n"
            '<a class="skip" href="#main">Skip to the report</a><header><p class="brand">FedDig report</p>'
            f'<p class="about">{escape(about)}</p>'
            '<button type="button" id="theme" aria-live="polite">Theme</button></header>'
            '<noscript><p class="notes">Scripts are switched off in this browser, so the charts are not drawn; '
            f'everything else can be read.</p></noscript><main id="main">{main}</main>'
            f'<script type="application/json" id="data">{json_block(data)}</script>\n'
            f"{scripts}</body></html>\n"
        )


REPORT_SCRIPT = ("elements.js", "strip.js", "points.js", "charts.js", "classes.js", "tables.js", "page.js")
"""The files of the script that draws a report; the last one starts it."""
OFFLINE_PAGE = PageTemplate((REPORT_SCRIPT,))
"""A page in one file that needs no server."""
LIVE_PAGE = PageTemplate((REPORT_SCRIPT, ("live.js",)), may_fetch=True)
"""The same page with a script that asks the server for updates."""


def _script(names: Sequence[str]) -> str:
    """Join files into one script, whose names are visible only inside it."""
    return f'(() => {{\n"use strict";\n{"".join(map(_asset, names))}}})();\n'


def _asset(name: str) -> str:
    return (files("feddig.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


def json_block(data: Any) -> str:
    """Return data as JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sortable_table(
    heads: Sequence[str], rows: Iterable[str], name: str, text_columns: Sequence[int] = (0,)
) -> str:
    """Return a table that can be sorted by each column and copied; columns are numbers unless named as text."""
    head = "".join(
        f'<th scope="col"{"" if place in text_columns else " class=number"}>'
        f'<button type="button" class="sort">{escape(each)}</button></th>'
        for place, each in enumerate(heads)
    )
    buttons = "".join(
        f'<button type="button" class="copy" data-copy="{form}">{form}</button>'
        for form in ("CSV", "Markdown", "LaTeX")
    )
    return (
        f'<div class="table" data-table="{escape(name)}"><div class="tools">Copy as {buttons}'
        f'<span role="status" class="copy-status"></span></div><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(name)}"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        "</div></div>"
    )


def text_cell(text: str) -> str:
    """Return a table cell with text."""
    return f"<td>{escape(text)}</td>"


def head_cell(text: str) -> str:
    """Return the table cell that names its row."""
    return f'<th scope="row">{escape(text)}</th>'


def number_cell(value: float | None, text: str) -> str:
    """Return a table cell that is sorted by its value and shows a text; None if the value is not known."""
    sort_value = "" if value is None else "Infinity" if value == inf else value
    return f'<td class="number" data-value="{sort_value}">{escape(text)}</td>'


def mean_cell(value: MeanAndDeviation | None, digits: int = 1) -> str:
    """Return a table cell with a mean and its deviation."""
    if value is None:
        return number_cell(None, "")
    mean, deviation = value
    spread = "" if deviation is None else f' data-sd="{deviation:.4f}"'
    # on paper a narrow cell breaks before the sign, not after it
    text = format_mean(value, digits).replace("± ", "±\u00a0")
    return f'<td class="number" data-value="{mean:.4f}"{spread}>{text}</td>'


def percent_cell(value: float | None) -> str:
    """Return a table cell with a percentage."""
    return number_cell(None if value is None else round(value, 4), "" if value is None else f"{value:.1f}")


def copyable(text: str, kind: str) -> str:
    """Return a command or settings with a button that copies them."""
    # a command is wrapped between its words, never inside an option
    shown = (
        " ".join(f"<span>{escape(word)}</span>" for word in text.split(" "))
        if kind == "command"
        else escape(text)
    )
    return (
        f'<div class="source {kind}"><pre tabindex="0">{shown}</pre><button type="button" class="copy" '
        f'data-copy="text" aria-label="copy the {kind}">Copy</button>'
        '<span role="status" class="copy-status"></span></div>'
    )


def repeat_instructions(settings: str, command: str, versions: str = "") -> str:
    """Return settings to save as experiment.toml, and the command that repeats their runs."""
    return (
        "<p>Save these settings as <code>experiment.toml</code>, then run:</p>"
        + copyable(command, "command")
        + folded_settings("Settings", settings)
        + (f'<p class="caption">{escape(versions)}</p>' if versions else "")
    )


def folded_settings(title: str, settings: str) -> str:
    """Return settings that are folded on the screen and unfolded on paper."""
    return f"<details data-print><summary>{escape(title)}</summary>{copyable(settings, 'settings')}</details>"


def rating_mark(rating: Any) -> str:
    """Return an audit's rating as a coloured shape with its name."""
    colour = rating_colour(rating)
    return f'<span class="rating {colour}">{RATING_SHAPES.get(colour, "○")} {escape(str(rating))}</span>'


def rating_colour(rating: Any) -> str:
    """Return a rating's colour in the style sheet; grey for anything else."""
    return rating if rating in RATING_SHAPES else "grey"


def png_url(png: bytes) -> str:
    """Return a PNG file as a data: URL."""
    return f"data:image/png;base64,{b64encode(png).decode()}"
