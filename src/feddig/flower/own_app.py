"""A silo's node runs the FedDig that the silo installed, whatever app its moderator sends.

Flower's node unpacks and runs the app that comes with a run: any program, next to the silo's images. Here the programs
that a node starts for an app stand in a folder of the silo's own, first in its path. The one for silos loads
`feddig.flower.client_app` and leaves the app that was sent unread; the others refuse.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

SILO_PROGRAM = "flwr-clientapp"

_RUN = """#!/bin/sh
exec {python} -P -m feddig.flower.own_app "$@"
"""
_REFUSE = """#!/bin/sh
echo "feddig: error: $(basename "$0"): the moderator wants to run this here; it is refused" >&2
exit 1
"""


def write_programs(folder: Path) -> None:
    """Write the programs that a silo's node is to start instead of Flower's; anew each time, as Python may move."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder.mkdir(parents=True, exist_ok=True)
    for name in TASK_TYPE_TO_COMMAND.values():
        script = _RUN.format(python=shlex.quote(sys.executable)) if name == SILO_PROGRAM else _REFUSE
        path = folder / name
        path.write_text(script, encoding="utf-8")
        path.chmod(0o700)


def main() -> None:
    """Be Flower's program for silos, with our own app in place of the one that was sent."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    from feddig.flower.client_app import app

    def load_ours(**_: Any) -> Any:
        return lambda *_: app

    def unpack_nothing(*_: Any, **__: Any) -> None:
        pass

    flowers: Any = run_clientapp
    flowers.get_load_client_app_fn, flowers.install_from_fab = load_ours, unpack_nothing
    flwr_clientapp()


if __name__ == "__main__":
    main()
