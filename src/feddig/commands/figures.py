"""`feddig figures`: draw the paper's figures from results folders."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from feddig.commands import completion
from feddig.commands.options import DataDir, check_out
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.report.pictures import EncodedImages
    from feddig.report.read_run import Run


def figures_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Which figure; `list` shows all of them.",
            autocompletion=completion.one_of(completion.figures),
        ),
    ],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs, or of comparisons."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for KIND.png and KIND.svg.")] = Path("figures"),
    measure: Annotated[
        str | None,
        typer.Option(
            help="The accuracy that bars show, such as final or absence_mean; without it, the paper's "
            "(mean of rounds 251 to 259), or for shorter runs that of the last round."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Draw a figure of the paper from your own results, as PNG and SVG. Trains nothing."""
    from feddig.report.paper.figures import describe_figures, draw_figure, needs_results
    from feddig.report.paper.style import save_figure
    from feddig.report.read_run import read_runs

    if kind == "list":
        _print_table(describe_figures())
        return
    check_out(out)
    if needs_results(kind) and not folders:
        raise FedDigError(f"{kind}: is drawn from results; give the folders of runs or comparisons")
    figure = draw_figure(kind, read_runs(folders) if folders else [], measure, partial(_samples, data_dir))
    for path in save_figure(figure, out, kind):
        print(path)


def _samples(data_dir: Path | None, run: "Run", count: int) -> "EncodedImages":
    """Return test images of a run's data; only this figure needs torch, which encodes them."""
    from feddig.runs.outcome import load_samples

    return load_samples(run.path, count, data_dir)


def _print_table(rows: list[tuple[str, str]]) -> None:
    table = Table(show_header=False, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=None if Console().is_terminal else 140).print(table)
