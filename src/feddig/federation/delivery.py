"""Send the trained model to the silos: after the last round, and between rounds if the contract says so."""

import logging
import time

from feddig.federation.contract import Contract
from feddig.federation.engine import DeploymentEngine
from feddig.federation.moderator_setup import ModeratorSetup
from feddig.federation.status import FINISHED, SENDING, StatusFile
from feddig.federation.wire import SentModel
from feddig.files import pack_tensors
from feddig.runs.model_file import MODEL, pack_model
from feddig.runs.results_folder import ResultsFolder

LOOK_SECONDS = 0.5

log = logging.getLogger("feddig")


def send_checkpoint(engine: DeploymentEngine, setup: ModeratorSetup, rounds: int) -> None:
    """Send the model to the silos that are here, if the contract says so after this number of rounds."""
    every = setup.contract.model_every
    if every is None or rounds % every or rounds == setup.experiment.training.rounds:
        return
    setup.network.load(setup.moderator.model())
    packed = pack_tensors("model", *pack_model(setup.party, *setup.task()))
    engine.send_model(SentModel(packed, rounds), setup.contract.active)


def send_result(
    engine: DeploymentEngine, contract: Contract, results: ResultsFolder, status: StatusFile
) -> None:
    """Send the final model to every silo, until all have it or the time is up."""
    until = time.monotonic() + contract.longest_stay
    model = SentModel((results.path / MODEL).read_bytes(), contract.experiment.training.rounds)
    missing = [silo for silo in contract.active if silo not in status.received]
    while True:
        status.note(SENDING, here=engine.here(None), broken=engine.broken, missing=missing)
        engine.look()
        for silo in engine.send_model(model, missing):
            status.received.add(silo)
            log.info("silo %d (%s) has the final model", silo, contract.members[silo].name)
        missing = [silo for silo in contract.active if silo not in status.received]
        if not missing or time.monotonic() >= until:
            break
        time.sleep(LOOK_SECONDS)
    if missing:
        log.warning(
            "the final model did not reach %s; start the moderator again to send it when they are back",
            engine.names(missing),
        )
    status.note(FINISHED, here=engine.here(None), broken=engine.broken)
