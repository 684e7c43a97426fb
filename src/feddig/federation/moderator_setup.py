"""Set up the moderator of a federation from its contract: networks, digest terms, schedule, test images."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from feddig.core.absence import Absence, draw_absence
from feddig.core.samples import RawSamples, padded
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import choose_device, with_precision
from feddig.federation.contract import Contract, check_possible
from feddig.federation.silo_data import load_test_set
from feddig.federation.wire import Terms
from feddig.models.encoder import encoder_hash, feature_shape
from feddig.privacy.mechanisms import public_facts
from feddig.runs.build import Moderated, build_party

BY_SIZE = ("temporary", "forever", "never")


@dataclass(frozen=True)
class ModeratorSetup(Moderated):
    """What the moderator has before the first round; it holds no silo's data."""

    contract: Contract
    terms: Terms | None
    """What a digest must be like; None where the algorithm has none."""
    schedule: Absence | None
    """Which silos are not asked, in a rehearsal of a scenario."""
    test: RawSamples | None

    def inputs(self) -> dict[str, str]:
        """Return the hash of what may not change between rounds."""
        return {"contract": self.contract.lasting_hash}

    def task(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """Return the shape of an image as it is stored (channels, height, width) and the names of the classes."""
        return self.contract.image_shape, self.contract.classes


def set_up_moderator(contract: Contract, test_set: Path, *, device: str = "auto") -> ModeratorSetup:
    """Build the moderator that a contract describes."""
    place = choose_device(device)
    experiment = with_precision(contract.experiment.resolved(), place)
    check_possible(experiment)
    shape = padded(contract.image_shape)
    party = build_party(experiment, shape, len(contract.classes), device=place, record=True, background=True)
    terms = None
    if party.encoder is not None and experiment.recipe.collects_digests:
        terms = _agree_on_digests(contract, experiment, party.encoder, shape)
    images = load_test_set(test_set, contract)
    return ModeratorSetup(
        party=party,
        moderator=party.moderator(len(contract.members)),
        contract=contract,
        terms=terms,
        schedule=_schedule(experiment),
        test=None if images is None else RawSamples.all_of(party.source(images)),
    )


def _agree_on_digests(
    contract: Contract, experiment: Experiment, encoder: nn.Module, image_shape: tuple[int, int, int]
) -> Terms:
    """Return what the contract says every digest must be like."""
    if encoder_hash(encoder) != contract.encoder_hash:
        raise SettingError(
            "digest.encoder: is another here than the one that the contract names by federation.encoder_hash; "
            "use the release of FedDig that wrote the contract"
        )
    shape, classes = feature_shape(encoder, image_shape), len(contract.classes)
    facts = public_facts(
        experiment.privacy, experiment.digest, math.prod(shape), classes, contract.encoder_hash
    )
    return Terms(tuple(shape), classes, facts)


def _schedule(experiment: Experiment) -> Absence | None:
    """Draw which silos a rehearsal leaves out; without a scenario there is no schedule."""
    absence, silos = experiment.absence, experiment.data.silos
    if absence.scenario == "none":
        return None
    if absence.scenario in BY_SIZE or absence.order == "size":
        raise SettingError(
            f"absence.scenario: {absence.scenario} by size needs the sizes of silos, which a moderator does not "
            'know; give a table with scenario = "file", or order = "index"'
        )
    return draw_absence(
        absence.scenario,
        sizes=np.ones(silos, dtype=int).tolist(),
        rounds=experiment.scenario_rounds,
        order=absence.order,
        leave=absence.leave,
        return_=absence.return_,
        file=Path(absence.file) if absence.file else None,
        seed=absence.seed or 0,
    ).until(experiment.training.rounds)
