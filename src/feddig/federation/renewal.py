"""A new certificate for the moderator, before or after the old one has expired; the silos' files stay as they are."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from feddig.errors import FedDigError
from feddig.federation.credentials import Authority, write_certificate, write_key
from feddig.federation.folders import FederationFolder


def renew(whole: FederationFolder, days: int) -> x509.Certificate:
    """Issue the moderator a new key and certificate for the hosts that the old one was for."""
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
    """Read the authority back from its folder."""
    certificate = _read_certificate(whole.ca_certificate)
    try:
        key = serialization.load_pem_private_key(whole.ca_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise FedDigError(f"{whole.ca_key}: is no key ({error}); it is with whoever ran `init`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise FedDigError(f"{whole.ca_key}: is not the key of {whole.ca_certificate}; put its own back")
    return Authority(key, certificate)


def _hosts(path: Path) -> list[str]:
    names = _read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FedDigError(f"{path}: is no certificate ({error}); put it back") from None
