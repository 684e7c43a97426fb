"""Flower's SuperLink, with a gate before it."""

import os
from typing import Any

from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API
from flwr.superlink import extensions
from flwr.superlink import main as interfaces
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware

from feddig.federation.flower_1_41.gate import Gate
from feddig.federation.flower_1_41.handshakes import log_refused_handshakes


def main() -> None:
    """Run the SuperLink with the gate as its outermost layer."""
    inner = extensions.get_middleware

    def layers() -> tuple[Middleware, ...]:
        return (Middleware(Gate), *inner())

    extensions.get_middleware = layers
    for other_door in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(other_door, None)
    check_gate(interfaces)
    log_refused_handshakes()
    flower_superlink()


def check_gate(flowers: Any) -> None:
    """Refuse to start if Flower would not put the gate before everything else."""
    if [layer.cls for layer in flowers._get_middleware()][:1] != [Gate]:
        raise SystemExit(
            "feddig: error: this release of Flower takes no gate before its SuperLink; install flwr>=1.41,<1.42"
        )


if __name__ == "__main__":
    main()
