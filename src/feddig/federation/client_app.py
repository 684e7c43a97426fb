"""The silo's side on Flower: a ClientApp that says which silo it is, sends its digest, trains and evaluates.

On Flower's simulation engine a node is a silo of the experiment that comes with each message, and takes its share of
the experiment's data. In a deployment the node's configuration names the silo's `folder`, with its own data, which is
loaded once.
"""

import tomllib
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from feddig.errors import FedDigError
from feddig.experiment.toml import experiment_from_table
from feddig.federation.contract import Contract, read_contract
from feddig.federation.folders import SiloFolder
from feddig.federation.result import take_model
from feddig.federation.silo import DeployedSilo, open_silo
from feddig.federation.silo_data import read_silo_file
from feddig.federation.wire import (
    pack_digest,
    pack_reply,
    pack_score,
    pack_silo,
    read_about,
    read_request,
    read_version,
)
from feddig.runs.build import Site, build_site

app = ClientApp()


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
        raise FedDigError(f"{file}: the moderator follows another contract; all must hold the same file")
    remedy = f"take that with `feddig federation accept {folder} federation-{contract.version + 1}.toml`"
    if theirs < contract.version:
        remedy = "the moderator must take the newer one with `feddig federation accept`, and start again"
    raise FedDigError(
        f"{file}: this silo holds version {contract.version} and the moderator follows version {theirs}; "
        f"{remedy}"
    )


@lru_cache(maxsize=1)
def open_folder(folder: str, contract: str) -> DeployedSilo:
    """Build the silo of a folder, once for each contract."""
    return open_silo(Path(folder))
