"""A federation in folders, and a grid in this process that carries its messages; silos can be made to fail."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from flwr.app import Error, RecordDict

from feddig import Dataset, Experiment
from feddig.data.mmap import choose
from feddig.errors import FedDigError
from feddig.experiment.setup import lay_out
from feddig.federation.certificates import Authority, write_certificate, write_silo_key
from feddig.federation.client_app import OtherContractError, take_model
from feddig.federation.contract import ADDRESS, Contract, Member, read_contract, write_contract
from feddig.federation.flower_1_41.names import OTHER_CONTRACT
from feddig.federation.folders import FederationFolder
from feddig.federation.silo import DeployedSilo, open_silo
from feddig.federation.silo_data import write_silo_file
from feddig.federation.wire import pack_reply, pack_score, pack_silo, read_about, read_request
from feddig.models.encoder import encoder_hash, load_encoder

SILENT = object()
"""What an answer is that never comes."""


def make_federation(
    path: Path,
    experiment: Experiment,
    dataset: Dataset | None = None,
    *,
    test_set: bool = True,
    rehearsal: bool = True,
    **terms: Any,
) -> FederationFolder:
    """Write the folders of moderator and silos: each silo holds the share that it has in one process."""
    layout = lay_out(experiment, dataset)
    images = layout.dataset.train
    folder = FederationFolder(path)
    members = []
    for number, share in enumerate(layout.partition.shares):
        silo = folder.silo(f"silo-{number}")
        silo.path.mkdir(parents=True)
        arrays = {}
        for part, rows in (("train", share.train), ("test", share.validation)):
            arrays |= {f"x_{part}": choose(images.pixels, rows)[:], f"y_{part}": images.labels[rows]}
        np.savez(silo.path / "data.npz", **arrays)
        write_silo_file(
            silo.silo_file, silo=number, name=silo.name, data="data.npz", validation=None, rehearsal=rehearsal
        )
        members.append(Member(silo.name, write_silo_key(silo.key)))
    channels, height, width = images.pixels.shape[1:]
    deadlines = {"training_deadline": 20.0, "digest_deadline": 20.0}
    contract = Contract(
        members=tuple(members),
        experiment=replace(layout.experiment, data=replace(layout.experiment.data, name="npz", path=None)),
        image_shape=(channels, height, width),
        classes=layout.dataset.class_names,
        encoder_hash=encoder_hash(load_encoder("default", channels)),
        **{"name": "test", "address": ADDRESS, **deadlines, **terms},
    )
    folder.moderator.path.mkdir()
    write_everywhere(folder, contract)
    if test_set:
        test = layout.dataset.test
        np.savez(folder.moderator.test_set, x_test=test.pixels[np.arange(len(test))], y_test=test.labels)
    return folder


def write_everywhere(folder: FederationFolder, contract: Contract) -> None:
    """Give everybody the same contract."""
    for path in [folder.moderator.contract, *(folder.silo(one.name).contract for one in contract.members)]:
        write_contract(path, contract)


@dataclass
class Node:
    """Has of Flower's NodeInfo what the moderator looks at."""

    node_id: int
    public_key: bytes
    last_activated_at: str = "first"


Answer = Callable[[Any, DeployedSilo], Any]


@dataclass
class Faults:
    """What a silo does instead of what it should: by kind of message, for the rounds that are named."""

    answers: dict[tuple[int, str], Answer] = field(default_factory=dict)
    rounds: dict[tuple[int, str], Sequence[int]] = field(default_factory=dict)

    def set(self, silo: int, kind: str, answer: Answer, rounds: Sequence[int] = range(10**6)) -> None:
        self.answers[silo, kind], self.rounds[silo, kind] = answer, rounds

    def of(self, silo: int, kind: str, round: int) -> Answer | None:
        return self.answers.get((silo, kind)) if round in self.rounds.get((silo, kind), ()) else None


class LocalGrid:
    """Flower's grid as far as the moderator uses it; silos answer when their answers are pulled."""

    def __init__(self, folder: FederationFolder, silos: int) -> None:
        self.faults = Faults()
        self.nodes = {silo: node_of(folder, silo, 100 + 7 * silo) for silo in range(silos)}
        """The silos that are online; their nodes' numbers mean nothing."""
        self.strangers: list[Node] = []
        self.sent: list[tuple[int, str, int]] = []
        """Silo, kind and round of each message."""
        self.late: dict[str, Any] = {}
        self.before: Callable[[LocalGrid], None] = lambda grid: None
        """Called whenever somebody looks who is there."""
        self._folder, self._silos, self._waiting = folder, {}, {}  # type: ignore[var-annotated]

    def silo(self, number: int) -> DeployedSilo:
        if number not in self._silos:
            self._silos[number] = open_silo(self._folder.silo(f"silo-{number}").path, device="cpu")
        return self._silos[number]  # type: ignore[no-any-return]

    def restart(self, silo: int, when: str = "again") -> None:
        """Start a silo anew: nothing is left but what its folder holds."""
        self._silos.pop(silo, None)
        self.nodes[silo] = replace(node_of(self._folder, silo, 100 + 7 * silo), last_activated_at=when)

    def get_nodes(self) -> list[Node]:
        self.before(self)
        return [*self.nodes.values(), *self.strangers]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        names = []
        numbers = {node.node_id: silo for silo, node in self.nodes.items()}
        for message in messages:
            silo = numbers[message.metadata.dst_node_id]
            kind, round = message.metadata.message_type, int(message.metadata.group_id)
            self.sent.append((silo, kind, round))
            names.append(f"message {len(self.sent)}")
            self._waiting[names[-1]] = (silo, kind, round, message)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        found = []
        for name in names:
            if name in self.late:
                found.append(Answered(name, self.late.pop(name)))
            if name not in self._waiting:
                continue
            silo, kind, round, message = self._waiting.pop(name)
            fault = self.faults.of(silo, kind, round)
            answer = self._answer(message, silo, fault)
            if answer is not SILENT:
                found.append(Answered(name, answer))
        return found

    def _answer(self, message: Any, silo: int, fault: Answer | None) -> Any:
        """Answer as a node does; what goes wrong is an error to the moderator."""
        try:
            return (fault or answer_well)(message, self.silo(silo))
        except FedDigError as error:
            return Error(OTHER_CONTRACT if isinstance(error, OtherContractError) else 2, str(error))

    def names(self, silo: int, kind: str, round: int) -> list[str]:
        return [f"message {place + 1}" for place, one in enumerate(self.sent) if one == (silo, kind, round)]


def answer_well(message: Any, silo: DeployedSilo) -> Any:
    """Answer as the ClientApp does."""
    content, kind = message.content, message.metadata.message_type
    assert read_about(content, "contract") == silo.contract.hash
    if kind == "query.silo":
        return pack_silo(silo.number)
    if kind == "query.model":
        return take_model(silo.folder, silo.contract, silo.number, content)
    if kind == "query.digest":
        return silo.give_digest()
    if kind == "train":
        return pack_reply(silo.train(read_request(content, len(silo.site.worker.network.vector))))
    request = read_request(content, len(silo.site.network.vector))
    return pack_score(silo.evaluate(request), silo.number, request.round)


def node_of(folder: FederationFolder, silo: int, number: int) -> Node:
    key = load_ssh_public_key(folder.silo(f"silo-{silo}").public_key.read_bytes())
    return Node(number, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


class Answered:
    """Has of a message what the moderator looks at."""

    def __init__(self, reply_to: str, content: Any) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": reply_to, "src_node_id": 1})
        self.content, self.error = content, content

    def has_error(self) -> bool:
        return isinstance(self.content, Error)


def write_message(content: RecordDict, node: int, kind: str, *, ttl: float, group_id: str) -> Any:
    """Write a message without the run that Flower's own belong to."""
    metadata = type(
        "Metadata", (), {"dst_node_id": node, "message_type": kind, "group_id": group_id, "ttl": ttl}
    )
    return type("Message", (), {"content": content, "metadata": metadata})


def status(folder: FederationFolder) -> Mapping[str, Any]:
    """Read status.json."""
    found: Mapping[str, Any] = json.loads(folder.moderator.status.read_text(encoding="utf-8"))
    assert found["pid"] == os.getpid()
    return found


def organise(folder: FederationFolder) -> None:
    """Add what the organiser's and the moderator's folders have in addition: certificates and public keys."""
    contract = read_contract(folder.moderator.contract)
    certificate = Authority.create("authority").certificate
    folder.ca.mkdir()
    folder.moderator.public_keys.mkdir()
    write_contract(folder.contract, contract)
    write_certificate(folder.ca_certificate, certificate)
    for member in contract.members:
        silo = folder.silo(member.name)
        write_certificate(silo.ca, certificate)
        shutil.copy(silo.public_key, folder.moderator.public_key(member.name))
