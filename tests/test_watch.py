"""`feddig watch`: the server's responses and refusals, the states of runs, and damaged folders."""

import http.client
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feddig.cli import main
from feddig.errors import FedDigError
from feddig.report import live
from feddig.report import read_run as runs
from feddig.report.live import LivePage
from feddig.report.live_server import HEADERS, LiveServer
from feddig.report.page import build_page
from feddig.report.read_run import read_run
from feddig.runs.results_folder import open_log
from folders import error_line, start_feddig
from report_folders import page_data, write_folder, write_grid

LEAVING = ["1100", "1111"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the folder again for every request."""
    monkeypatch.setattr(live, "MIN_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(live, "CACHE_FACTOR", 0.0)


class Answer:
    """The response to a request."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


class Client:
    """A client of a server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, path: str = "/state", method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers=headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()


Serve = Callable[..., Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a folder on a free port, and return a client."""
    servers = []

    def start(folder: Path, host: str = "127.0.0.1") -> Client:
        server = LiveServer(LivePage(folder), host, 0)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return Client(server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of four rounds of which two are done; no process works on it."""
    return cut(write_folder(tmp_path / "run", [10, 20, 30, 40], LEAVING, finished=False), 2)


def cut(run: Path, rounds: int, rest: int = 0) -> Path:
    """Keep some rounds of a run, and some bytes of the next round."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:rounds]) + "".join(lines[rounds:])[:rest], encoding="utf-8")
    return run


def age_files(folder: Path) -> None:
    """Set the time of all files in a folder to an hour ago."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def row(round: int, accuracy: float) -> str:
    known = {
        "format_version": 1,
        "round": round,
        "test_accuracy": accuracy,
        "present": [0, 1],
        "recalled": [],
    }
    return json.dumps({**known, "validation_accuracy": [1.0, 2.0], "seconds": 1.0}) + "\n"


def add(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(text)


def curve_in(page: str) -> list[float]:
    values: list[float] = page_data(page)["groups"][0]["curves"][0]["mean"]
    return values


# --- what it sends and refuses


def test_the_page_is_the_report_with_one_more_script(serve: Serve, run: Path) -> None:
    answer = serve(run)("/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert curve_in(answer.text) == [10, 20]
    assert "20.0\u00a0% after 2 of 4 rounds" in answer.text
    assert answer.text.count("<script>") == 2
    assert "connect-src 'self'" in answer.text
    report = build_page([read_run(run)])
    assert report.count("<script>") == 1
    assert "connect-src" not in report


@pytest.mark.parametrize("path", ["/", "/state", "/nowhere"])
def test_every_answer_has_the_headers_that_protect_it(path: str, serve: Serve, run: Path) -> None:
    ask = serve(run)
    for answer in (ask(path), ask(path, "HEAD"), ask(path, "POST"), ask(path, Host="evil.example")):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert answer.headers["Server"] == "feddig"
        assert answer.headers["Access-Control-Allow-Origin"] is None
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline' '" not in policy
    assert HEADERS["Cache-Control"] == "no-store"
    assert HEADERS["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_it_can_only_be_read(method: str, serve: Serve, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.iterdir()}
    answer = serve(run)("/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_a_head_request_has_the_same_headers_and_no_body(serve: Serve, run: Path) -> None:
    ask = serve(run)
    whole, head = ask("/"), ask("/", "HEAD")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["Content-Length"] == str(len(whole.body))
    assert head.headers["ETag"] == whole.headers["ETag"] == f'"{ask().state["version"]}"'


@pytest.mark.parametrize(
    "path",
    [
        "/metrics.jsonl",
        "/experiment.toml",
        "/../run/summary.json",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/secret",
        "//etc/passwd",
        "/./",
        "/state/",
        "/digests/silo-0.safetensors",
        "http://127.0.0.1/state",
        "\\..\\secret",
    ],
)
def test_no_file_is_sent_by_its_path(path: str, serve: Serve, run: Path) -> None:
    (run.parent / "secret").write_text("secret")
    answer = serve(run)(path)
    assert answer.status == 404
    assert answer.text == "there is only one page here: /\n"


def test_a_malformed_request_gets_one_line(serve: Serve, run: Path) -> None:
    ask = serve(run)
    with socket.create_connection(("127.0.0.1", ask.port), timeout=30) as raw:
        raw.sendall(b"\x16\x03\x01 TLS? <script>\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(10_000), b""))
    assert answer == b"Bad Request\n"
    assert ask().status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9", 200),
        ("127.0.0.1:8765", 200),
        ("[::1]:8765", 200),
        ("evil.example", 403),
        ("evil.example:8765", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.1", 403),
        ("", 403),
    ],
)
def test_other_host_names_are_refused(host: str, status: int, serve: Serve, run: Path) -> None:
    answer = serve(run)("/state", Host=host)
    assert answer.status == status
    if status == 403:
        assert "--host" in answer.text


def test_a_public_server_accepts_its_addresses_and_no_other_names(serve: Serve, run: Path) -> None:
    ask = serve(run, "0.0.0.0")
    assert ask("/state", Host="192.0.2.1:8765").status == 200
    assert ask("/state", Host=f"{socket.gethostname()}:8765").status == 200
    assert ask("/state", Host="evil.example").status == 403


# --- the state of runs


def test_a_run_is_live_while_a_process_works_on_it_and_then_stopped(serve: Serve, run: Path) -> None:
    ask = serve(run)
    assert ask().state["state"] == "stopped"
    assert ask().state["message"] == "stopped at round 2 of 4: no process is working on it now"
    with open_log(run):
        assert ask().state["state"] == "live"
        assert ask().state["message"] == "live, round 2 of 4"
        version = ask().state["version"]
        add(run, row(2, 30.0))
        assert ask().state["message"] == "live, round 3 of 4"
        assert ask().state["version"] != version
        assert curve_in(ask("/").text) == [10, 20, 30]
    assert ask().state["state"] == "stopped"


def test_watching_does_not_stop_a_run_from_starting(run: Path) -> None:
    """The server takes a run's lock briefly to see whether the run is active; here for a tenth of a second."""
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such locks")
    (run / "log.txt").touch()
    with (run / "log.txt").open("rb") as watching:
        fcntl.flock(watching.fileno(), fcntl.LOCK_SH)
        timer = threading.Timer(0.1, fcntl.flock, (watching.fileno(), fcntl.LOCK_UN))
        timer.start()
        with open_log(run):
            assert live._is_active(read_run(run)) is True
        timer.join()
    assert live._is_active(read_run(run)) is False
    with open_log(run), pytest.raises(FedDigError, match="another process is working"), open_log(run):
        pass


def test_a_finished_run_has_ended(serve: Serve, tmp_path: Path) -> None:
    ask = serve(write_folder(tmp_path / "run", [10, 20, 30, 40], LEAVING))
    assert ask().state["state"] == "ended"
    assert ask().state["message"] == "ended: all 4 rounds are done"


def test_a_folder_without_a_run_waits_for_one(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ask = serve(folder)
    assert ask().state["state"] == "waiting"
    assert ask().state["age"] is None
    assert "Waiting for a run" in ask("/").text
    folder.rmdir()
    write_folder(folder, [10, 20], LEAVING, finished=False)
    assert curve_in(ask("/").text) == [10, 20]
    shutil.rmtree(folder)
    assert ask().state["state"] == "waiting"


def test_the_state_of_a_comparison_names_the_active_run(serve: Serve, tmp_path: Path) -> None:
    ask = serve(write_grid(tmp_path / "grid", seeds=1))
    assert ask().state["message"] == "3 of 3 runs finished; the next may start soon"
    age_files(tmp_path / "grid")
    assert ask().state["state"] == "ended"
    assert ask().state["message"] == "3 of 3 runs finished; no process is working on them now"
    new = cut(
        write_folder(tmp_path / "grid" / "new", [1.0] * 4, LEAVING, algorithm="fednova", finished=False), 1
    )
    assert ask().state["state"] == "waiting"
    age_files(tmp_path / "grid")
    assert ask().state["state"] == "stopped"
    with open_log(new):
        assert (
            ask().state["message"] == "live, fednova, sequential, seed 0: round 1 of 4; 3 of 4 runs finished"
        )
    curves = page_data(ask("/").text)["groups"][0]["curves"]
    assert [curve["name"] for curve in curves] == ["feddig", "fedavg", "fednova", "frozen"]


def test_the_age_is_that_of_the_last_write(serve: Serve, run: Path) -> None:
    ask = serve(run)
    age_files(run)
    assert ask().state["age"] == pytest.approx(3600, abs=60)
    os.utime(run / "metrics.jsonl")
    assert ask().state["age"] < 60
    os.utime(run / "metrics.jsonl", (time.time() + 3600, time.time() + 3600))
    assert ask().state["age"] == 0


def test_future_departures_are_not_shown_as_past(serve: Serve, run: Path) -> None:
    ask = serve(run)
    assert "All 2 silos stayed so far." in ask("/").text
    assert "left at round 2" not in ask("/").text
    add(run, row(2, 30.0))
    assert "Silo 0 left at round 2." in ask("/").text


# --- files that change while they are read


@pytest.mark.parametrize("part", [1, 40, -1])
def test_half_a_line_is_not_a_round_yet(part: int, serve: Serve, run: Path) -> None:
    ask, line = serve(run), row(2, 30.0)
    add(run, line[:part])
    page = ask("/")
    assert page.status == 200
    # the row is complete, only the line end is missing
    assert curve_in(page.text) == ([10, 20, 30] if part == -1 else [10, 20])
    assert "damaged" not in page.text
    assert "Missing or damaged" not in page.text
    add(run, line[part:])
    assert curve_in(ask("/").text) == [10, 20, 30]


def test_a_damaged_line_is_noted(serve: Serve, run: Path) -> None:
    add(run, "{]\n" + row(3, 40.0))
    assert "line 3 is damaged" in serve(run)("/").text


def test_files_may_be_replaced_truncated_and_removed_at_any_time(serve: Serve, run: Path) -> None:
    ask, over = serve(run), threading.Event()
    whole = {path: path.read_bytes() for path in run.iterdir()}

    def disturb() -> None:
        while not over.is_set():
            for path, content in whole.items():
                path.write_bytes(content[: len(content) // 2])
                path.unlink()
                new = path.with_name(f".{path.name}.part")
                new.write_bytes(content)
                os.replace(new, path)

    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    try:
        answers = [ask(path) for _ in range(60) for path in ("/", "/state")]
    finally:
        over.set()
        disturbing.join(30)
    assert {answer.status for answer in answers} == {200}
    assert curve_in(ask("/").text) == [10, 20]


def test_an_error_in_a_page_is_one_line_and_the_next_request_succeeds(
    serve: Serve, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = serve(run)
    with monkeypatch.context() as broken:
        broken.setattr(live, "build_page", lambda *_: 1 / 0)
        answer = ask("/")
        assert answer.status == 500
        assert answer.text == "the page could not be made (ZeroDivisionError: division by zero)\n"
    assert ask("/").status == 200


# --- caching


def test_runs_are_read_again_only_if_they_changed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *words, **more: (done.append(name), real(*words, **more))[1])

    counted(live, "build_page")
    counted(live, "read_run")
    counted(runs, "read_classes")
    grid = write_grid(tmp_path / "grid", seeds=1)
    ask = serve(grid)
    for _ in range(5):
        ask("/")
        ask()
    assert sorted(done) == ["build_page", *["read_classes"] * 3, *["read_run"] * 3]
    done.clear()
    for name in ("log.txt", "curves.png"):
        (grid / "feddig" / "sequential" / "seed-0" / name).write_text("changed")
    ask("/")
    assert done == []
    add(grid / "feddig" / "sequential" / "seed-0", row(10, 90.0))
    ask("/")
    assert done == ["read_run", "build_page"]


def test_answers_are_reused_for_longer_after_long_work(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CACHE_FACTOR", 9.0)
    page = LivePage(run)
    monkeypatch.setattr(live, "build_page", lambda *_: time.sleep(0.5) or "page")
    page.page()
    add(run, row(2, 30.0))
    before = time.monotonic()
    assert json.loads(page.state())["message"].startswith("stopped at round 2"), "read before the work"
    assert time.monotonic() - before < 0.4
    monkeypatch.setattr(page, "_valid_until", 0.0)
    assert json.loads(page.state())["message"].startswith("stopped at round 3")


# --- the command


def test_a_port_in_use_is_one_line_with_the_remedy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert error_line(capsys, "watch", run, "--port", port) == (
            f"feddig: error: port {port}: another program listens there already; choose another with --port"
        )


def test_folders_that_cannot_be_watched_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere: no such folder" in error_line(capsys, "watch", tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds no results, here or below" in error_line(capsys, "watch", tmp_path)
    silo = tmp_path / "north"
    silo.mkdir()
    (silo / "silo.toml").touch()
    (silo / "federation.toml").touch()
    assert "is a silo's folder" in error_line(capsys, "watch", silo)


def test_a_host_of_another_machine_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--host 192.0.2.1: is not an address of this machine" in error_line(
        capsys, "watch", run, "--port", 0, "--host", "192.0.2.1"
    )


def test_ctrl_c_ends_it_without_a_traceback(run: Path) -> None:
    process = start_feddig(["watch", run, "--port", 0])
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err
    assert "warning" not in err


def test_a_starting_comparison_is_opened_in_the_browser_and_a_public_address_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = tmp_path / "grid" / "feddig" / "none" / "seed-0"
    cell.mkdir(parents=True)
    (cell / ".starting").touch()
    (cell / "partition.csv").touch()

    opened: list[str] = []
    is_open = threading.Event()

    def interrupted(*_: object) -> None:
        is_open.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveServer, "serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", lambda address: (opened.append(address), is_open.set()))
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "grid"), "--port", "0", "--open", "--host", "0.0.0.0"])
    assert not ended.value.code
    printed = capsys.readouterr()
    (address,) = printed.out.splitlines()
    assert opened == [address]
    warning = "feddig: warning: anyone who can reach 0.0.0.0 can read this page"
    assert warning in printed.err.splitlines()
