"""Whether a moderator answers at its address, and is the one that a silo trusts: tried before Flower is started."""

import socket
import ssl
from pathlib import Path

from feddig.errors import FedDigError

SECONDS = 10.0
EXPIRED, OTHER_HOST = 10, (62, 64)
"""OpenSSL's numbers of these faults: X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


def reaches(address: str, ca: Path) -> bool:
    """Tell whether somebody answers at the address; refuse one who is not the moderator."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        trust = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise FedDigError(f"{ca}: is no certificate ({error}); copy it again from the moderator") from None
    try:
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            trust.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLCertVerificationError as error:
        raise FedDigError(f"{address}: {_fault(error, ca)}") from None
    except ssl.SSLEOFError:
        return False  # it is just starting or ending
    except ssl.SSLError as error:
        raise FedDigError(
            f"{address}: whoever answers there does not speak TLS ({error.reason}); "
            "check federation.address, or ask the moderator"
        ) from None
    except OSError:
        return False


def _fault(error: ssl.SSLCertVerificationError, ca: Path) -> str:
    if error.verify_code == EXPIRED:
        return "the moderator's certificate has expired; the moderator needs a new one (`feddig federation renew`)"
    if error.verify_code in OTHER_HOST:
        return (
            "the moderator's certificate is for another host; check federation.address, or ask the moderator"
        )
    return (
        f"whoever answers there is not the moderator that {ca} vouches for ({error.verify_message}); "
        "check that the file is this federation's"
    )
