"""Our results as the paper's figures, drawn from the result files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from feddig.core.absence import draw_absence
from feddig.errors import FedDigError
from feddig.report.read_run import Run
from feddig.runs.paper.cells import Line, PaperTable
from feddig.runs.paper.table import tabulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_table(table: PaperTable, finished: Mapping[str, Line]) -> "Figure":
    """Draw the finished cells of a table as the kind of figure that its file names."""
    from feddig.report.paper.figures import draw_figure

    if not table.figure:
        raise FedDigError(
            f"{table.name}: is not drawn: no kind of figure fits it; its numbers: feddig paper table {table.name}"
        )
    lines = [line for row in tabulate(table, finished) for line in row.lines if "accuracy" in line]
    if not lines:
        raise FedDigError(f"{table.name}: no cell is finished; run some with feddig paper run {table.name}")
    return draw_figure(table.figure, [_run_of(line) for line in lines])


def _run_of(line: Line) -> Run:
    settings, absence = line["settings"], line["settings"]["absence"]
    # only when silos come and go is drawn, and that does not depend on their sizes
    present = draw_absence(
        absence["scenario"], sizes=[1] * settings["data"]["silos"], rounds=settings["training"]["rounds"]
    )
    name = f"{settings['algorithm']['name']}, {absence['scenario']}, seed {settings['seed']}"
    rows = [{"test_accuracy": value} for value in line["accuracy"]]
    return Run(Path(name), settings, present, rows, {"accuracy": line["measures"]})
