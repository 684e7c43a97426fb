"""Pack and read the messages that cross the network: plain arrays and numbers, each checked before it is used.

Nothing is unpickled. An array is read only if its header states the expected type and shape, and its number of bytes
fits them.
"""

import hashlib
import io
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest, write_digest
from feddig.errors import FedDigError

NUMPY, BYTES = "numpy.ndarray", "bytes"
"""How the bytes of an array are to be read."""
TYPES = ("float32", "float64", "int64")
LONGEST_HEADER = 256
COUNTS, WANTS_COUNTS, VERSION = "class_counts", "wants_class_counts", "version"
MOST_CLASSES = 100_000


class WireError(FedDigError):
    """A message is invalid; its sender counts as absent."""


def pack_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Pack tensors under their names."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()})


def pack_bytes(name: str, content: bytes) -> ArrayRecord:
    """Pack bytes as an array, which Flower sends in small pieces."""
    return ArrayRecord({name: Array("uint8", (len(content),), BYTES, content)})


def read_bytes(content: RecordDict, record: str, name: str, largest: int) -> bytes:
    """Read bytes that `pack_bytes` packed, if they are not too many."""
    array = find_arrays(content, record).get(name)
    if array is None or array.stype != BYTES:
        raise WireError(f"it holds no {record} {name}")
    if len(array.data) > largest:
        raise WireError(f"its {record} has {len(array.data):,} bytes, more than {largest:,}")
    return array.data


def find_arrays(content: RecordDict, record: str) -> ArrayRecord:
    """Return the arrays of a record; none if there is no such record."""
    return content.array_records.get(record, ArrayRecord())


def read_vector(content: RecordDict, record: str, name: str, parameters: int) -> Tensor:
    """Read a vector of exactly this many float32 numbers."""
    array = find_arrays(content, record).get(name)
    if array is None:
        raise WireError(f"it holds no {name}")
    tensor = read_tensor(name, array, parameters)
    if tensor.shape != (parameters,) or tensor.dtype != torch.float32:
        raise WireError(
            f"its {name} is {tensor.dtype}{tuple(tensor.shape)}, not {parameters:,} float32 numbers"
        )
    return tensor


def read_tensor(name: str, array: Array, parameters: int) -> Tensor:
    """Read a vector of this many numbers, or a single number."""
    if array.stype != NUMPY or len(array.data) > parameters * 8 + LONGEST_HEADER:
        raise WireError(f"its {name} has {len(array.data):,} bytes of type {array.stype!r}")
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("an unknown version")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    except Exception as error:
        # the sender chooses how the header is broken, and numpy raises many kinds of errors
        raise WireError(f"its {name} is no numpy array: {error}") from None
    if dtype.name not in TYPES or not dtype.isnative or shape not in ((), (parameters,)):
        raise WireError(f"its {name} is {dtype}{shape}")
    values = array.data[stream.tell() :]
    if len(values) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"its {name} is cut off or too long: {len(values):,} bytes")
    tensor = torch.from_numpy(np.frombuffer(values, dtype).reshape(shape).copy())
    if not bool(torch.isfinite(tensor).all()):
        raise WireError(f"its {name} holds NaN or infinity")
    return tensor


LARGEST_DIGEST = 2**31
LARGEST_FEATURE = 1e6
"""Features of images are below a hundred; training on values above this would overflow."""


@dataclass(frozen=True)
class About:
    """What a message refers to: in a simulation the experiment's text, in a federation the contract's hash."""

    key: str
    value: str
    version: int = 1
    """The contract's version; 1 is not sent."""

    @property
    def facts(self) -> dict[str, str | int]:
        """What a message says of it."""
        return {self.key: self.value, **({VERSION: self.version} if self.version > 1 else {})}


@dataclass(frozen=True)
class Score:
    """A model's accuracy in percent on a silo's own images, and their number."""

    accuracy: float
    samples: int


@dataclass(frozen=True)
class Terms:
    """What the contract requires of a digest."""

    feature_shape: tuple[int, ...]
    classes: int
    facts: Mapping[str, object]
    """The facts that it must state about how it was made."""


def pack_request(request: Request, about: About) -> RecordDict:
    """Pack a request of the moderator."""
    facts = ConfigRecord({"silo": request.silo, "round": request.round, **about.facts})
    if request.class_counts is not None:
        facts[COUNTS] = request.class_counts.tolist()
    if request.wants_class_counts:
        facts[WANTS_COUNTS] = True
    return RecordDict(
        {
            "model": pack_arrays({"weights": request.weights}),
            "state": pack_arrays(request.state),
            "facts": facts,
        }
    )


def pack_question(about: About) -> RecordDict:
    """Pack what a silo needs to answer any message: each may be handled by a new process."""
    return RecordDict({"facts": ConfigRecord({**about.facts})})


def read_about(content: RecordDict, key: str) -> str:
    """Read the experiment or the contract that a message refers to."""
    text = _facts(content).get(key)
    if not isinstance(text, str):
        raise WireError(f"it does not say which {key} it is about")
    return text


def read_version(content: RecordDict) -> int:
    """Read the version of the contract that a message refers to."""
    return _whole(_facts(content), VERSION) if VERSION in _facts(content) else 1


def pack_silo(silo: int) -> RecordDict:
    """Pack which silo a node is."""
    return RecordDict({"facts": ConfigRecord({"silo": silo})})


def read_silo(content: RecordDict) -> int:
    """Read which silo a node is."""
    return _whole(_facts(content), "silo")


def read_request(content: RecordDict, parameters: int) -> Request:
    """Read a request of the moderator for a model of this many parameters."""
    facts = _facts(content)
    state = {
        name: read_tensor(name, array, parameters) for name, array in find_arrays(content, "state").items()
    }
    weights = read_vector(content, "model", "weights", parameters)
    counts = _read_counts(facts[COUNTS]) if COUNTS in facts else None
    return Request(
        _whole(facts, "silo"), _whole(facts, "round"), weights, state, counts, facts.get(WANTS_COUNTS) is True
    )


def _read_counts(values: object) -> Tensor:
    """Read the samples of each class."""
    if not isinstance(values, list) or not 0 < len(values) <= MOST_CLASSES:
        raise WireError("its class counts are no list of numbers")
    if not all(isinstance(value, float) and math.isfinite(value) and value >= 0 for value in values):
        raise WireError("its class counts are not all numbers of 0 or more")
    return torch.tensor(values)


def pack_reply(reply: Reply) -> RecordDict:
    """Pack a silo's reply."""
    facts = ConfigRecord({"silo": reply.silo, "round": reply.round})
    if reply.class_counts is not None:
        facts[COUNTS] = reply.class_counts.tolist()
    return RecordDict(
        {
            "model": pack_arrays({"update": reply.update}),
            "facts": facts,
            "numbers": MetricRecord(
                {
                    "steps": reply.steps,
                    "samples": reply.samples,
                    "loss": reply.loss,
                    "seconds": reply.seconds,
                }
            ),
        }
    )


def largest_update(parameters: int) -> int:
    """Return the number of bytes of an update of a model with this many parameters."""
    return 4 * parameters + LONGEST_HEADER


def read_reply(content: RecordDict, request: Request, limit: float = math.inf) -> Reply:
    """Read the reply to a request; refuse one of another silo or round, or with invalid numbers.

    An update longer than `limit` times the model that was sent is refused too.
    """
    _check_sender(content, request.silo, request.round)
    values = {name: _number(content, name) for name in ("steps", "samples", "loss", "seconds")}
    steps, samples = int(values["steps"]), int(values["samples"])
    if not steps or not samples:
        raise WireError(f"it tells of {steps} steps on {samples} samples")
    update = read_vector(content, "model", "update", request.weights.numel())
    if not math.isfinite(float(update.norm())):
        # each number is finite, but the model would not be
        raise WireError("its update is longer than any number can say")
    # a model that begins near zero must be able to leave it
    length, model = float(update.norm()), max(1.0, float(request.weights.norm()))
    if length > limit * model:
        raise WireError(f"its update is {length:.3g} long, more than {limit:g} times the model's {model:.3g}")
    counts = None
    if request.wants_class_counts and COUNTS in _facts(content):
        counts = _read_counts(_facts(content)[COUNTS])
        if float(counts.sum()) != samples:
            raise WireError(f"its class counts sum to {float(counts.sum()):g}, not to its {samples} samples")
        if request.class_counts is not None and counts.shape != request.class_counts.shape:
            raise WireError(f"it counts {len(counts)} classes, not {len(request.class_counts)}")
    return Reply(
        request.silo, request.round, update, steps, samples, values["loss"], values["seconds"], counts
    )


def pack_score(score: Score, silo: int, round: int) -> RecordDict:
    """Pack a silo's score of the model of a round."""
    return RecordDict(
        {
            "facts": ConfigRecord({"silo": silo, "round": round}),
            "numbers": MetricRecord({"accuracy": score.accuracy, "samples": score.samples}),
        }
    )


def read_score(content: RecordDict, silo: int, round: int) -> Score:
    """Read this silo's score of the model of this round."""
    _check_sender(content, silo, round)
    accuracy, samples = _number(content, "accuracy"), int(_number(content, "samples"))
    if accuracy > 100:
        raise WireError(f"its accuracy is {accuracy:g} percent")
    return Score(accuracy, samples)


def pack_digest(digest: Digest) -> RecordDict:
    """Pack a digest as its file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest.safetensors"
        write_digest(file, digest)
        return pack_digest_file(file)


def pack_digest_file(file: Path) -> RecordDict:
    """Pack a digest file byte by byte."""
    return RecordDict({"digest": pack_bytes("file", file.read_bytes())})


def read_digest_of(
    content: RecordDict, silo: int, terms: Terms | None = None, largest: int = LARGEST_DIGEST
) -> Digest:
    """Read a digest, which must be this silo's, fulfil the terms, and have at most `largest` bytes."""
    packed = read_bytes(content, "digest", "file", largest)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest.safetensors"
        file.write_bytes(packed)
        try:
            digest = read_digest(file)
        except FedDigError as error:
            raise WireError(str(error).replace(f"{file}: ", "")) from None
    if digest.silo != silo:
        raise WireError(f"it is of silo {digest.silo}, not {silo}")
    if terms is not None:
        _check_terms(digest, terms)
    return digest


def _check_terms(digest: Digest, terms: Terms) -> None:
    shape, classes = tuple(digest.features.shape[1:]), int(digest.labels.shape[1])
    if shape != terms.feature_shape or classes != terms.classes:
        raise WireError(
            f"it has features of {list(shape)} and {classes} classes, "
            f"not {list(terms.feature_shape)} and {terms.classes} as the contract says"
        )
    largest = float(digest.features.abs().max())
    if largest > LARGEST_FEATURE:
        raise WireError(f"its features reach {largest:.3g}, more than {LARGEST_FEATURE:g}")
    for name, wanted in terms.facts.items():
        if digest.facts.get(name) != wanted:
            raise WireError(f"its {name} is {digest.facts.get(name)!r}, not {wanted!r} as the contract says")


@dataclass(frozen=True)
class SentModel:
    """A trained model on its way to the silos."""

    file: bytes
    """The bytes of its file."""
    rounds: int
    """After how many rounds it was written."""

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.file).hexdigest()


def pack_model_file(model: SentModel, about: About) -> RecordDict:
    """Pack a trained model's file byte by byte."""
    facts = ConfigRecord({about.key: about.value, "rounds": model.rounds, "sha256": model.sha256})
    return RecordDict({"model": pack_bytes("file", model.file), "facts": facts})


def read_model_file(content: RecordDict, largest: int) -> SentModel:
    """Read a trained model's file, which must match its hash and have at most `largest` bytes."""
    facts = _facts(content)
    model = SentModel(read_bytes(content, "model", "file", largest), _whole(facts, "rounds"))
    if facts.get("sha256") != model.sha256:
        raise WireError("its model does not match its SHA-256")
    return model


def pack_receipt(silo: int, rounds: int) -> RecordDict:
    """Pack the receipt of the model that a silo got after this number of rounds."""
    return RecordDict({"facts": ConfigRecord({"silo": silo, "round": rounds - 1})})


def read_receipt(content: RecordDict, silo: int, rounds: int) -> None:
    """Refuse a receipt of another silo, or for another model."""
    _check_sender(content, silo, rounds - 1)


def _facts(content: RecordDict) -> ConfigRecord:
    return content.config_records.get("facts", ConfigRecord())


def _check_sender(content: RecordDict, silo: int, round: int) -> None:
    """Check that a reply states the silo whose key its node has, and this round."""
    facts = _facts(content)
    for name, wanted, first in (("silo", silo, 0), ("round", round, 1)):
        found = _whole(facts, name)
        if found != wanted:
            raise WireError(f"it is of {name} {found + first}, not {wanted + first}")


def _number(content: RecordDict, name: str) -> float:
    value = content.metric_records.get("numbers", MetricRecord()).get(name)
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise WireError(f"its {name} is {value!r}")
    return value


def _whole(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"its {name} is {value!r}")
    return value
