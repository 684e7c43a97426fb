"""A silo's node sends replies as soon as they are there, also after a surplus one."""

import time
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from feddig.federation.flower_1_41 import supernode
from feddig.federation.flower_1_41.supernode import send_promptly

pytestmark = pytest.mark.flower
RUN = 7


class Node:
    """Flower's loop with a real state, and lists in place of the network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        factory = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(factory).state(), factory.store()
        self.sent: list[str] = []
        self.delivered: list[str] = []
        self.wanted, self.cut_off = False, False
        """Whether the SuperLink asks for a reply's parts, and whether the app dies before it hands them over."""
        self.messages: list[str] = []
        # they are put back when the test ends
        monkeypatch.setattr(flower, "_push_messages", flower._push_messages)
        monkeypatch.setattr(flower, "_pull_and_store_message", self._pull)
        send_promptly()

    def _pull(self, **_: Any) -> int | None:
        """Take a message, which is answered at once."""
        if not self.messages:
            return None
        self.answer(self.messages.pop(0))
        return RUN

    def answer(self, name: str) -> None:
        """Put a reply into the state, as an app does."""
        metadata = Metadata(RUN, "", 1, 2, f"message {name}", "", time.time(), 60.0, "train")
        reply = Message(RecordDict({"said": ConfigRecord({"name": name})}), metadata=metadata)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        flower._insert_message(reply, self.state, self.store)
        if self.cut_off:
            for part in self.parts(reply):
                self.store.delete(part)
            self.store.preregister(RUN, get_object_tree(reply))

    def parts(self, message: Message) -> set[str]:
        return {tree.object_id for tree in iterate_object_tree(get_object_tree(message))}

    def send(self, message: Message, tree: Any, *_: Any) -> tuple[set[str], str]:
        self.sent.append(message.metadata.reply_to_message_id)
        return {one.object_id for one in iterate_object_tree(tree)} if self.wanted else set(), "session"

    def turn(self) -> None:
        """Go once through the loop of Flower's node, without its pauses."""
        run = flower._pull_and_store_message(state=self.state, object_store=self.store)  # type: ignore[call-arg]
        if run is not None:
            flower._push_messages(
                state=self.state,
                object_store=self.store,
                send=self.send,
                push_object=lambda *given: self.delivered.append(given[2]),
            )


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_a_reply_does_not_wait_for_the_next_message(node: Node) -> None:
    # B is asked when a surplus reply is there, and its own comes a moment later
    node.messages = ["A", "surplus"]
    node.turn()
    node.turn()
    node.answer("B")
    assert node.sent == ["message A", "message surplus"]
    node.turn()
    assert node.sent == ["message A", "message surplus", "message B"]
    node.turn()
    assert len(node.sent) == 3, "and is sent once"


def test_several_replies_go_at_once_and_leave_nothing_behind(node: Node) -> None:
    node.messages = ["A"]
    node.turn()
    for name in ("B", "C"):
        node.answer(name)
    node.turn()
    assert sorted(node.sent[1:]) == ["message B", "message C"]
    assert not node.state.msg_store  # type: ignore[attr-defined]
    assert len(node.store) == 0


def test_a_reply_whose_app_died_is_given_up_and_the_next_is_sent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode.TimedStore.__init__, "__defaults__", (0.2,))
    node.messages = ["A"]
    node.wanted = True
    node.cut_off = True
    node.turn()
    assert not node.delivered
    node.cut_off, node.messages = False, ["B"]
    node.turn()
    assert node.sent == ["message A", "message B"]
    assert len(node.delivered) == 3
    assert not node.state.msg_store  # type: ignore[attr-defined]
