"""A silo whose network is cut: its processes live, and nothing that they send or wait for arrives."""

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


class Line:
    """The only way out of a silo: a proxy, as many companies have one, that can be cut and mended."""

    def __init__(self) -> None:
        self.carried = 0
        """Bytes that went through, in either direction."""
        self._cut = threading.Event()
        self._ends: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._answer, daemon=True).start()

    def cut(self) -> None:
        """From now on swallow everything, and tell nobody."""
        self._cut.set()

    def mend(self) -> None:
        """Let new connections through; those from before have lost bytes and are ended."""
        self._cut.clear()
        self._end_all()

    def close(self) -> None:
        self._door.close()
        self._end_all()

    def _end_all(self) -> None:
        while self._ends:
            with self._ends.pop() as one, suppress(OSError):  # the other side may have been faster
                one.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> None:
        while True:
            try:
                inner, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=[inner], daemon=True).start()

    def _connect(self, inner: socket.socket) -> None:
        self._ends.append(inner)
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += inner.recv(4096)
        assert asked.startswith(b"CONNECT 127.0.0.2:")
        if self._cut.is_set():
            return  # whoever waits for an answer waits
        host, _, port = asked.split()[1].decode().rpartition(":")
        try:
            outer = socket.create_connection((host, int(port)))
        except OSError:
            inner.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            inner.shutdown(socket.SHUT_RDWR)
            return
        self._ends.append(outer)
        inner.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=self._carry, args=[outer, inner], daemon=True).start()
        self._carry(inner, outer)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while some := source.recv(65536):
                if not self._cut.is_set():
                    target.sendall(some)
                    self.carried += len(some)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side has gone


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


@contextmanager
def parties(folder: FederationFolder, line: Line) -> Iterator[None]:
    """Run the moderator and each silo by commands of their own; the last silo is told to go by the line."""
    moderator, silos = folder.moderator.path, [folder.silo(f"silo-{silo}").path for silo in range(2)]
    # HTTP_PROXY too: what its own processes tell each other must not go there
    behind = {**os.environ, "HTTPS_PROXY": line.address, "HTTP_PROXY": line.address, "NO_PROXY": ""}
    commands = [("moderator", moderator, dict(os.environ)), ("silo", silos[0], dict(os.environ))]
    started = []
    try:
        for what, path, environment in [*commands, ("silo", silos[1], behind)]:
            with (folder.path / f"{path.name}.log").open("wb") as said:
                command = [sys.executable, "-m", "feddig", "federation", what, str(path)]
                started.append(
                    subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
                )
        yield
    finally:
        stop(started, [moderator, *silos])


def test_a_silo_whose_network_is_cut_is_recalled_and_counted_again(tmp_path: Path, line: Line) -> None:
    # another name of this machine, so that the silo uses the proxy for it
    federation = RealFederation(tmp_path / "federation", training_deadline=DEADLINE, host="127.0.0.2")
    with parties(federation.folder, line):
        federation.wait_for(lambda: federation.present(1))
        assert line.carried > 0
        line.cut()
        federation.wait_for(lambda: len(federation.recalled(1)) >= 2)
        assert running(federation.silo(1).path, NODE), "its node still runs"
        without = [row for row in federation.rows() if row["recalled"] == [1]]
        assert all(row["present"] == [0] and row["seconds"] < DEADLINE + 10 for row in without)
        line.mend()
        missed = federation.recalled(1)[-1]
        federation.wait_for(lambda: federation.present(1)[-1] > missed)
    federation.check_nothing_was_lost()
