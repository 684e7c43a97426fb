"""`feddig datasets`: the public data sets and where they are."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from feddig.commands.options import DataDir, Json


def datasets_command(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare files with the publishers' hashes.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the public data sets: which are on this computer, where, and whether they are the publishers' own."""
    from feddig.data.load import describe

    entries = describe(data_dir, verify)
    if as_json:
        print(
            json.dumps(
                [{**vars(entry), "where": entry.where and str(entry.where)} for entry in entries], indent=2
            )
        )
        return
    table = Table()
    for name in ("name", "train", "test", "classes", "standing", "where, or where to get it", "licence"):
        table.add_column(name, overflow="fold")
    for entry in entries:
        place = entry.fault or (str(entry.where) if entry.present else f"not here: {entry.address}")
        counts = ("-" if count is None else f"{count:,}" for count in (entry.train, entry.test))
        table.add_row(entry.name, *counts, str(entry.classes), entry.standing, place, entry.licence)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
