"""Distribute the training samples to the silos."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddig.errors import DataError, FileFormatError, SettingError, nearest
from feddig.files import FORMAT_VERSION, check_version
from feddig.seeds import numpy_stream

SPLITS = ("train", "validation", "test")
MOST_REDRAWS = 100

TITLE = "# feddig partition, format_version "
_NAMES = "# silos: "
_COLUMNS = "index,silo,split"

logger = logging.getLogger("feddig")


@dataclass(frozen=True, eq=False)
class Share:
    """One silo's samples: sorted positions in the training set, for each of its three splits."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def __len__(self) -> int:
        return len(self.train) + len(self.validation) + len(self.test)


@dataclass(frozen=True, eq=False)
class Partition:
    """Each training sample in exactly one split of one silo, and how often the partition was drawn again."""

    shares: tuple[Share, ...]
    """For each silo the rows of its training images, as `train`, `validation` and `test`."""
    redraws: int
    """How often it was drawn again, because a silo had too few samples."""
    names: tuple[str, ...] = ()
    """The names of the silos; empty if they have numbers only."""

    def __repr__(self) -> str:
        names = self.names or range(len(self.shares))
        sizes = (f"{name}: {len(share)}" for name, share in zip(names, self.shares, strict=True))
        return f"<Partition of {sum(map(len, self.shares))} images: {', '.join(sizes)}>"

    def to_csv(self) -> str:
        """Return one row per sample, in the order of the training set."""
        rows = sorted(
            (index, silo, split)
            for silo, share in enumerate(self.shares)
            for split in SPLITS
            for index in getattr(share, split).tolist()
        )
        lines = [
            f"{TITLE}{FORMAT_VERSION}",
            *([_NAMES + json.dumps(self.names, ensure_ascii=False)] if self.names else []),
            _COLUMNS,
            *(f"{index},{silo},{split}" for index, silo, split in rows),
        ]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_csv(cls, path: Path) -> "Partition":
        """Read a partition from its file, which does not hold the redraws, so they are 0."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileFormatError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(
                f"{path}: not a readable text file ({type(error).__name__}); make it again"
            ) from None
        shares, names = _parse(path, text)
        return cls(shares, 0, names)


def draw_partition(
    labels: np.ndarray,
    *,
    silos: int,
    method: str = "dirichlet",
    skew: float = 0.1,
    split: tuple[float, float, float] = (0.8, 0.1, 0.1),
    min_samples: int = 64,
    min_share: float = 0.0,
    seed: int = 0,
) -> Partition:
    """Distribute samples by their labels, and split each silo's into training, validation and test samples.

    "dirichlet" draws each class's proportions from Dirichlet(skew, ..., skew) (the paper's mu), "iid" distributes
    evenly, and "shards" gives each silo two runs of the samples sorted by label, as in the paper on FedAvg. A draw that
    gives a silo fewer than min_samples, or less than min_share of all, is repeated with the next stream of the seed.
    """
    _check_settings(silos, method, skew, split, min_samples, min_share)
    if silos > len(labels):
        raise DataError(
            f"partition: {len(labels)} samples are too few for {silos} silos; "
            "use fewer data.silos or more images"
        )
    least = max(min_samples, math.ceil(min_share * len(labels) - 1e-9))
    limit = "data.min_samples" if least == min_samples else "data.min_share"
    if least > len(labels) // silos:
        raise DataError(
            f"partition: {len(labels)} samples give {silos} silos at most {len(labels) // silos} each, "
            f"not {least}; use fewer data.silos or a smaller {limit}"
        )
    best = 0
    for attempt in range(MOST_REDRAWS + 1):
        stream = numpy_stream(seed, "partition", attempt)
        parts = _METHODS[method](labels, silos, skew, stream)
        smallest = min(len(samples) for samples in parts)
        if smallest >= least:
            return Partition(tuple(_split(samples, split, stream) for samples in parts), redraws=attempt)
        best = max(best, smallest)
        if attempt < MOST_REDRAWS:
            logger.info(
                "partition: drawing again (%d of at most %d), as the smallest silo had %d samples, not %d",
                attempt + 1,
                MOST_REDRAWS,
                smallest,
                least,
            )
    raise DataError(
        f"partition: after {MOST_REDRAWS} redraws the smallest silo had {best} samples at best, "
        f"not {least}; use fewer data.silos, a larger data.skew or a smaller {limit}"
    )


def _check_settings(
    silos: int,
    method: str,
    skew: float,
    split: tuple[float, float, float],
    min_samples: int,
    min_share: float,
) -> None:
    if silos < 1:
        raise SettingError(f"data.silos: {silos} silos; use at least 1")
    if method not in _METHODS:
        raise SettingError(f"data.partition: unknown method {method!r}; {nearest(method, _METHODS)}")
    if not (skew > 0 and math.isfinite(skew)):
        raise SettingError(f"data.skew: {skew} is not a number above 0; use for example 0.1")
    if (
        len(split) != 3
        or not all(share >= 0 for share in split)
        or not math.isclose(sum(split), 1, abs_tol=1e-6)
    ):
        raise SettingError(
            f"data.split: {list(split)} are not three shares that sum to 1; use for example [0.8, 0.1, 0.1]"
        )
    if split[0] == 0:
        raise SettingError("data.split: the training share is 0; leave some samples to train on")
    if min_samples < 1:
        raise SettingError(
            f"data.min_samples: {min_samples}; use at least 1, because every silo needs a sample"
        )
    if not 0 <= min_share <= 1:
        raise SettingError(f"data.min_share: {min_share} is no share; use 0 to 1, for example 0.1")


def _partition_dirichlet(
    labels: np.ndarray, silos: int, skew: float, stream: np.random.Generator
) -> list[np.ndarray]:
    parts: list[list[np.ndarray]] = [[] for _ in range(silos)]
    for label in np.unique(labels):
        samples = stream.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(_proportions(silos, skew, stream))[:-1] * len(samples)).astype(np.int64)
        for pieces, piece in zip(parts, np.split(samples, cuts), strict=True):
            pieces.append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _proportions(silos: int, skew: float, stream: np.random.Generator) -> np.ndarray:
    # with an extreme skew NumPy overflows or underflows, and gives nan or zeros
    with np.errstate(all="ignore"):
        proportions = stream.dirichlet(np.full(silos, skew))
    if np.isclose(proportions.sum(), 1):
        return proportions
    if skew > 1:
        return np.full(silos, 1 / silos)
    whole = np.zeros(silos)
    whole[stream.integers(silos)] = 1
    return whole


def _partition_iid(
    labels: np.ndarray, silos: int, skew: float, stream: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(stream.permutation(len(labels)), silos)


def _partition_shards(
    labels: np.ndarray, silos: int, skew: float, stream: np.random.Generator
) -> list[np.ndarray]:
    shuffled = stream.permutation(len(labels))
    shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], 2 * silos)
    pairs = stream.permutation(2 * silos).reshape(silos, 2)
    return [np.concatenate([shards[first], shards[second]]) for first, second in pairs]


_METHODS: dict[str, Callable[[np.ndarray, int, float, np.random.Generator], list[np.ndarray]]] = {
    "dirichlet": _partition_dirichlet,
    "iid": _partition_iid,
    "shards": _partition_shards,
}


def _split(samples: np.ndarray, split: tuple[float, float, float], stream: np.random.Generator) -> Share:
    order = stream.permutation(samples).astype(np.int64)
    validation, test = round(len(order) * split[1]), round(len(order) * split[2])
    # if rounding up both leaves nothing to train on, the larger of the two loses one
    while validation + test >= len(order):
        validation, test = (validation - 1, test) if validation > test else (validation, test - 1)
    train = len(order) - validation - test
    pieces = np.split(order, [train, train + validation])
    return Share(*(np.sort(piece) for piece in pieces))


def _parse(path: Path, text: str) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    lines = text.split("\n")
    if not lines[0].startswith(TITLE):
        raise FileFormatError(
            f"{path}, line 1: not a FedDig partition; give a partition.csv that this program wrote"
        )
    check_version(path, lines[0].removeprefix(TITLE))
    names = _parse_names(path, lines[1]) if lines[1:] and lines[1].startswith(_NAMES) else ()
    first = 2 if names else 1
    if lines[first : first + 1] != [_COLUMNS]:
        raise FileFormatError(
            f"{path}, line {first + 1}: the columns are not {_COLUMNS}; make the file again"
        )
    if lines.pop():
        raise FileFormatError(
            f"{path}, line {len(lines) + 1}: the file ends inside a line; make or copy it again"
        )
    found: dict[int, dict[str, list[int]]] = {}
    for index, line in enumerate(lines[first + 1 :]):
        silo, split = _parse_row(f"{path}, line {index + first + 2}", line, index)
        found.setdefault(silo, {name: [] for name in SPLITS})[split].append(index)
    if not found:
        raise FileFormatError(f"{path}, line {first + 2}: no samples; make the file again")
    if names and len(names) != max(found) + 1:
        raise FileFormatError(
            f"{path}, line 2: {len(names)} names for {max(found) + 1} silos; make the file again"
        )
    for silo in range(max(found) + 1):
        if silo not in found or not found[silo]["train"]:
            raise FileFormatError(
                f"{path}, line {len(lines)}: the file ends and silo {silo} has no training samples; "
                "make it again"
            )
    shares = (
        Share(*(np.array(found[silo][split], np.int64) for split in SPLITS)) for silo in range(len(found))
    )
    return tuple(shares), names


def _parse_names(path: Path, line: str) -> tuple[str, ...]:
    try:
        names = json.loads(line.removeprefix(_NAMES))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise FileFormatError(f"{path}, line 2: not a list of names of silos; make the file again")
    return tuple(names)


def _parse_row(place: str, line: str, expected: int) -> tuple[int, str]:
    fields = line.split(",")
    if len(fields) != 3 or not all(
        field.isascii() and field.isdigit() and len(field) < 19 for field in fields[:2]
    ):
        raise FileFormatError(f"{place}: {line!r} is not an index, a silo and a split; make the file again")
    index, silo, split = int(fields[0]), int(fields[1]), fields[2]
    if index != expected:
        raise FileFormatError(f"{place}: sample {index} where {expected} is expected; make the file again")
    if split not in SPLITS:
        raise FileFormatError(f"{place}: unknown split {split!r}; {nearest(split, SPLITS)}")
    return silo, split
