"""A silo's node runs the FedDig that the silo installed, whatever app its moderator sends.

Flower's node unpacks and runs the app that comes with a run: any program, next to the silo's images. Here the programs
that a node starts for an app stand in a folder of the silo's own, first in its path. The one for silos loads
`feddig.federation.client_app` and leaves the app that was sent unread; the others refuse.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

SILO_PROGRAM = "flwr-clientapp"

_RUN = """#!/bin/sh
exec {python} -P -m feddig.federation.flower_1_41.local_app "$@"
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
    """Be Flower's program for silos, with our own app in place of the one that was sent.

    It is started for every message. Flower's own command would import the whole SuperNode with its database first.
    """
    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime import run_clientapp

    from feddig.federation.client_app import app

    parser = argparse.ArgumentParser(prog=SILO_PROGRAM, description="Answer one message of the moderator's.")
    parser.add_argument("--runtime-api-address", required=True, help="Address of this silo's own node.")
    add_args_flwr_app_common(parser)
    given = parser.parse_args()

    def load_ours(**_: Any) -> Any:
        return lambda *_: app

    def unpack_nothing(*_: Any, **__: Any) -> None:
        pass

    flowers: Any = run_clientapp
    flowers.get_load_client_app_fn, flowers.install_from_fab = load_ours, unpack_nothing
    run_clientapp.run_clientapp(
        runtime_api_address=given.runtime_api_address,
        token=try_obtain_flwr_app_token(given),
        insecure=given.insecure,
        certificates=validate_and_resolve_root_certificates(given.root_certificates, given.insecure),
        parent_pid=given.parent_pid,
        # what runs here is what the silo has installed
        runtime_dependency_install=False,
    )


if __name__ == "__main__":
    main()
