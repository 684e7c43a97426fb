"""The parts of the page that several runs have in common: the table, and the command for all of them.

The files of a comparison: table.csv, table.md, and a picture a scenario.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from feddig.files import write_atomically
from feddig.report.figures import draw_curves
from feddig.report.grouping import Curve, Group, mean_and_spread, spell
from feddig.report.measures import MEASURES
from feddig.report.page_data import all_runs
from feddig.report.read_run import read_result
from feddig.report.run_settings import repeat_all
from feddig.report.sections import repeat
from feddig.report.tables import Line, as_csv, as_markdown, sortable, tabulate

TITLES = {
    "final": "final",
    "best": "best",
    "absence_mean": "mean while away",
    "absence_auc": "area while away",
    "mean_251_259": "rounds 251–259",
    "mean_250_299": "rounds 250–299",
    "after_9": "9 after",
    "after_50": "50 after",
    "after_200": "200 after",
    "frozen_own": "own, frozen",
}


def comparison_sections(groups: Sequence[Group]) -> str:
    """Tabulate every curve: mean and standard deviation over seeds, of each measure that any run reached."""
    curves = [(group, curve) for group in groups for curve in group.curves]
    reached = [name for name in MEASURES if any(curve.values(name) for _, curve in curves)]
    if not reached:
        return ""
    has_times = any(_seconds(curve) for _, curve in curves)
    heads = ["algorithm", "scenario", "seeds", *(TITLES.get(name, name) for name in reached)]
    rows = []
    for group, curve in curves:
        cells = [
            f'<th scope="row">{escape(curve.name)}</th>',
            f"<td>{escape(group.title)}</td>",
            f'<td class="number" data-value="{len(curve.runs)}">{len(curve.runs)}</td>',
            *(_cell(_all(curve, name)) for name in reached),
        ]
        if has_times:
            cells.append(_cell(mean_and_spread(_seconds(curve)), digits=2))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    if has_times:
        heads.append("s a round")
    unfinished = sum(not run.finished for run in all_runs(groups))
    waiting = f" {unfinished} unfinished, told as far as they got." if unfinished else ""
    return (
        '<section data-key="in figures"><h2>In figures</h2>'
        + sortable(heads, rows, "figures", texts=(0, 1))
        + '<p class="caption">Accuracy in percent, mean ± standard deviation over seeds. “9 after” is nine rounds '
        "after the last leave; “own, frozen” is the run’s own model before the first leave."
        f"{waiting}</p></section>"
    )


def _all(curve: Curve, measure: str) -> tuple[float, float | None] | None:
    """Average a measure, but only if every seed reached it: a mean over some would not compare."""
    values = [run.measures.get(measure) for run in curve.runs]
    found = [value for value in values if value is not None]
    return mean_and_spread(found) if len(found) == len(values) else None


def _seconds(curve: Curve) -> list[float]:
    told = [run.summary.get("seconds_per_round") for run in curve.runs]
    return [float(value) for value in told if isinstance(value, int | float)]


def _cell(value: tuple[float, float | None] | None, digits: int = 1) -> str:
    if value is None:
        return '<td class="number" data-value=""></td>'
    mean, deviation = value
    spread = "" if deviation is None else f' data-sd="{deviation:.4f}"'
    shown = (
        spell(value) if digits == 1 else f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")
    )
    return f'<td class="number" data-value="{mean:.4f}"{spread}>{shown}</td>'


def repeat_comparison(groups: Sequence[Group]) -> str:
    """Show how to repeat all runs at once."""
    runs = all_runs(groups)
    if len(runs) < 2:
        return ""
    command = repeat_all(runs)
    told = (
        repeat(*command)
        if command is not None
        else "<p>These runs differ in more than algorithm, scenario and seed: repeat them one by one.</p>"
    )
    return f'<section data-key="repeat"><h2>How to repeat them all</h2>{told}</section>'


def write_comparison(
    out: Path, summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]], runs: Sequence[Path]
) -> tuple[list[Line], list[Path]]:
    """Write tables and pictures of finished runs into `out`; give the table's lines and the pictures' paths."""
    lines = tabulate(summaries)
    write_atomically(out / "table.csv", as_csv(lines))
    write_atomically(out / "table.md", as_markdown(lines))
    results = [read_result(path) for path in runs]
    pictures = []
    for scenario in dict.fromkeys(result.scenario for result in results):
        path = out / f"curves-{scenario}.png"
        write_atomically(path, draw_curves([each for each in results if each.scenario == scenario], scenario))
        pictures.append(path)
    return lines, pictures
