"""Flower's SuperLink with three layers before it: who gets in (gate), how much at once (turns), what stays (sweep)."""

import os
from typing import Any

from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API
from flwr.supercore import sql_mixin
from flwr.superlink import extensions
from flwr.superlink import main as interfaces
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware

from feddig.federation.flower_1_41.frugality import Sweep, give_back_at_once, keep_little
from feddig.federation.flower_1_41.gate import Gate
from feddig.federation.flower_1_41.handshakes import log_refused_handshakes
from feddig.federation.flower_1_41.turns import Turns

LAYERS: list[Any] = [Gate, Turns, Sweep]


def main() -> None:
    """Run the SuperLink with our layers as its outermost."""
    inner = extensions.get_middleware

    def layers() -> tuple[Middleware, ...]:
        return (*(Middleware(layer) for layer in LAYERS), *inner())

    extensions.get_middleware = layers
    for other_door in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(other_door, None)
    check_layers(interfaces)
    keep_little(sql_mixin)
    give_back_at_once()
    log_refused_handshakes()
    flower_superlink()


def check_layers(flowers: Any) -> None:
    """Refuse to open the doors if Flower would not put our layers before them."""
    if [layer.cls for layer in flowers._get_middleware()][: len(LAYERS)] != LAYERS:
        raise SystemExit(
            "feddig: error: this release of Flower takes no gate before its SuperLink; install flwr>=1.41,<1.42"
        )


if __name__ == "__main__":
    main()
