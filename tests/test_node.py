"""A silo's node, with lists in place of Flower's connection: what it sends, and what it keeps to itself."""

import logging
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.supercore.run import RunNotRunningException

from feddig.errors import FedDigError
from feddig.federation.client_app import OtherContractError
from feddig.federation.flower_1_41 import node as module
from feddig.federation.flower_1_41.names import OTHER_CONTRACT
from feddig.federation.flower_1_41.node import Node, poll_seconds
from feddig.federation.flower_1_41.replies import CHUNK
from feddig.federation.folders import SiloFolder
from feddig.federation.wire import (
    About,
    SentModel,
    pack_model_file,
    pack_receipt,
    read_model_file,
    read_receipt,
)

pytestmark = pytest.mark.flower
RUN = 7


class Link:
    """A SuperLink of lists: messages wait, parts are handed out, replies are kept."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[Message] = []
        self.parts: dict[str, bytes] = {}
        self.late: set[str] = set()
        """Parts that the moderator hands over only after they have been asked for."""
        self.confirmed: list[str] = []
        self.replies: list[Message] = []
        self.received: dict[str, bytes] = {}
        self.node = Node(
            SiloFolder(folder), 2, 60.0, 4, self.receive, self.send, self.pull, self.push, self.confirm
        )

    def ask(self, kind: str, round: int = 3, content: RecordDict | None = None) -> None:
        content = content or RecordDict({"said": ConfigRecord({"name": "x"})})
        message = Message(content, metadata=Metadata(RUN, "", 1, 2, "", str(round), time.time(), 60.0, kind))
        message.metadata.__dict__["_message_id"] = message.object_id
        self.parts |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        self.messages.append(message)

    def receive(self) -> tuple[Message, Any] | None:
        return (self.messages[0], get_object_tree(self.messages.pop(0))) if self.messages else None

    def pull(self, run: int, part: str) -> bytes:
        assert run == RUN
        if part in self.late:
            self.late.remove(part)
            raise ObjectUnavailableError(part)
        return self.parts[part]

    def confirm(self, run: int, whole: str) -> None:
        self.confirmed.append(whole)

    def send(self, reply: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        self.replies.append(reply)
        return {part.object_id for part in iterate_object_tree(tree)}, "session"

    def push(self, run: int, session: str, part: str, content: bytes) -> None:
        assert (run, session) == (RUN, "session")
        self.received[part] = content


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Link:
    def app(message: Message, context: Context) -> Message:
        assert context.node_config == {"folder": str(tmp_path)}
        if message.metadata.message_type == "train":
            return Message(RecordDict({"said": message.content["said"]}), reply_to=message)
        if message.metadata.message_type == "evaluate":
            raise FedDigError("round 1 was answered")
        if message.metadata.message_type == "query.digest":
            raise OtherContractError("the silo holds version 1 of the contract")
        raise ValueError("/home/silo/patients.npz: image 7 is damaged")

    monkeypatch.setattr(module, "app", app)
    caplog.set_level(logging.INFO)
    return Link(tmp_path)


def test_a_silo_asks_less_often_the_longer_it_is_idle_and_the_more_silos_there_are() -> None:
    assert [poll_seconds(4, idle) for idle in (0, 3, 10, 30, 3600)] == pytest.approx([0.2, 0.2, 0.5, 1.5, 2])
    assert [poll_seconds(silos, 0) for silos in (1, 8, 32, 500)] == pytest.approx([0.2, 0.2, 0.8, 12.5])


def test_an_answer_ends_the_idle_time(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    link.node.active -= 20
    assert not link.node.turn()
    link.ask("train")
    assert link.node.turn()
    assert not link.node.turn()
    assert slept == pytest.approx([1, 0.2], abs=0.1)


def test_a_message_is_answered_and_the_whole_reply_is_handed_over(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.ask("train")
    link.late = set(list(link.parts)[:1])
    (name,) = [message.metadata.message_id for message in link.messages]
    link.node.turn()
    (reply,) = link.replies
    assert link.confirmed == [name] == [reply.metadata.reply_to_message_id]
    assert reply.content["said"] == ConfigRecord({"name": "x"})
    assert set(link.received) == set(get_all_nested_objects(reply))
    assert "round 4, train: asked" in caplog.text
    assert "round 4, train: sent after 0.0 s" in caplog.text


def test_what_goes_wrong_in_a_silo_stays_in_its_own_log(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.ask("query.other")
    link.node.turn()
    (reply,) = link.replies
    assert reply.error.reason == "it could not answer; its own log says why"
    assert "image 7" in caplog.text
    assert not any(b"image 7" in part for part in link.received.values())


def test_that_the_contracts_differ_is_told_to_the_moderator_too(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.ask("query.digest")
    link.node.turn()
    (reply,) = link.replies
    assert (reply.error.code, reply.error.reason) == (
        OTHER_CONTRACT,
        "the silo holds version 1 of the contract",
    )
    assert "ERROR" in caplog.text
    assert "round 4, digest: the silo holds version 1 of the contract\n" in caplog.text


def test_a_refusal_is_one_line_in_the_silos_log(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    link.ask("evaluate", round=0)
    link.node.turn()
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage() == "round 1, evaluate: round 1 was answered"
    assert not record.exc_info


def test_a_connection_that_breaks_costs_a_message_and_not_the_node(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    link.ask("train")
    link.parts.clear()
    link.node.turn()
    assert "a message is lost, and may come again" in caplog.text
    link.ask("train")
    link.node.turn()
    link.node.turn()  # nothing is there
    assert len(link.replies) == 1


def test_a_run_that_was_stopped_costs_a_message_and_not_the_node(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    def pull(run: int, part: str) -> bytes:
        raise RunNotRunningException

    link.ask("train")
    object.__setattr__(link.node, "pull", pull)
    assert not link.node.turn()
    assert "a message is lost, and may come again: RunNotRunningException" in caplog.text
    assert not issubclass(RunNotRunningException, Exception), (
        "then the node need not catch every BaseException"
    )


def test_a_model_of_many_pieces_arrives_whole(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, arrived = SentModel(random.Random(0).randbytes(3 * CHUNK), 8), []

    def app(message: Message, context: Context) -> Message:
        arrived.append(read_model_file(message.content, 4 * CHUNK))
        return Message(pack_receipt(2, 8), reply_to=message)

    monkeypatch.setattr(module, "app", app)
    link.ask("query.model", content=pack_model_file(sent, About("contract", "x")))
    assert len(link.parts) > 3
    assert link.node.turn()
    assert arrived == [sent]
    read_receipt(link.replies[0].content, 2, 8)


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_error_is_handed_over_whole_unless_the_moderator_has_taken_it_already(
    link: Link, caplog: pytest.LogCaptureFixture, is_taken: bool
) -> None:
    def push(run: int, session: str, part: str, content: bytes) -> None:
        if is_taken:
            raise ObjectUnavailableError(part)
        link.push(run, session, part, content)

    link.node = replace(link.node, push=push)
    link.ask("query.digest")
    assert link.node.turn()
    (reply,) = link.replies
    assert reply.has_error()
    assert link.received.keys() == (set() if is_taken else {reply.object_id})
    assert "is lost" not in caplog.text


HANGS = """
import sys, time
from pathlib import Path
from feddig.federation.flower_1_41 import node
node.app = lambda message, context: time.sleep(60)
sys.path.insert(0, {tests!r})
from test_node import Link
link = Link(Path("."))
object.__setattr__(link.node, "longest", 0.5)
link.ask("train")
link.node.turn()
"""


def test_a_node_that_hangs_ends_itself() -> None:
    script = HANGS.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (")
