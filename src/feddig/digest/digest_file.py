"""Digest files: write them atomically, and read only those that are complete and consistent."""

import json
import math
from pathlib import Path

import numpy as np
import torch

from feddig.digest.digest import Digest, check_digest
from feddig.errors import FileFormatError
from feddig.files import read_tensors, write_tensors
from feddig.privacy.mechanisms import mechanism_of

LARGEST_HEADER = 1 << 20

FACTS: dict[str, type | tuple[type, ...]] = {
    "samples_per_digest": int,
    "mixing": str,
    "weights": list,
    "left_out": int,
    "mechanism": str,
    "epsilon": (int, float),
    "scale_size": int,
    "random": str,
    "encoder": str,
}
"""The facts of every digest; its mechanism adds others."""


def write_digest(path: str | Path, digest: Digest) -> None:
    """Write a digest file, atomically; with integer noise it holds integers, which the reader divides."""
    facts = {"silo": str(digest.silo), "facts": json.dumps(digest.facts, sort_keys=True), "hash": digest.hash}
    features = digest.mechanism.stored(digest.features.cpu().numpy(), digest.facts)
    tensors = {"features": features, "labels": digest.labels.cpu().numpy()}
    write_tensors(Path(path), "digest", tensors, facts)


def read_digest(path: str | Path) -> Digest:
    """Read a digest file; refuse one that is damaged, altered or incomplete."""
    path = Path(path)
    _check_header(path)
    tensors, head = read_tensors(path, "digest")
    if set(tensors) != {"features", "labels"}:
        raise FileFormatError(
            f"{path}: holds {sorted(tensors)}, not features and labels; make the digest again"
        )
    try:
        facts = json.loads(head["facts"])
        features = mechanism_of(facts).received(tensors["features"], facts)
        for name, array in {**tensors, "features": features}.items():
            if array.dtype != np.float32:
                raise FileFormatError(f"{path}: {name} is {array.dtype}, not float32; make the digest again")
        digest = Digest(
            int(head["silo"]), torch.from_numpy(features), torch.from_numpy(tensors["labels"]), facts
        )
        expected = digest.hash
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileFormatError(f"{path}: its header lacks or garbles {error}; make the digest again") from None
    check_digest(digest, str(path))
    _check_facts(digest, str(path))
    if head.get("hash") != expected:
        raise FileFormatError(
            f"{path}: its content does not match its hash; it was damaged or altered, fetch it again"
        )
    return digest


def _check_facts(digest: Digest, source: str) -> None:
    """Check that a digest says how it was made."""
    own = digest.mechanism.fact_types
    for name, kinds in {**FACTS, **own}.items():
        value = digest.facts.get(name)
        if not isinstance(value, kinds):
            raise FileFormatError(f"{source}: does not say its {name}; make the digest again")
        if name in own and isinstance(value, int | float) and not 0 <= value < math.inf:
            raise FileFormatError(
                f"{source}: its {name} is {value}, which must be finite and not negative; make the digest again"
            )
    mixed, weights = digest.facts["samples_per_digest"], digest.facts["weights"]
    assert isinstance(weights, list)
    shares = all(isinstance(weight, float | int) and 0 <= weight <= 1 for weight in weights)
    if mixed != len(weights) or not shares or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise FileFormatError(
            f"{source}: its weights are not {mixed} shares that sum to 1; make the digest again"
        )


def _check_header(path: Path) -> None:
    """Refuse an oversize header before anything parses it."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror})") from None
    if length > LARGEST_HEADER:
        raise FileFormatError(
            f"{path}: is no digest file, or its header is damaged; give the .safetensors file that `feddig digest "
            "make` wrote"
        )
