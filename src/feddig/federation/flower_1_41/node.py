"""A silo's node: it takes the moderator's messages one after the other, and answers them in this process.

    python -m feddig.federation.flower_1_41.node FOLDER

Flower's own node fetches the app that comes with a run, any program, and starts it next to the silo's images, anew for
each message. This one never asks for that app: it knows `feddig.federation.client_app` and nothing else, and loads the
silo's data once, before it connects.
"""

import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message, RecordDict

from feddig.errors import DataError, FedDigError
from feddig.federation.certificates import read_key
from feddig.federation.check import check_clock, check_silo
from feddig.federation.client_app import OtherContractError, app, describe_end, is_finished
from feddig.federation.contract import read_contract
from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import CANNOT_ANSWER, NODE, OTHER_CONTRACT, start_checked
from feddig.federation.folders import SiloFolder
from feddig.federation.processes.network import await_moderator

REFUSED = 3
"""The exit code of a node that the moderator does not take."""
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.2, 2.0
POLLS_A_SECOND, IDLE_SHARE = 40, 0.05
"""How often all silos together ask for messages, which costs the SuperLink about 4 ms each time; and to what share of
its idle time a silo's pause grows."""
PULL_SECONDS = 0.05
"""How often it asks for a part of a message that the moderator has not handed over yet."""
LEAVE_SECONDS = 3.0
"""How long it stays after the end, for the moderator to take its receipt."""
NOT_ANSWERED = Error(CANNOT_ANSWER, "it could not answer; its own log says why")
"""What the moderator hears of an error, unless contracts differ: the rest may tell of data and paths."""

log = logging.getLogger("feddig")


def main() -> None:
    """Run the node of the silo's folder that is given."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("flwr", "httpx"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _connect_again)
    start_checked(lambda: run_node(SiloFolder(Path(sys.argv[1]))), NODE)


def _leave(*_: object) -> None:
    """End so that the connection is closed: else the next node would be refused for a minute."""
    raise SystemExit(1)


class UnknownNodeError(BaseException):
    """The SuperLink does not know this node, as it keeps its state in memory and was started again."""


def _connect_again(*_: object) -> None:
    """Answer the signal that Flower sends to its own process when the SuperLink does not know the node."""
    raise UnknownNodeError


def run_node(folder: SiloFolder) -> None:
    """Load the silo's data, connect to the moderator, and answer messages until the federation has ended."""
    contract = read_contract(folder.contract)
    if is_finished(folder, contract):
        log.info("%s", describe_end(folder, contract))
        return
    try:
        for line in check_silo(folder):
            log.info("%s", line)
    except DataError as error:
        # connected all the same, so that the moderator hears of it; the data is loaded again when the silo is asked
        log.error("%s; until that is mended this silo takes no part", error)
    key = read_key(folder.key)
    trusted, keys = folder.ca.read_bytes(), (key, key.public_key())
    while not is_finished(folder, contract):
        await_moderator(contract.address, folder.ca)
        check_clock(contract, folder)
        try:
            with names.CONNECT.get()(contract.address, False, trusted, keys) as connection:
                number, receive, send, _, _, pull, push, confirm = connection
                log.info("connected to %s", contract.address)
                longest, silos = contract.longest_answer, len(contract.active)
                node = Node(folder, number, longest, silos, receive, send, pull, push, confirm)
                # a version of the contract that was accepted since may have more rounds
                while not (node.turn() and is_finished(folder, contract := read_contract(folder.contract))):
                    pass
                log.info("%s", describe_end(folder, contract))
                # the SuperLink drops what a node has sent when it leaves
                time.sleep(LEAVE_SECONDS)
        except UnknownNodeError:
            log.warning("the moderator was started again; connecting to it")
        except SystemExit as end:
            # Flower ends a process that could not connect
            if not isinstance(end.__context__, httpx.HTTPStatusError):
                raise
            log.error(
                "feddig: error: %s: the moderator refuses this silo's key, or it is in use elsewhere; "
                "ask for %s to be registered, and run this on one machine only",
                contract.address,
                folder.public_key,
            )
            raise SystemExit(REFUSED) from None


@dataclass
class Node:
    """Answers messages over a connection, which is Flower's and consists of functions."""

    folder: SiloFolder
    number: int
    longest: float
    """Seconds after which nobody waits for an answer any more."""
    silos: int
    """How many silos ask the same SuperLink."""
    receive: Callable[[], Any]
    send: Callable[..., Any]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]
    active: float = field(default_factory=time.monotonic)
    """When it last answered a message, or connected."""

    def turn(self) -> bool:
        """Answer the next message, if there is one; return whether that was done."""
        try:
            received = self.receive()
            if received is None:
                time.sleep(poll_seconds(self.silos, time.monotonic() - self.active))
                return False
            message = self._fetch(*received)
            # a process that hangs reacts to nothing; it is ended, and the next one is asked again
            faulthandler.dump_traceback_later(self.longest, exit=True)
            began = time.perf_counter()
            try:
                reply = self._answer(message)
            finally:
                faulthandler.cancel_dump_traceback_later()
            seconds = time.perf_counter() - began
            self._send(reply, seconds)
            self.active = time.monotonic()
        except (SystemExit, KeyboardInterrupt, UnknownNodeError):
            raise
        except BaseException as error:  # what Flower raises when a run was stopped is no Exception
            log.warning("a message is lost, and may come again: %s", str(error) or type(error).__name__)
            time.sleep(POLL_SECONDS)
            return False
        if not reply.has_error():
            log.info("%s: sent after %.1f s", _what(message), seconds)
        return True

    def _fetch(self, head: Message, tree: Any) -> Message:
        run = head.metadata.run_id
        message: Message = names.FETCH.get()(
            tree,
            lambda part: self.pull(run, part),
            lambda whole: self.confirm(run, whole),
            return_type=Message,
            initial_backoff=PULL_SECONDS,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _answer(self, message: Message) -> Message:
        log.info("%s: asked", _what(message))
        run = message.metadata.run_id
        context = Context(run, self.number, {"folder": str(self.folder.path)}, RecordDict(), {})
        try:
            return app(message, context)
        except Exception as error:
            # a refusal is one line; anything else is a fault of the program
            log.error("%s: %s", _what(message), error, exc_info=not isinstance(error, FedDigError))
            told = isinstance(error, OtherContractError)
            return Message(Error(OTHER_CONTRACT, str(error)) if told else NOT_ANSWERED, reply_to=message)

    def _send(self, reply: Message, seconds: float) -> None:
        run = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = self.send(reply, names.TREE_OF.get()(reply), seconds)
        # the moderator may have read an error, and deleted it, before its part arrives
        with suppress(Exception) if reply.has_error() else nullcontext():
            names.PUSH_PARTS.get()(
                names.PARTS_OF.get()(reply),
                lambda part, content: self.push(run, session, part, content),
                object_ids_to_push=wanted,
            )


def poll_seconds(silos: int, idle: float) -> float:
    """Return the pause between two questions of one of these silos, after this many idle seconds."""
    return max(silos / POLLS_A_SECOND, POLL_SECONDS, min(idle * IDLE_SHARE, LONGEST_POLL_SECONDS))


def _what(message: Message) -> str:
    """Say what a message asks for; rounds are counted from 1 where people read them."""
    round = message.metadata.group_id
    kind = message.metadata.message_type.removeprefix("query.")
    return f"round {int(round) + 1}, {kind}" if round.isdecimal() else "message"


if __name__ == "__main__":
    main()
