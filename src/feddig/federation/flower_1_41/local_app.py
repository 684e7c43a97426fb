"""Answer the moderator's messages with the FedDig that the silo installed, whatever app the moderator sends.

Flower's node unpacks and runs the app that comes with a run: any program, next to the silo's images. It starts
programs by their names. So the silo has a folder of its own programs, which comes first in the node's PATH. The program
for silos loads `feddig.federation.client_app` and does not read the app that was sent; the others refuse to run.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import LOCAL_APP, start_checked

SILO_PROGRAM = "flwr-clientapp"

_RUN = """#!/bin/sh
exec {python} -P -m feddig.federation.flower_1_41.local_app "$@"
"""
_REFUSE = """#!/bin/sh
echo "feddig: error: $(basename "$0"): the moderator wants to run this here; it is refused" >&2
exit 1
"""


def write_programs(folder: Path) -> None:
    """Write the programs that a silo's node starts instead of Flower's; at each start, as Python may have moved."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in names.PROGRAMS.get().values():
        script = _RUN.format(python=shlex.quote(sys.executable)) if program == SILO_PROGRAM else _REFUSE
        path = folder / program
        path.write_text(script, encoding="utf-8")
        path.chmod(0o700)


def main() -> None:
    """Answer one message."""
    start_checked(_run, LOCAL_APP)


def _run() -> None:
    """Run Flower's program for silos with our app in place of the app that was sent.

    It is started for every message. Flower's own command would first import the whole SuperNode with its database.
    """
    from feddig.federation.client_app import app

    parser = argparse.ArgumentParser(prog=SILO_PROGRAM, description="Answer one message of the moderator's.")
    parser.add_argument("--runtime-api-address", required=True, help="Address of this silo's own node.")
    names.ADD_ARGUMENTS.get()(parser)
    given = parser.parse_args()

    def load_ours(**_: Any) -> Any:
        return lambda *_: app

    def unpack_nothing(*_: Any, **__: Any) -> None:
        pass

    names.LOAD_APP.replace(load_ours)
    names.UNPACK_APP.replace(unpack_nothing)
    names.RUN_APP.get()(
        runtime_api_address=given.runtime_api_address,
        token=names.READ_TOKEN.get()(given),
        insecure=given.insecure,
        certificates=names.READ_CERTIFICATES.get()(given.root_certificates, given.insecure),
        parent_pid=given.parent_pid,
        # what runs here is what the silo has installed
        runtime_dependency_install=False,
    )


if __name__ == "__main__":
    main()
