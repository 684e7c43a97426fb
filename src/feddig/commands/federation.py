"""`feddig federation init|key|up|moderator|silo|renew|status`: a real federation on Flower, from files to end."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from feddig.commands.federation_setup import (
    Whole,
    federation_init,
    federation_key,
    federation_renew,
    need_flower,
)
from feddig.commands.options import INTERRUPTED, Json, Level, LogLevel, Quiet, show_log
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.federation.folders import ModeratorFolder

federation_app = typer.Typer(no_args_is_help=True, help="Set up, run and watch a real federation on Flower.")

federation_app.command("init")(federation_init)
federation_app.command("key")(federation_key)


@federation_app.command("up")
def federation_up(
    folder: Whole,
    only: Annotated[
        str | None, typer.Option(help="Run only this party: moderator, or the name of a silo.")
    ] = None,
    rounds_limit: Annotated[
        int | None, typer.Option(min=1, help="Stop when so many rounds are done; up again goes on.")
    ] = None,
    quiet: Quiet = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Run moderator and silos on this machine, or go on after a stop or a crash, until all rounds are done."""
    show_log(log_level)
    need_flower()
    from feddig.federation.folders import FederationFolder
    from feddig.federation.processes.stopping import told_to_stop
    from feddig.federation.processes.up import up
    from feddig.federation.processes.watching import choose_display

    whole = FederationFolder(folder)
    with told_to_stop() as stopping, choose_display(Console(stderr=True), quiet=quiet) as show:
        done = up(whole, stopping, only=only, rounds_limit=rounds_limit, show=show)
    _conclude(done, stopping.is_set(), f"feddig federation up {folder}")
    if done and not quiet:
        print(whole.moderator.run)


@federation_app.command("moderator")
def federation_moderator(
    folder: Annotated[Path, typer.Argument(help="The moderator's own folder.")],
    log_level: Level = LogLevel.info,
) -> None:
    """Run the moderator on its own machine, in the foreground, until all rounds are done."""
    show_log(log_level)
    need_flower()
    from feddig.federation.folders import ModeratorFolder
    from feddig.federation.processes.host import host
    from feddig.federation.processes.network import keep_off_proxies
    from feddig.federation.processes.stopping import told_to_stop

    keep_off_proxies()
    with told_to_stop() as stopping:
        done = host(ModeratorFolder(folder), stopping)
    _conclude(done, stopping.is_set(), f"feddig federation moderator {folder}")


@federation_app.command("silo")
def federation_silo(
    folder: Annotated[Path, typer.Argument(help="The silo's own folder.")],
    log_level: Level = LogLevel.info,
) -> None:
    """Run a silo on its own machine, in the foreground: its node is started again whenever it ends."""
    show_log(log_level)
    need_flower()
    from feddig.federation.folders import SiloFolder
    from feddig.federation.processes.network import keep_off_proxies
    from feddig.federation.processes.stopping import told_to_stop
    from feddig.federation.processes.supervisor import supervise

    keep_off_proxies()
    with told_to_stop() as stopping:
        supervise(SiloFolder(folder), stopping)
    print("stopped; the digest stands in from now on, where the moderator holds it", file=sys.stderr)


federation_app.command("renew")(federation_renew)


@federation_app.command("status")
def federation_status(folder: Whole, as_json: Json = False) -> None:
    """Show who is here, who is away since when, whose digest is held, the round and the accuracy."""
    from feddig.federation.status import describe, moderator_runs, read_status, tabulate

    moderator = _moderator_of(folder)
    status = read_status(moderator.status)
    runs = moderator_runs(moderator, status)
    if status is None:
        raise FedDigError(
            f"{moderator.status}: is not there yet; `feddig federation up` starts the federation"
        )
    if as_json:
        print(json.dumps({**status.content, "running": runs}, indent=2))
        return
    said = "runs" if runs else "does not run"
    print(f"{status.content['federation']}: {status.content['state']}, the moderator {said}")
    print(f"{describe(status)}\nas of {status.content['updated']}")
    Console(width=None if sys.stdout.isatty() else 120).print(tabulate(status))


def _moderator_of(folder: Path) -> "ModeratorFolder":
    """Find the moderator's folder: inside a federation's, or it is the moderator's own."""
    from feddig.federation.folders import FederationFolder, ModeratorFolder

    inner = FederationFolder(folder).moderator
    found = inner if inner.path.is_dir() else ModeratorFolder(folder)
    if not found.contract.is_file():
        raise FedDigError(f"{folder}: is no federation's folder; `feddig federation init` makes one")
    return found


def _conclude(done: bool, told: bool, again: str) -> None:
    """End with an exit code that says whether all rounds are done."""
    if not done:
        print(f"stopped before the last round; go on with `{again}`", file=sys.stderr)
        if told:
            raise typer.Exit(INTERRUPTED)
