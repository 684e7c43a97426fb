"""The files of a comparison: table.csv, table.md, and a picture a scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddig.files import write_atomically
from feddig.report.figures import draw_curves
from feddig.report.results import read_result
from feddig.report.table import Line, as_csv, as_markdown, tabulate


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
