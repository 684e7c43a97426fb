"""The request filter of Flower's SuperLink: allowed origins and lengths of requests."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.superlink import extensions, main
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from feddig.errors import FedDigError
from feddig.federation.flower_1_41.replies import CHUNK
from feddig.federation.flower_1_41.superlink import (
    LoggedTLS,
    RequestFilter,
    put_filter_first,
    tidy,
    tidy_output,
)

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("client", "path", "status"),
    [
        (("127.0.0.1", 1), "/v1/control/start-run", 200),
        (("::1", 1), "/v1/control/start-run", 200),
        (("192.0.2.7", 1), "/v1/fleet/pull-messages", 200),
        (("192.0.2.7", 1), "/v1/control/start-run", 403),
        (("192.0.2.7", 1), "/v1/fleet/../control/start-run", 200),  # the app has no such path
        (("192.0.2.7", 1), "//v1/fleet/x", 403),
        (("nonsense", 1), "/v1/runtime/x", 403),
        (None, "/v1/control/start-run", 403),
    ],
)
def test_from_other_machines_only_the_silos_interface_is_open(
    client: tuple[str, int] | None, path: str, status: int
) -> None:
    assert status_of(client, path) == status


def status_of(client: tuple[str, int] | None, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Return the HTTP status of the response to a request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    encoded = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "path": path, "client": client, "headers": encoded}
    asyncio.run(RequestFilter(app)(scope, receive, send))
    return int(sent[0]["status"])


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
def test_a_request_that_is_too_long_is_refused(path: str, headers: dict[str, str], status: int) -> None:
    assert status_of(("192.0.2.7", 1), f"/v1/fleet/{path}", headers) == status
    assert status_of(("127.0.0.1", 1), f"/v1/fleet/{path}", headers) == status, "also from this machine"


def test_the_filter_comes_first_or_the_superlink_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    put_filter_first()
    assert main._get_middleware()[0].cls is RequestFilter
    monkeypatch.setattr(main, "_get_middleware", lambda: [Middleware(BaseHTTPMiddleware)])
    with pytest.raises(FedDigError, match="takes no filter of requests; install"):
        put_filter_first()


def test_a_failed_tls_handshake_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = LoggedTLS
    incoming = ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    assert not caplog.text
    incoming.write(b"GET / HTTP/1.0\r\n\r\n")
    with pytest.raises(ssl.SSLError):
        connection.do_handshake()
    assert "a connection failed the TLS handshake: [SSL: HTTP_REQUEST]" in caplog.text


@pytest.mark.parametrize(
    ("line", "then"),
    [
        ("\x1b[92mINFO \x1b[0m:      Starting", "2026-01-02 03:04:05,006 INFO Starting"),
        ("\x1b[93mWARNING \x1b[0m:   No answer", "2026-01-02 03:04:05,006 WARNING No answer"),
        (
            "2026-11-18T19:29:01.143Z INFO [uvicorn.error] x",
            "2026-11-18T19:29:01.143Z INFO [uvicorn.error] x",
        ),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_lines_of_flowers_log_get_the_time_and_lose_their_colours(line: str, then: str) -> None:
    assert tidy(line, datetime(2026, 1, 2, 3, 4, 5, 6789)) == then


def test_what_other_programs_print_is_tidied_too_down_to_the_last_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with tidy_output():
        subprocess.run([sys.executable, "-c", "print('\\x1b[91mERROR \\x1b[0m: from a child')"], check=True)
        os.write(2, b"INFO : last\n")
    said = capfd.readouterr().out.splitlines()
    assert [line[23:] for line in said] == [" ERROR from a child", " INFO last"]
    os.write(1, b"INFO : not touched\n")
    assert capfd.readouterr().out == "INFO : not touched\n"
