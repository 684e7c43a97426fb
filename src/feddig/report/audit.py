"""Write an audit's folder: its figures in audit.json, its pictures, and an HTML page made from both."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from feddig.errors import FedDigError
from feddig.files import write_atomically
from feddig.report.html_parts import (
    OFFLINE_PAGE,
    PAGE,
    copyable,
    head_cell,
    number_cell,
    png_url,
    rating_colour,
    rating_mark,
    sortable_table,
)
from feddig.report.run_files import read_json

AUDIT = "audit.json"
PICTURES = {"membership": "membership.png", "inversion": "recovered.png"}
"""The file of each check's picture. The second shows the members' own images."""
WARNING = "This page shows members’ own images. Keep it at the silo."
NOT_COVERED = "All figures were computed from members; no epsilon covers this report."
MEMBERSHIP = "Members found against non-members taken for members."
RECOVERED = "A row is a digest: its members, and what each attack recovered from it."
GUIDANCE = " Guidance is what the moderator draws from it."
LEARNT = (
    " The guidance producer was trained here, from these digests alone; that of a federation may show more."
)
FIGURE_HEADS = ("figure", "value", "interval", "chance or baseline", "p", "0 to 1")
TEXT_COLUMNS = (0, 2, 5)
NO_CHARTS: Mapping[str, Any] = {"groups": [], "runs": []}


def is_audit(folder: Path) -> bool:
    """Return whether a folder is an audit's."""
    return (folder / AUDIT).is_file()


def write_audit(folder: Path, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> Path:
    """Write an audit's files, audit.json last as the sign that it is complete; return the page's path."""
    for name, png in pictures.items():
        write_atomically(folder / PICTURES[name], png)
    write_atomically(folder / PAGE, audit_page(report, pictures))
    write_atomically(folder / AUDIT, json.dumps(report, indent=2, allow_nan=False) + "\n")
    return folder / PAGE


def rebuild_audit_page(folder: Path, out: Path | None = None) -> Path:
    """Rebuild an audit's page from its figures and those of its pictures that are still there."""
    report = read_json(folder / AUDIT)
    if isinstance(report, str):
        raise FedDigError(f"{folder}: {report}")
    files = {name: folder / file for name, file in PICTURES.items()}
    try:
        page = audit_page(report, {name: file.read_bytes() for name, file in files.items() if file.is_file()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedDigError(f"{folder}: {AUDIT} is damaged ({error!r}); make the audit again") from error
    path = out or folder / PAGE
    write_atomically(path, page)
    return path


def audit_page(report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Return the page of an audit; `pictures` are PNG files by the name of their check."""
    checks: Sequence[Mapping[str, Any]] = report["checks"]
    silo, rating = str(report["bound_to"]["silo"]), str(report["light"])
    warning = (
        f'<div class="notes" role="note"><b>{escape(WARNING)}</b></div>' if "inversion" in pictures else ""
    )
    main = (
        f'<section class="scenario"><p class="eyebrow">Audit of the digests of silo {escape(silo)}</p>'
        f'<h1 class="{rating_colour(rating)}">{_title(rating, checks)}</h1>'
        f'<p class="lede">{escape(report.get("reason", ""))}</p>'
        f"<p>{escape(report['meaning'])}</p>{warning}<p>Attacked: {escape(report['attacked'])}. {NOT_COVERED}</p>"
        f"{_overview(checks)}</section>{_steps(report.get('next_steps'))}"
        + "".join(_check_section(check, _picture(check["name"], report, pictures)) for check in checks)
        + _subject_section(report)
        + _repeat_section(report)
    )
    return OFFLINE_PAGE.render(f"Audit of silo {silo}: {rating}", f"audit of silo {silo}", main, NO_CHARTS)


def _title(rating: str, checks: Sequence[Mapping[str, Any]]) -> str:
    """Return the verdict, and how many checks it is due to; what was not run makes it amber."""
    lights = [check["light"] for check in checks]
    due = rating if rating in lights else "not run"
    count = lights.count(due)
    verb = ("is" if count == 1 else "are") if due == rating else ("was" if count == 1 else "were")
    return escape(f"{rating.capitalize()}: {count} of {len(checks)} checks {verb} {due}")


def _steps(steps: Mapping[str, str] | None) -> str:
    """Return what to do next: settings and commands to copy."""
    if not steps:
        return ""
    settings = copyable(steps["settings"], "settings") if steps["settings"] else ""
    return (
        f"<section><h2>What to do</h2><p>{escape(steps['said'])}</p>{settings}{copyable(steps['next'], 'command')}"
        f"<p>This command searches for settings within the limits:</p>{copyable(steps['advise'], 'command')}</section>"
    )


def _overview(checks: Sequence[Mapping[str, Any]]) -> str:
    items = (
        f'<li><a href="#{escape(check["name"])}">{rating_mark(check["light"])} {check["number"]}. '
        f"{escape(check['title'])}</a></li>"
        for check in checks
    )
    return f'<nav aria-label="checks"><ul class="plain">{"".join(items)}</ul></nav>'


def _check_section(check: Mapping[str, Any], picture: str) -> str:
    beyond = check["beyond_chance"]
    tested = sum(each["p_value"] is not None for each in check["figures"])
    verdict = ""
    if tested:
        bold = ", in bold." if beyond else "."
        verdict = f'<p class="faint">{len(beyond)} of {tested} tested figures are beyond chance{bold}</p>'
    name = str(check["name"])
    return (
        f'<section id="{escape(name)}" class="check" data-rating="{rating_colour(check["light"])}">'
        f"<h2>{check['number']}. {escape(check['title'])} {rating_mark(check['light'])}</h2>"
        f"<p>{escape(check['sentence'])}</p>{verdict}{_figures_table(name, check['figures'], beyond)}"
        f"{picture}{_folded('Details', check['details'])}{_folded('Limits', check['limits'])}</section>"
    )


def _picture(check: str, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Return the picture of a check with its caption; nothing if there is none."""
    if check not in pictures:
        return ""
    columns = [str(name) for name in report.get("pictured", [])]
    has_guidance = any(name.startswith("guidance") for name in columns)
    is_learnt = any(name.endswith("learnt here") for name in columns)
    captions = {
        "membership": MEMBERSHIP,
        "inversion": RECOVERED + GUIDANCE * has_guidance + LEARNT * is_learnt,
    }
    caption = escape(captions.get(check, check))
    return (
        f'<figure class="picture"><img alt="{caption}" src="{png_url(pictures[check])}">'
        f'<figcaption class="caption">{caption}</figcaption></figure>'
    )


def _figures_table(name: str, figures: Sequence[Mapping[str, Any]], beyond: Sequence[str]) -> str:
    """Return the table of what a check measured; figures beyond chance are bold."""
    if not figures:
        return ""
    rows = (_figure_row(each, is_beyond=each["name"] in beyond) for each in figures)
    return sortable_table(FIGURE_HEADS, rows, name, text_columns=TEXT_COLUMNS)


def _figure_row(figure: Mapping[str, Any], *, is_beyond: bool) -> str:
    value, interval, chance, p_value = (figure[key] for key in ("value", "interval", "chance", "p_value"))
    shown = _percent if figure.get("is_share") else _format
    baseline = figure.get("baseline")
    beside = "" if baseline is None else f" ({shown(baseline)} for non-members)"
    is_tiny = isinstance(p_value, float) and p_value < 1e-4
    cells = (
        head_cell(figure["name"]),
        number_cell(_sort_value(value), shown(value)),
        f'<td class="interval">{"" if interval is None else f"{shown(interval[0])} to {shown(interval[1])}"}</td>',
        number_cell(_sort_value(chance), shown(chance) + beside),
        number_cell(_sort_value(p_value), "< 0.0001" if is_tiny else _format(p_value)),
        f"<td>{_share_line(figure)}</td>",
    )
    return f"<tr{' class=beyond' if is_beyond else ''}>{''.join(cells)}</tr>"


def _share_line(figure: Mapping[str, Any]) -> str:
    """Draw a share on a line from 0 to 1: its interval, its value, and chance as a tick."""
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
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6" class="interval-line"/>{tick}'
        f'<circle cx="{100 * value:.2f}" cy="6" r="3"/></svg>'
    )


def _sort_value(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) or value == "inf" else None


def _format(value: Any) -> str:
    """Format a number; JSON has no infinity, so it is written as "inf"."""
    if value is None:
        return ""
    if value == "inf":
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(value: Any) -> str:
    """Format a share in percent, with a decimal more where it is small."""
    return (
        f"{100 * value:.{2 if 0 < value < 0.01 else 1}f} %"
        if isinstance(value, float | int)
        else _format(value)
    )


def _folded(title: str, facts: Mapping[str, Any]) -> str:
    return f"<details><summary>{title}</summary>{_facts_table(facts)}</details>" if facts else ""


def _facts_table(facts: Mapping[str, Any]) -> str:
    """Return a table of facts by name; values may be nested."""
    rows = "".join(
        f"<tr>{head_cell(name.replace('_', ' '))}<td>{_format_fact(value)}</td></tr>"
        for name, value in facts.items()
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="facts"><table class="fact-table">{rows}</table>'
        "</div>"
    )


def _format_fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {_format_fact(each)}" for name, each in value.items())
    if isinstance(value, list):
        separator = "<br>" if any(isinstance(each, str) for each in value) else ", "
        return separator.join(_format_fact(each) for each in value)
    is_long = isinstance(value, str) and len(value) > 60
    return f"<code>{escape(value)}</code>" if is_long else escape(_format(value))


def _subject_section(report: Mapping[str, Any]) -> str:
    made = {"report hash": report["hash"], "made": report["made"], "tests": report["tests"]}
    return (
        "<section><h2>What this report is about</h2><p>Everything that decided the result. The report says nothing "
        f"about other digests, data or settings.</p>{_facts_table({**report['bound_to'], **made})}</section>"
    )


def _repeat_section(report: Mapping[str, Any]) -> str:
    command = report.get("command")
    if not isinstance(command, str):
        return ""
    return f"<section><h2>How to repeat it</h2>{copyable(command, 'command')}</section>"
