"""Being told to stop: Ctrl-C and a polite end become an event, so that everything is stopped in good order."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread


@contextmanager
def told_to_stop() -> Iterator[Event]:
    """Give the event that SIGINT and SIGTERM set."""
    stopping, told = Event(), SimpleQueue[bool]()

    def pass_on() -> None:
        if told.get():
            stopping.set()

    # a signal may find the event's own lock taken, by a wait or by the signal before it: setting it there would hang
    # for ever, and only the queue may be used in such a moment
    Thread(target=pass_on, daemon=True).start()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: told.put(True)) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        told.put(False)
