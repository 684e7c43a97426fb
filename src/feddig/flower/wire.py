"""Our messages on Flower's wire: plain arrays and numbers, each checked before it is believed.

Nothing is unpickled. An array is read only if its own header tells the type and shape that were expected and its
bytes are as many as that takes.
"""

import io
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from feddig.digest import Digest, read_digest, write_digest
from feddig.errors import FedDigError
from feddig.messages import Reply, Request

NUMPY = "numpy.ndarray"
TYPES = ("float32", "float64", "int64")
LARGEST_DIGEST = 2**31
LONGEST_HEADER = 256


class WireError(FedDigError):
    """A message that is not what it should be; whoever sent it counts as absent."""


def pack_request(request: Request, experiment: str) -> RecordDict:
    """Pack the moderator's push; the experiment's text tells a simulated node what it is part of."""
    return RecordDict(
        {
            "model": _pack({"weights": request.weights}),
            "state": _pack(request.state),
            "facts": ConfigRecord({"silo": request.silo, "round": request.round, "experiment": experiment}),
        }
    )


def pack_question(experiment: str) -> RecordDict:
    """Pack what a simulated node must know to answer anything: it is a process of its own."""
    return RecordDict({"facts": ConfigRecord({"experiment": experiment})})


def read_experiment_text(content: RecordDict) -> str:
    """Read the experiment that a message is about."""
    text = _facts(content).get("experiment")
    if not isinstance(text, str):
        raise WireError("it does not say which experiment it is about")
    return text


def pack_silo(silo: int) -> RecordDict:
    """Pack which silo a node is."""
    return RecordDict({"facts": ConfigRecord({"silo": silo})})


def read_silo(content: RecordDict) -> int:
    """Read which silo a node is."""
    return _whole(_facts(content), "silo")


def read_request(content: RecordDict, parameters: int) -> Request:
    """Read the moderator's push for a model of so many parameters."""
    facts = _facts(content)
    state = {name: _tensor(name, array, parameters) for name, array in _arrays(content, "state").items()}
    weights = _one(content, "model", "weights", parameters)
    return Request(_whole(facts, "silo"), _whole(facts, "round"), weights, state)


def pack_reply(reply: Reply) -> RecordDict:
    """Pack a silo's answer."""
    return RecordDict(
        {
            "model": _pack({"update": reply.update}),
            "facts": ConfigRecord({"silo": reply.silo, "round": reply.round}),
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


def read_reply(content: RecordDict, request: Request) -> Reply:
    """Read the answer to a request; one of another silo or round, or with numbers that make no sense, is refused."""
    facts = _facts(content)
    for name, wanted in (("silo", request.silo), ("round", request.round)):
        if _whole(facts, name) != wanted:
            raise WireError(f"it is of {name} {facts[name]!r}, not {wanted}")
    numbers = content.metric_records.get("numbers", MetricRecord())
    values = {name: numbers.get(name) for name in ("steps", "samples", "loss", "seconds")}
    for name, value in values.items():
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise WireError(f"its {name} is {value!r}")
    update = _one(content, "model", "update", request.weights.numel())
    steps, samples = (int(values[name]) for name in ("steps", "samples"))  # type: ignore[arg-type]
    loss, seconds = (float(values[name]) for name in ("loss", "seconds"))  # type: ignore[arg-type]
    if not steps or not samples:
        raise WireError(f"it tells of {steps} steps on {samples} samples")
    return Reply(request.silo, request.round, update, steps, samples, loss, seconds)


def pack_digest(digest: Digest) -> RecordDict:
    """Pack a digest as the file that it is."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest.safetensors"
        write_digest(file, digest)
        return RecordDict({"digest": ConfigRecord({"file": file.read_bytes()})})


def read_digest_of(content: RecordDict, silo: int) -> Digest:
    """Read a digest that must be this silo's."""
    packed = content.config_records.get("digest", ConfigRecord()).get("file")
    if not isinstance(packed, bytes) or len(packed) > LARGEST_DIGEST:
        raise WireError("it holds no digest file")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest.safetensors"
        file.write_bytes(packed)
        try:
            digest = read_digest(file)
        except FedDigError as error:
            raise WireError(str(error).replace(f"{file}: ", "")) from None
    if digest.silo != silo:
        raise WireError(f"it is of silo {digest.silo}, not {silo}")
    return digest


def _pack(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()})


def _facts(content: RecordDict) -> ConfigRecord:
    return content.config_records.get("facts", ConfigRecord())


def _whole(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"its {name} is {value!r}")
    return value


def _arrays(content: RecordDict, record: str) -> ArrayRecord:
    return content.array_records.get(record, ArrayRecord())


def _one(content: RecordDict, record: str, name: str, parameters: int) -> Tensor:
    array = _arrays(content, record).get(name)
    if array is None:
        raise WireError(f"it holds no {name}")
    tensor = _tensor(name, array, parameters)
    if tensor.shape != (parameters,) or tensor.dtype != torch.float32:
        raise WireError(
            f"its {name} is {tensor.dtype}{tuple(tensor.shape)}, not {parameters:,} float32 numbers"
        )
    return tensor


def _tensor(name: str, array: Array, parameters: int) -> Tensor:
    """Read a vector of so many numbers, or a single one."""
    if array.stype != NUMPY or len(array.data) > parameters * 8 + LONGEST_HEADER:
        raise WireError(f"its {name} has {len(array.data):,} bytes of type {array.stype!r}")
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("an unknown version")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    except ValueError as error:
        raise WireError(f"its {name} is no numpy array: {error}") from None
    if dtype.name not in TYPES or shape not in ((), (parameters,)):
        raise WireError(f"its {name} is {dtype}{shape}")
    values = array.data[stream.tell() :]
    if len(values) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"its {name} is cut off or too long: {len(values):,} bytes")
    tensor = torch.from_numpy(np.frombuffer(values, dtype).reshape(shape).copy())
    if not bool(torch.isfinite(tensor).all()):
        raise WireError(f"its {name} holds NaN or infinity")
    return tensor
