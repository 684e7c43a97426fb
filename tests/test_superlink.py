"""What stands before Flower's SuperLink: who gets in, and how much at once."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from starlette.middleware import Middleware

from feddig.federation.flower_1_41.gate import Gate
from feddig.federation.flower_1_41.intake import CHUNK
from feddig.federation.flower_1_41.superlink import check_gate

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("client", "path", "status"),
    [
        (("127.0.0.1", 1), "/v1/control/start-run", 200),
        (("::1", 1), "/v1/control/start-run", 200),
        (("192.0.2.7", 1), "/v1/fleet/pull-messages", 200),
        (("192.0.2.7", 1), "/v1/control/start-run", 403),
        (("192.0.2.7", 1), "/v1/fleet/../control/start-run", 200),  # the app finds no such path
        (("192.0.2.7", 1), "//v1/fleet/x", 403),
        (("nonsense", 1), "/v1/runtime/x", 403),
        (None, "/v1/control/start-run", 403),
    ],
)
def test_the_gate(client: tuple[str, int] | None, path: str, status: int) -> None:
    assert at_the_gate(client, path) == status


def at_the_gate(client: tuple[str, int] | None, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Give the HTTP status with which a request is answered."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    told: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        told.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    asyncio.run(Gate(app)({"type": "http", "path": path, "client": client, "headers": named}, receive, send))
    return int(told[0]["status"])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("push-object", {"content-length": f"{CHUNK}"}, 200),
        ("push-object", {"content-length": "600000000"}, 413),
        ("push-object", {"transfer-encoding": "chunked"}, 411),
        ("push-object", {"content-length": "-1"}, 411),
        ("push-messages", {"content-length": "60000"}, 200),
        ("push-messages", {"content-length": f"{CHUNK}"}, 413),
        ("pull-messages", {}, 200),
    ],
)
def test_the_gate_lets_nothing_in_that_is_too_long(path: str, headers: dict[str, str], status: int) -> None:
    assert at_the_gate(("192.0.2.7", 1), f"/v1/fleet/{path}", headers) == status
    assert at_the_gate(("127.0.0.1", 1), f"/v1/fleet/{path}", headers) == status, "also from this machine"


def test_a_flower_that_takes_no_gate_is_not_started() -> None:
    ours, other = Middleware(Gate), Middleware(SimpleNamespace)
    check_gate(SimpleNamespace(_get_middleware=lambda: [ours, other]))
    for others in ([], [other, ours]):
        with pytest.raises(SystemExit, match="takes no gate"):
            check_gate(SimpleNamespace(_get_middleware=lambda others=others: others))
