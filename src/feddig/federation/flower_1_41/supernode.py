"""Flower's SuperNode, with every answer sent as soon as it is there, and none waited for that cannot come.

Flower's own takes a question, waits until some answer is there, and sends it; while no question comes it sends nothing.
One answer too many, and it is a question behind for good: each answer waits for the next question, by which time the
moderator has given up on it. A moderator that is killed while a silo fetches a question is enough: the app that was
started for that question never gets it whole, and once it is ended Flower makes up an answer in its name. And where an
app dies while it hands its answer over, Flower waits for the rest of it for ever.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from feddig.errors import FedDigError

PULL, PUSH = "_pull_and_store_message", "_push_messages"
PATIENCE = 60.0
"""Seconds for which an answer's next part may fail to come: from an app on this machine it takes far less."""


class Answers:
    """Answers that were taken out of a node's state, in the place of that state, until they are sent."""

    def __init__(self, state: Any, taken: Sequence[Any]) -> None:
        self._state, self._taken = state, taken

    def get_messages_legacy(self, **_: Any) -> Sequence[Any]:
        """Give the answers that were taken."""
        return self._taken

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the state."""
        return getattr(self._state, name)


class Parts:
    """A node's store of the parts of messages, which gives up on a part that does not come."""

    def __init__(self, store: Any, patience: float = PATIENCE) -> None:
        self._store, self._patience = store, patience
        self._since: dict[str, float] = {}

    def get(self, name: str) -> Any:
        """Give a part; empty if it has not come yet, in which case Flower asks again."""
        content = self._store.get(name)
        if (
            content == b""
            and time.monotonic() - self._since.setdefault(name, time.monotonic()) > self._patience
        ):
            raise TimeoutError("the app ended before its answer was whole")
        return content

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the store."""
        return getattr(self._store, name)


def send_promptly(node: Any) -> None:
    """Change the loop of Flower's node: before it asks for a question, it sends the answers that are waiting."""
    pull, push = (_function_of(node, name) for name in (PULL, PUSH))
    channel: dict[str, Any] = {}

    def push_and_remember(*, object_store: Any, send: Any, push_object: Any, **rest: Any) -> None:
        channel.update(send=send, push_object=push_object)
        push(object_store=Parts(object_store), send=send, push_object=push_object, **rest)

    def send_then_pull(*, state: Any, object_store: Any, **rest: Any) -> Any:
        # before the first question there is no way to send, and next to nothing to be sent
        if channel and (waiting := state.get_messages_legacy(is_reply=True)):
            push(state=Answers(state, waiting), object_store=Parts(object_store), **channel)
        return pull(state=state, object_store=object_store, **rest)

    setattr(node, PUSH, push_and_remember)
    setattr(node, PULL, send_then_pull)


def _function_of(node: Any, name: str) -> Callable[..., Any]:
    found = getattr(node, name, None)
    if not callable(found):
        raise FedDigError(
            f"this version of Flower has no {name} in {node.__name__}, which a silo's node changes; "
            "install flwr 1.41, with which FedDig is tested"
        )
    return found  # type: ignore[no-any-return]


def main() -> None:
    """Run the SuperNode."""
    send_promptly(start_client_internal)
    flower_supernode()


if __name__ == "__main__":
    main()
