"""The silo's side on Flower: a ClientApp that answers who it is, gives its digest, and trains.

On Flower's simulation engine a node is a silo of the experiment that comes with each message, and takes its share
of the experiment's data. Messages may be handled by different processes; a process keeps what it has built.
"""

import tomllib
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from feddig.experiment_file import experiment_from_table
from feddig.flower.wire import pack_digest, pack_reply, pack_silo, read_experiment_text, read_request
from feddig.site import Site, build_site

app = ClientApp()


@app.query("silo")
def tell_silo(message: Message, context: Context) -> Message:
    """Say which silo this node is."""
    return Message(pack_silo(_silo(context)), reply_to=message)


@app.query("digest")
def give_digest(message: Message, context: Context) -> Message:
    """Make the digest: the same bytes whenever it is asked for, because a simulation's noise is seeded."""
    return Message(pack_digest(_site(message, context).make_digest()), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the moderator's model on this silo's data and reply with the update."""
    site = _site(message, context)
    request = read_request(message.content, len(site.lane.network.vector))
    return Message(pack_reply(site.silo.train(request, site.lane)), reply_to=message)


def _silo(context: Context) -> int:
    return int(context.node_config["partition-id"])


def _site(message: Message, context: Context) -> Site:
    return _build(read_experiment_text(message.content), _silo(context))


@lru_cache(maxsize=16)
def _build(experiment: str, silo: int) -> Site:
    return build_site(experiment_from_table(tomllib.loads(experiment)), silo)
