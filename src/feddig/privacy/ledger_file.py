"""How a ledger is written: an entry is a line of JSON that carries its own hash and that of the line before.

The hash is SHA-256 over the line's canonical JSON (keys in order, no spaces) without the key `hash`. A line that is
not canonical is refused, so that one entry cannot be spelt in two ways.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from feddig.files import FORMAT_VERSION
from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms import mechanism_of

GENESIS = "0" * 64
"""The hash that the first entry names as the one before."""

MADE, RELEASE, RESEND = "made", "release", "resend"


@dataclass(frozen=True)
class Entry:
    """One release: what, when, to whom, at what cost."""

    number: int
    """Counted from 1."""
    time: str
    """UTC, ISO 8601."""
    kind: str
    """`release`, which is charged; not charged: `made`, of a digest that has not left yet, and `resend`."""
    recipient: str
    digest: str
    """The digest's hash."""
    promise: Promise
    """What the digest promises a record; without assumptions when it was read from a file."""
    composed_epsilon: float
    """What all releases up to this one cost a record together."""
    composed_delta: float
    previous: str
    """The hash of the entry before."""
    data: str = ""
    """Fingerprint of the data that the digest was made of; empty where it was not known."""

    @cached_property
    def hash(self) -> str:
        """The name of this entry and, through `previous`, of all entries before it."""
        return hashlib.sha256(_canonical(self._content())).hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """All that is on the line."""
        return {**self._content(), "hash": self.hash}

    @property
    def line(self) -> bytes:
        """The entry as it is written."""
        return _canonical(self.record) + b"\n"

    def _content(self) -> dict[str, Any]:
        promise = self.promise
        return {
            "format_version": FORMAT_VERSION,
            "number": self.number,
            "time": self.time,
            "kind": self.kind,
            "recipient": self.recipient,
            "digest": self.digest,
            "mechanism": promise.mechanism,
            "adjacency": promise.adjacency,
            "record_epsilon": _spelt(promise.epsilon),
            "record_epsilon_if_bound_public": _spelt(promise.epsilon_if_bound_public),
            "record_delta": _spelt(promise.delta),
            "label_epsilon": _spelt(promise.label_epsilon),
            "sensitivity": _spelt(promise.sensitivity),
            "sensitivity_norm": promise.norm,
            "noise_scale": _spelt(promise.noise_scale),
            "unit": promise.unit,
            # older entries do not have it
            **({"random": promise.random} if promise.random else {}),
            **({"protects": promise.protects} if promise.protects != "record" else {}),
            **({"data": self.data} if self.data else {}),
            "composed_epsilon": _spelt(self.composed_epsilon),
            "composed_delta": _spelt(self.composed_delta),
            "previous": self.previous,
        }


@dataclass(frozen=True)
class Head:
    """The number of entries in a ledger, and the last one's hash."""

    count: int = 0
    hash: str = GENESIS
    coming: str | None = None
    """The hash of the entry that is being appended, if there is one."""

    @property
    def text(self) -> str:
        """The head as it is written."""
        return json.dumps({"format_version": FORMAT_VERSION, **vars(self)}, indent=2) + "\n"


def read_entry(line: bytes) -> Entry:
    """Read a line, without its end; a ValueError says what is wrong with it."""
    found = _table(line)
    try:
        entry = Entry(
            number=int(found["number"]),
            time=str(found["time"]),
            kind=str(found["kind"]),
            recipient=str(found["recipient"]),
            digest=str(found["digest"]),
            promise=_promise(found),
            composed_epsilon=_number(found["composed_epsilon"]),
            composed_delta=_number(found["composed_delta"]),
            previous=str(found["previous"]),
            data=str(found.get("data", "")),
        )
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from None
    except (TypeError, OverflowError):
        raise ValueError("a value is of the wrong kind") from None
    if entry.kind not in (MADE, RELEASE, RESEND):
        raise ValueError(f"it is no {MADE}, {RELEASE} or {RESEND}")
    if found.get("hash") != entry.hash or line + b"\n" != entry.line:
        raise ValueError("its content does not match its hash")
    return entry


def read_head(text: bytes) -> Head:
    """Read a head; a ValueError says what is wrong with it."""
    found = _table(text)
    count, last, coming = found.get("count"), found.get("hash"), found.get("coming")
    if type(count) is not int or count < 0 or not isinstance(last, str) or not isinstance(coming, str | None):
        raise ValueError("it does not count the entries")
    return Head(count, last, coming)


def _table(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a table of names and values")
    if found.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"format_version {found.get('format_version')}, but this FedDig reads {FORMAT_VERSION}"
        )
    return found


def _promise(found: dict[str, Any]) -> Promise:
    sensitivity, scale = _number(found["sensitivity"]), _number(found["noise_scale"])
    epsilon = _number(found["record_epsilon"])
    return Promise(
        mechanism=str(found["mechanism"]),
        adjacency=str(found["adjacency"]),
        epsilon=epsilon,
        delta=_number(found["record_delta"]),
        epsilon_if_bound_public=_number(found["record_epsilon_if_bound_public"]),
        sensitivity=sensitivity,
        norm=str(found["sensitivity_norm"]),
        noise_scale=scale,
        unit=str(found["unit"]),
        assumptions=(),
        label_epsilon=_number(found["label_epsilon"]),
        rho=mechanism_of(found).rho(sensitivity, scale) if scale and math.isfinite(epsilon) else None,
        protects=str(found.get("protects", "record")),
        random=str(found.get("random", "")),
    )


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _spelt(value: float) -> float | str:
    """Spell infinity as a word, because JSON has no number for it."""
    return "inf" if value == math.inf else float(value)


def _number(value: Any) -> float:
    number = float(value)
    if not number >= 0:
        raise ValueError("a figure is below zero or not a number")
    return number
