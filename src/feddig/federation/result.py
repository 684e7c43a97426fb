"""The trained model at a silo: checked against the contract, written to the silo's folder, and the end of its part."""

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

from feddig.core.samples import padded
from feddig.errors import FedDigError, FileFormatError
from feddig.experiment.setup import with_precision
from feddig.federation.answers import count_answers
from feddig.federation.contract import Contract
from feddig.federation.folders import SiloFolder
from feddig.federation.wire import SentModel, pack_receipt, read_model_file
from feddig.files import FORMAT_VERSION, read_tensors, write_atomically
from feddig.runs.build import build_party
from feddig.runs.model_file import ENCODER, pack_model

ROOM = 1 << 20
"""Bytes that a model's file may have besides its tensors."""
MAY_DIFFER = ("precision", "feddig", "content", "format", "format_version")
"""Facts that depend on the moderator's machine and release, or that are checked when the file is read."""

log = logging.getLogger("feddig")


def take_model(folder: SiloFolder, contract: Contract, silo: int, content: RecordDict) -> RecordDict:
    """Check the model that the moderator sends, write it to the silo's folder, and return the receipt."""
    experiment = with_precision(contract.experiment.resolved(), torch.device("cpu"))
    party = build_party(
        experiment, padded(contract.image_shape), len(contract.classes), device=torch.device("cpu")
    )
    arrays, facts = pack_model(party, contract.image_shape, contract.classes)
    sent = read_model_file(content, sum(array.nbytes for array in arrays.values()) + ROOM)
    _check_round(sent, contract)
    ended = _read(folder.finished)
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
    end = _read(folder.finished)
    rounds = contract.experiment.training.rounds
    return end.get("contract") == contract.lasting_hash and end.get("rounds") == rounds


def describe_end(folder: SiloFolder, contract: Contract) -> str:
    """Describe a silo's part in a federation that has ended, in one line."""
    rounds, (_, answered) = contract.experiment.training.rounds, count_answers(folder.answers, contract)
    part = f", answered {answered} of them" if contract.experiment.recipe.silos_train else ""
    return f"finished: {rounds} rounds{part}; the model is in {folder.model}"


def _read(path: Path) -> dict[str, Any]:
    """Read the note of the end; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): value for key, value in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); remove it") from None
