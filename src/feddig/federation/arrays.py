"""Arrays in our messages on Flower's wire: read only if they are exactly what was expected.

Nothing is unpickled. An array is read only if its own header tells the type and shape that were expected and its
bytes are as many as that takes.
"""

import io
import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from feddig.errors import FedDigError

NUMPY, BYTES = "numpy.ndarray", "bytes"
"""How the bytes of an array are to be read."""
TYPES = ("float32", "float64", "int64")
LONGEST_HEADER = 256


class WireError(FedDigError):
    """A message that is not what it should be; whoever sent it counts as absent."""


def pack_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Pack tensors under their names."""
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()})


def pack_bytes(name: str, content: bytes) -> ArrayRecord:
    """Pack bytes as they are: as an array they travel in pieces, of which none is large."""
    return ArrayRecord({name: Array("uint8", (len(content),), BYTES, content)})


def read_bytes(content: RecordDict, record: str, name: str, largest: int) -> bytes:
    """Read bytes that were packed so, if they are not too many."""
    array = find_arrays(content, record).get(name)
    if array is None or array.stype != BYTES:
        raise WireError(f"it holds no {record} {name}")
    if len(array.data) > largest:
        raise WireError(f"its {record} has {len(array.data):,} bytes, more than {largest:,}")
    return array.data


def find_arrays(content: RecordDict, record: str) -> ArrayRecord:
    """Find the arrays of a record; none where there is no such record."""
    return content.array_records.get(record, ArrayRecord())


def read_vector(content: RecordDict, record: str, name: str, parameters: int) -> Tensor:
    """Read a vector of exactly so many float32 numbers."""
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
    """Read a vector of so many numbers, or a single number."""
    if array.stype != NUMPY or len(array.data) > parameters * 8 + LONGEST_HEADER:
        raise WireError(f"its {name} has {len(array.data):,} bytes of type {array.stype!r}")
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("an unknown version")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    except Exception as error:
        # whoever sends it chooses how its header is broken, and numpy minds that in many ways
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
