"""What `feddig watch` answers: the report page of a folder as it is now, and in a line how it stands."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from feddig.report.frame import LIVE_FRAME
from feddig.report.live_runs import LiveRuns, Sight
from feddig.report.live_words import State, tell_state
from feddig.report.page import build_page

REST_SECONDS = 0.5
"""How long what was seen stands at least, however many ask."""
REST = 9.0
"""And so many times as long as the work took: the runs need the processor more."""


@dataclass(frozen=True)
class News:
    """What a federation's moderator says of itself."""

    silo_names: Sequence[str] = ()
    says: str = ""


class LivePage:
    """The page about a folder, made anew when somebody asks for it and something has changed."""

    def __init__(self, folder: Path, news: Callable[[], News] = News) -> None:
        self._runs, self._news = LiveRuns(folder), news
        self._lock = threading.Lock()
        self._sight, self._state = Sight((), (), "", None), State("", "")
        self._page, self._page_version = b"", ""
        self._good_until = 0.0

    def page(self) -> tuple[bytes, str]:
        """Give the page, and its version."""
        with self._lock:
            self._look()
            if self._page_version != self._sight.version:
                started = time.monotonic()
                runs = self._sight.runs
                self._page = (build_page(runs, LIVE_FRAME) if runs else _waiting_page()).encode()
                self._page_version = self._sight.version
                self._rest_after(time.monotonic() - started)
            return self._page, self._page_version

    def state(self) -> bytes:
        """Say in JSON how it stands, which version a page of it has, and how old the last news is."""
        with self._lock:
            self._look()
            told = {
                "version": self._sight.version,
                "state": self._state.name,
                "says": self._state.says,
                "age": self._sight.age,
            }
        return json.dumps(told).encode()

    def _look(self) -> None:
        started = time.monotonic()
        if started < self._good_until:
            return
        news = self._news()
        self._sight = self._runs.look(news.silo_names)
        self._state = tell_state(self._sight.runs, self._sight.working, self._sight.age, news.says)
        self._rest_after(time.monotonic() - started)

    def _rest_after(self, seconds: float) -> None:
        self._good_until = time.monotonic() + max(REST_SECONDS, REST * seconds)


def _waiting_page() -> str:
    main = (
        '<section class="scenario" data-key="waiting"><h1>Waiting for a run</h1><p class="lede">No run has begun '
        "in this folder yet. Its rounds appear here as they finish; nothing needs to be loaded again.</p></section>"
    )
    return LIVE_FRAME.around("Waiting for a run", "no run yet", main, {"groups": [], "runs": []})
