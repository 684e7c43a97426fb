"""An audit as a page of the same kind as a run's: it opens offline, and all that users named is escaped."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from feddig.report.audit_tables import facts_table, figures_table
from feddig.report.frame import OFFLINE
from feddig.report.lights import colour_of, show_light
from feddig.report.run_sections import copied

WARNING = "This page shows members’ own images. Keep it at the silo."
FIGURES = "All figures were computed from members; no epsilon covers this report."
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
        f"{warning}<p>Attacked: {escape(report['attacked'])}. {FIGURES}</p>{_overview(checks)}</section>"
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
