"""A silo's ledger: its entries, its refusals, detection of tampering, and processes that die while writing."""

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddig.cli import main
from feddig.digest.digest_file import read_digest
from feddig.errors import BudgetError, FedDigError, FileFormatError
from feddig.privacy.accounting import ROUNDING, Budget, Promise, compose
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import GENESIS, Entry, Head
from feddig.privacy.mechanisms import promise_for
from feddig.settings import DigestSettings, PrivacySettings
from folders import run_feddig, snapshot

OLDER = Path(__file__).parent / "golden" / "older.ledger"
PAPER = promise_for(PrivacySettings(), DigestSettings(), 256)


def laplace(epsilon: float = 1.0, **keys: object) -> Promise:
    keys = {"random": "system", **keys}
    return promise_for(
        PrivacySettings(mechanism="discrete-laplace", epsilon=epsilon, clip_bound=60.0, **keys),  # type: ignore[arg-type]
        DigestSettings(),
        256,
        10,
    )


def gaussian(epsilon: float = 1.0, delta: float = 1e-6) -> Promise:
    privacy = PrivacySettings(
        mechanism="discrete-gaussian", epsilon=epsilon, delta=delta, clip_bound=60.0, random="system"
    )
    return promise_for(privacy, DigestSettings(), 256)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    return Ledger(tmp_path / "silo.ledger")


def fill(ledger: Ledger, count: int = 4) -> list[Entry]:
    return [ledger.release(f"digest {number}", laplace(), "moderator") for number in range(1, count + 1)]


# --- entries


def test_an_entry_that_was_written_can_be_read(ledger: Ledger) -> None:
    noted = [
        ledger.release("a", laplace(0.5), "moderator"),
        ledger.release("b", gaussian(), "Größe & Söhne"),
        ledger.release("c", laplace(0.25), "auditor"),
    ]
    found = Ledger(ledger.path).entries()
    assert [entry.record for entry in found] == [entry.record for entry in noted]
    assert [entry.number for entry in found] == [1, 2, 3]
    assert [entry.previous for entry in found] == [GENESIS, found[0].hash, found[1].hash]
    assert [entry.composed_epsilon for entry in found] == [0.5, 1.5, 1.75]
    assert [entry.composed_delta for entry in found] == [0, 1e-6, 1e-6]
    assert all(entry.time.endswith("+00:00") for entry in found)


def test_an_entry_is_a_line_of_json(ledger: Ledger) -> None:
    ledger.release("a", laplace(0.5), "moderator")
    (line,) = ledger.path.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert (found["format_version"], found["number"], found["kind"]) == (1, 1, "release")
    assert (found["digest"], found["recipient"]) == ("a", "moderator")
    assert (found["mechanism"], found["record_epsilon"], found["record_delta"]) == (
        "discrete-laplace",
        0.5,
        0,
    )


def test_no_ledger_yet_is_an_empty_one(ledger: Ledger) -> None:
    assert ledger.entries() == []
    assert ledger.spent().epsilon == 0
    assert not ledger.path.exists()


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31mred"])
def test_a_recipient_is_a_name(name: str, ledger: Ledger) -> None:
    with pytest.raises(FedDigError, match="is not a name"):
        ledger.release("a", laplace(), name)
    assert not ledger.path.exists()


def test_what_could_not_be_read_again_is_not_written(ledger: Ledger) -> None:
    fill(ledger)
    before = snapshot(ledger.path.parent)
    with pytest.raises(ValueError, match="below zero"):
        ledger.release("b", replace(laplace(), epsilon=-1.0), "moderator")
    with pytest.raises(ValueError, match="JSON compliant"):
        ledger.release("b", replace(laplace(), epsilon=math.nan), "moderator")
    assert snapshot(ledger.path.parent) == before


def test_the_same_bytes_again_cost_nothing(ledger: Ledger) -> None:
    budget = Budget(1.0)
    ledger.release("a", laplace(), "moderator", budget)
    again = ledger.release("a", laplace(), "another moderator", budget)
    assert (again.kind, again.recipient, again.composed_epsilon) == ("resend", "another moderator", 1.0)
    # also if the budget was lowered since, and if the call states other costs
    assert ledger.release("a", PAPER, "moderator", Budget(0.1)).promise.epsilon == 1.0
    assert ledger.spent().epsilon == 1.0
    with pytest.raises(BudgetError):
        ledger.release("b", laplace(), "moderator", budget)


def test_a_resend_needs_a_release_and_adds_nothing(ledger: Ledger) -> None:
    with pytest.raises(FedDigError, match="no such ledger"):
        ledger.resend("a", "auditor")
    assert not ledger.path.exists()
    ledger.release("a", gaussian(), "moderator")
    last = ledger.release("b", gaussian(), "moderator")
    before = snapshot(ledger.path.parent)
    with pytest.raises(FedDigError, match="has no release of digest c, so this is not known to cost nothing"):
        ledger.resend("c", "auditor")
    assert snapshot(ledger.path.parent) == before
    again = ledger.resend("a", "auditor")
    assert (again.kind, again.recipient, again.number) == ("resend", "auditor", 3)
    assert (again.composed_epsilon, again.composed_delta) == (last.composed_epsilon, last.composed_delta)
    assert ledger.spent().epsilon == last.composed_epsilon


def test_an_entry_says_where_its_noise_is_from_and_older_ones_do_not(ledger: Ledger) -> None:
    ledger.release("a", laplace(random="system"), "moderator")
    ledger.release("b", laplace(random="seeded"), "moderator")
    ledger.release("c", replace(laplace(), random=""), "moderator")
    found = ledger.entries()
    assert [entry.record.get("random") for entry in found] == ["system", "seeded", None]
    assert ledger.resend("b", "auditor").record["random"] == "seeded"


def test_a_ledger_of_an_earlier_release_is_read_and_continued(ledger: Ledger) -> None:
    """Its Gaussian noise follows another bound; its figures and hashes do not change."""
    for suffix in ("", ".head"):
        ledger.path.with_name(f"silo.ledger{suffix}").write_bytes(Path(f"{OLDER}{suffix}").read_bytes())
    before = ledger.path.read_bytes()
    found = ledger.entries()
    assert [entry.kind for entry in found] == ["release", "resend", "release", "release"]
    assert [entry.promise.epsilon for entry in found] == [8, 8, 1, 0.5]
    assert found[-1].composed_epsilon == 9.5
    assert ledger.spent(Budget(20.0)).epsilon == 9.5
    with pytest.raises(BudgetError, match=r"epsilon 9\.5 and delta 2e-06 is spent, epsilon 10\.5 is left"):
        ledger.release("new", gaussian(11.0), "moderator", Budget(20.0))
    assert ledger.release("ab" * 32, gaussian(8.0), "auditor", Budget(9.5)).kind == "resend"
    assert ledger.path.read_bytes().startswith(before)


# --- the budget


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_budget_is_spent_to_the_last_digit_and_no_further(epsilon: float, ledger: Ledger) -> None:
    """The proved cost is charged: a release of all that is left is granted, and nothing after it."""
    entry = ledger.release("a", gaussian(epsilon), "moderator", Budget(epsilon, 1e-6))
    assert (entry.composed_epsilon, entry.composed_delta) == (epsilon, 1e-6)
    with pytest.raises(BudgetError, match=r"epsilon 0 and delta 0 is left"):
        ledger.release("b", gaussian(0.01), "moderator", Budget(epsilon, 1e-6))


def test_a_release_over_budget_is_refused_with_what_is_left(ledger: Ledger) -> None:
    budget = Budget(2.5)
    for digest in "ab":
        ledger.release(digest, laplace(), "moderator", budget)
    before = snapshot(ledger.path.parent)
    with pytest.raises(BudgetError) as refused:
        ledger.release("c", laplace(), "moderator", budget)
    text = str(refused.value)
    assert text.startswith(f"{ledger.path}: not released")
    assert "charged epsilon 3 and delta 0 in all and its budget is epsilon 2.5" in text
    assert "epsilon 2 and delta 0 is spent, epsilon 0.5 is left" in text
    assert "\n" not in text
    assert snapshot(ledger.path.parent) == before
    assert ledger.release("c", laplace(0.5), "moderator", budget).composed_epsilon == 2.5


def test_delta_has_a_budget_too(ledger: Ledger) -> None:
    budget = Budget(delta=1.5e-6)
    ledger.release("a", gaussian(), "moderator", budget)
    ledger.release("b", laplace(), "moderator", budget)
    with pytest.raises(BudgetError, match="delta 5e-07 is left"):
        ledger.release("c", gaussian(), "moderator", budget)


def test_gaussian_releases_may_be_stated_at_the_budgets_delta(ledger: Ledger) -> None:
    """Their deltas add up to more than the budget, but two releases also have an epsilon at the budget's delta."""
    budget = Budget(2.0, 1e-6)
    ledger.release("a", gaussian(), "moderator", budget)
    second = ledger.release("b", gaussian(), "moderator", budget)
    assert second.composed_delta == 1e-6
    assert second.composed_epsilon == compose([gaussian()] * 2, delta=1e-6).epsilon < 2
    assert ledger.spent(budget).delta == 1e-6


def test_three_tenths_fit_into_three_tenths(ledger: Ledger) -> None:
    for digest in "abc":
        ledger.release(digest, laplace(0.1), "moderator", Budget(0.3))
    with pytest.raises(BudgetError):
        ledger.release("d", laplace(0.1), "moderator", Budget(0.3))


@pytest.mark.parametrize("budget", [Budget(1e6), Budget(delta=0.5), Budget(math.inf)])
def test_no_budget_covers_an_infinite_epsilon(budget: Budget, ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="no budget covers paper-laplace"):
        ledger.release("a", PAPER, "moderator", budget)
    assert ledger.entries() == []


def test_without_a_budget_an_infinite_epsilon_is_noted(ledger: Ledger) -> None:
    ledger.release("a", PAPER, "moderator")
    (found,) = ledger.entries()
    assert found.promise.epsilon == found.composed_epsilon == math.inf
    assert found.record["record_epsilon"] == found.record["composed_epsilon"] == "inf"
    assert found.record["record_epsilon_if_bound_public"] == 6400
    with pytest.raises(BudgetError, match="an earlier release promised a record nothing"):
        ledger.release("b", laplace(), "moderator", Budget(10))


def test_adjacencies_do_not_mix(ledger: Ledger) -> None:
    """A same-label release reveals the labels, which a replace-one release must hide."""
    both = laplace(adjacency="replace-one", label_epsilon=1.0)
    ledger.release("a", laplace(), "moderator", Budget(10))
    with pytest.raises(BudgetError, match=r"another privacy\.adjacency or privacy\.unit.* keep to one"):
        ledger.release("b", both, "moderator", Budget(10))
    assert ledger.release("b", both, "moderator").composed_epsilon == math.inf


@given(
    epsilons=st.lists(st.floats(0.01, 3), min_size=1, max_size=8),
    kinds=st.lists(st.booleans(), min_size=8, max_size=8),
    repeats=st.lists(st.integers(0, 7), max_size=3),
    limit=st.floats(0.1, 6),
    delta=st.none() | st.sampled_from([0.0, 1e-6, 3e-6]),
)
@settings(max_examples=40, deadline=None)
def test_no_sequence_of_releases_costs_more_than_the_budget(
    epsilons: list[float],
    kinds: list[bool],
    repeats: list[int],
    limit: float,
    delta: float | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "silo.ledger")
    budget = Budget(limit, delta)
    accepted: dict[str, Promise] = {}
    numbers = [*range(len(epsilons)), *(number % len(epsilons) for number in repeats)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        for number in numbers:
            made = gaussian(epsilons[number]) if kinds[number] else laplace(epsilons[number])
            try:
                entry = ledger.release(str(number), made, "moderator", budget)
            except BudgetError:
                assert str(number) not in accepted
                continue
            assert (entry.kind == "resend") == (str(number) in accepted)
            accepted.setdefault(str(number), made)
    assert {entry.digest for entry in ledger.entries()} == set(accepted)
    for entry in ledger.entries():
        assert entry.composed_epsilon <= limit * (1 + ROUNDING)
        assert delta is None or entry.composed_delta <= delta * (1 + ROUNDING)
    # computed without the ledger, at the delta that it states
    if accepted:
        last = ledger.entries()[-1]
        whole = compose([*accepted.values()])
        if last.composed_delta != pytest.approx(whole.delta, rel=ROUNDING):
            whole = compose([*accepted.values()], delta=last.composed_delta)
        assert last.composed_epsilon == pytest.approx(whole.epsilon)


# --- tampering


def change_a_figure(lines: list[bytes]) -> list[bytes]:
    return [
        *lines[:1],
        lines[1].replace(b'"record_epsilon":1.0', b'"record_epsilon":0.1'),
        *lines[2:],
    ]


def forge(lines: list[bytes]) -> bytes:
    """Append a line with correct hashes, which anyone can compute."""
    last = json.loads(lines[-1])
    entry = Entry(
        last["number"] + 1, last["time"], "release", "me", "forged", laplace(), 5.0, 0.0, last["hash"]
    )
    return entry.line


def rehash_a_figure(lines: list[bytes]) -> list[bytes]:
    """Change a figure and correct the hash of its line."""
    found = json.loads(lines[1])
    entry = Entry(2, found["time"], "release", "m", "d", laplace(0.1), 1.1, 0.0, found["previous"])
    return [lines[0], entry.line, *lines[2:]]


TAMPERING: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a changed figure": (change_a_figure, "line 2 was changed or damaged"),
    "a changed figure and its hash": (rehash_a_figure, "line 3 does not follow"),
    "a space": (lambda lines: [lines[0].replace(b",", b", ", 1), *lines[1:]], "line 1 was changed"),
    "swapped lines": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2 does not follow"),
    "a removed middle line": (lambda lines: [*lines[:1], *lines[2:]], "line 2 does not follow"),
    "a removed first line": (lambda lines: lines[1:], "line 1 does not follow"),
    "a removed last line": (lambda lines: lines[:-1], "ends after line 3, but silo.ledger.head counts 4"),
    "all lines removed": (lambda lines: [], "ends after line 0, but silo.ledger.head counts 4"),
    "a cut last line": (lambda lines: [*lines[:-1], lines[-1][:-9]], "ends after line 3"),
    "a last line without its end": (lambda lines: [*lines[:-1], lines[-1][:-1]], "ends after line 3"),
    "a cut middle line": (lambda lines: [lines[0], lines[1][:-9] + b"\n", *lines[2:]], "line 2 was changed"),
    "a doubled line": (lambda lines: [*lines, lines[-1]], "line 5 does not follow"),
    "an appended forged line": (lambda lines: [*lines, forge(lines)], "goes on after line 4"),
    "appended rubbish": (lambda lines: [*lines, b"rubbish\n"], "line 5 was changed or damaged"),
    "appended rubbish without an end": (lambda lines: [*lines, b"rubbish"], "goes on after line 4"),
    "an empty line": (lambda lines: [lines[0], b"\n", *lines[1:]], "line 2 was changed or damaged"),
    "bytes that are no text": (lambda lines: [lines[0], b"\xff\x00\n", *lines[2:]], "line 2 was changed"),
    "an endless number": (
        lambda lines: [lines[0].replace(b'"number":1', b'"number":1e999'), *lines[1:]],
        "line 1 was changed",
    ),
    "a later format": (
        lambda lines: [lines[0].replace(b'"format_version":1', b'"format_version":2'), *lines[1:]],
        "format_version 2, but this FedDig reads 1",
    ),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_noticed_and_no_file_is_changed(kind: str, ledger: Ledger) -> None:
    fill(ledger)
    tamper, complaint = TAMPERING[kind]
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    tampered = tamper(list(lines))
    assert tampered != lines
    ledger.path.write_bytes(b"".join(tampered))
    before = snapshot(ledger.path.parent)
    for attempt in (ledger.entries, lambda: ledger.release("new", laplace(), "moderator")):
        with pytest.raises(FileFormatError) as noticed:
            attempt()
        text = str(noticed.value)
        assert text.startswith(f"{ledger.path}: ")
        assert complaint in text
        assert "restore both files from a backup" in text
    assert snapshot(ledger.path.parent) == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (Head(3, "{third}").text, "goes on after line 3"),
        (Head(5, "{last}").text, "ends after line 4"),
        (Head(4, "{third}").text, "line 4 is not the last entry"),
        (Head(3, "{third}", "{first}").text, "goes on after line 3"),
        (Head(3, "{first}", "{last}").text, "goes on after line 3"),
        (Head().text, "goes on after line 0"),
        ("", "silo.ledger.head: is damaged (it is not JSON)"),
        ("[]", "silo.ledger.head: is damaged"),
        ('{"format_version": 1, "count": "4"}', "does not count the entries"),
        ('{"format_version": 2}', "format_version 2"),
    ],
)
def test_an_edited_head_is_noticed(text: str, complaint: str, ledger: Ledger) -> None:
    entries = fill(ledger)
    for name, entry in (("first", entries[0]), ("third", entries[2]), ("last", entries[3])):
        text = text.replace(f"{{{name}}}", entry.hash)
    ledger.head_path.write_text(text, encoding="utf-8")
    before = snapshot(ledger.path.parent)
    for attempt in (ledger.entries, lambda: ledger.release("new", laplace(), "moderator")):
        with pytest.raises(FileFormatError) as noticed:
            attempt()
        assert complaint in str(noticed.value)
    assert snapshot(ledger.path.parent) == before


@pytest.mark.parametrize("lost", ["silo.ledger", "silo.ledger.head"])
def test_a_lost_file_is_noticed(lost: str, ledger: Ledger) -> None:
    fill(ledger)
    (ledger.path.parent / lost).unlink()
    before = snapshot(ledger.path.parent)
    for attempt in (ledger.entries, lambda: ledger.release("new", laplace(), "moderator")):
        with pytest.raises(FileFormatError, match="removed"):
            attempt()
    assert snapshot(ledger.path.parent) == before


@pytest.mark.parametrize("content", [b"years of work", b"years of work\n"])
def test_another_file_is_not_taken_for_a_ledger(content: bytes, ledger: Ledger) -> None:
    ledger.path.write_bytes(content)
    with pytest.raises(FileFormatError, match="is no ledger"):
        ledger.release("a", laplace(), "moderator")
    assert ledger.path.read_bytes() == content


# --- processes that die while writing


class DiedError(BaseException):
    """Simulates the end of the process."""


def die_at(step: int, patch: pytest.MonkeyPatch, *, share: float) -> None:
    """Die at the step with this number while a release is written; a write stores `share` of its bytes."""
    steps = iter(range(1, 100))

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(steps) == step:
                raise DiedError
            return real(*arguments)

        return call

    class Stream(FileIO):
        def write(self, line: bytes, /) -> int:  # type: ignore[override]
            if next(steps) == step:
                super().write(line[: int(len(line) * share)])
                raise DiedError
            return super().write(line)

    patch.setattr("os.replace", dying(os.replace))
    patch.setattr("os.fsync", dying(lambda handle: None))
    patch.setattr(Path, "open", lambda path, mode, buffering=-1: Stream(path, mode.replace("b", "")))


@pytest.mark.parametrize("share", [0, 0.5, 1])
@pytest.mark.parametrize("filled", [0, 3])
def test_after_a_crash_at_any_step_the_ledger_can_be_used(
    filled: int, share: float, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    steps, cut, expected = 0, 0, filled
    fill(ledger, filled)
    for step in range(1, 20):
        with pytest.MonkeyPatch.context() as patch:
            die_at(step, patch, share=share)
            try:
                ledger.release(f"dying {step}", laplace(), "moderator")
            except DiedError:
                steps += 1
            else:
                break
        caplog.clear()
        with caplog.at_level(logging.WARNING, "feddig"):
            found = len(ledger.entries())
        assert found in (expected, expected + 1)
        cut += "was cut off while it was written and is left out" in caplog.text
        entry = ledger.release(f"next {step}", laplace(), "moderator")
        assert entry.number == found + 1
        expected = len(ledger.entries())
        assert expected == found + 1
    # head, folder, line, flush, head, folder; each has a flush and a replacement or a write
    assert steps == 8
    assert cut == (1 if share == 0.5 else 0)


def test_a_full_disk_is_one_line_and_nothing_is_released(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)

    def full(stream: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(FedDigError, match=r"cannot be written \(No space left on device\)"):
            ledger.release("new", laplace(), "moderator")
    assert len(ledger.entries()) == 4


RELEASING = """
import os, sys, time
from pathlib import Path
from feddig.privacy.ledger import Ledger
from feddig.privacy.mechanisms import promise_for
from feddig.settings import DigestSettings, PrivacySettings

made = promise_for(
    PrivacySettings(mechanism="discrete-laplace", epsilon=0.5, clip_bound=60.0), DigestSettings(), 256
)

def release_on_and_on(ledger, name, left, times=10**9):
    handle = os.open(left, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(times):
        Ledger(ledger).release(f"{name} {number}", made, "moderator")
        os.write(handle, f"{name} {number}\\n".encode())
"""

KILLING = (
    RELEASING
    + """
folder, delays = Path(sys.argv[1]), [float(word) for word in sys.argv[2:]]
for turn, delay in enumerate(delays):
    child = os.fork()
    if child == 0:
        release_on_and_on(folder / "silo.ledger", f"turn {turn}", folder / f"left-{turn}")
    time.sleep(delay)
    os.kill(child, 9)
    assert os.waitpid(child, 0)[1] == 9
    found = {entry.digest for entry in Ledger(folder / "silo.ledger").entries()}
    left = (folder / f"left-{turn}")
    left = set(left.read_text().splitlines()) if left.exists() else set()
    own = {digest for digest in found if digest.startswith(f"turn {turn} ")}
    assert left <= own and len(own - left) <= 1, (left, own)
    print(len(left))
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_sigkill_does_not_damage_the_ledger(tmp_path: Path) -> None:
    delays = [0.002 + 0.0073 * turn for turn in range(25)]
    words = [sys.executable, "-c", KILLING, str(tmp_path), *map(str, delays)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    left = [int(line) for line in done.stdout.split()]
    assert len(left) == len(delays)
    assert 0 < sum(left) <= len(Ledger(tmp_path / "silo.ledger").entries()) <= sum(left) + len(left)


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    program = RELEASING + "release_on_and_on(sys.argv[1], sys.argv[2], sys.argv[3], 40)\n"
    path = tmp_path / "silo.ledger"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), name, str(tmp_path / name)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    while any(process.poll() is None for process in both):
        # a reader sees only whole entries meanwhile, and no false alarm
        seen = Ledger(path).entries()
        assert [entry.number for entry in seen] == list(range(1, len(seen) + 1))
        time.sleep(0.005)
    for process in both:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    found = [entry.digest for entry in Ledger(path).entries()]
    assert sorted(found) == sorted(f"{name} {number}" for name in ("one", "two") for number in range(40))


# --- on the command line


@pytest.fixture
def invoke(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda handle: None)

    def command(*words: object) -> tuple[int, str, str]:
        return run_feddig(*words), *capsys.readouterr()

    return command


Invoke = Callable[..., tuple[int, str, str]]
SMALL = ["--set", "data.limit=400", "--set", "data.min_samples=16"]


def test_a_digest_is_noted_before_it_is_written(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded = [*SMALL, "--set", "privacy.random=seeded", "--no-privacy", "--ledger", "my.ledger"]

    def die(*arguments: object) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr("feddig.digest.digest_file.write_digest", die)
        with pytest.raises(DiedError):
            main(["digest", "make", *seeded])
    assert not (tmp_path / "digest.safetensors").exists()
    assert invoke("digest", "make", *seeded, "--recipient", "St. Mary")[0] == 0
    first, second = Ledger("my.ledger").entries()
    assert (first.kind, first.recipient, first.composed_epsilon) == ("release", "moderator", math.inf)
    assert (second.kind, second.recipient) == ("resend", "St. Mary")
    assert first.digest == second.digest == read_digest("digest.safetensors").hash
    assert first.promise.epsilon_if_bound_public == 6400


def test_a_released_digest_may_be_sent_to_another_recipient(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("digest", "make", *SMALL, "--ledger", "my.ledger")[0] == 0
    code, out, err = invoke("ledger", "resend", "my.ledger", "digest.safetensors", "--recipient", "St. John")
    assert (code, err) == (0, "")
    assert out.startswith("my.ledger: noted as no. 2, digest.safetensors to St. John; it costs nothing")
    assert [entry.kind for entry in Ledger("my.ledger").entries()] == ["release", "resend"]
    assert invoke("digest", "make", *SMALL, "--out", "other.safetensors")[0] == 0
    code, out, err = invoke("ledger", "resend", "my.ledger", "other.safetensors", "--recipient", "St. John")
    assert (code, out) == (2, "")
    assert "has no release of digest" in err
    assert len(err.splitlines()) == 1
    shown = invoke("ledger", "show", "my.ledger")[1]
    assert "St. John" in shown
    assert "system" in shown


def test_over_budget_no_digest_is_written(invoke: Invoke, tmp_path: Path) -> None:
    sets = ["--set", "privacy.mechanism=none", "--set", "privacy.budget_epsilon=8"]
    code, out, err = invoke("digest", "make", *SMALL, *sets, "--ledger", "my.ledger")
    assert (code, out) == (2, "")
    assert err.startswith("feddig: error: my.ledger: not released")
    assert "epsilon 8 is left" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "digest.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--recipient", "somebody"], "--recipient: is noted in a ledger; give --ledger too"),
        (["--ledger", "digest.safetensors"], "--out: digest.safetensors is the ledger's own file"),
        (["--ledger", "x", "--out", "./x.head"], "--out: x.head is the ledger's own file"),
    ],
)
def test_mistakes_with_the_options_are_one_line(
    words: list[str], line: str, invoke: Invoke, tmp_path: Path
) -> None:
    code, out, err = invoke("digest", "make", *SMALL, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"feddig: error: {line}")
    assert list(tmp_path.iterdir()) == []


def test_show_and_verify(invoke: Invoke, tmp_path: Path) -> None:
    ledger = Ledger("my.ledger")
    fill(ledger, 2)
    ledger.release("digest 1", laplace(), "auditor")
    ledger.release("0123456789abcdef", PAPER, "moderator")
    entries = ledger.entries()
    code, out, err = invoke("ledger", "show", "my.ledger", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [entry.record for entry in entries]
    code, out, err = invoke("ledger", "show", "my.ledger")
    assert (code, err) == (0, "")
    for word in ("auditor", "resend", "paper-laplace", "inf", "0123456789ab", "epsilon so far"):
        assert word in out
    assert invoke("ledger", "verify", "my.ledger") == (
        0, f"my.ledger: whole, 4 entries, last hash {entries[-1].hash}\n", "",
    )  # fmt: skip


def test_verify_says_what_is_wrong(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("ledger", "verify", "no.ledger") == (
        2, "", "feddig: error: no.ledger: no such ledger; `feddig digest make --ledger no.ledger` begins one\n",
    )  # fmt: skip
    fill(Ledger("my.ledger"))
    path = tmp_path / "my.ledger"
    path.write_bytes(path.read_bytes().replace(b"digest 2", b"digest 9"))
    for command in ("verify", "show"):
        code, out, err = invoke("ledger", command, "my.ledger")
        assert (code, out) == (2, "")
        assert err.startswith("feddig: error: my.ledger: line 2 was changed or damaged")
        assert len(err.splitlines()) == 1


def test_a_cut_off_line_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    ledger = Ledger("my.ledger")
    last = fill(ledger)[-1]
    ledger.head_path.write_text(Head(4, last.hash, "f" * 64).text, encoding="utf-8")
    with Path("my.ledger").open("ab") as stream:
        stream.write(b'{"adjacency":"same-')
    code, out, err = invoke("ledger", "verify", "my.ledger")
    assert code == 0
    assert "whole, 4 entries" in out
    assert "WARNING: my.ledger: line 5 was cut off while it was written and is left out" in err
