"""The same work in Flower's simulation: `python -m peers.with_flower FOLDER` writes its result to the folder.

`run_simulation` is the engine of `flwr run` without the SuperLink, which that command leaves running.
"""

import itertools
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers.plain import SILOS, THREADS, build_model, load, read_work, train, write_result

FOLDER = Path(sys.argv[1])
server, client = ServerApp(), ClientApp()


@client.train()
def train_silo(message: Message, context: Context) -> Message:
    """Train one epoch at this node's silo."""
    config = message.content["config"]
    torch.set_num_threads(THREADS)
    work = read_work(Path(config["folder"]))
    silo, round = int(context.node_config["partition-id"]), config["server-round"] - 1
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(model, work.images[silo], work.labels[silo], work.orders[round, silo])
    metrics = MetricRecord({"loss": loss, "num-examples": len(work.labels[silo])})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@server.main()
def train_all(grid: Grid, context: Context) -> None:
    """Train all rounds with Flower's own FedAvg; the evaluation hook measures the time."""
    work, ticks = read_work(FOLDER), []
    model = build_model()
    load(model, work.initial)
    result = FedAvg(fraction_evaluate=0.0, min_train_nodes=SILOS, min_available_nodes=SILOS).start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=work.rounds,
        train_config=ConfigRecord({"folder": str(FOLDER)}),
        evaluate_fn=lambda round, arrays: ticks.append(time.perf_counter()),
    )
    seconds = [after - before for before, after in itertools.pairwise(ticks)]
    weights = list(result.arrays.to_torch_state_dict().values())
    write_result(FOLDER, "flower", seconds, weights, version("flwr"))


if __name__ == "__main__":
    run_simulation(
        server, client, SILOS, backend_config={"client_resources": {"num_cpus": THREADS, "num_gpus": 0.0}}
    )
