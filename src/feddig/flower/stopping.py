"""Being told to stop: Ctrl-C and a polite end become an event, so that everything is stopped in good order."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event


@contextmanager
def told_to_stop() -> Iterator[Event]:
    """Give the event that SIGINT and SIGTERM set."""
    stopping = Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
