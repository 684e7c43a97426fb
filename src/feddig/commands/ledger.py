"""`feddig ledger show|verify|resend`: show a silo's releases, check its ledger, note that a digest is sent again."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from feddig.commands.options import Json, LogLevel, show_log
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.privacy.ledger_file import Entry

ledger_app = typer.Typer(
    no_args_is_help=True, help="Show or verify a silo's ledger of releases, or note a resend."
)

LedgerFile = Annotated[
    Path | None,
    typer.Option(
        help="Ledger that notes the release, or refuses it if over the budget in section privacy; your own data has "
        "one without this, found again by the data."
    ),
]
Recipient = Annotated[
    str | None, typer.Option(help="Who gets the digest, for the ledger; without it, moderator.")
]
Written = Annotated[Path, typer.Argument(help="Ledger file.")]

COLUMNS = {
    "number": "no.",
    "time": "time",
    "kind": "kind",
    "recipient": "recipient",
    "digest": "digest",
    "mechanism": "mechanism",
    "random": "random",
    "record_epsilon": "epsilon",
    "record_delta": "delta",
    "composed_epsilon": "epsilon so far",
    "composed_delta": "delta so far",
}


def check_ledger_options(ledger: Path | None, recipient: str | None, out: Path, *, has_own: bool) -> None:
    """Check what `digest make` is told about a ledger, before anything is made."""
    if ledger is None:
        if recipient is not None and not has_own:
            raise FedDigError("--recipient: is noted in a ledger; give --ledger too")
        return
    from feddig.privacy.ledger import Ledger

    if out.resolve() in (ledger.resolve(), Ledger(ledger).head_path.resolve()):
        raise FedDigError(f"--out: {out} is the ledger's own file; choose another")


@ledger_app.command("show")
def ledger_show(file: Written, as_json: Json = False) -> None:
    """Show what was released, when, to whom, at what cost to a record."""
    entries = _entries(file)
    if as_json:
        print(json.dumps([entry.record for entry in entries], indent=2))
        return
    table = Table()
    for title in COLUMNS.values():
        table.add_column(title, overflow="fold")
    for entry in entries:
        table.add_row(*(_cell(name, entry.record.get(name, "")) for name in COLUMNS))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@ledger_app.command("verify")
def ledger_verify(file: Written) -> None:
    """Check that nothing in a ledger was changed, added, moved or removed; print its length and last hash."""
    entries = _entries(file)
    print(f"{file}: whole, {len(entries)} entries, last hash {entries[-1].hash if entries else 'none'}")


@ledger_app.command("resend")
def ledger_resend(
    file: Written,
    digest: Annotated[Path, typer.Argument(help="Digest file that was released before.")],
    recipient: Annotated[str, typer.Option(help="Who gets it now.")],
) -> None:
    """Note, before it leaves, that a released digest is sent again: the same bytes cost nothing."""
    show_log(LogLevel.warning)
    from feddig.digest.digest_file import read_digest
    from feddig.privacy.ledger import Ledger

    entry = Ledger(file).resend(read_digest(digest).hash, recipient)
    print(
        f"{file}: noted as no. {entry.number}, {digest} to {recipient}; it costs nothing, and epsilon "
        f"{entry.composed_epsilon:g} and delta {entry.composed_delta:g} are spent as before"
    )


def _entries(file: Path) -> "list[Entry]":
    show_log(LogLevel.warning)
    from feddig.privacy.ledger import Ledger

    entries = Ledger(file).entries()
    if not entries and not file.exists():
        raise FedDigError(f"{file}: no such ledger; `feddig digest make --ledger {file}` begins one")
    return entries


def _cell(name: str, value: float | str) -> str:
    if name == "digest":
        return str(value)[:12]
    return f"{value:.6g}" if isinstance(value, float) else str(value)
