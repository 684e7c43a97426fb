"""The silo's side on Flower: a ClientApp that says which silo it is, sends its digest, trains, evaluates, and ends.

On Flower's simulation engine a node is a silo of the experiment that comes with each message, and takes its share of
the experiment's data. In a deployment the node's configuration names the silo's `folder`, with its own data, which is
loaded once. There the trained model that the moderator sends is checked against the contract and written to the folder;
with the model of the last round the silo's part ends.
"""

import json
import logging
import tomllib
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from feddig.core.samples import padded
from feddig.errors import FedDigError, FileFormatError
from feddig.experiment.setup import with_precision
from feddig.experiment.toml import experiment_from_table
from feddig.federation.contract import Contract, read_contract
from feddig.federation.folders import SiloFolder
from feddig.federation.silo import DeployedSilo, count_answers, open_silo
from feddig.federation.silo_data import read_silo_file
from feddig.federation.wire import (
    SentModel,
    pack_digest,
    pack_receipt,
    pack_reply,
    pack_score,
    pack_silo,
    read_about,
    read_model_file,
    read_request,
    read_version,
)
from feddig.files import FORMAT_VERSION, read_tensors, write_atomically
from feddig.runs.build import Site, build_party, build_site
from feddig.runs.model_file import ENCODER, pack_model

ROOM = 1 << 20
"""Bytes that a model's file may have besides its tensors."""
MAY_DIFFER = ("precision", "feddig", "content", "format", "format_version")
"""Facts that depend on the moderator's machine and release, or that are checked when the file is read."""

log = logging.getLogger("feddig")
app = ClientApp()


class OtherContractError(FedDigError):
    """The silo and the moderator hold different contracts; the moderator is told this text too."""


@app.query("silo")
def tell_silo(message: Message, context: Context) -> Message:
    """Reply with the number of this silo; in a deployment, where keys identify silos, this is a heartbeat."""
    return Message(pack_silo(_silo(context)), reply_to=message)


@app.query("digest")
def give_digest(message: Message, context: Context) -> Message:
    """Reply with the digest: the same bytes each time."""
    if _is_deployed(context):
        return Message(_deployed(message, context).give_digest(), reply_to=message)
    # a simulation's noise is seeded
    return Message(pack_digest(_site(message, context).make_digest()), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the moderator's model on this silo's data and reply with the update."""
    if _is_deployed(context):
        silo = _deployed(message, context)
        request = read_request(message.content, len(silo.site.worker.network.vector))
        return Message(pack_reply(silo.train(request)), reply_to=message)
    site = _site(message, context)
    request = read_request(message.content, len(site.worker.network.vector))
    return Message(pack_reply(site.silo.train(request, site.worker)), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the moderator's model on this silo's validation images; in a simulation the moderator does that."""
    silo = _deployed(message, context)
    request = read_request(message.content, len(silo.site.network.vector))
    return Message(pack_score(silo.evaluate(request), silo.number, request.round), reply_to=message)


@app.query("model")
def keep_model(message: Message, context: Context) -> Message:
    """Keep the trained model that the moderator sends; only in a deployment."""
    folder = SiloFolder(Path(str(context.node_config["folder"])))
    receipt = take_model(
        folder, _agreed(message, context), read_silo_file(folder.silo_file).silo, message.content
    )
    return Message(receipt, reply_to=message)


def _silo(context: Context) -> int:
    if _is_deployed(context):
        return read_silo_file(SiloFolder(Path(str(context.node_config["folder"]))).silo_file).silo
    return int(context.node_config["partition-id"])


def _site(message: Message, context: Context) -> Site:
    return _build(read_about(message.content, "experiment"), _silo(context))


@lru_cache(maxsize=16)
def _build(experiment: str, silo: int) -> Site:
    return build_site(experiment_from_table(tomllib.loads(experiment)), silo)


def _is_deployed(context: Context) -> bool:
    return "folder" in context.node_config


def _deployed(message: Message, context: Context) -> DeployedSilo:
    """Return the silo of this node's folder, if the moderator follows a contract that it holds."""
    return open_folder(str(context.node_config["folder"]), _agreed(message, context).hash)


def _agreed(message: Message, context: Context) -> Contract:
    """Return the contract that this silo and the moderator follow.

    A silo that was open when later versions were accepted answers under its own, until the moderator follows the last.
    """
    folder = str(context.node_config["folder"])
    file = SiloFolder(Path(folder)).contract
    contract, asked = read_contract(file), read_about(message.content, "contract")
    theirs = read_version(message.content)
    if asked == contract.hash:
        return contract
    if theirs < contract.version:
        silo = open_folder(folder, asked)
        if silo.contract.hash == asked:
            return silo.contract
    if theirs == contract.version:
        raise OtherContractError(
            f"the silo's contract is {contract.hash[:12]} and the moderator's {asked[:12]}, both version {theirs}; put "
            "the organiser's federation.toml into both folders"
        )
    accept = f"`feddig federation accept . federation-{min(theirs, contract.version) + 1}.toml`"
    remedy = f"run {accept} in the silo's folder"
    if theirs < contract.version:
        remedy = f"run {accept} in the moderator's folder, unless that is done, and start the moderator again"
    raise OtherContractError(
        f"the silo holds version {contract.version} of the contract and the moderator follows version {theirs}; "
        f"{remedy}"
    )


@lru_cache(maxsize=1)
def open_folder(folder: str, contract: str) -> DeployedSilo:
    """Build the silo of a folder, once for each contract."""
    return open_silo(Path(folder))


def take_model(folder: SiloFolder, contract: Contract, silo: int, content: RecordDict) -> RecordDict:
    """Check the model that the moderator sends, write it to the silo's folder, and return the receipt."""
    experiment = with_precision(contract.experiment.resolved(), torch.device("cpu"))
    party = build_party(
        experiment, padded(contract.image_shape), len(contract.classes), device=torch.device("cpu")
    )
    arrays, facts = pack_model(party, contract.image_shape, contract.classes)
    sent = read_model_file(content, sum(array.nbytes for array in arrays.values()) + ROOM)
    _check_round(sent, contract)
    ended = _read_end(folder.finished)
    if is_finished(folder, contract) and ended["model"] != sent.sha256:
        raise FedDigError(
            f"{folder.model}: the federation has ended with model {ended['model'][:12]}, and the moderator sends "
            f"{sent.sha256[:12]}; ask the moderator why"
        )
    _check_file(sent, arrays, facts)
    write_atomically(folder.model, sent.file)
    log.info(
        "model of round %d: kept as %s, SHA-256 %s, %d bytes",
        sent.rounds, folder.model, sent.sha256[:12], len(sent.file),
    )  # fmt: skip
    if sent.rounds == contract.experiment.training.rounds:
        end = {
            "format_version": FORMAT_VERSION,
            "contract": contract.lasting_hash,
            "rounds": sent.rounds,
            "model": sent.sha256,
        }
        write_atomically(folder.finished, json.dumps(end, indent=2) + "\n")
    return pack_receipt(silo, sent.rounds)


def _check_round(sent: SentModel, contract: Contract) -> None:
    """Refuse a model of a round after which the contract lets none be sent."""
    rounds, every = contract.experiment.training.rounds, contract.model_every
    between = every is not None and sent.rounds in range(every, rounds, every)
    if sent.rounds != rounds and not between:
        said = "only after the last" if every is None else f"after every {every} rounds"
        raise FedDigError(
            f"the moderator sends a model after round {sent.rounds}; the contract says {said}, of {rounds} rounds"
        )


def _check_file(sent: SentModel, arrays: dict[str, np.ndarray], facts: dict[str, str]) -> None:
    """Refuse a file that holds another network than the contract describes."""
    with TemporaryDirectory() as place:
        path = Path(place) / "model.safetensors"
        path.write_bytes(sent.file)
        try:
            found, told = read_tensors(path, "model")
        except FileFormatError as error:
            raise FileFormatError(
                f"the model that the moderator sends: {str(error).replace(f'{path}: ', '')}"
            ) from None
    for name in sorted((facts.keys() | told.keys()) - set(MAY_DIFFER)):
        if facts.get(name) != told.get(name):
            raise FileFormatError(
                f"the model that the moderator sends has {name} {str(told.get(name))[:100]}, "
                f"and the contract says {str(facts.get(name))[:100]}"
            )
    for name in sorted(arrays.keys() | found.keys()):
        mine, its = arrays.get(name), found.get(name)
        if mine is None or its is None or (mine.shape, mine.dtype) != (its.shape, its.dtype):
            raise FileFormatError(
                f"the model that the moderator sends has {_shape(its)} for {name}, not {_shape(mine)}"
            )
        if name.startswith(ENCODER) and not np.array_equal(mine, its):
            raise FileFormatError("the model that the moderator sends has another encoder than the contract")
        if not np.isfinite(its).all():
            raise FileFormatError(f"the model that the moderator sends has NaN or infinity in {name}")


def _shape(array: np.ndarray | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def is_finished(folder: SiloFolder, contract: Contract) -> bool:
    """Return whether this silo has the final model of the contract's last round."""
    end = _read_end(folder.finished)
    rounds = contract.experiment.training.rounds
    return end.get("contract") == contract.lasting_hash and end.get("rounds") == rounds


def describe_end(folder: SiloFolder, contract: Contract) -> str:
    """Describe a silo's part in a federation that has ended, in one line."""
    rounds, (_, answered) = contract.experiment.training.rounds, count_answers(folder.answers, contract)
    part = f", answered {answered} of them" if contract.experiment.recipe.silos_train else ""
    return f"finished: {rounds} rounds{part}; the model is in {folder.model}"


def _read_end(path: Path) -> dict[str, Any]:
    """Read the note of the end; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): value for key, value in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); remove it") from None
