"""A silo's ledger: what was released, when, to whom, at what cost to a record; a release over budget is refused.

A ledger belongs to one body of data, which all its releases are about, whatever federation they go to. It is a file of
JSON lines, one per release, to which lines are only appended. Each line holds the hash of the line before, so a
changed, added, moved or removed line is noticed. A second file, `FILE.head`, holds the number of entries and the last
one's hash, so that lines missing at the end are noticed too.

A release is announced in the head, appended, then confirmed in the head, each flushed to the disk; only then may the
digest leave. If the process is killed at any time, the ledger has every digest that left, and at most one that did not.

This protects against accidents, and against a change of one file without the other. It does not protect against the
owner of the disk: nothing here is secret, so both files can be rewritten, restored to an older state or deleted
together. To notice that, keep the last hash elsewhere.
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from feddig.errors import FedDigError, FileFormatError
from feddig.files import write_atomically
from feddig.privacy.accounting import Budget, Composed, Promise, charge, check_budget
from feddig.privacy.ledger_file import GENESIS, MADE, RELEASE, RESEND, Entry, Head, read_entry, read_head

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("feddig")

NO_LIMIT = Budget()
RESTORE = "restore both files from a backup, or treat what was spent as unknown"


class Ledger:
    """The ledger in a file, which the first release creates."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.head_path = self.path.with_name(f"{self.path.name}.head")

    def entries(self) -> list[Entry]:
        """Read all entries; refuse a ledger in which anything was changed, added, moved or removed.

        Only a last line that was cut off while it was written is left out, with a warning: its digest never left.
        """
        if self._is_new():
            return []
        with self.path.open("rb", buffering=0) as stream:
            _lock(stream, alone=False)
            return self._verified(stream.readall())[0]

    def spent(self, budget: Budget = NO_LIMIT) -> Composed:
        """Return what all releases so far cost a record together."""
        return charge(_charged(self.entries()), budget)

    def release(
        self, digest_hash: str, promise: Promise, recipient: str, budget: Budget = NO_LIMIT, data: str = ""
    ) -> Entry:
        """Note a release before it happens, or refuse it if it would cost a record more than the budget.

        A digest that was released before costs nothing again. Noise from a seed can be removed, so it is charged as no
        noise. `data` is the fingerprint of the data. When this returns, the digest may leave.
        """
        promise = _charged_as(promise)

        def charged(entries: Sequence[Entry]) -> Entry:
            if _earlier(entries, digest_hash) is not None:
                return self._again(entries, digest_hash, recipient)
            cost = check_budget(str(self.path), _charged(entries), promise, budget)
            return _entry(entries, RELEASE, digest_hash, promise, recipient, cost.epsilon, cost.delta, data)

        return self._note(recipient, charged)

    def made(
        self, digest_hash: str, promise: Promise, recipient: str, budget: Budget = NO_LIMIT, data: str = ""
    ) -> Entry:
        """Note that a digest was made, which costs nothing before it leaves; refuse one that could not leave."""

        def noted(entries: Sequence[Entry]) -> Entry:
            check_budget(str(self.path), _charged(entries), _charged_as(promise), budget)
            spent = charge(_charged(entries), budget)
            return _entry(entries, MADE, digest_hash, promise, recipient, spent.epsilon, spent.delta, data)

        return self._note(recipient, noted)

    def resend(self, digest_hash: str, recipient: str) -> Entry:
        """Note that the same bytes are sent again; refuse a digest that was never released."""
        if self._is_new():
            raise FedDigError(f"{self.path}: no such ledger; `feddig digest make --ledger` begins one")
        return self._note(recipient, lambda entries: self._again(entries, digest_hash, recipient))

    def _again(self, entries: Sequence[Entry], digest_hash: str, recipient: str) -> Entry:
        """Return the entry of a digest that was released before: it adds nothing to what was spent."""
        earlier = _earlier(entries, digest_hash)
        if earlier is None:
            raise FedDigError(
                f"{self.path}: has no release of digest {digest_hash[:12]}, so this is not known to cost nothing; "
                "make digests with `feddig digest make --ledger`, which notes them"
            )
        last = entries[-1]
        return _entry(
            entries,
            RESEND,
            digest_hash,
            earlier.promise,
            recipient,
            last.composed_epsilon,
            last.composed_delta,
            earlier.data,
        )

    def _note(self, recipient: str, next_entry: Callable[[Sequence[Entry]], Entry]) -> Entry:
        """Append the entry that follows from the existing ones; the file is locked meanwhile."""
        if not recipient or not recipient.isprintable():
            raise FedDigError(
                f"{self.path}: the recipient {recipient!r} is not a name; give one in a few words"
            )
        # opening for appending creates the file, and a ledger that went missing must stay missing
        self._is_new()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b", buffering=0) as stream:
                _lock(stream, alone=True)
                stream.seek(0)
                entries, end = self._verified(stream.readall())
                entry = next_entry(entries)
                self._append(stream, end, entry)
        except OSError as error:
            raise FedDigError(
                f"{self.path}: cannot be written ({error.strerror}), so nothing was released; correct that first"
            ) from error
        log.info(
            "%s: entry %d, %s: digest %s, for %s",
            self.path,
            entry.number,
            entry.kind,
            entry.digest[:12],
            recipient,
        )
        return entry

    def _append(self, stream: FileIO, end: int, entry: Entry) -> None:
        line = entry.line
        # an entry that could not be read back must not be written
        read_entry(line[:-1])
        # this flushes the folder as well, in which the ledger may be new
        write_atomically(self.head_path, Head(entry.number - 1, entry.previous, entry.hash).text)
        stream.truncate(end)
        while line:
            line = line[stream.write(line) :]
        os.fsync(stream.fileno())
        write_atomically(self.head_path, Head(entry.number, entry.hash).text)

    def _is_new(self) -> bool:
        """Tell whether there is no ledger yet; refuse one that went missing while its head is still there."""
        # in this order, because another process creates the file before its head
        head = self._head(is_new=True)
        if self.path.exists():
            return False
        self._check_end([], head, is_cut=False)
        return True

    def _verified(self, content: bytes) -> tuple[list[Entry], int]:
        """Check everything; return the entries, and how many bytes they take."""
        end = content.rfind(b"\n") + 1
        head = self._head(is_new=not content)
        entries = self._chain(content[:end].split(b"\n")[:-1])
        self._check_end(entries, head, is_cut=end < len(content))
        if end < len(content):
            log.warning(
                "%s: line %d was cut off while it was written and is left out; its digest was never released",
                self.path,
                len(entries) + 1,
            )
        return entries, end

    def _head(self, *, is_new: bool) -> Head:
        try:
            return read_head(self.head_path.read_bytes())
        except FileNotFoundError:
            if is_new:
                return Head()
            raise FileFormatError(
                f"{self.path}: is no ledger, or {self.head_path.name}, which counts its entries, was removed; {RESTORE}"
            ) from None
        except ValueError as error:
            raise FileFormatError(f"{self.head_path}: is damaged ({error}); {RESTORE}") from None

    def _chain(self, lines: Sequence[bytes]) -> list[Entry]:
        """Read the lines and check that each follows the one before."""
        entries: list[Entry] = []
        previous = GENESIS
        for number, line in enumerate(lines, 1):
            try:
                entry = read_entry(line)
            except ValueError as error:
                raise FileFormatError(
                    f"{self.path}: line {number} was changed or damaged ({error}); {RESTORE}"
                ) from None
            if (entry.number, entry.previous) != (number, previous):
                raise FileFormatError(
                    f"{self.path}: line {number} does not follow the one before: entries were removed, added or "
                    f"moved; {RESTORE}"
                )
            entries.append(entry)
            previous = entry.hash
        return entries

    def _check_end(self, entries: Sequence[Entry], head: Head, *, is_cut: bool) -> None:
        """Check that the ledger ends where its head says, or one entry later if that one was being appended."""
        found = (len(entries), _last(entries))
        if found == (head.count, head.hash) and (head.coming or not is_cut):
            return
        if found == (head.count + 1, head.coming) and not is_cut and _last(entries[:-1]) == head.hash:
            return
        if found[0] < head.count:
            fault = f"ends after line {found[0]}, but {self.head_path.name} counts {head.count}: entries were removed"
        elif is_cut or found[0] > head.count:
            fault = f"goes on after line {head.count}, where {self.head_path.name} says it ends: something was added"
        else:
            fault = f"line {found[0]} is not the last entry that {self.head_path.name} names"
        raise FileFormatError(f"{self.path}: {fault}; {RESTORE}")


def _entry(
    entries: Sequence[Entry],
    kind: str,
    digest_hash: str,
    promise: Promise,
    recipient: str,
    epsilon: float,
    delta: float,
    data: str,
) -> Entry:
    """Return the next entry; epsilon and delta are the cost of all releases with it."""
    return Entry(
        number=len(entries) + 1,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=kind,
        recipient=recipient,
        digest=digest_hash,
        promise=promise,
        composed_epsilon=epsilon,
        composed_delta=delta,
        previous=_last(entries),
        data=data,
    )


def _charged_as(promise: Promise) -> Promise:
    """Return what a release is charged as: noise from a seed can be removed, so it is charged as no noise."""
    return replace(promise, epsilon=math.inf, rho=None) if promise.random == "seeded" else promise


def _earlier(entries: Sequence[Entry], digest_hash: str) -> Entry | None:
    """Return the first entry of a digest that has left."""
    return next((entry for entry in entries if entry.digest == digest_hash and entry.kind != MADE), None)


def _last(entries: Sequence[Entry]) -> str:
    return entries[-1].hash if entries else GENESIS


def _charged(entries: Sequence[Entry]) -> list[Promise]:
    return [entry.promise for entry in entries if entry.kind == RELEASE]


def _lock(stream: FileIO, *, alone: bool) -> None:
    """Lock the file against writers, and if `alone` against readers, until it is closed."""
    if fcntl is not None:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
