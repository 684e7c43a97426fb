"""Which silos are present in each round: a silo x round table of 0, 1 and d (sends its digest, does not train)."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddig.errors import FileFormatError, SettingError, nearest
from feddig.seeds import numpy_stream

PAPER_ROUNDS = 300
"""Presets name their rounds for a run of this length and are scaled to others."""

HEADING = "# feddig availability, format_version 1"
HANDS_IN = "d"


@dataclass(frozen=True)
class Absence:
    """The availability table and what follows from it. Rounds count from 0."""

    present: np.ndarray
    """Boolean, silo x round."""
    hands_in: np.ndarray | None = None
    """Boolean, silo x round: the silo does not train, but sends its digest if it has not done so yet."""

    @property
    def silos(self) -> int:
        """Number of silos n."""
        return int(self.present.shape[0])

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.present.shape[1])

    @property
    def joined(self) -> np.ndarray:
        """Boolean, silo x round: the silo was there in this round or before, so its digest is held."""
        there = self.present if self.hands_in is None else self.present | self.hands_in
        joined: np.ndarray = np.logical_or.accumulate(there, axis=1)
        return joined

    @property
    def away(self) -> np.ndarray:
        """Boolean, silo x round: joined, but absent."""
        away: np.ndarray = self.joined & ~self.present
        return away

    def until(self, rounds: int) -> "Absence":
        """Return a table of this many rounds: the first of this one, and after its end the last one repeated."""
        chosen = np.minimum(np.arange(rounds), self.rounds - 1)
        return Absence(self.present[:, chosen], None if self.hands_in is None else self.hands_in[:, chosen])

    def here(self, round: int) -> list[int]:
        """Return the silos that are present in a round."""
        return [int(silo) for silo in np.flatnonzero(self.present[:, round])]

    def first_leave(self) -> int | None:
        """Return the first round in which a silo that had trained is away, if there is one."""
        return next(iter(self.absence_rounds()), None)

    def last_leave(self) -> int | None:
        """Return the last round in which a silo goes away, if one ever does."""
        leaves = self.away[:, 1:] & self.present[:, :-1]
        rounds = np.flatnonzero(leaves.any(axis=0))
        return int(rounds[-1]) + 1 if rounds.size else None

    def absence_rounds(self) -> list[int]:
        """List the rounds of the absence phase: those in which a silo that had trained is away."""
        left = np.logical_or.accumulate(self.present, axis=1) & ~self.present
        return [int(round) for round in np.flatnonzero(left.any(axis=0))]

    def never_there(self) -> list[int]:
        """Return the silos that are present in no round and send no digest."""
        return [int(silo) for silo in np.flatnonzero(~self.joined.any(axis=1))]

    def events(self, names: Sequence[str] = ()) -> list[str]:
        """Return one line for each silo that joins, leaves, returns or is never there; for people, rounds count from 1.

        Silos are called by these names, else by their numbers.
        """
        called = names or [f"silo {silo}" for silo in range(self.silos)]
        said = [
            f"{called[silo]} is absent in {f'all {self.rounds} rounds' if self.rounds > 1 else 'the only round'}"
            for silo in self.never_there()
        ]
        if self.hands_in is not None:
            for silo in np.flatnonzero(self.hands_in.any(axis=1)).tolist():
                first = int(np.argmax(self.hands_in[silo]))
                if not self.present[silo, :first].any():
                    said.append(f"round {first + 1}: {called[silo]} sends its digest without training")
        for round in range(self.rounds):
            for silo in range(self.silos):
                now = self.present[silo, round]
                before = round > 0 and self.present[silo, round - 1]
                if now and not before and round > 0:
                    returns = self.present[silo, :round].any()
                    said.append(f"round {round + 1}: {called[silo]} {'returns' if returns else 'joins'}")
                elif before and not now:
                    said.append(f"round {round + 1}: {called[silo]} leaves")
        return said

    def to_csv(self) -> str:
        """Return the table as CSV, one row per silo; the scenario "file" reads this form."""
        text = io.StringIO()
        text.write(HEADING + "\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["silo", *range(self.rounds)])
        cells = self.present.astype(int).astype(object)
        if self.hands_in is not None:
            cells[self.hands_in & ~self.present] = HANDS_IN
        for silo, row in enumerate(cells):
            writer.writerow([silo, *row])
        return text.getvalue()


def draw_absence(
    scenario: str,
    *,
    sizes: Sequence[int],
    rounds: int,
    order: str = "index",
    leave: float = 0.05,
    return_: float = 0.2,
    file: str | Path | None = None,
    seed: int = 0,
) -> Absence:
    """Draw the table of a scenario for silos with these numbers of training samples."""
    if scenario == "file":
        if file is None:
            raise SettingError('absence.file: the scenario "file" needs a CSV, silo x round, 0, 1 or d')
        return read_absence(Path(file), silos=len(sizes), rounds=rounds)
    if scenario == "random":
        return _markov(len(sizes), rounds, leave, return_, numpy_stream(seed, "absence", "markov"))
    if scenario not in PRESETS:
        raise SettingError(f"absence.scenario: {scenario!r} is not known; {nearest(scenario, PRESETS)}")
    queue = _queue(order, sizes, seed)
    if scenario in ("temporary", "forever"):
        queue = [int(np.argmax(sizes))]

    def event(of_paper: int) -> int:
        return round(of_paper * rounds / PAPER_ROUNDS)

    present = np.ones((len(sizes), rounds), dtype=bool)
    if scenario == "never":
        if len(sizes) == 1:
            raise SettingError(
                "absence.scenario: with one silo, never leaves nobody to train; use more data.silos"
            )
        present[int(np.argmax(sizes))] = False
        return Absence(present, hands_in=~present)
    PRESETS[scenario](present, queue, event)
    return Absence(present)


Event = Callable[[int], int]


def _none(present: np.ndarray, queue: list[int], event: Event) -> None:
    """All silos stay."""


def _temporary(present: np.ndarray, queue: list[int], event: Event) -> None:
    """The largest silo is away 50-100."""
    present[queue, event(50) : event(100)] = False


def _forever(present: np.ndarray, queue: list[int], event: Event) -> None:
    """The largest silo leaves at 50."""
    present[queue, event(50) :] = False


def _never(present: np.ndarray, queue: list[int], event: Event) -> None:
    """The largest silo sends its digest and never trains."""


def _early(present: np.ndarray, queue: list[int], event: Event) -> None:
    """A quarter of the silos leaves at each of 5, 20 and 50; the last quarter stays, at least one silo."""
    stays = max(1, len(queue) // 4)
    for quarter, leaves in zip(
        np.array_split(np.array(queue[:-stays], dtype=int), 3), (5, 20, 50), strict=True
    ):
        present[quarter, max(1, event(leaves)) :] = False


def _sequential(present: np.ndarray, queue: list[int], event: Event) -> None:
    """A quarter of the silos leaves at each of 100, 150, 200 and 250."""
    for quarter, leaves in zip(np.array_split(queue, 4), (100, 150, 200, 250), strict=True):
        present[quarter, event(leaves) :] = False


def _groups(present: np.ndarray, queue: list[int], event: Event) -> None:
    """The first half is present 0-99; the second half joins at 100, when the first leaves."""
    first, second = np.array_split(queue, 2)
    present[first, event(100) :] = False
    present[second, : event(100)] = False


def _arrival(present: np.ndarray, queue: list[int], event: Event) -> None:
    """One silo starts alone; from round 50, one more joins every 10 rounds."""
    for place, silo in enumerate(queue[1:]):
        present[silo, : event(50 + 10 * place)] = False


def _departure(present: np.ndarray, queue: list[int], event: Event) -> None:
    """From round 50, one more silo leaves every 10 rounds, until one is left."""
    for place, silo in enumerate(queue[:-1]):
        present[silo, event(50 + 10 * place) :] = False


def _round_robin(present: np.ndarray, queue: list[int], event: Event) -> None:
    """Half of the silos (rounded up) are present; every 10 rounds the window moves on by one silo."""
    silos, rounds = present.shape
    window = (silos + 1) // 2
    # in a short run the window moves every round
    length = max(1, event(10))
    present[:] = False
    for round in range(rounds):
        start = round // length
        present[[queue[(start + place) % silos] for place in range(window)], round] = True


PRESETS: dict[str, Callable[[np.ndarray, list[int], Event], None]] = {
    "none": _none,
    "temporary": _temporary,
    "forever": _forever,
    "never": _never,
    "early": _early,
    "sequential": _sequential,
    "groups": _groups,
    "arrival": _arrival,
    "departure": _departure,
    "round-robin": _round_robin,
}
SCENARIOS = (*PRESETS, "random", "file")


def _queue(order: str, sizes: Sequence[int], seed: int) -> list[int]:
    """Return the order in which silos leave: by index, largest first, or random."""
    silos = list(range(len(sizes)))
    if order == "index":
        return silos
    if order == "size":
        return sorted(silos, key=lambda silo: (-sizes[silo], silo))
    if order == "random":
        return [int(silo) for silo in numpy_stream(seed, "absence", "order").permutation(len(sizes))]
    raise SettingError(
        f"absence.order: {order!r} is not known; {nearest(order, ('index', 'size', 'random'))}"
    )


def _markov(silos: int, rounds: int, leave: float, return_: float, stream: np.random.Generator) -> Absence:
    """All silos are present in round 0; then each leaves and returns at random, independently."""
    chances = stream.random((silos, rounds))
    present = np.ones((silos, rounds), dtype=bool)
    for round in range(1, rounds):
        was = present[:, round - 1]
        present[:, round] = np.where(was, chances[:, round] >= leave, chances[:, round] < return_)
    return Absence(present)


def read_absence(path: Path, silos: int | None = None, rounds: int | None = None) -> Absence:
    """Read such a table from CSV and check it against the run it is for."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such availability file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error})") from None
    if lines and lines[0].startswith("# feddig availability") and lines[0] != HEADING:
        raise FileFormatError(f"{path}: written in another format version ({lines[0][2:]}); make it again")
    try:
        rows = list(csv.reader(line for line in lines if line.strip() and not line.startswith("#")))
    except csv.Error as error:
        raise FileFormatError(f"{path}: not a CSV file ({error}); give rows of 0, 1 and d") from None
    if rows and rows[0] and rows[0][0].strip() == "silo":
        named, rows = True, rows[1:]
    else:
        named = False
    if not rows:
        raise FileFormatError(f"{path}: holds no silo; give a row of 0, 1 and d for each")
    table = []
    for number, row in enumerate(rows):
        cells = [cell.strip() for cell in (row[1:] if named else row)]
        if named and row[0].strip() != str(number):
            raise FileFormatError(
                f"{path}: row {number} is of silo {row[0]!r}; list silos 0, 1, 2 ... in order"
            )
        wrong = next((place for place, cell in enumerate(cells) if cell not in ("0", "1", HANDS_IN)), None)
        if wrong is not None:
            raise FileFormatError(
                f"{path}: silo {number}, round {wrong + 1}: {cells[wrong]!r} is neither 0, 1 nor {HANDS_IN}"
            )
        table.append(cells)
    lengths = {len(row) for row in table}
    if len(lengths) != 1 or 0 in lengths:
        raise FileFormatError(f"{path}: rows have {sorted(lengths)} rounds; give every silo the same number")
    present, hands_in = np.array(table) == "1", np.array(table) == HANDS_IN
    for what, found, wanted in (("silos", present.shape[0], silos), ("rounds", present.shape[1], rounds)):
        if wanted is not None and found != wanted:
            key = "data.silos" if what == "silos" else "absence.rounds (left out: training.rounds)"
            raise FileFormatError(f"{path}: has {found} {what}, but {key} is {wanted}; change one of them")
    return Absence(present, hands_in if hands_in.any() else None)
