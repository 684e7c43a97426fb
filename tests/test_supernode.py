"""A silo's node sends answers as soon as they are there, also after one too many."""

import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

from feddig.errors import FedDigError
from feddig.federation.flower_1_41 import supernode
from feddig.federation.flower_1_41.supernode import PULL, PUSH, send_promptly

pytestmark = pytest.mark.flower
RUN = 7


class Node:
    """Flower's loop with a real state, and lists in place of the network."""

    def __init__(self) -> None:
        factory = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(factory).state(), factory.store()
        self.sent: list[str] = []
        self.delivered: list[str] = []
        self.wanted, self.cut_off = False, False
        """Whether the SuperLink asks for an answer's parts, and whether the app dies before it hands them over."""
        self.loop = ModuleType("loop")
        setattr(self.loop, PUSH, getattr(start_client_internal, PUSH))
        setattr(self.loop, PULL, self._pull)
        self.questions: list[str] = []

    def _pull(self, **_: Any) -> int | None:
        """Take a question; this much is answered by the time it is there."""
        if not self.questions:
            return None
        self.answer(self.questions.pop(0))
        return RUN

    def answer(self, name: str) -> None:
        """Put an answer into the state, as an app does."""
        metadata = Metadata(RUN, "", 1, 2, f"question {name}", "", time.time(), 60.0, "train")
        reply = Message(RecordDict({"said": ConfigRecord({"name": name})}), metadata=metadata)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        start_client_internal._insert_message(reply, self.state, self.store)
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
        run = getattr(self.loop, PULL)(state=self.state, object_store=self.store)
        if run is not None:
            getattr(self.loop, PUSH)(
                state=self.state,
                object_store=self.store,
                send=self.send,
                push_object=lambda *given: self.delivered.append(given[2]),
            )


def one_answer_too_many(node: Node) -> None:
    """Ask A, then B, just when an answer comes that nobody waits for; B's own is a moment late."""
    node.questions = ["A", "stray"]
    node.turn()
    node.turn()
    node.answer("B")
    assert node.sent == ["question A", "question stray"]
    node.turn()


def test_an_answer_does_not_wait_for_the_next_question() -> None:
    node = Node()
    send_promptly(node.loop)
    one_answer_too_many(node)
    assert node.sent == ["question A", "question stray", "question B"]
    node.turn()
    assert len(node.sent) == 3, "and is sent once"


def test_flowers_own_node_keeps_it_until_then() -> None:
    node = Node()
    one_answer_too_many(node)
    assert node.sent == ["question A", "question stray"], "if this is sent, Flower no longer needs our change"


def test_several_answers_go_at_once_and_leave_nothing_behind() -> None:
    node = Node()
    send_promptly(node.loop)
    node.questions = ["A"]
    node.turn()
    for name in ("B", "C"):
        node.answer(name)
    node.turn()
    assert sorted(node.sent[1:]) == ["question B", "question C"]
    assert not node.state.msg_store  # type: ignore[attr-defined]
    assert len(node.store) == 0


def test_an_answer_whose_app_died_is_given_up_and_the_next_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supernode.Parts.__init__, "__defaults__", (0.2,))
    node = Node()
    send_promptly(node.loop)
    node.questions = ["A"]
    node.wanted = True
    node.cut_off = True
    node.turn()
    assert not node.delivered
    node.cut_off, node.questions = False, ["B"]
    node.turn()
    assert node.sent == ["question A", "question B"]
    assert len(node.delivered) == 3
    assert not node.state.msg_store  # type: ignore[attr-defined]


def test_a_flower_that_is_built_otherwise_is_refused() -> None:
    with pytest.raises(FedDigError, match=r"no _pull_and_store_message in loop.*install flwr 1\.41"):
        send_promptly(SimpleNamespace(__name__="loop"))
