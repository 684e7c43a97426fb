"""A silo whose network is cut: its processes run, but no data passes in either direction."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.folders import FederationFolder
from feddig.federation.processes.processes import running
from real_parties import NODE, RealFederation, stop

pytestmark = [
    pytest.mark.flower,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

DEADLINE = 20.0


class Proxy:
    """An HTTP proxy, through which a silo reaches the moderator and which can drop all data."""

    def __init__(self) -> None:
        self.forwarded = 0
        """Bytes that were forwarded, in both directions."""
        self._cut = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop all data from now on, without closing connections."""
        self._cut.set()

    def restore(self) -> None:
        """Forward new connections again; close the old ones, which have lost bytes."""
        self._cut.clear()
        self._close_sockets()

    def close(self) -> None:
        self._listener.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        while self._sockets:
            with self._sockets.pop() as one, suppress(OSError):  # the other side may have closed it first
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=[inner], daemon=True).start()

    def _connect(self, inner: socket.socket) -> None:
        self._sockets.append(inner)
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += inner.recv(4096)
        assert asked.startswith(b"CONNECT 127.0.0.2:")
        if self._cut.is_set():
            return  # leave the client without an answer
        host, _, port = asked.split()[1].decode().rpartition(":")
        try:
            outer = socket.create_connection((host, int(port)))
        except OSError:
            inner.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            inner.shutdown(socket.SHUT_RDWR)
            return
        self._sockets.append(outer)
        inner.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=self._forward, args=[outer, inner], daemon=True).start()
        self._forward(inner, outer)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while some := source.recv(65536):
                if not self._cut.is_set():
                    target.sendall(some)
                    self.forwarded += len(some)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side has closed the connection


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@contextmanager
def parties(folder: FederationFolder, proxy: Proxy) -> Iterator[None]:
    """Start the moderator and each silo by separate commands; the last silo uses the proxy."""
    moderator, silos = folder.moderator.path, [folder.silo(f"silo-{silo}").path for silo in range(2)]
    # HTTP_PROXY too, because requests between the silo's own processes must not use the proxy
    behind = {**os.environ, "HTTPS_PROXY": proxy.address, "HTTP_PROXY": proxy.address, "NO_PROXY": ""}
    commands = [("moderator", moderator, dict(os.environ)), ("silo", silos[0], dict(os.environ))]
    started = []
    try:
        for what, path, environment in [*commands, ("silo", silos[1], behind)]:
            with (folder.path / f"{path.name}.log").open("wb") as output:
                command = [sys.executable, "-m", "feddig", "federation", what, str(path)]
                started.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
                )
        yield
    finally:
        stop(started, [moderator, *silos])


def test_a_silo_whose_network_is_cut_is_recalled_and_counted_again(tmp_path: Path, proxy: Proxy) -> None:
    # another address of this machine, for which the silo uses the proxy
    federation = RealFederation(tmp_path / "federation", training_deadline=DEADLINE, host="127.0.0.2")
    with parties(federation.folder, proxy):
        federation.wait_for(lambda: federation.present(1))
        assert proxy.forwarded > 0
        proxy.cut()
        federation.wait_for(lambda: len(federation.recalled(1)) >= 2)
        assert running(federation.silo(1).path, NODE), "its client process still runs"
        without = [row for row in federation.rows() if row["recalled"] == [1]]
        assert all(row["present"] == [0] and row["seconds"] < DEADLINE + 10 for row in without)
        proxy.restore()
        missed = federation.recalled(1)[-1]
        federation.wait_for(lambda: federation.present(1)[-1] > missed)
    federation.check_nothing_was_lost()
