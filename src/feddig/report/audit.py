"""Write an audit's folder: its figures in audit.json, its pictures, and an HTML page made from both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
PROMISE = "accountant"
"""The check that says which promise the attacks are held against."""
ATTACKS = ("unmixing", "membership", "inversion", "labels", "canaries")
"""The checks that attack, from the easiest to understand on."""
FOUND = ("green", "amber", "red")
"""The ratings of an attack that was run."""
FOUND_MORE = {"amber": "chance", "red": "the limits allow"}
ON_PAPER = "Folded details are not printed; unfold them to print them. All limits are listed at the end."
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
    verdict = write_verdict(report)
    main = (
        f'<section class="scenario"><h1 class="{rating_colour(rating)}">{escape(verdict.title)}</h1>'
        f'<p class="lede">{escape(" ".join(verdict.sentences))}</p>{_overview(checks)}'
        f"{warning}<p>{escape(report['meaning'])} Attacked: {escape(report['attacked'])}. {NOT_COVERED}</p>"
        f'<p class="caption on-paper">{ON_PAPER}</p></section>{_steps(report.get("next_steps"))}'
        + "".join(_check_section(check, _picture(check["name"], report, pictures)) for check in checks)
        + _subject_section(report)
        + _repeat_section(report)
    )
    return OFFLINE_PAGE.render(
        f"{verdict.title}: audit of silo {silo}", f"audit of the digests of silo {silo}", main, NO_CHARTS
    )


@dataclass(frozen=True)
class Verdict:
    """What an audit found and against which promise: a title, and the sentences of the checks that say so."""

    title: str
    sentences: Sequence[str]


def write_verdict(report: Mapping[str, Any]) -> Verdict:
    """Return the verdict of an audit."""
    rating, checks = str(report["light"]), {check["name"]: check for check in report["checks"]}
    run = [checks[name] for name in ATTACKS if name in checks and checks[name]["light"] in FOUND]
    deciding = [check for check in checks.values() if check["light"] == rating and rating in FOUND[1:]]
    found = [check for check in run if check in deciding]
    if found:
        what = f"{len(found)} of {_attacks(run)} found more than {FOUND_MORE[rating]}"
        said = str(found[0]["sentence"])
    elif deciding:
        what = _broken_promise(deciding[0])
        said = f"{_found_less(rating, run)} {deciding[0]['sentence']}"
    elif rating != "green" and (
        missing := [check for check in checks.values() if check["light"] == "not run"]
    ):
        what = f"{len(missing)} of {len(checks)} checks {'was' if len(missing) == 1 else 'were'} not run"
        said = str(missing[0]["sentence"])
    else:
        what, said = "no attack found more than chance", str(report.get("reason", ""))
    title, sentences = f"{rating.capitalize()}: {what}", [said]
    if PROMISE in checks:
        title += f"; {_promised(checks[PROMISE], report['bound_to'])}"
        if checks[PROMISE]["sentence"] not in said:
            sentences.append(str(checks[PROMISE]["sentence"]))
    return Verdict(title, sentences)


def _attacks(run: Sequence[Any]) -> str:
    return f"{len(run)} attack{'' if len(run) == 1 else 's'}"


def _found_less(rating: str, run: Sequence[Mapping[str, Any]]) -> str:
    """Say what attacks found that did not decide the verdict."""
    above = [check for check in run if check["light"] != "green"]
    if not above:
        return "No attack found more than chance."
    return f"{len(above)} of {_attacks(run)} found more than chance, none more than {FOUND_MORE[rating]}."


def _broken_promise(check: Mapping[str, Any]) -> str:
    """Say why a check that is no attack decides the verdict."""
    if check["name"] != PROMISE:
        return "the numbers are not as agreed"
    is_seeded = str(check["details"].get("randomness", "")).startswith("a seed")
    return "the noise comes from a seed" if is_seeded else "the promise is too weak"


def _promised(promise: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Say which epsilon is proved, as the first check found it."""
    epsilon = next((each["value"] for each in promise["figures"] if each["name"] == "record epsilon"), None)
    unit = "group" if "group_limit" in about.get("facts", {}) else "record"
    if not isinstance(epsilon, int | float):
        return f"no epsilon is promised to a {unit}"
    return f"epsilon {epsilon:g} is promised to a {unit}"


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
