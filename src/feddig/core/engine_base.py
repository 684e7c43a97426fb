"""What an engine does: carry requests out and replies back. A silo that does not reply is absent."""

from collections.abc import Sequence
from typing import Protocol

from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest


class Engine(Protocol):
    """Any means of reaching the silos."""

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask these silos for their digests; those who are not there send none."""
        ...

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Tell which silos are known to be away before anybody is asked; others may still not reply."""
        ...

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests out and give the replies that came back, in the silos' order."""
        ...
