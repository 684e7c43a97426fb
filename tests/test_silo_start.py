"""What a silo checks before it starts: its folder, the proxy, and the moderator's TLS."""

import os
import socket
import threading
from base64 import b64encode
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.cli import main
from feddig.errors import FedDigError
from feddig.federation.certificates import Authority, write_certificate, write_silo_key
from feddig.federation.folders import FederationFolder
from feddig.federation.processes.network import reach_this_machine_directly, reaches
from feddig.federation.processes.processes import free_port
from feddig.federation.processes.supervisor import check_folder

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
