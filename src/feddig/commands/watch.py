"""`feddig watch`: serve the report page of a run, a comparison or a federation while it is running."""

import sys
import webbrowser
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.federation.folders import ModeratorFolder
    from feddig.report.live import FederationStatus, LivePage


def watch_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Results folder of a run or a comparison, or a federation's or moderator's folder.",
        ),
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than the default lets others read the page.")
    ] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Show the report page of a running experiment or federation: rounds appear as they finish. Changes nothing."""
    from feddig.report.live_server import LiveServer

    page = open_page(folder)
    with LiveServer(page, host, port) as server:
        if not server.is_private:
            print(f"feddig: warning: anyone who can reach {host} can read this page", file=sys.stderr)
        try:
            print(server.address, flush=True)
            print(f"showing {folder}; Ctrl-C ends it", file=sys.stderr)
            if open_:
                # in a thread, because a browser in the terminal would block the server
                Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nended", file=sys.stderr)


def open_page(folder: Path) -> "LivePage":
    """Return the live page of a results folder or a federation's folder."""
    from feddig.federation.folders import FederationFolder, ModeratorFolder
    from feddig.report.live import LivePage
    from feddig.report.read_run import find_runs

    if folder.is_file():
        raise FedDigError(f"{folder}: is a file; give the results folder of a run that was started with it")
    if not folder.is_dir():
        raise FedDigError(f"{folder}: no such folder; start the run first, or make an empty folder for it")
    for moderator in (FederationFolder(folder).moderator, ModeratorFolder(folder)):
        if moderator.contract.is_file() and not (moderator.path / "silo.toml").exists():
            return LivePage(moderator.run, partial(_read_status, moderator))
    if (folder / "silo.toml").exists():
        raise FedDigError(
            f"{folder}: is a silo's folder; results are in the moderator's folder, so watch that"
        )
    if next(find_runs(folder), None) is None and not _may_begin(folder):
        raise FedDigError(
            f"{folder}: holds no results, here or below; give a folder of feddig run, feddig compare or "
            "feddig federation, or an empty one"
        )
    return LivePage(folder)


def _may_begin(folder: Path) -> bool:
    """Return whether a run may begin here: the folder is empty, or a run or comparison is just starting in it."""
    from feddig.files import STARTING

    is_empty = next(folder.iterdir(), None) is None
    return is_empty or any(True for depth in ("", "*/*/*/") for _ in folder.glob(f"{depth}{STARTING}"))


def _read_status(moderator: "ModeratorFolder") -> "FederationStatus":
    """Read what a federation's moderator reports about itself; an empty status before it has reported anything."""
    from feddig.federation.status import read_status
    from feddig.report.live import FederationStatus

    try:
        status = read_status(moderator.status)
    except FedDigError:
        status = None
    if status is None:
        return FederationStatus()
    names = tuple(str(silo["name"]) for silo in status.content["silos"])
    return FederationStatus(names, f"{status.waits or status.content['state']}, {status.attendance}")
