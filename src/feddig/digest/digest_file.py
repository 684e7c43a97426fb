"""Digest files: write them atomically, and read only those that are complete and consistent."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from feddig.digest.digest import Digest, check_digest
from feddig.errors import FileFormatError
from feddig.files import read_tensors, write_tensors
from feddig.privacy.clipping import received_features, sent_sums
from feddig.privacy.mechanism import DISCRETE

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
"""What a digest tells about how it was made: nothing that a receiver need not know."""

SOUND_FACTS: dict[str, type | tuple[type, ...]] = {
    "adjacency": str,
    "delta": (int, float),
    "label_epsilon": (int, float),
    "label_keep": str,
    "clip_norm": str,
    "clip_bound": (int, float),
    "clip_steps": int,
    "step": (int, float),
    "sensitivity": (int, float),
    "sensitivity_norm": str,
    "noise_deviation": (int, float),
}
"""What one with integer noise tells besides: its contract, of which nothing is computed from data."""


def write_digest(path: str | Path, digest: Digest) -> None:
    """Write a digest file, atomically; with integer noise it holds the integers, and who reads it divides."""
    facts = {"silo": str(digest.silo), "facts": json.dumps(digest.facts, sort_keys=True), "hash": digest.hash}
    tensors = {"features": _whole(digest), "labels": digest.labels.cpu().numpy()}
    write_tensors(Path(path), "digest", tensors, facts)


def read_digest(path: str | Path) -> Digest:
    """Read a digest file and refuse anything that is not a sound digest."""
    path = Path(path)
    _check_header(path)
    tensors, head = read_tensors(path, "digest")
    if set(tensors) != {"features", "labels"}:
        raise FileFormatError(
            f"{path}: holds {sorted(tensors)}, not features and labels; make the digest again"
        )
    try:
        facts = json.loads(head["facts"])
        features = _divided(tensors["features"], facts)
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


def _whole(digest: Digest) -> np.ndarray:
    """Give the integers behind features of a discrete mechanism; other features as they are."""
    features = digest.features.cpu().numpy()
    if digest.facts.get("mechanism") not in DISCRETE or "step" not in digest.facts:
        return features
    sums = sent_sums(features, *_units(digest.facts))
    # what is no integer is not made one: readers, and an audit, are to see that
    return features if sums is None else sums


def _divided(features: np.ndarray, facts: Mapping[str, object]) -> np.ndarray:
    """Turn integers of a discrete mechanism into mixed features; give others back as they are."""
    if features.dtype not in (np.int32, np.int64) or facts.get("mechanism") not in DISCRETE:
        return features
    # a header may say anything; what becomes infinite of it is refused after this
    with np.errstate(all="ignore"):
        return received_features(features, *_units(facts))


def _units(facts: Mapping[str, object]) -> tuple[float, int]:
    """Give the step of the integers and how many samples each is the sum of."""
    return float(str(facts["step"])), int(str(facts["samples_per_digest"]))


def _check_facts(digest: Digest, source: str) -> None:
    """Check that a digest says how it was made."""
    expected = FACTS | (SOUND_FACTS if digest.facts.get("mechanism") in DISCRETE else {})
    for name, kinds in expected.items():
        if not isinstance(digest.facts.get(name), kinds):
            raise FileFormatError(f"{source}: does not say its {name}; make the digest again")
    for name in expected.keys() & SOUND_FACTS.keys():
        value = digest.facts[name]
        if not isinstance(value, str | list) and not 0 <= value < math.inf:
            raise FileFormatError(f"{source}: its {name} is {value}, which is no size; make the digest again")
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
        raise FileFormatError(f"{path}: its header claims {length:,} bytes; this is no digest file")
