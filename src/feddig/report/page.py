"""Write reports: one HTML page about one or many runs that opens offline, and the files of a comparison.

A page is made from the runs' results folders. A comparison has table.csv, table.md and a picture for each scenario.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from feddig.files import write_atomically
from feddig.report.audit import is_audit, rebuild_audit_page
from feddig.report.grouping import Curve, Group, Headline, all_runs, group_runs, write_headline
from feddig.report.html_parts import (
    OFFLINE_PAGE,
    PAGE,
    PageTemplate,
    folded_settings,
    head_cell,
    mean_cell,
    number_cell,
    repeat_instructions,
    sortable_table,
    text_cell,
)
from feddig.report.measures import MEASURES, MeanAndDeviation, format_mean, mean_and_deviation
from feddig.report.page_data import page_data
from feddig.report.pictures import draw_curves
from feddig.report.read_run import Run, is_run, read_rounds, read_runs, repeat_runs, shared_settings
from feddig.report.run_files import AUDIT_DEPTH
from feddig.report.sections import run_sections

MAX_RUNS = 60
"""Runs that are described one by one; a page with more would be slow."""
MEASURE_TITLES = {
    "final": "final",
    "frozen_own_mean_10": "before 1st leave",
    "frozen_own": "last round before",
    "best": "best",
    "absence_mean": "mean while away",
    "absence_auc": "area while away",
    "mean_251_259": "rounds 251–259",
    "mean_250_299": "rounds 250–299",
    "after_9": "9 after",
    "after_50": "50 after",
    "after_200": "200 after",
}
"""The measures in the order of the table."""


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page about all runs in these folders, or about one audit; return its path and the runs' notes.

    Without `out`, the page goes into the folder if there is one, and into the working folder if there are several.
    """
    if len(folders) == 1 and is_audit(folders[0]) and not is_run(folders[0]):
        return rebuild_audit_page(folders[0], out), []
    runs = read_runs(folders)
    path = out or (folders[0] if len(folders) == 1 else Path()) / PAGE
    write_atomically(path, build_page(runs))
    return path, [f"{run.path}: {note}" for run in runs for note in run.notes]


def describe_results(folder: Path) -> list[str]:
    """Return for a terminal how the runs in a folder ended: for each chart of their page, the sentence that says so."""
    groups = group_runs(read_runs([folder]))
    said = [(group, write_headline(group)) for group in groups]
    return [
        (f"{group.title}: " if len(said) > 1 else "") + headline.sentences[-1].replace("\u00a0", " ")
        for group, headline in said
        if headline.figures
    ]


def rebuild_run_page(audit: Path) -> Path | None:
    """Rebuild the page of the run in whose folder an audit lies; return its path, or None if there is no page yet."""
    for folder in islice(audit.absolute().parents, AUDIT_DEPTH):
        if is_run(folder) and (folder / PAGE).is_file():
            return write_report([folder])[0]
    return None


def build_page(runs: Sequence[Run], template: PageTemplate = OFFLINE_PAGE) -> str:
    """Return the page about these runs."""
    groups = group_runs(runs)
    headlines = [write_headline(group) for group in groups]
    scenarios = [
        _scenario_section(group, headline, number)
        for number, (group, headline) in enumerate(zip(groups, headlines, strict=True))
    ]
    data = page_data(groups)
    points = _points_sections(groups, data)
    main = "".join((*scenarios, _table_section(groups), points, _run_list(groups), _repeat_section(groups)))
    title = f"{headlines[0].title}: {groups[0].main.name}, {groups[0].title}"
    return template.render(title, _about(groups), main, data)


def _about(groups: Sequence[Group]) -> str:
    runs = all_runs(groups)
    about = (
        f"{len(runs)} runs"
        if len(runs) > 1
        else f"{groups[0].main.name}, {groups[0].title}, seed {runs[0].seed}"
    )
    data = ", ".join(dict.fromkeys(str(run.setting("data.name")) for run in runs if run.setting("data.name")))
    return f"{about} · {data}" if data else about


def _scenario_section(group: Group, headline: Headline, number: int) -> str:
    """Return a scenario's headline, and its accuracy curves with the absence strip under them."""
    level = "h1" if number == 0 else "h2"
    figures = "".join(
        f"<li><span>{escape(each.title)}</span><b>{escape(each.value)}</b><small>{escape(each.meaning)}</small></li>"
        for each in headline.figures
    )
    # a mean and its deviation stay on one line
    lede = " ".join(headline.sentences).replace(" ± ", "\u00a0±\u00a0")
    return (
        f'<section class="scenario" data-key="scenario {escape(group.title)}">'
        f'<p class="eyebrow">Scenario {escape(group.title)}</p>'
        f"<{level}>{escape(headline.title)}</{level}><p class=lede>{escape(lede)}</p>"
        f'<ul class="tiles">{figures}</ul><figure data-chart="accuracy" data-group="{number}"></figure>'
        f'<p class="caption">{escape(_chart_caption(group))}. '
        '<span class="hint">Arrow keys move the marker.</span></p></section>'
    )


def _chart_caption(group: Group) -> str:
    seeds = max(len(curve.runs) for curve in group.curves)
    first = group.main.runs[0]
    kind = first.measured_on.capitalize()
    caption = f"{kind} accuracy after each round (the first is 0); below, which silos were here"
    if len(group.curves) > 1 or seeds > 1:
        caption += f" ({group.main.name}, seed {first.seed})"
    if first.measured_on == "validation":
        caption += ". There were no test images: accuracy is that of the present silos on their own validation images"
    if seeds > 1:
        caption += ". Lines are means over seeds, bands go from the lowest seed to the highest"
    return caption


def _table_section(groups: Sequence[Group]) -> str:
    """Return the table of all curves: mean and deviation over seeds of each measure that any run reached."""
    curves = [(group, curve) for group in groups for curve in group.curves]
    reached = [name for name in MEASURE_TITLES if any(curve.values(name) for _, curve in curves)]
    if not reached:
        return ""
    seconds = {id(curve): mean_and_deviation(_seconds_per_round(curve)) for _, curve in curves}
    has_seconds = any(seconds.values())
    heads = ["algorithm", "scenario", "seeds", *(MEASURE_TITLES[name] for name in reached)]
    heads += ["s per round"] if has_seconds else []
    moderator = {id(curve): mean_and_deviation(curve.moderator_seconds) for _, curve in curves}
    has_moderator = any(moderator.values())
    heads += ["moderator (s)"] if has_moderator else []
    rows = []
    for group, curve in curves:
        # a mean over only some of the seeds could not be compared
        means = (mean_and_deviation(run.measures.get(name) for run in curve.runs) for name in reached)
        cells = [
            head_cell(curve.name),
            text_cell(group.title),
            number_cell(len(curve.runs), str(len(curve.runs))),
            *map(mean_cell, means),
            *([mean_cell(seconds[id(curve)], digits=2)] if has_seconds else []),
            *([mean_cell(moderator[id(curve)])] if has_moderator else []),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    unfinished = sum(not run.finished for run in all_runs(groups))
    notes = ["Accuracy in percent, mean ± standard deviation over seeds."]
    notes += ["“9 after” is nine rounds after the last leave."] if "after_9" in reached else []
    if "frozen_own_mean_10" in reached:
        notes.append(
            "“before 1st leave” is the run’s own model before the first leave, the mean of several rounds in a long "
            "run."
        )
    notes += [f"{unfinished} unfinished, shown as far as they got."] if unfinished else []
    return (
        '<section data-key="table"><h2>Accuracy and time</h2>'
        + sortable_table(heads, rows, "figures", text_columns=(0, 1))
        + f'<p class="caption">{" ".join(notes)}</p></section>'
    )


POINTS = (
    (
        "epsilon",
        "epsilons",
        "Accuracy against epsilon",
        "Runs that differ in the epsilon of a record and nothing else. Smaller protects more.",
    ),
    (
        "cost",
        "costs",
        "Accuracy against the moderator’s time",
        (
            "Seconds that the moderator itself spent in the whole run: on recall models, aggregation, and the joint "
            "or the expert’s update. What silos spent is not in them."
        ),
    ),
)
"""Charts of points: their name, their key in the data of a group, their title and caption."""


def _points_sections(groups: Sequence[Group], data: Mapping[str, Any]) -> str:
    """Return the charts that compare accuracies at the end, for the groups that have numbers to compare."""
    sections = []
    for chart, key, title, caption in POINTS:
        numbers = [number for number, group in enumerate(data["groups"]) if group[key]]
        figures = "".join(
            (f"<h3>{escape(groups[number].title)}</h3>" if len(groups) > 1 else "")
            + f'<figure data-chart="{chart}" data-group="{number}"></figure>'
            for number in numbers
        )
        if figures:
            several = any(len(curve.runs) > 1 for number in numbers for curve in groups[number].curves)
            spread = " Bands and lines go from the lowest seed to the highest." if several else ""
            sections.append(
                f'<section data-key="{chart}"><h2>{title}</h2>{figures}'
                f'<p class="caption">{caption}{spread} The table above has the numbers.</p></section>'
            )
    return "".join(sections)


def _seconds_per_round(curve: Curve) -> list[float]:
    found = [run.summary.get("seconds_per_round") for run in curve.runs]
    return [float(value) for value in found if isinstance(value, int | float)]


def _run_list(groups: Sequence[Group]) -> str:
    """Return the sections about each run; of several runs, only the first is unfolded."""
    runs = [(group, curve, run) for group in groups for curve in group.curves for run in curve.runs]
    if len(runs) == 1:
        return run_sections(runs[0][2], 0)
    items = []
    for number, (group, curve, run) in enumerate(runs[:MAX_RUNS]):
        key = escape(f"{curve.name}, {group.title}, {run.seed}")
        items.append(
            f'<details class="run" data-key="{key}"{" open" if number == 0 else ""}>'
            f"<summary><b>{escape(curve.name)}</b> {escape(group.title)}, seed {run.seed}{_result(run)}</summary>"
            f"{run_sections(run, number)}</details>"
        )
    if len(runs) > MAX_RUNS:
        items.append(
            f'<p class="caption">The first {MAX_RUNS} of {len(runs)} runs; give fewer folders to see the others.</p>'
        )
    note = '<p class="caption on-paper">A folded run is printed as one line; unfold it to print its sections.</p>'
    return f'<section data-key="each run"><h2>Each run</h2>{note}{"".join(items)}</section>'


def _result(run: Run) -> str:
    final = run.measures.get("final")
    if final is None:
        return ", no round finished"
    before = Curve("", [run]).before_the_leave.get(run.seed)
    own = "" if before is None else f", {before:.1f} % before the first leave"
    return f": {final:.1f} %{own}" + ("" if run.finished else f" after {len(run.rows)} rounds, unfinished")


def _repeat_section(groups: Sequence[Group]) -> str:
    """Return how to repeat all runs at once."""
    runs = all_runs(groups)
    if len(runs) < 2:
        return ""
    found = repeat_runs(runs)
    if found is not None:
        body = repeat_instructions(*found)
    else:
        body = "<p>These runs differ in more than algorithm, scenario and seed: repeat them one by one.</p>"
        if shared := shared_settings(runs):
            body += folded_settings("Settings that all runs share", shared)
    return f'<section data-key="repeat"><h2>How to repeat all runs</h2>{body}</section>'


SHOWN = {"final": "final", "frozen_own_mean_10": "before 1st leave", "absence_mean": "absence mean"}
"""The measures that fit a terminal, with their titles; table.csv has them all."""
CAPTION = "Test accuracy in percent, mean ± standard deviation over seeds"


@dataclass(frozen=True)
class TableRow:
    """One algorithm in one scenario, over its seeds."""

    algorithm: str
    scenario: str
    seeds: int
    failed: int
    values: Mapping[str, MeanAndDeviation | None]
    """By measure; None where a seed did not reach it."""


def write_comparison(
    out: Path, summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]], runs: Sequence[Path]
) -> tuple[list[TableRow], list[Path]]:
    """Write tables and pictures of finished runs into `out`; return the table's rows and the pictures' paths."""
    rows = tabulate(summaries)
    write_atomically(out / "table.csv", to_csv(rows))
    write_atomically(out / "table.md", to_markdown(rows))
    finished = [read_rounds(path) for path in runs]
    pictures = []
    for scenario in dict.fromkeys(run.scenario for run in finished):
        path = out / f"curves-{scenario}.png"
        write_atomically(path, draw_curves([run for run in finished if run.scenario == scenario], scenario))
        pictures.append(path)
    return rows, pictures


def tabulate(summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]]) -> list[TableRow]:
    """Average runs over seeds; each is given as its algorithm, scenario and summary (None if the run failed)."""
    rows = []
    for key in dict.fromkeys((algorithm, scenario) for algorithm, scenario, _ in summaries):
        found = [summary for algorithm, scenario, summary in summaries if (algorithm, scenario) == key]
        finished = [summary for summary in found if summary is not None]
        values = {
            name: mean_and_deviation(each["accuracy"].get(name) for each in finished) for name in MEASURES
        }
        values["seconds_per_round"] = mean_and_deviation(each["seconds_per_round"] for each in finished)
        rows.append(TableRow(*key, len(finished), len(found) - len(finished), values))
    return rows


def to_columns(rows: Sequence[TableRow]) -> dict[str, list[Any]]:
    """Return every measure as columns, with mean and deviation in columns of their own; None where there is none."""
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in ("algorithm", "scenario", "seeds", "failed")
    }
    for name in (*MEASURES, "seconds_per_round"):
        values = [row.values[name] or (None, None) for row in rows]
        columns[f"{name}_mean"], columns[f"{name}_sd"] = ([pair[side] for pair in values] for side in (0, 1))
    return columns


def to_csv(rows: Sequence[TableRow]) -> str:
    """Return these columns as CSV."""
    text = io.StringIO()
    text.write("# feddig table, format_version 1\n")
    writer = csv.writer(text, lineterminator="\n")
    columns = to_columns(rows)
    writer.writerow(columns)
    for cells in zip(*columns.values(), strict=True):
        writer.writerow([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in cells])
    return text.getvalue()


def to_markdown(rows: Sequence[TableRow]) -> str:
    """Return the shown measures as a Markdown table."""
    heads = _heads()
    lines = [heads, ["---"] * len(heads), *(_cells(row) for row in rows)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"{table}\n{CAPTION}.\n<!-- format_version 1 -->\n"


def to_html(rows: Sequence[TableRow]) -> str:
    """Return the same table as HTML without styles, for notebooks."""
    head = "".join(f"<th>{escape(text)}</th>" for text in _heads())
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in _cells(row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{CAPTION}</p>"


def to_rich(rows: Sequence[TableRow], title: str) -> Table:
    """Return the same table for a terminal."""
    table = Table(title=title, caption=CAPTION)
    for place, head in enumerate(_heads()):
        table.add_column(head, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _heads() -> list[str]:
    return ["algorithm", "scenario", "seeds", *SHOWN.values(), "s per round"]


def _cells(row: TableRow) -> list[str]:
    seeds = str(row.seeds) + (f" ({row.failed} failed)" if row.failed else "")
    values = [row.values[name] for name in SHOWN]
    numbers = ["-" if value is None else format_mean(value) for value in values]
    seconds = row.values["seconds_per_round"]
    return [row.algorithm, row.scenario, seeds, *numbers, "-" if seconds is None else format_mean(seconds, 2)]
