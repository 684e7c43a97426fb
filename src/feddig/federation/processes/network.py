"""Check whether a moderator answers at its address, and is the one that a silo trusts, before Flower is started.

Many organisations let connections out only through a proxy, which HTTPS_PROXY names; NO_PROXY names the hosts that are
reached directly. Flower follows both, so this check does too. A party's own processes always reach each other directly.
"""

import logging
import os
import ssl
import time
from base64 import b64encode
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from feddig.errors import FedDigError

SECONDS, RETRY_SECONDS = 10.0, 2.0
EXPIRED, OTHER_HOST = 10, (62, 64)
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""
THIS_MACHINE = ("127.0.0.1", "localhost")

log = logging.getLogger("feddig")


def reach_this_machine_directly() -> None:
    """Let this process and its children reach this machine without a proxy, whatever is set for other hosts."""
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if direct.strip() == "*":
        return
    hosts = dict.fromkeys([*filter(None, map(str.strip, direct.split(","))), *THIS_MACHINE])
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def reaches(address: str, ca: Path) -> bool:
    """Return whether the moderator answers at the address; refuse a server that is not the moderator."""
    return not find_fault(address, ca)


def find_fault(address: str, ca: Path) -> str:
    """Return why the moderator does not answer, or nothing if it does; refuse a server that is not the moderator."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        trust = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise FedDigError(f"{ca}: is no certificate ({error}); copy it again from the moderator") from None
    connection = _route(host, int(port), trust)
    try:
        connection.connect()
        return ""
    except ssl.SSLCertVerificationError as error:
        raise FedDigError(f"{address}: {_fault(error, ca)}") from None
    except ssl.SSLEOFError:
        return "it is just starting or ending"
    except ssl.SSLError as error:
        raise FedDigError(
            f"{address}: the server there does not speak TLS ({error.reason}); "
            "check federation.address, or ask the moderator"
        ) from None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    finally:
        connection.close()


def clock_difference(address: str, ca: Path) -> float:
    """Return by how many seconds, at least, the clock here is ahead of that of the moderator, which must answer."""
    host, _, port = address.rpartition(":")
    connection = _route(host.strip("[]"), int(port), ssl.create_default_context(cafile=str(ca)))
    try:
        began = time.time()
        connection.request("HEAD", "/")
        told = parsedate_to_datetime(connection.getresponse().headers["Date"]).timestamp()
        # the moderator said the time at some moment in between, and the answer may have taken long
        return max(began - told, min(time.time() - told, 0.0))
    except (OSError, HTTPException, TypeError, ValueError):
        return 0.0  # a proxy may leave the time out, and the moderator has the last word
    finally:
        connection.close()


def await_moderator(address: str, ca: Path) -> None:
    """Wait until the moderator answers: it may start later, or be offline for a while."""
    warned = False
    while fault := find_fault(address, ca):
        if not warned:
            log.warning("%s does not answer (%s); waiting for the moderator", address, fault)
            warned = True
        time.sleep(RETRY_SECONDS)


def _route(host: str, port: int, trust: ssl.SSLContext) -> HTTPSConnection:
    """Return a connection to the host, through the proxy that is set for it."""
    proxies = getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return HTTPSConnection(host, port, timeout=SECONDS, context=trust)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme != "http" or not parts.hostname:
        raise FedDigError(
            f"HTTPS_PROXY: {parts.scheme}://{parts.hostname} is no proxy that silos can use; "
            f"set one as http://host:port, or name {host} in NO_PROXY"
        )
    connection = HTTPSConnection(parts.hostname, parts.port or 80, timeout=SECONDS, context=trust)
    named = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    basic = {"Proxy-Authorization": f"Basic {b64encode(named.encode()).decode()}"} if named else {}
    connection.set_tunnel(host, port, basic)
    return connection


def _fault(error: ssl.SSLCertVerificationError, ca: Path) -> str:
    if error.verify_code == EXPIRED:
        return "the moderator's certificate has expired; the moderator needs a new one (`feddig federation renew`)"
    if error.verify_code in OTHER_HOST:
        return (
            "the moderator's certificate is for another host; check federation.address, or ask the moderator"
        )
    return (
        f"the server there is not the moderator that {ca} vouches for ({error.verify_message}); "
        "check that the file is this federation's"
    )
