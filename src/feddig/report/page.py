"""The report: one page that opens offline, made of results folders and nothing else."""

from collections.abc import Sequence
from html import escape
from itertools import islice
from pathlib import Path

from feddig.files import write_atomically
from feddig.report.audit import is_audit, rebuild_page
from feddig.report.comparison import comparison_sections, repeat_comparison
from feddig.report.grouping import Group, Headline, group_runs, tell
from feddig.report.html_parts import OFFLINE, Frame
from feddig.report.page_data import all_runs, page_data
from feddig.report.read_run import Run, is_run, read_runs
from feddig.report.run_files import AUDITS_LIE
from feddig.report.sections import run_sections

PAGE = "report.html"
MOST_DETAILED = 60
"""Runs that are told one by one; a page of more would be slow and nobody would read them."""


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page about all runs in these folders, or about one audit; give its place, and what was missing.

    Without a place it goes into the folder, if there is one, and else into the working folder.
    """
    if len(folders) == 1 and is_audit(folders[0]) and not is_run(folders[0]):
        return rebuild_page(folders[0], out), []
    runs = read_runs(folders)
    place = out or (folders[0] if len(folders) == 1 else Path()) / PAGE
    write_atomically(place, build_page(runs))
    return place, [f"{run.path}: {note}" for run in runs for note in run.notes]


def renew_page_above(audit: Path) -> Path | None:
    """Make the page of the run anew in whose folder an audit lies; give its place, or None where there is no page.

    A run without a page makes it at its end, and finds the audit then.
    """
    for folder in islice(audit.absolute().parents, AUDITS_LIE):
        if is_run(folder) and (folder / PAGE).is_file():
            return write_report([folder])[0]
    return None


def build_page(runs: Sequence[Run], frame: Frame = OFFLINE) -> str:
    """Write the page about these runs, one or many."""
    groups = group_runs(runs)
    told = [tell(group) for group in groups]
    main = "".join(
        (
            *(
                _scenario(group, each, number)
                for number, (group, each) in enumerate(zip(groups, told, strict=True))
            ),
            comparison_sections(groups),
            _runs(groups),
            repeat_comparison(groups),
        )
    )
    title = f"{told[0].title}: {groups[0].main.name}, {groups[0].title}"
    return frame.around(title, _about(groups), main, page_data(groups))


def _about(groups: Sequence[Group]) -> str:
    runs = all_runs(groups)
    names = list(dict.fromkeys(curve.name for group in groups for curve in group.curves))
    about = f"{len(runs)} runs" if len(runs) > 1 else f"{names[0]}, {groups[0].title}, seed {runs[0].seed}"
    data = ", ".join(dict.fromkeys(str(run.setting("data.name")) for run in runs if run.setting("data.name")))
    return f"{about} · {data}" if data else about


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
    # a deviation stays in the line of its mean
    lede = " ".join(told.sentences).replace(" ± ", "\u00a0±\u00a0")
    return (
        f'<section class="scenario" data-key="scenario {escape(group.title)}">'
        f'<p class="eyebrow">Scenario {escape(group.title)}</p>'
        f"<{level}>{escape(told.title)}</{level}><p class=lede>{escape(lede)}</p>"
        f'<ul class="tiles">{tiles}</ul><figure data-chart="accuracy" data-group="{number}"></figure>'
        f'<p class="caption">{escape(caption)}. <span class="hint">Arrow keys move the marker.</span></p></section>'
    )


def _runs(groups: Sequence[Group]) -> str:
    """Tell each run: openly if there is one, else folded, the one that matters most unfolded."""
    runs = all_runs(groups)
    names = [curve.name for group in groups for curve in group.curves for _ in curve.runs]
    titles = [group.title for group in groups for curve in group.curves for _ in curve.runs]
    if len(runs) == 1:
        return run_sections(runs[0], 0)
    folded = "".join(
        f'<details class="run" data-key="{escape(f"{names[number]}, {titles[number]}, {run.seed}")}"'
        f"{' open' if number == 0 else ''}><summary><b>{escape(names[number])}</b> "
        f"{escape(titles[number])}, seed {run.seed}{_end(run)}</summary>{run_sections(run, number)}</details>"
        for number, run in enumerate(runs[:MOST_DETAILED])
    )
    cut = (
        f'<p class="caption">The first {MOST_DETAILED} of {len(runs)} runs; give fewer folders to see the others.</p>'
        if len(runs) > MOST_DETAILED
        else ""
    )
    return f'<section data-key="each run"><h2>Each run</h2>{folded}{cut}</section>'


def _end(run: Run) -> str:
    final = run.measures.get("final")
    if final is None:
        return ", no round finished"
    return f": {final:.1f} %" + ("" if run.finished else f" after {len(run.rows)} rounds, unfinished")
