"""An audit as one page that opens offline: no script, no other file; all that users named is escaped."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from feddig.report.audit_figures import draw_membership, draw_recovered

STYLE = """
:root { --paper: #ffffff; --ink: #1c1e21; --faint: #6a6f76; --line: #d9dce0; --box: #f6f7f8;
  --green: #1a7f37; --amber: #b26a00; --red: #c62828; --grey: #7a7f87; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e6e8ea; --faint: #9aa0a8; --line: #33373d;
  --box: #1f2226; --green: #4cbf6b; --amber: #f0a732; --red: #ff6b6b; --grey: #8b9199; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 0; }
section { border: 1px solid var(--line); border-left: .5rem solid var(--grey); border-radius: .4rem;
  padding: 1rem 1.2rem; margin: 1.2rem 0; }
.green { border-left-color: var(--green); } .amber { border-left-color: var(--amber); }
.red { border-left-color: var(--red); }
.light { display: inline-block; padding: 0 .6em; border-radius: 1em; color: var(--paper); background: var(--grey);
  font-weight: 600; font-size: .85rem; }
.light.green { background: var(--green); } .light.amber { background: var(--amber); }
.light.red { background: var(--red); }
.faint, figcaption, details { color: var(--faint); font-size: .9rem; }
.meaning { border: 2px solid var(--ink); border-radius: .4rem; padding: .6rem 1rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--line); vertical-align: middle; }
tr.beyond td { font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; } code { overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure img { max-width: 100%; background: #ffffff; border-radius: .4rem; padding: .3rem; }
svg { width: 9rem; height: 1.1rem; display: block; }
nav { display: grid; gap: .3rem; margin: 1rem 0; } nav a { color: inherit; text-decoration: none; }
"""
WARNING = "This page shows members' own images. Keep it at the silo."
RECOVERED = "A row is a digest: its members, and what each attack recovered from it."
GUIDANCE = " Guidance is what the moderator paints from it."
LEARNT = " It was learnt here, from these digests alone; that of a federation may show more."
FIGURES = "All figures were computed from members; no epsilon covers this report."


def audit_page(
    report: Mapping[str, Any], curves: Mapping[str, np.ndarray], pictures: Mapping[str, np.ndarray]
) -> str:
    """Write the page of a report with membership curves and pictures of what was recovered; both may be none."""
    drawn = {
        "membership": _figure(draw_membership(curves), "Members found against strangers taken for members.")
        if curves
        else "",
        "inversion": _figure(
            draw_recovered(pictures),
            _caption(pictures),
        )
        if pictures
        else "",
    }
    sections = "".join(_section(check, drawn.get(check["name"], "")) for check in report["checks"])
    warning = f'<p class="meaning">{escape(WARNING)}</p>' if pictures else ""
    bound = report["bound_to"]
    silo, light = escape(str(bound["silo"])), report["light"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit of silo {silo}: {escape(light)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>Audit of the digests of silo {silo} {_light(light)}</h1>\n"
        f'<p class="meaning">{escape(report["meaning"])}</p>\n{warning}'
        f"<p>Attacked: {escape(report['attacked'])}. {FIGURES}</p>\n"
        f"{_overview(report['checks'])}\n{sections}\n{_bound(report)}"
        "</body></html>\n"
    )


def _caption(pictures: Mapping[str, np.ndarray]) -> str:
    guided = any(name.startswith("guidance") for name in pictures)
    return RECOVERED + GUIDANCE * guided + LEARNT * any(name.endswith("learnt here") for name in pictures)


def _overview(checks: Sequence[Mapping[str, Any]]) -> str:
    lines = (
        f'<a href="#{escape(check["name"])}">{_light(check["light"])} {check["number"]}. {escape(check["title"])}</a>'
        for check in checks
    )
    return f"<nav>{''.join(lines)}</nav>"


def _section(check: Mapping[str, Any], figure: str) -> str:
    beyond = check["beyond_chance"]
    tested = sum(each["p_value"] is not None for each in check["figures"])
    verdict = ""
    if tested:
        verdict = f"{len(beyond)} of {tested} tested figures are beyond chance" + (
            ", in bold." if beyond else "."
        )
    return (
        f'<section id="{escape(check["name"])}" class="{_colour(check["light"])}">'
        f"<h2>{check['number']}. {escape(check['title'])} {_light(check['light'])}</h2>"
        f"<p>{escape(check['sentence'])}</p><p class='faint'>{verdict}</p>"
        f"{_table(check['figures'], beyond)}{figure}"
        f"{_facts('Details', check['details'])}{_facts('Limits', check['limits'])}"
        "</section>\n"
    )


def _table(figures: Sequence[Mapping[str, Any]], beyond: Sequence[str]) -> str:
    if not figures:
        return ""
    rows = "".join(_row(each, is_beyond=each["name"] in beyond) for each in figures)
    heads = ("figure", "value", "interval", "chance or baseline", "p", "0 to 1")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _row(figure: Mapping[str, Any], *, is_beyond: bool) -> str:
    numbers = (
        _number(figure["value"]),
        _interval(figure["interval"]),
        _number(figure["chance"]),
        _tail(figure["p_value"]),
    )
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    start = '<tr class="beyond">' if is_beyond else "<tr>"
    return f"{start}<td>{escape(figure['name'])}</td>{cells}<td>{_bar(figure)}</td></tr>"


def _bar(figure: Mapping[str, Any]) -> str:
    """Draw a share on a line from 0 to 1: its interval, itself, and chance as a tick."""
    value, interval, chance = figure["value"], figure["interval"], figure["chance"]
    numbers = [value, *(interval or [])]
    if interval is None or not all(
        isinstance(each, float | int) and -0.01 <= each <= 1.01 for each in numbers
    ):
        return ""
    low, high = (100 * min(1.0, max(0.0, each)) for each in interval)
    tick = (
        f'<line x1="{100 * chance:.2f}" x2="{100 * chance:.2f}" y1="0" y2="12" stroke="var(--faint)" stroke-width="1"/>'
        if isinstance(chance, float | int) and 0 <= chance <= 1
        else ""
    )
    return (
        '<svg viewBox="-3 0 106 12" role="img" aria-label="value, interval and chance on a line from 0 to 1">'
        '<line x1="0" x2="100" y1="6" y2="6" stroke="var(--line)" stroke-width="1"/>'
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6" stroke="var(--ink)" stroke-width="3"/>{tick}'
        f'<circle cx="{100 * value:.2f}" cy="6" r="3" fill="var(--ink)"/></svg>'
    )


def _bound(report: Mapping[str, Any]) -> str:
    facts = {
        **report["bound_to"],
        "report hash": report["hash"],
        "made": report["made"],
        "tests": report["tests"],
    }
    return f"<section><h2>What this report is about</h2>{_facts('All that decided it', facts, is_open=True)}</section>"


def _facts(title: str, facts: Mapping[str, Any], *, is_open: bool = False) -> str:
    if not facts:
        return ""
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{_value(value)}</td></tr>"
        for name, value in facts.items()
    )
    opened = " open" if is_open else ""
    return f'<details{opened}><summary>{title}</summary><div class="scroll"><table>{rows}</table></div></details>'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        apart = "<br>" if any(isinstance(each, str) for each in value) else ", "
        return apart.join(_value(each) for each in value)
    return (
        f"<code>{escape(str(value))}</code>"
        if isinstance(value, str) and len(value) > 60
        else escape(_number(value))
    )


def _number(value: Any) -> str:
    if value is None:
        return ""
    if value == "inf":
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tail(p_value: Any) -> str:
    return "&lt; 0.0001" if isinstance(p_value, float) and p_value < 1e-4 else _number(p_value)


def _interval(interval: Any) -> str:
    return "" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"


def _light(light: str) -> str:
    return f'<span class="light {_colour(light)}">{escape(light)}</span>'


def _colour(light: str) -> str:
    return light if light in ("green", "amber", "red") else "grey"


def _figure(png: bytes, caption: str) -> str:
    data = b64encode(png).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
