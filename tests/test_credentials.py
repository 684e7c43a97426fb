"""A federation's certificates and keys, used in real TLS connections."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.errors import FedDigError
from feddig.federation.certificates import (
    Authority,
    read_fingerprint,
    write_certificate,
    write_key,
    write_silo_key,
)

pytestmark = pytest.mark.flower


def moderator_files(folder: Path, authority: Authority, *hosts: str, days: int = 9) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    key, certificate = authority.issue(hosts, days)
    write_key(folder / "server.key", key)
    write_certificate(folder / "server.pem", certificate)
    return folder / "server.pem", folder / "server.key"


def greet(server: tuple[Path, Path], root: Path, host: str) -> bytes:
    """Connect to a TLS server on this machine under a host name and read its greeting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"hello")
            except (ssl.SSLError, OSError):
                connection.close()  # the other side refused

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            trust = ssl.create_default_context(cafile=str(root))
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                trust.wrap_socket(plain, server_hostname=host) as secure,
            ):
                return secure.recv(5)
        finally:
            thread.join()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test federation")


@pytest.fixture
def root(authority: Authority, tmp_path: Path) -> Path:
    write_certificate(tmp_path / "ca.crt", authority.certificate)
    return tmp_path / "ca.crt"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_silo_that_trusts_the_authority_reaches_the_moderator(
    authority: Authority, root: Path, tmp_path: Path, host: str
) -> None:
    server = moderator_files(tmp_path / "m", authority, "localhost", "127.0.0.1")
    assert greet(server, root, host) == b"hello"


def test_another_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    write_certificate(tmp_path / "other.crt", Authority.create("test federation").certificate)
    server = moderator_files(tmp_path / "m", authority, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(server, tmp_path / "other.crt", "localhost")


def test_another_host_is_not_trusted(authority: Authority, root: Path, tmp_path: Path) -> None:
    server = moderator_files(tmp_path / "m", authority, "moderator.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="ostname"):
        greet(server, root, "localhost")


def test_an_expired_certificate_is_not_trusted(authority: Authority, root: Path, tmp_path: Path) -> None:
    server = moderator_files(tmp_path / "m", authority, "localhost", days=0)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        greet(server, root, "localhost")


def test_a_certificate_without_a_host_is_not_made(authority: Authority) -> None:
    with pytest.raises(FedDigError, match="host name"):
        authority.issue([])


def test_both_halves_of_a_silos_key_have_the_same_fingerprint(tmp_path: Path) -> None:
    names = {write_silo_key(tmp_path / f"silo-{silo}") for silo in range(3)}
    assert len(names) == 3
    assert {read_fingerprint(tmp_path / f"silo-{silo}.pub") for silo in range(3)} == names


def test_only_the_owner_can_read_a_private_key_and_it_is_never_overwritten(tmp_path: Path) -> None:
    write_silo_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(FedDigError, match="exists; a new key"):
        write_silo_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"nonsense", b"ssh-rsa AAAA"])
def test_a_file_that_is_no_public_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.pub").write_bytes(content)
    with pytest.raises(FedDigError, match=r"key\.pub: is no public key"):
        read_fingerprint(tmp_path / "key.pub")


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (tmp_path / "key.pub").write_bytes(key.public_bytes(*form))
    with pytest.raises(FedDigError, match="P-384"):
        read_fingerprint(tmp_path / "key.pub")
