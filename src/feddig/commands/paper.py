"""`feddig paper list|run|table|figure`: the paper's tables and figures, run and set beside the paper's numbers."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from feddig.commands import options
from feddig.errors import FedDigError

paper_app = typer.Typer(
    no_args_is_help=True, help="Reproduce the paper: its tables and figures, cell by cell."
)

Experiments = Annotated[Path, typer.Option(help="Folder with a TOML file for each table or figure.")]
Results = Annotated[Path, typer.Option(help="Folder for NAME.jsonl, a line for each finished cell.")]
EXPERIMENTS, RESULTS = Path("experiments/paper"), Path("benchmarks/results/paper")


def _tables(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the tables and figures of the folder that is given or the usual one."""
    folder = Path(context.params.get("experiments") or EXPERIMENTS)
    return sorted(path.stem for path in folder.glob("*.toml"))


@paper_app.command("list")
def paper_list(experiments: Experiments = EXPERIMENTS, results: Results = RESULTS) -> None:
    """List the tables and figures: how many cells are finished, and what the others cost."""
    from feddig.runs.paper.cells import read_lines, read_tables, remaining_seconds

    shown = Table()
    for title in ("name", "in the paper", "what", "finished", "what the rest takes, as measured on"):
        shown.add_column(title, overflow="fold")
    lines = read_lines(results)
    for table in read_tables(experiments):
        left, costs = remaining_seconds(table, lines)
        done = f"{len(table.cells) - len(left)} of {len(table.cells)}"
        texts = [
            f"{device}: {_spell_time(seconds)}" + (f", and {unknown} cells not timed" if unknown else "")
            for device, (seconds, unknown) in costs.items()
        ]
        cost = "\n".join(texts) or ("not known: feddig paper run NAME --time" if left else "-")
        shown.add_row(table.name, table.title, table.about, done, cost)
    _print(shown)


@paper_app.command("run")
def paper_run(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The table or figure; `list` shows all.", autocompletion=_tables),
    ],
    seeds: Annotated[str, typer.Option(help="Seeds in place of the file's, separated by commas.")] = "",
    limit_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop before this time is over; a cut cell goes on later.")
    ] = None,
    only_time: Annotated[
        bool, typer.Option("--time", help="Only measure how long a round of each kind of cell takes.")
    ] = False,
    experiments: Experiments = EXPERIMENTS,
    results: Results = RESULTS,
    work: Annotated[Path, typer.Option(help="Folder for whole results folders.")] = Path("results/paper"),
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Run the cells that are not finished, one after the other; each finished one is kept at once."""
    began = time.monotonic()
    options.show_log(log_level)
    from feddig.runs.paper.cells import read_lines, read_table, remaining_seconds
    from feddig.runs.paper.runner import Runner
    from feddig.runs.progress import choose_progress

    table = read_table(experiments, name)
    if seeds:
        table = table.with_seeds(options.whole_numbers("--seeds", seeds))
    console = Console(stderr=True)
    runner = Runner(
        table=table,
        results=results,
        work=work,
        device=device,
        data_dir=data_dir,
        until=None if limit_minutes is None else began + 60 * limit_minutes,
        progress=lambda: choose_progress(console, quiet=quiet),
    )

    def say(text: str) -> None:
        print(text, flush=True)

    with options.hint("finished cells are kept: give the same command again to continue"):
        if only_time:
            runner.time(say)
            return
        failures = runner.run(say)
    left = len(remaining_seconds(table, read_lines(results))[0])
    say(f"{name}: {len(table.cells) - left} of {len(table.cells)} cells are finished, in {results}")
    if failures:
        raise FedDigError(f"{len(failures)} cells failed; the first: {failures[0]}")


@paper_app.command("table")
def paper_table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="The table or figure; left out: all of them.", autocompletion=_tables
        ),
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a document.")] = False,
    experiments: Experiments = EXPERIMENTS,
    results: Results = RESULTS,
) -> None:
    """Print ours beside the paper's numbers: mean ± standard deviation over seeds."""
    from feddig.runs.paper.cells import finished_cells, read_lines, read_table, read_tables
    from feddig.runs.paper.table import describe_runs, heads_and_cells, tabulate, to_markdown

    finished = finished_cells(read_lines(results))
    for table in [read_table(experiments, name)] if name else read_tables(experiments):
        rows = tabulate(table, finished)
        if markdown:
            print(f"<!-- {table.name} -->\n\n{to_markdown(table, rows)}")
            continue
        heads, cells = heads_and_cells(table, rows)
        shown = Table(title=f"{table.name}: {table.title}: {table.about}", caption=describe_runs(rows))
        for head in heads:
            shown.add_column(head, overflow="fold")
        for texts in cells:
            shown.add_row(*texts)
        _print(shown)


@paper_app.command("figure")
def paper_figure(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The table or figure; `list` shows all.", autocompletion=_tables),
    ],
    out: Annotated[Path, typer.Option(help="Folder for paper-NAME.png and paper-NAME.svg.")] = Path(
        "figures"
    ),
    experiments: Experiments = EXPERIMENTS,
    results: Results = RESULTS,
) -> None:
    """Draw our results as the paper's figure, from the cells that are finished."""
    from feddig.report.paper.style import save_figure
    from feddig.runs.paper.cells import finished_cells, read_lines, read_table
    from feddig.runs.paper.picture import draw_table

    options.check_out(out)
    figure = draw_table(read_table(experiments, name), finished_cells(read_lines(results)))
    for path in save_figure(figure, out, f"paper-{name}"):
        print(path)


def _spell_time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 7200 else f"{seconds / 60:.1f} min"


def _print(table: Table) -> None:
    # a pipe has no width, and a truncated table is useless
    Console(width=None if sys.stdout.isatty() else 160).print(table)
