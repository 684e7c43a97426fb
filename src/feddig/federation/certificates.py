"""Make and read keys and certificates: a certificate authority, the moderator's certificate, a key pair for each silo.

By TLS a silo knows its moderator; by its key the moderator knows a silo. Keys are elliptic (P-384), as Flower requires,
and only their owner can read the private ones. The moderator's certificate can be renewed; the silos' files stay valid.
"""

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from feddig.errors import FedDigError
from feddig.federation.folders import FederationFolder

CURVE = ec.SECP384R1
VALID_DAYS = 365


@dataclass(frozen=True)
class Authority:
    """The federation's own certificate authority: each party gets its certificate, nobody its key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str, days: int = VALID_DAYS) -> "Authority":
        """Create an authority, valid from now."""
        key = ec.generate_private_key(CURVE())
        subject = _named(name)
        certificate = (
            _certificate(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(key, certificate)

    def issue(
        self, hosts: Sequence[str], days: int = VALID_DAYS
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """Create the moderator's key and certificate, valid for these host names and addresses."""
        if not hosts:
            raise FedDigError("the moderator's certificate needs a host name or address; give one")
        key = ec.generate_private_key(CURVE())
        certificate = (
            _certificate(_named(hosts[0]), self.certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
            )
            .sign(self.key, hashes.SHA384())
        )
        return key, certificate


def write_silo_key(path: Path) -> str:
    """Write a silo's key pair, `path` and `path`.pub in OpenSSH's format, and return the public key's fingerprint."""
    key = ec.generate_private_key(CURVE())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write_private(path, private)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")
    return fingerprint(key.public_key())


def read_fingerprint(path: Path) -> str:
    """Return the fingerprint of a silo's public key file."""
    return fingerprint(read_public_key(path))


def read_key_fingerprint(path: Path) -> str:
    """Return the fingerprint of the public half of a silo's private key file."""
    return fingerprint(read_key(path).public_key())


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a silo's private key file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedDigError(f"{path}: is no private key ({error}); put the silo's own back") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedDigError(f"{path}: is not an elliptic key on P-384; make one with `feddig federation key`")
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Read a silo's public key file."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FedDigError(
            f"{path}: is no public key ({error}); make one with `feddig federation key`"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVE):
        raise FedDigError(f"{path}: is not an elliptic key on P-384; make one with `feddig federation key`")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public key, by which a silo is known whatever number Flower gives its node."""
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key for TLS."""
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_private(path, encoded)


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate."""
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read from the first byte on; refuse to overwrite a file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FedDigError(
            f"{path}: exists; a new key would lock its owner out, so remove the file first if you mean it"
        ) from None
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # the clocks of organisations differ by minutes
        .not_valid_before(now - timedelta(minutes=10))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def renew(whole: FederationFolder, days: int) -> x509.Certificate:
    """Write a new key and certificate of the moderator, for the hosts of the old certificate."""
    authority = read_authority(whole)
    hosts = _hosts(whole.moderator.certificate)
    key, certificate = authority.issue(hosts, days)
    draft = whole.moderator.key.with_suffix(".new")
    draft.unlink(missing_ok=True)
    write_key(draft, key)
    draft.replace(whole.moderator.key)
    write_certificate(whole.moderator.certificate, certificate)
    return certificate


def read_authority(whole: FederationFolder) -> Authority:
    """Read the authority from its folder."""
    certificate = read_certificate(whole.ca_certificate)
    try:
        key = serialization.load_pem_private_key(whole.ca_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise FedDigError(f"{whole.ca_key}: is no key ({error}); use the folder that `init` wrote") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise FedDigError(f"{whole.ca_key}: is not the key of {whole.ca_certificate}; put its own back")
    return Authority(key, certificate)


def _hosts(path: Path) -> list[str]:
    names = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FedDigError(f"{path}: is no certificate ({error}); put it back") from None
