"""The report: one page that opens offline, made of results folders and nothing else."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path

from feddig._version import __version__
from feddig.files import FORMAT_VERSION, write_atomically
from feddig.report.comparison_page import comparison_sections, repeat_comparison
from feddig.report.grouping import Group, group_runs
from feddig.report.headline import Headline, tell
from feddig.report.page_data import all_runs, as_json_block, page_data
from feddig.report.run_sections import run_sections
from feddig.report.runs import Run, read_runs

PAGE = "report.html"
MOST_DETAILED = 60
"""Runs that are told one by one; a page of more would be slow and nobody would read them."""


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page about all runs in these folders; give its place, and what was missing.

    Without a place it goes into the folder, if there is one, and else into the working folder.
    """
    runs = read_runs(folders)
    place = out or (folders[0] if len(folders) == 1 else Path()) / PAGE
    write_atomically(place, build_page(runs))
    return place, [f"{run.path}: {note}" for run in runs for note in run.notes]


def build_page(runs: Sequence[Run]) -> str:
    """Write the page about these runs, one or many."""
    groups = group_runs(runs)
    told = [tell(group) for group in groups]
    body = "".join(
        (
            _top(groups, told),
            *(
                _scenario(group, each, number)
                for number, (group, each) in enumerate(zip(groups, told, strict=True))
            ),
            comparison_sections(groups),
            _runs(groups),
            repeat_comparison(groups),
        )
    )
    script, style = _asset("report.js"), _asset("report.css")
    hashed = b64encode(sha256(script.encode()).digest()).decode()
    # nothing may be fetched, and no script may run but this one, whatever a name holds
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'"
    title = escape(
        f"{told[0].title}: {groups[0].main.name}, {groups[0].title}" if groups else "FedDig report"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="feddig {__version__}, format_version {FORMAT_VERSION}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{style}</style></head>\n<body>\n{body}"
        f'<script type="application/json" id="data">{as_json_block(page_data(groups))}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _asset(name: str) -> str:
    return (files("feddig.report") / "assets" / name).read_text(encoding="utf-8")


def _top(groups: Sequence[Group], told: Sequence[Headline]) -> str:
    runs = all_runs(groups)
    names = list(dict.fromkeys(curve.name for group in groups for curve in group.curves))
    about = f"{len(runs)} runs" if len(runs) > 1 else f"{names[0]}, {groups[0].title}, seed {runs[0].seed}"
    data = ", ".join(dict.fromkeys(str(run.setting("data.name")) for run in runs if run.setting("data.name")))
    return (
        '<a class="skip" href="#main">Skip to the report</a><header><p class="brand">FedDig report</p>'
        f'<p class="about">{escape(about)}{" · " + escape(data) if data else ""}</p>'
        '<button type="button" id="theme" aria-live="polite">Theme</button></header>'
        '<noscript><p class="notes">The charts of this page are drawn by a script that is switched off here; '
        'all else can be read.</p></noscript><main id="main">'
    )


def _scenario(group: Group, told: Headline, number: int) -> str:
    """Show a scenario: its headline, and the accuracy curves with the absence strip under them."""
    level = "h1" if number == 0 else "h2"
    tiles = "".join(
        f"<li><span>{escape(tile.title)}</span><b>{escape(tile.value)}</b><small>{escape(tile.says)}</small></li>"
        for tile in told.tiles
    )
    seeds = max(len(curve.runs) for curve in group.curves)
    first = group.main.runs[0]
    caption = f"{first.measured_on.capitalize()} accuracy after each round; under it, who was there"
    if len(group.curves) > 1 or seeds > 1:
        caption += f" ({group.main.name}, seed {first.seed})"
    if first.measured_on == "validation":
        caption += ". There were no test images: accuracy is that of the silos present, on their own images"
    if seeds > 1:
        caption += ". Lines are means over seeds, bands reach from the lowest seed to the highest"
    return (
        f'<section class="scenario"><p class="eyebrow">Scenario {escape(group.title)}</p>'
        f"<{level}>{escape(told.title)}</{level}><p class=lede>{escape(' '.join(told.sentences))}</p>"
        f'<ul class="tiles">{tiles}</ul><figure data-chart="accuracy" data-group="{number}"></figure>'
        f'<p class="caption">{escape(caption)}. Arrow keys move the marker.</p></section>'
    )


def _runs(groups: Sequence[Group]) -> str:
    """Tell each run: openly if there is one, else folded, the one that matters most unfolded."""
    runs = all_runs(groups)
    names = [curve.name for group in groups for curve in group.curves for _ in curve.runs]
    titles = [group.title for group in groups for curve in group.curves for _ in curve.runs]
    if len(runs) == 1:
        return run_sections(runs[0], 0)
    folded = "".join(
        f'<details class="run"{" open" if number == 0 else ""}><summary><b>{escape(names[number])}</b> '
        f"{escape(titles[number])}, seed {run.seed}{_end(run)}</summary>{run_sections(run, number)}</details>"
        for number, run in enumerate(runs[:MOST_DETAILED])
    )
    cut = (
        f'<p class="caption">The first {MOST_DETAILED} of {len(runs)} runs; give fewer folders to see the others.</p>'
        if len(runs) > MOST_DETAILED
        else ""
    )
    return f"<section><h2>Each run</h2>{folded}{cut}</section>"


def _end(run: Run) -> str:
    final = run.measures.get("final")
    if final is None:
        return ", no round finished"
    return f": {final:.1f} %" + ("" if run.finished else f" after {len(run.rows)} rounds, unfinished")
