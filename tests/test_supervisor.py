"""A real SuperLink on this machine: which nodes may connect, and which are refused."""

import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.errors import FedDigError
from feddig.experiment.toml import demo_experiment
from feddig.federation.certificates import Authority, write_certificate, write_key, write_silo_key
from feddig.federation.contract import Contract, read_contract, write_contract
from feddig.federation.flower_1_41.control import Control, connect, start_run, write_flower_config
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.processes import moderator_process, supervisor
from feddig.federation.processes.network import clock_difference, reaches
from feddig.federation.processes.processes import (
    find_program,
    free_port,
    is_alive,
    party_environment,
    running,
    start,
    stop,
)
from feddig.federation.processes.supervisor import supervise
from feddig.federation.setup import Plan, Rehearsal, initialise, planned
from folders import start_feddig

pytestmark = [
    pytest.mark.flower,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

NAMES = ("north", "south")
NODE = "feddig.federation.flower_1_41.node"


def make(path: Path, **changes: Any) -> FederationFolder:
    experiment = planned(
        demo_experiment(["absence.scenario=none", "data.limit=400", "training.rounds=3"]), NAMES
    )
    rehearsal = Rehearsal.of(experiment)
    plan = Plan(
        name="test",
        silos=NAMES,
        experiment=rehearsal.experiment,
        image_shape=rehearsal.image_shape,
        classes=rehearsal.classes,
        port=free_port(),
        training_deadline=60,
        digest_deadline=60,
    )
    initialise(path, replace(plan, **changes), rehearsal)
    return FederationFolder(path)


def wait_for(what: Callable[[], object], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.2)


@contextmanager
def superlink(folder: ModeratorFolder) -> Iterator[Control]:
    """Run the moderator's SuperLink with its silos registered, but no run on it."""
    contract = read_contract(folder.contract)
    write_flower_config(folder, contract)
    process = moderator_process._start_superlink(folder, contract)
    try:
        moderator_process._await_superlink(process, folder, contract)
        with connect(folder, contract) as control:
            control.register(folder, contract)
            yield control
    finally:
        stop(process, folder.path, 3)


@contextmanager
def command(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of our commands while this lasts."""
    process = start_feddig(["federation", *arguments])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=40)


@dataclass(frozen=True)
class Open:
    """A federation whose SuperLink runs and whose silo `north` is online."""

    folder: FederationFolder
    control: Control

    @property
    def contract(self) -> Contract:
        return read_contract(self.folder.contract)

    def node(self, silo: int) -> tuple[int, str]:
        return self.control.nodes()[self.contract.members[silo].fingerprint]

    def everything_as_before(self) -> bool:
        return self.node(0)[1] == "online" and len(self.control.nodes()) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder = make(tmp_path_factory.mktemp("open") / "federation", hosts=("0.0.0.0",))
    # silos on this machine find it under the name that its certificate has anyway
    for part in (folder.contract, folder.moderator.contract, *(folder.silo(name).contract for name in NAMES)):
        contract = read_contract(part)
        write_contract(part, replace(contract, address=contract.address.replace("0.0.0.0", "localhost")))
    moderator = replace(read_contract(folder.moderator.contract), address=f"anywhere:{_port(folder)}")
    write_contract(folder.moderator.contract, moderator)
    with (
        superlink(folder.moderator) as control,
        command("silo", folder.silo("north").path),
    ):
        opened = Open(folder, control)
        wait_for(lambda: opened.node(0)[1] == "online", 60)
        yield opened
        assert opened.everything_as_before()


def _port(folder: FederationFolder) -> str:
    return read_contract(folder.contract).address.rpartition(":")[2]


def a_node(folder: SiloFolder, *options: str, until: str = "") -> str:
    """Run Flower's own SuperNode until it ends or says this, or for some seconds, and give what it says."""
    environment = party_environment(folder.path, folder.path / "flwr")
    log = folder.path / "node.log"
    process = start(
        [find_program("flower-supernode"), "--port", str(free_port()), *options], log, environment
    )
    try:
        last = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < last:
            if until and until in log.read_text(encoding="utf-8"):
                break
            time.sleep(0.1)
    finally:
        stop(process, folder.path, 5)
    return log.read_text(encoding="utf-8")


PROJECT = """
[project]
name = "other"
version = "1.0.0"
description = "not FedDig"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.42"]
[tool.flwr.app]
publisher = "other"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "other.app:server"
clientapp = "other.app:client"
[tool.flwr.app.config]
folder = ""
"""
CODE = """
import time
from base64 import b64encode
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    message = Message(RecordDict({"x": ConfigRecord({"y": 1})}), node, "query.other")
    (reply,) = grid.send_and_receive([message], timeout=60)
    answer = Path(context.run_config["folder"]) / "answer"
    answer.write_text("failed" if reply.has_error() else "done")

@client.query("other")
def other(message, context):
    Path(PLACE).write_text("I was here")
    return Message(RecordDict(), reply_to=message)
"""


def test_a_silo_runs_no_app_but_its_own(whole: Open, tmp_path: Path) -> None:
    answer, trace = whole.folder.moderator.path / "answer", tmp_path / "trace"
    (tmp_path / "app" / "other").mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "app" / "LICENSE").write_text("none", encoding="utf-8")
    (tmp_path / "app" / "other" / "__init__.py").write_text("", encoding="utf-8")
    code = CODE.replace("PLACE", repr(str(trace)))
    (tmp_path / "app" / "other" / "app.py").write_text(code, encoding="utf-8")
    start_run(whole.folder.moderator, tmp_path / "app")
    wait_for(answer.exists, 90)
    wait_for(answer.read_text, 5)
    assert answer.read_text() == "failed"
    assert not trace.exists()
    assert not (whole.folder.silo("north").flower_home / "apps").exists(), "it was unpacked"
    assert whole.everything_as_before()


def test_nothing_that_is_started_tells_anybody_or_downloads_anything(
    whole: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {
        "FLWR_TELEMETRY_ENABLED=0",
        "FLWR_DISABLE_UPDATE_CHECK=1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
        "RAY_USAGE_STATS_ENABLED=0",
    }
    moderator, silo = whole.folder.moderator.path, whole.folder.silo("north").path
    started = [*running(moderator, "feddig.federation.flower_1_41.superlink"), *running(silo, NODE)]
    assert len(started) == 2
    for process in started:
        assert wanted <= set(Path(f"/proc/{process}/environ").read_text(encoding="utf-8").split("\0"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    assert party_environment(silo, silo)["FLWR_TELEMETRY_ENABLED"] == "0", (
        "whatever the user's own setting is"
    )


def test_registering_twice_changes_nothing(whole: Open) -> None:
    before = whole.control.nodes()
    whole.control.register(whole.folder.moderator, whole.contract)
    assert whole.control.nodes() == before


def test_a_key_that_is_not_the_contracts_is_not_registered(whole: Open, tmp_path: Path) -> None:
    moderator = ModeratorFolder(tmp_path)
    moderator.public_keys.mkdir()
    for name in NAMES:
        write_silo_key(tmp_path / name)
        (tmp_path / f"{name}.pub").rename(moderator.public_key(name))
    with pytest.raises(FedDigError, match="is not the key that the contract names for north"):
        whole.control.register(moderator, whole.contract)
    assert whole.everything_as_before()


def test_an_unregistered_key_is_refused_and_logged(
    whole: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = make(tmp_path / "other").silo("south")
    contract = replace(read_contract(stranger.contract), address=whole.contract.address)
    write_contract(stranger.contract, contract)
    stranger.ca.write_bytes(whole.folder.silo("south").ca.read_bytes())
    monkeypatch.setattr(supervisor, "REFUSED_SECONDS", 1.0)
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.1)
    with pytest.raises(FedDigError, match="refuses this silo's key") as raised:
        supervise(stranger, threading.Event())
    assert str(stranger.public_key) in str(raised.value)
    assert "No SuperNode found with the given public key" in link_log(whole)
    assert not running(stranger.path)
    assert whole.everything_as_before()


def test_without_a_key_nobody_gets_in(whole: Open, tmp_path: Path) -> None:
    ca = str(whole.folder.moderator.ca)
    options = ("--superlink", whole.contract.address, "--root-certificates", ca)
    said = a_node(SiloFolder(tmp_path), *options, until="All SuperNodes must be registered")
    assert "All SuperNodes must be registered" in said
    assert "Attempted to register SuperNode with public key" in link_log(whole)
    assert whole.everything_as_before()


def test_without_tls_nobody_gets_in(whole: Open, tmp_path: Path) -> None:
    said = a_node(
        SiloFolder(tmp_path), "--superlink", whole.contract.address, "--insecure", until="attempt failed"
    )
    assert "SuperNode ID" not in said
    assert "Connection attempt failed" in said
    assert re.search(r"refused: a connection failed the TLS handshake: .*HTTP_REQUEST", link_log(whole))
    assert whole.everything_as_before()


def test_a_wrong_authority_is_told_at_once(whole: Open, tmp_path: Path) -> None:
    write_certificate(tmp_path / "ca.crt", Authority.create("other").certificate)
    with pytest.raises(FedDigError, match=r"is not the moderator that .*ca\.crt vouches for"):
        reaches(whole.contract.address, tmp_path / "ca.crt")
    options = ("--superlink", whole.contract.address, "--root-certificates", str(tmp_path / "ca.crt"))
    said = a_node(SiloFolder(tmp_path), *options, until="CERTIFICATE_VERIFY_FAILED")
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert re.search(r"refused: a connection failed the TLS handshake: .*UNKNOWN_CA", link_log(whole))
    (tmp_path / "ca.crt").write_text("nonsense", encoding="utf-8")
    with pytest.raises(FedDigError, match=r"ca\.crt: is no certificate"):
        reaches(whole.contract.address, tmp_path / "ca.crt")
    assert whole.everything_as_before()


def test_the_moderators_clock_is_read(whole: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = whole.folder.moderator.ca
    assert abs(clock_difference(whole.contract.address, ca)) < 3
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)
    assert abs(clock_difference(whole.contract.address, ca) - 60) < 3
    slow = iter((0, 400))  # an answer that takes long says nothing about clocks
    monkeypatch.setattr(time, "time", lambda: now() - 200 + next(slow))
    assert clock_difference(whole.contract.address, ca) == 0


def test_another_hosts_certificate_is_told_at_once(whole: Open) -> None:
    with pytest.raises(FedDigError, match="certificate is for another host"):
        reaches(f"127.0.0.2:{_port(whole.folder)}", whole.folder.moderator.ca)


def test_from_another_address_only_the_door_for_silos_is_open(whole: Open) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which address would be used
        except OSError:
            pytest.skip("this machine has no other address than its own")
        address = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no other address than its own")

    def ask(host: str, path: str) -> bytes:
        trust = ssl.create_default_context(cafile=str(whole.folder.moderator.ca))
        trust.check_hostname = False
        with (
            socket.create_connection((host, int(_port(whole.folder))), 10) as plain,
            trust.wrap_socket(plain) as secure,
        ):
            secure.sendall(f"POST {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            return secure.recv(100).split(b"\r\n")[0]

    assert b"403" in ask(address, "/v1/control/list-runs")
    assert b"403" in ask(address, "/v1/runtime/acquire-task")
    assert b"403" in ask(address, "/docs")
    assert b"403" not in ask(address, "/v1/fleet/pull-messages")
    assert b"404" in ask(address, "/v1/fleet/../control/list-runs")
    assert b"403" not in ask("127.0.0.1", "/v1/control/list-runs")
    assert "refused" in link_log(whole)


def link_log(whole: Open) -> str:
    return (whole.folder.moderator.logs / "superlink.log").read_text(encoding="utf-8")


def test_an_expired_certificate_is_told_at_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "federation")
    authority = Authority.create("late")
    key, certificate = authority.issue(["localhost", "127.0.0.1"], days=0)
    folder.moderator.key.unlink()
    write_key(folder.moderator.key, key)
    write_certificate(folder.moderator.certificate, certificate)
    for path in (folder.moderator.ca, folder.silo("north").ca):
        write_certificate(path, authority.certificate)
    contract = read_contract(folder.contract)
    process = moderator_process._start_superlink(folder.moderator, contract)
    try:
        wait_for(lambda: _listens(int(_port(folder))), 30)
        with pytest.raises(FedDigError, match="the moderator's certificate has expired"):
            supervise(folder.silo("north"), threading.Event())
        options = ("--superlink", contract.address, "--root-certificates", str(folder.silo("north").ca))
        assert "certificate has expired" in a_node(folder.silo("south"), *options, until="has expired")
    finally:
        stop(process, folder.moderator.path, 3)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def waits_for(file: Path, process: int) -> bool:
    """Tell whether a process has opened a file."""
    try:
        return any(link.resolve() == file.resolve() for link in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False


def test_a_supervisor_that_stops_leaves_its_successor_alone(whole: Open) -> None:
    folder = whole.folder.silo("south")

    def supervisor() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "feddig", "federation", "silo", str(folder.path)]
        return start(command, folder.logs / "silo.log", party_environment(folder.path, folder.flower_home))

    first = supervisor()
    wait_for(lambda: whole.node(1)[1] == "online", 60)
    (node,) = running(folder.path, NODE)
    second = supervisor()
    try:
        wait_for(lambda: waits_for(folder.path / "lock", second.pid), 40)
        first.terminate()
        assert first.wait(40) == 0
        wait_for(lambda: running(folder.path, NODE), 40)
        assert second.poll() is None
        assert not is_alive(node)
        wait_for(lambda: whole.node(1)[1] == "online", 120)
    finally:
        second.terminate()
        assert second.wait(40) == 0
    assert running(folder.path) == []
