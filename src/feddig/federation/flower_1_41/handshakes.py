"""A line in the log for who speaks no TLS or does not trust our certificate; by itself Python's server says nothing."""

import logging
import ssl
from typing import Any

log = logging.getLogger("uvicorn.error")


class LoggedHandshake(ssl.SSLObject):
    """One end of a connection, which logs why the other one's first words were refused."""

    def do_handshake(self) -> None:
        """Shake hands, or say why not."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):  # it goes on when more has come
            raise
        except ssl.SSLError as error:
            if self.server_side:
                log.warning("refused: somebody who speaks no TLS, or not ours: %s", error)
            raise


def log_refused_handshakes(contexts: Any = ssl.SSLContext) -> None:
    """Have every TLS server of this process log whom it refuses."""
    contexts.sslobject_class = LoggedHandshake
