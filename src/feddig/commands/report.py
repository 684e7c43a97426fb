"""`feddig report`: write one page about one run or many."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from feddig.commands.options import Quiet, print_page
from feddig.errors import FedDigError


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of runs or comparisons, or of one audit.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Page to write; without it, report.html in the folder, or here if there are several."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs for a browser: curves, absence, privacy, cost, settings. Trains nothing."""
    if out is not None and out.suffix != ".html":
        raise FedDigError(f"--out: {out}: name the page NAME.html; the folders of runs come before --out")
    from feddig.report.page import write_report

    page, notes = write_report(folders, out)
    if quiet:
        print(page)
        return
    for note in notes:
        print(f"feddig: {note}", file=sys.stderr)
    print_page(page)
