"""What a silo checks before it starts: its folder, the proxy, and the moderator's TLS."""

import os
import re
import socket
import threading
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from urllib.request import proxy_bypass

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.cli import main
from feddig.errors import FedDigError
from feddig.federation.certificates import Authority, write_certificate, write_silo_key
from feddig.federation.check import check_clock, check_silo
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.processes.network import reach_this_machine_directly, reaches
from feddig.federation.processes.processes import free_port
from feddig.federation.silo_data import check_folder
from test_contract import a_contract

pytestmark = pytest.mark.flower


def test_a_silos_folder_that_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["federation", "init", str(tmp_path), "--names", "north,south", "--set", "data.limit=400"])
    folder = FederationFolder(tmp_path).silo("north")
    check_folder(folder)
    text = folder.silo_file.read_text(encoding="utf-8")
    folder.silo_file.write_text(text.replace("silo = 0", "silo = 1"), encoding="utf-8")
    with pytest.raises(FedDigError, match="silo 1 is not 'north'"):
        check_folder(folder)
    folder.silo_file.write_text(text, encoding="utf-8")
    folder.key.unlink()
    with pytest.raises(FedDigError, match="key: is missing"):
        check_folder(folder)
    write_silo_key(folder.key)
    with pytest.raises(FedDigError, match="names for north"):
        check_folder(folder)


def test_a_party_is_checked_before_it_connects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def give(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["federation", *map(str, words)])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    port = free_port()
    give("init", tmp_path, "--names", "north,south", "--set", "data.limit=400", "--port", port)
    whole = FederationFolder(tmp_path)
    code, said, _ = give("check", tmp_path)
    assert code == 0
    assert f"moderator: port {port} is free" in said
    assert re.search(r"north: \d+ images to train on, \d+ for validation", said)
    assert said.count("no digest yet") == 2
    code, said, error = give("check", whole.silo("north").path)
    assert (code, said.count("\n")) == (2, 3), "what is right is said before"
    assert error == (
        f"feddig: error: 127.0.0.1:{port}: does not answer (Connection refused); ask whether the moderator runs there, "
        "and whether a firewall is in the way\n"
    )
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port}: " in give("check", whole.moderator.path)[2]
    (whole.silo("south").path / "data.npz").unlink()
    code, _, error = give("check", whole.silo("south").path)
    assert code == 2
    assert "data.npz is not a file" in error


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        main(["federation", "init", str(tmp_path), "--names", "north,south", "--set", "data.limit=400"])
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(FedDigError, match="north: 1 MB are free, and 512 MB are needed"):
        list(check_silo(FederationFolder(tmp_path).silo("north")))


@pytest.mark.parametrize(("ahead", "said"), [(7.0, "7 s ahead of"), (-400.0, "400 s behind")])
def test_a_clock_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch, ahead: float, said: str) -> None:
    monkeypatch.setattr("feddig.federation.check.clock_difference", lambda address, ca: ahead)
    monkeypatch.setattr("feddig.federation.check.CLOCK_PAUSES", (0.0, 0.0))
    with pytest.raises(FedDigError, match=f"the clock here is {said} the moderator's"):
        check_clock(a_contract(), SiloFolder(Path()))


def test_an_old_time_in_a_moderators_first_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was stopped, as in a network cut, says the time of the stop until it has noticed."""
    told = [47.0, 0.5]
    monkeypatch.setattr("feddig.federation.check.clock_difference", lambda address, ca: told.pop(0))
    monkeypatch.setattr("feddig.federation.check.CLOCK_PAUSES", (0.0, 0.0))
    assert check_clock(a_contract(), SiloFolder(Path())) == "clocks agree"
    assert not told


def test_a_moderator_without_tls_is_refused_and_one_that_is_away_is_waited_for(tmp_path: Path) -> None:
    write_certificate(tmp_path / "ca.crt", Authority.create("x").certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(FedDigError, match="does not speak TLS"):
            reaches(f"127.0.0.1:{port}", tmp_path / "ca.crt")
        thread.join()
    assert reaches(f"127.0.0.1:{free_port()}", tmp_path / "ca.crt") is False


@pytest.mark.parametrize(
    ("spared", "then"),
    [
        ("", "127.0.0.1,localhost"),
        ("intern.example, 127.0.0.1", "intern.example,127.0.0.1,localhost"),
        ("*", "*"),
    ],
)
def test_this_machine_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, spared: str, then: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", spared)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    reach_this_machine_directly()
    assert os.environ["NO_PROXY"] == then
    assert proxy_bypass("127.0.0.1")


def test_the_moderator_is_reached_through_the_proxy_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificate(tmp_path / "ca.crt", Authority.create("x").certificate)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "")
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(1000))
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:p%40ss@127.0.0.1:{listener.getsockname()[1]}")
        assert reaches("moderator.example:9092", tmp_path / "ca.crt") is False
        thread.join()
    assert asked[0].startswith(b"CONNECT moderator.example:9092 ")
    assert b"Proxy-Authorization: Basic " + b64encode(b"ann:p@ss") in asked[0]


def test_a_proxy_of_another_kind_is_refused_with_a_remedy_and_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificate(tmp_path / "ca.crt", Authority.create("x").certificate)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:secret@gate.example:1080")
    with pytest.raises(FedDigError, match=r"socks5://gate\.example is no proxy.*http://host:port.*NO_PROXY"):
        reaches("moderator.example:9092", tmp_path / "ca.crt")
