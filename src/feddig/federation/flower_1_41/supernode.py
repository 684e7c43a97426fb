"""Run Flower's SuperNode so that it sends each reply at once and does not wait for a reply that cannot come.

Flower's node takes a message, waits until there is a reply, and sends it; while no message comes it sends nothing.
After one surplus reply it stays behind: each reply waits for the next message, and is late for the moderator. A
moderator that is killed while a silo fetches a message is enough to cause that, because Flower later makes up an error
reply for it. And if an app dies while it hands its reply over, Flower waits for the rest forever.
"""

import time
from collections.abc import Sequence
from typing import Any

from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import SUPERNODE, start_checked

WAIT_SECONDS = 60.0
"""How long the next part of a reply may take: an app on the same machine needs far less."""


class TakenReplies:
    """A node's state whose next replies are those that were already taken out of it."""

    def __init__(self, state: Any, taken: Sequence[Any]) -> None:
        self._state, self._taken = state, taken

    def get_messages_legacy(self, **_: Any) -> Sequence[Any]:
        """Return the replies that were taken."""
        return self._taken

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the state."""
        return getattr(self._state, name)


class TimedStore:
    """A node's store of the parts of messages, which gives up on a part that does not come."""

    def __init__(self, store: Any, wait_seconds: float = WAIT_SECONDS) -> None:
        self._store, self._wait_seconds = store, wait_seconds
        self._since: dict[str, float] = {}

    def get(self, object_id: str) -> Any:
        """Return a part; empty if it has not come yet, in which case Flower asks again."""
        content = self._store.get(object_id)
        waited = time.monotonic() - self._since.setdefault(object_id, time.monotonic())
        if content == b"" and waited > self._wait_seconds:
            raise TimeoutError("the app ended before its answer was whole")
        return content

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the store."""
        return getattr(self._store, name)


def send_promptly() -> None:
    """Change the loop of Flower's node: before it asks for a message, it sends the replies that wait."""
    take, send_replies = names.TAKE_MESSAGE.get(), names.SEND_REPLIES.get()
    connection: dict[str, Any] = {}

    def send_and_remember(*, object_store: Any, send: Any, push_object: Any, **rest: Any) -> None:
        connection.update(send=send, push_object=push_object)
        send_replies(object_store=TimedStore(object_store), send=send, push_object=push_object, **rest)

    def send_then_take(*, state: Any, object_store: Any, **rest: Any) -> Any:
        # before the first message there is no connection to send by, and nothing to send
        if connection and (waiting := state.get_messages_legacy(is_reply=True)):
            send_replies(
                state=TakenReplies(state, waiting), object_store=TimedStore(object_store), **connection
            )
        return take(state=state, object_store=object_store, **rest)

    names.SEND_REPLIES.replace(send_and_remember)
    names.TAKE_MESSAGE.replace(send_then_take)


def _run() -> None:
    send_promptly()
    names.RUN_SUPERNODE.get()()


def main() -> None:
    """Run the SuperNode."""
    start_checked(_run, SUPERNODE)


if __name__ == "__main__":
    main()
