"""A silo's watch over its apps: one that has hung is ended, or each new question would leave one more of them.

Flower starts an app for every message and never ends one. From outside, as an app that hangs may be beyond hearing
signals of its own.
"""

import logging
import time
from pathlib import Path

from feddig.federation.processes.identity import age
from feddig.federation.processes.processes import end, started_by_us

APP = "feddig.federation.flower_1_41.own_app"
LOOK_SECONDS = 5.0

log = logging.getLogger("feddig")


class Watchdog:
    """Ends apps that are still at work when nobody waits for their answers any more."""

    def __init__(self, party: Path, longest: float) -> None:
        self._party, self._longest = party, longest
        self._looked = time.monotonic()

    def look(self) -> None:
        """Look through the apps that run, unless that was done just now."""
        # looking through all processes takes time that the silo's training needs
        if time.monotonic() - self._looked < min(LOOK_SECONDS, self._longest):
            return
        self._looked = time.monotonic()
        for process in started_by_us(self._party, APP):
            if age(process) > self._longest:
                log.warning(
                    "an app has not answered in %g s, twice the longest deadline: process %d is ended; if it was just "
                    "slow, agree on longer deadlines",
                    self._longest,
                    process,
                )
                end([process])
