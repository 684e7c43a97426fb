"""A silo's side of a real federation: its folder, its data, its digest and its last answers.

Each message may be handled by a new process, so the digest, the ledger of releases and the last answers lie on the
silo's own disk. The silo answers what the contract allows, whatever the moderator asks.

The digest is made once, and each round is answered once, also after a restart. Every answer to another question reveals
more about the silo's data. The same question, asked again after a crash or a lost reply, gets the same answer again.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from flwr.app import RecordDict

from feddig.core.messages import Reply, Request
from feddig.core.samples import RawSamples, accuracy
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest, write_digest
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.setup import choose_device, with_precision
from feddig.federation.contract import Contract, check_possible, read_contract
from feddig.federation.folders import SiloFolder
from feddig.federation.silo_data import SiloFile, load_silo_data, read_silo_file
from feddig.federation.wire import Score, pack_digest_file
from feddig.files import content_hash, hash_tensors, locked, path_fingerprint, read_tensors, write_tensors
from feddig.privacy.accounting import Budget
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import MADE
from feddig.privacy.mechanisms import public_facts
from feddig.runs.build import Site, build_site_of
from feddig.runs.release import budget_of, ledger_of, remember_ledger

Arrays = Mapping[str, np.ndarray]
UPDATE, SCORE = "update", "score"
"""The kinds of answers."""

log = logging.getLogger("feddig")


@dataclass(frozen=True)
class DeployedSilo:
    """A silo in its process: what it needs to answer the moderator."""

    folder: SiloFolder
    file: SiloFile
    contract: Contract
    site: Site
    validation: RawSamples

    @property
    def number(self) -> int:
        """The silo's number."""
        return self.site.silo.index

    def give_digest(self) -> RecordDict:
        """Pack the kept digest, or make it if there is none. Only one that the ledger has noted may leave."""
        recipe = self.contract.experiment.recipe
        if not recipe.collects_digests:
            raise SettingError(
                f"{self.folder.contract}: {recipe.name} collects no digests, but the moderator asks for one"
            )
        file = self.folder.digest
        with locked(self.folder.released / ".lock"):
            if not file.exists():
                self._make_digest()
            digest = self._checked(read_digest(file), file)
            self._check_size(file.stat().st_size)
            self._charge(digest)
        return pack_digest_file(file)

    def make_digest(self) -> None:
        """Make the digest and keep it, to be audited; it is charged when it leaves."""
        with locked(self.folder.released / ".lock"):
            if self.folder.digest.exists():
                raise FedDigError(
                    f"{self.folder.digest}: exists already, and is what `feddig federation silo` sends; if it has not "
                    "left yet, remove it to make another"
                )
            self._make_digest()

    def _make_digest(self) -> None:
        digest = self._checked(self.site.make_digest(), self.folder.digest)
        self._check_size(digest.size)
        ledger = Ledger(self.ledger)
        left = {
            entry.digest
            for entry in ledger.entries()
            if entry.kind != MADE and entry.recipient == self.recipient
        }
        if left and digest.hash not in left and not self.contract.new_release:
            raise FileFormatError(
                f"{self.folder.digest}: is gone, and the ledger says that it was released; put it back, "
                "or agree on a contract with federation.new_release = true"
            )
        # noted before it is written: a file that the ledger does not know is never sent
        ledger.made(digest.hash, digest.promise, self.recipient, self._budget, self._fingerprint)
        self._remember()
        write_digest(self.folder.digest, digest)

    def _charge(self, digest: Digest) -> None:
        """Note that a digest leaves; refuse one that the ledger did not see made."""
        ledger = Ledger(self.ledger)
        kinds = {entry.kind for entry in ledger.entries() if entry.digest == digest.hash}
        if not kinds:
            raise FileFormatError(
                f"{self.folder.digest}: was not made here, for {ledger.path} does not know it; remove the file, and a "
                "digest is made"
            )
        if kinds == {MADE}:
            ledger.release(digest.hash, digest.promise, self.recipient, self._budget, self._fingerprint)
        else:
            ledger.resend(digest.hash, self.recipient)

    @property
    def _budget(self) -> Budget:
        return budget_of(self.site.party.experiment).within(self.file.data.budget)

    @cached_property
    def _fingerprint(self) -> str:
        return "" if self.file.data.rehearsal else path_fingerprint(self.file.data.path)

    def _remember(self) -> None:
        if not self.file.data.rehearsal:
            remember_ledger(self.file.data.path, self.ledger, self._fingerprint)

    @property
    def recipient(self) -> str:
        """Who gets the digest, as the ledger names it."""
        return f"the moderator of {self.contract.name}"

    @cached_property
    def ledger(self) -> Path:
        """The ledger of this silo's data; a rehearsal has its own."""
        if self.file.data.rehearsal:
            return self.folder.ledger
        return ledger_of(self.file.data.path, self.file.data.ledger, self._fingerprint)

    def _checked(self, digest: Digest, file: Path) -> Digest:
        """Check that a digest is this silo's, and made as the contract says."""
        if digest.silo != self.number:
            raise FileFormatError(f"{file}: is of silo {digest.silo}, not {self.number}; put its own back")
        experiment, classes = self.site.party.experiment, len(self.contract.classes)
        elements = math.prod(digest.features.shape[1:])
        agreed = public_facts(
            experiment.privacy, experiment.digest, elements, classes, self.contract.encoder_hash or ""
        )
        for name, value in agreed.items():
            if digest.facts.get(name) != value:
                raise FileFormatError(
                    f"{file}: was made with {name} {digest.facts.get(name)}, and the contract says {value}; remove the "
                    "file if it has not left"
                )
        return digest

    def _check_size(self, size: int) -> None:
        largest = self.contract.largest_digest
        if size > largest:
            raise SettingError(
                f"{self.folder.digest}: has {size:,} bytes, and the moderator takes no more than {largest:,}; agree on "
                "a contract with a larger federation.digest_limit, or with more digest.samples_per_digest"
            )

    def train(self, request: Request) -> Reply:
        """Train the moderator's model on this silo's data, once in each round."""
        recipe = self.contract.experiment.recipe
        if not recipe.silos_train:
            raise SettingError(
                f"{self.folder.contract}: silos do not train with {recipe.name}, but the moderator asks for it in "
                f"round {request.round + 1}"
            )
        if request.wants_class_counts and recipe.collects_digests:
            # the digest's labels may be noisy, and exact counts would undo that
            raise SettingError(
                f"{self.folder.contract}: with {recipe.name} class counts come from digests, but the moderator asks "
                f"for exact ones in round {request.round + 1}"
            )

        def train() -> Arrays:
            began = time.perf_counter()
            reply = self.site.silo.train(request, self.site.worker)
            reply = replace(reply, seconds=time.perf_counter() - began)
            log.info(
                "round %d: trained on %d images in %.1f s, loss %.3f",
                request.round + 1, reply.samples, reply.seconds, reply.loss,
            )  # fmt: skip
            return _arrays_of(reply)

        made = self._answer_once(UPDATE, request, train)
        steps, samples, loss, seconds = made["numbers"].tolist()
        update, counts = torch.tensor(made["update"]), made.get("class_counts")
        return Reply(
            self.number,
            request.round,
            update,
            int(steps),
            int(samples),
            loss,
            seconds,
            None if counts is None else torch.tensor(counts),
        )

    def evaluate(self, request: Request) -> Score:
        """Measure the moderator's model on validation images, one model in each round."""

        def measure() -> Arrays:
            self.site.network.load(request.weights)
            measured = accuracy(self.site.network, self.validation) or 0.0
            return {"score": np.array([measured, len(self.validation)])}

        measured, samples = self._answer_once(SCORE, request, measure)["score"].tolist()
        return Score(measured, int(samples))

    def _answer_once(self, kind: str, request: Request, answer: Callable[[], Arrays]) -> Arrays:
        """Answer a request to this silo in one of the contract's rounds, which is answered once."""
        rounds = self.contract.experiment.training.rounds
        if request.silo != self.number:
            raise SettingError(
                f"the moderator takes silo {self.number} for silo {request.silo}: silo.toml and the contract differ"
            )
        if request.round not in range(rounds):
            raise SettingError(
                f"{self.folder.contract}: training.rounds is {rounds}, but the moderator asks for round "
                f"{request.round + 1}"
            )
        return answer_once(answer_file(self.folder.answers, self.contract, kind), request, answer)


def _arrays_of(reply: Reply) -> Arrays:
    arrays = {
        "update": reply.update.cpu().numpy(),
        "numbers": np.array([reply.steps, reply.samples, reply.loss, reply.seconds]),
    }
    if reply.class_counts is not None:
        arrays["class_counts"] = reply.class_counts.cpu().numpy()
    return arrays


def open_silo(path: Path, *, device: str = "auto") -> DeployedSilo:
    """Build the silo of this folder, with the data that its silo.toml names."""
    folder = SiloFolder(path)
    contract, file = read_contract(folder.contract), read_silo_file(folder.silo_file)
    if file.silo not in range(len(contract.members)) or contract.members[file.silo].name != file.name:
        raise SettingError(
            f"{folder.silo_file}: silo {file.silo} is not {file.name!r} in the contract; "
            f"{contract.name} has {', '.join(member.name for member in contract.members)}, in this order"
        )
    if file.silo not in contract.active:
        raise SettingError(
            f"{folder.contract}: {file.name} is removed in version {contract.version}, and is not asked for anything "
            "any more; there is nothing to run"
        )
    if not file.data.rehearsal:
        _check_told(folder, contract)
    experiment = with_precision(contract.experiment.resolved(), choose_device(device))
    check_possible(experiment)
    train, validation = load_silo_data(file, contract)
    site = build_site_of(experiment, file.silo, train, len(contract.classes), device=device)
    if site.party.encoder_hash not in (None, contract.encoder_hash):
        raise SettingError(
            f"{folder.contract}: digest.encoder is another here than the one that was agreed on "
            f"({str(contract.encoder_hash)[:12]}); install the release of FedDig that the others use"
        )
    return DeployedSilo(folder, file, contract, site, RawSamples.all_of(site.party.source(validation)))


def _check_told(folder: SiloFolder, contract: Contract) -> None:
    """Refuse a contract that gives real data away without saying so."""
    try:
        contract.experiment.check_told(
            no_privacy=contract.no_privacy, otherwise="agree on federation.no_privacy"
        )
    except SettingError as error:
        raise SettingError(f"{folder.contract}: {error}") from None
    if contract.experiment.recipe.collects_digests and contract.experiment.privacy.random != "system":
        raise SettingError(
            f"{folder.contract}: privacy.random: the contract's seed would let everybody remove the noise from your "
            "digest; agree on a contract without it"
        )


def answer_once(file: Path, request: Request, answer: Callable[[], Arrays]) -> Arrays:
    """Return the answer kept in this file if it is to the same request; else make the answer, and keep it.

    Refuse another request of the round that was answered last, and any request of an earlier round.
    """
    # two processes could answer two requests of one round at once
    with locked(file.with_suffix(".lock")):
        asked, count = _hash_request(request), 0
        if file.exists():
            kept, facts = read_tensors(file, "answer")
            if facts["request"] == asked:
                return kept
            answered, count = int(facts["round"]), int(facts.get("count", 0))
            if request.round <= answered:
                raise FedDigError(
                    f"{file}: silo {request.silo} has answered round {answered + 1} and does not answer another "
                    f"request of round {request.round + 1}; the moderator must continue its run, or all agree on "
                    "another contract"
                )
        made = answer()
        # before it is sent: a reply that is lost must be the one that is sent again
        facts = {"round": str(request.round), "request": asked, "count": str(count + 1)}
        write_tensors(file, "answer", made, facts)
        return made


def answer_file(folder: Path, contract: Contract, kind: str) -> Path:
    """Return the file of a silo's last answer of a kind; a contract that may continue the same run has the same."""
    return folder / f"{contract.lasting_hash[:16]}-{kind}.safetensors"


def count_answers(folder: Path, contract: Contract) -> tuple[int | None, int]:
    """Return the last round that was answered under this contract (None: none), and in how many a silo trained."""
    last, trained = None, 0
    for kind in (UPDATE, SCORE):
        file = answer_file(folder, contract, kind)
        if file.exists():
            facts = read_tensors(file, "answer")[1]
            last = max(int(facts["round"]), -1 if last is None else last)
            trained = int(facts.get("count", 0)) if kind == UPDATE else trained
    return last, trained


def _hash_request(request: Request) -> str:
    """Hash all that an answer depends on."""
    tensors = {"weights": request.weights, **{f"state.{name}": one for name, one in request.state.items()}}
    if request.class_counts is not None:
        tensors["class_counts"] = request.class_counts
    facts = f"{request.silo} {request.round} {request.wants_class_counts}"
    return content_hash(
        facts.encode(), hash_tensors({name: one.cpu().numpy() for name, one in tensors.items()}).encode()
    )
