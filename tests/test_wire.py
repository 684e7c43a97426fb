"""Messages are read as they were packed, and invalid ones are refused."""

import io
import math
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

flwr = pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from feddig.core.absence import Absence
from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest
from feddig.federation.simulation_engine import GridEngine
from feddig.federation.wire import (
    About,
    Score,
    Terms,
    WireError,
    largest_update,
    pack_bytes,
    pack_digest,
    pack_question,
    pack_reply,
    pack_request,
    pack_score,
    pack_silo,
    read_about,
    read_bytes,
    read_digest_of,
    read_reply,
    read_request,
    read_score,
    read_silo,
)

pytestmark = pytest.mark.flower

SIZE = 5
ABOUT = About("experiment", "text")
REQUEST = Request(2, 7, torch.arange(SIZE) / 3, {"dual": torch.ones(SIZE), "last": torch.tensor(4)})
REPLY = Reply(2, 7, torch.linspace(-1, 1, SIZE), steps=3, samples=40, loss=0.25, seconds=1.5)
FACTS: Mapping[str, str | int | float | list[float]] = {
    "samples_per_digest": 4, "mixing": "random", "weights": [0.25] * 4, "left_out": 1, "mechanism": "none",
    "epsilon": 0.005, "scale_size": 20000, "random": "seeded", "encoder": "e",
}  # fmt: skip
DIGEST = Digest(2, torch.rand(3, 4), torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]), FACTS)


def test_a_request_is_read_as_it_was_packed() -> None:
    found = read_request(pack_request(REQUEST, ABOUT), SIZE)
    assert (found.silo, found.round) == (2, 7)
    assert torch.equal(found.weights, REQUEST.weights)
    assert found.state.keys() == REQUEST.state.keys()
    for name, tensor in REQUEST.state.items():
        assert torch.equal(found.state[name], tensor)
        assert found.state[name].dtype == tensor.dtype
    assert read_about(pack_question(ABOUT), "experiment") == "text"
    with pytest.raises(WireError, match="which contract"):
        read_about(pack_question(ABOUT), "contract")
    assert read_silo(pack_silo(3)) == 3


def test_a_reply_is_read_as_it_was_packed() -> None:
    found = read_reply(pack_reply(REPLY), REQUEST)
    assert torch.equal(found.update, REPLY.update)
    assert replace(found, update=REPLY.update) == REPLY


def test_a_digest_is_read_as_it_was_packed() -> None:
    found = read_digest_of(pack_digest(DIGEST), 2)
    assert torch.equal(found.features, DIGEST.features)
    assert torch.equal(found.labels, DIGEST.labels)
    assert found.hash == DIGEST.hash


def npy(values: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


def with_update(array: Array) -> RecordDict:
    content = pack_reply(REPLY)
    content["model"] = ArrayRecord({"update": array})
    return content


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array("float32", (SIZE,), stype, data)


GOOD = npy(np.zeros(SIZE, np.float32))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_update(Array(np.full(SIZE, np.nan, np.float32))), "NaN or infinity"),
        (with_update(Array(np.full(SIZE, np.inf, np.float32))), "NaN or infinity"),
        (with_update(Array(np.full(SIZE, 3e38, np.float32))), "longer than any number"),
        (with_update(Array(np.zeros(SIZE + 1, np.float32))), r"\(6,\)"),
        (with_update(Array(np.zeros((SIZE, 1), np.float32))), r"\(5, 1\)"),
        (with_update(Array(np.zeros(SIZE, np.float64))), "not 5 float32 numbers"),
        (with_update(Array(np.zeros((), np.float32))), "not 5 float32 numbers"),
        (with_update(Array(np.zeros(SIZE, np.complex64))), "complex64"),
        (with_update(raw(npy(np.array([{}] * SIZE), allow_pickle=True))), "object"),
        (with_update(raw(GOOD[:-1])), "cut off"),
        (with_update(raw(GOOD + b"x")), "too long"),
        (with_update(raw(b"")), "no numpy array"),
        (with_update(raw(b"\x80\x04K\x01.")), "no numpy array"),
        (with_update(raw(bytes(10**6))), "1,000,000 bytes"),
        (with_update(raw(GOOD, "torch.tensor")), "torch.tensor"),
        (RecordDict(), "its silo is None"),
        (pack_reply(replace(REPLY, silo=1)), "silo 1, not 2"),
        (pack_reply(replace(REPLY, round=6)), "round 7, not 8"),
        (pack_reply(replace(REPLY, steps=0)), "0 steps"),
        (pack_reply(replace(REPLY, samples=-3)), "its samples is -3"),
        (pack_reply(replace(REPLY, loss=float("nan"))), "its loss is nan"),
    ],
)
def test_an_invalid_reply_is_refused(content: RecordDict, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_reply(content, REQUEST)


@pytest.mark.parametrize("value", [1e30, 1e15, 50.0])
def test_an_update_far_longer_than_the_model_is_refused(value: float) -> None:
    content = with_update(Array(np.full(SIZE, value, np.float32)))
    with pytest.raises(WireError, match=r"long, more than 10 times the model's 1\.83|longer than any number"):
        read_reply(content, REQUEST, 10.0)
    assert read_reply(with_update(Array(np.full(SIZE, 5.0, np.float32))), REQUEST, 10.0).steps == 3
    nothing = replace(REQUEST, weights=torch.zeros(SIZE))
    assert read_reply(with_update(Array(np.full(SIZE, 0.3, np.float32))), nothing, 1.0).steps == 3


def with_header(header: str) -> RecordDict:
    """Make a reply whose update has this header and the bytes of a valid one."""
    said = header.encode()
    length = len(said).to_bytes(2, "little")
    return with_update(raw(b"\x93NUMPY\x01\x00" + length + said + bytes(4 * SIZE)))


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,)}\n"


def test_a_header_that_lies_about_its_shape_takes_no_memory() -> None:
    assert read_reply(with_header(HEADER % SIZE), REQUEST).steps == 3
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"its update is float32\(5000000000,\)"):
            read_reply(with_header(HEADER % (5 * 10**9)), REQUEST)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    ["{[]: 1}", "{1: 2, 'x': 3}", "{'descr': [('a',", "(" * 100, "", "{'descr': {}}", "\x00", "é"],
)
def test_a_broken_header_is_refused_however_it_is_broken(header: str) -> None:
    with pytest.raises(WireError, match="its update is no numpy array"):
        read_reply(with_header(header), REQUEST)


def test_numbers_in_another_byte_order_are_refused() -> None:
    with pytest.raises(WireError, match=r"its update is >f4\(5,\)"):
        read_reply(with_header((HEADER % SIZE).replace("<f4", ">f4")), REQUEST)


def with_file(change: Callable[[bytes], object]) -> RecordDict:
    packed = read_bytes(pack_digest(DIGEST), "digest", "file", 10**6)
    return RecordDict({"digest": change(packed)})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "no digest file"),
        (with_file(lambda packed: ConfigRecord({"file": packed})), "no digest file"),
        (with_file(lambda packed: ArrayRecord({"file": Array(np.zeros(3))})), "no digest file"),
        (with_file(lambda packed: pack_bytes("file", packed[: len(packed) // 2])), "."),
        (
            with_file(lambda packed: pack_bytes("file", packed[:-2] + bytes([packed[-2] ^ 1]) + packed[-1:])),
            "hash",
        ),
        (with_file(lambda packed: pack_bytes("file", b"")), "."),
        (pack_digest(replace(DIGEST, silo=1)), "silo 1, not 2"),
    ],
)
def test_an_invalid_digest_is_refused(content: RecordDict, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_digest_of(content, 2)


TERMS = Terms((4,), 2, FACTS)


def test_a_digest_that_fulfils_the_terms_is_accepted() -> None:
    assert read_digest_of(pack_digest(DIGEST), 2, TERMS).hash == DIGEST.hash


def test_a_digest_of_too_many_bytes_is_refused() -> None:
    size = len(read_bytes(pack_digest(DIGEST), "digest", "file", 10**6))
    assert read_digest_of(pack_digest(DIGEST), 2, TERMS, size).hash == DIGEST.hash
    with pytest.raises(WireError, match=f"its digest has {size:,} bytes, more than {size - 1:,}"):
        read_digest_of(pack_digest(DIGEST), 2, TERMS, size - 1)


def test_an_update_has_no_more_bytes_than_it_may() -> None:
    (update,) = pack_reply(REPLY).array_records["model"].values()
    assert len(update.data) <= largest_update(SIZE) <= len(update.data) + 256


def test_a_digest_of_huge_numbers_is_refused() -> None:
    huge = replace(DIGEST, features=DIGEST.features * 1e30)
    with pytest.raises(WireError, match=r"its features reach .*e\+\d+, more than 1e\+06"):
        read_digest_of(pack_digest(huge), 2, TERMS)


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (replace(TERMS, feature_shape=(5,)), r"features of \[4\] and 2 classes, not \[5\] and 2"),
        (replace(TERMS, classes=3), r"2 classes, not \[4\] and 3"),
        (replace(TERMS, facts={**FACTS, "encoder": "f"}), "its encoder is 'e', not 'f'"),
        (replace(TERMS, facts={**FACTS, "samples_per_digest": 8}), "its samples_per_digest is 4, not 8"),
        (replace(TERMS, facts={**FACTS, "mechanism": "paper-laplace"}), "its mechanism is 'none'"),
    ],
)
def test_a_digest_that_breaks_the_terms_is_refused(terms: Terms, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_digest_of(pack_digest(DIGEST), 2, terms)


def test_an_evaluation_is_read_as_it_was_packed() -> None:
    assert read_score(pack_score(Score(62.5, 80), 2, 7), 2, 7) == Score(62.5, 80)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "its silo is None"),
        (pack_score(Score(50.0, 8), 1, 7), "silo 1, not 2"),
        (pack_score(Score(50.0, 8), 2, 6), "round 7, not 8"),
        (pack_score(Score(float("nan"), 8), 2, 7), "its accuracy is nan"),
        (pack_score(Score(100.5, 8), 2, 7), "100.5 percent"),
        (pack_score(Score(50.0, -8), 2, 7), "its samples is -8"),
    ],
)
def test_an_invalid_evaluation_is_refused(content: RecordDict, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_score(content, 2, 7)


# --- the engine, over a grid with given answers


class FakeGrid:
    """Nodes 10, 11, 12 are silos 0, 1, 2; `answers` says what each sends back, or None for nothing."""

    def __init__(self, answers: Mapping[int, Callable[[RecordDict], Any] | None]) -> None:
        self.answers, self.sent, self._waiting = answers, [], {}  # type: ignore[var-annotated]

    def get_node_ids(self) -> list[int]:
        return [10, 11, 12]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            self.sent.append(message)
            ids.append(f"message {len(self.sent)}")
            self._waiting[ids[-1]] = message
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        found = []
        for name in ids:
            message = self._waiting[name]
            silo = message.metadata.dst_node_id - 10
            if message.metadata.message_type == "query.silo":
                found.append(FakeReply(name, pack_silo(silo)))
                continue
            answer = self.answers[silo]
            if answer is not None:
                found.append(FakeReply(name, answer(message.content)))
        return found


def write(content: RecordDict, node: int, kind: str, *, ttl: float, group_id: str) -> Any:
    """Write a message that belongs to no run."""
    metadata = type("Metadata", (), {"dst_node_id": node, "message_type": kind, "group_id": group_id})
    return type("Message", (), {"content": content, "metadata": metadata})


class FakeReply:
    """A message with only what the engine reads."""

    def __init__(self, reply_to: str, content: Any) -> None:
        self.metadata = type("Metadata", (), {"reply_to_message_id": reply_to, "src_node_id": 1})
        self.content, self.error = content, content

    def has_error(self) -> bool:
        return isinstance(self.content, Error)


class Store(dict[int, Digest]):
    """Keeps digests in memory."""

    def kept_digest(self, silo: int) -> Digest | None:
        return self.get(silo)

    def keep_digest(self, digest: Digest) -> None:
        self[digest.silo] = digest


def answer_as(silo: int, **changes: Any) -> Callable[[RecordDict], RecordDict]:
    def answer(content: RecordDict) -> RecordDict:
        request = read_request(content, SIZE)
        return pack_reply(replace(REPLY, silo=request.silo, round=request.round, **changes))

    return answer


def engine_over(grid: FakeGrid, store: Store | None = None, present: Any = None) -> GridEngine:
    table = np.ones((3, 9), dtype=bool) if present is None else present
    store = Store() if store is None else store
    return GridEngine(grid, Absence(table), store, experiment="text", deadline=0.2, write=write)  # type: ignore[arg-type]


def requests(round: int = 7) -> list[Request]:
    return [replace(REQUEST, silo=silo, round=round) for silo in range(3)]


def test_replies_come_back_in_the_silos_order() -> None:
    engine = engine_over(FakeGrid({silo: answer_as(silo) for silo in range(3)}))
    assert [reply.silo for reply in engine.exchange(requests())] == [0, 1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        lambda content: Error(5, "gone"),
        lambda content: RecordDict(),
        answer_as(1, update=torch.full((SIZE,), float("nan"))),
        answer_as(1, update=torch.zeros(SIZE + 1)),
        lambda content: pack_reply(replace(REPLY, silo=1, round=6)),
        lambda content: pack_reply(replace(REPLY, silo=0, round=7)),
    ],
    ids=["silent", "error", "empty", "NaN", "wrong shape", "earlier round", "another silo's name"],
)
def test_without_a_valid_reply_by_the_deadline_a_silo_is_absent(
    answer: Callable[[RecordDict], Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_over(FakeGrid({0: answer_as(0), 1: answer, 2: answer_as(2)}))
    assert [reply.silo for reply in engine.exchange(requests())] == [0, 2]
    assert "silo 1, round 8" in caplog.text


def test_a_round_without_silos_ends_at_once() -> None:
    grid = FakeGrid({})
    engine = engine_over(grid, present=np.zeros((3, 9), dtype=bool))
    assert engine.exchange(requests()) == []
    assert engine.collect_digests([0, 1, 2], 7) == []
    assert len(engine.known_away(requests())) == 3
    assert not grid.sent


def test_digests_are_kept_and_asked_for_once() -> None:
    store = Store()
    grid = FakeGrid(
        {silo: lambda content, silo=silo: pack_digest(replace(DIGEST, silo=silo)) for silo in range(3)}
    )  # type: ignore[misc]
    engine = engine_over(grid, store)
    assert [digest.silo for digest in engine.collect_digests([0, 2], 0)] == [0, 2]
    assert set(store) == {0, 2}
    sent = len(grid.sent)
    assert [digest.silo for digest in engine.collect_digests([0, 2], 1)] == [0, 2]
    assert len(grid.sent) == sent


def test_a_digest_that_is_refused_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    store, grid = Store(), FakeGrid({1: lambda content: RecordDict()})
    engine = engine_over(grid, store)
    assert engine.collect_digests([1], 0) == []
    assert "silo 1, round 1: its digest is refused" in caplog.text
    grid.answers = {1: lambda content: pack_digest(replace(DIGEST, silo=1))}
    assert [digest.silo for digest in engine.collect_digests([1], 1)] == [1]


def test_numbers_travel_as_numbers() -> None:
    assert isinstance(pack_reply(REPLY)["numbers"], MetricRecord)


# --- class counts


def counted(wants: bool = True) -> Request:
    return replace(REQUEST, class_counts=torch.tensor([5.0, 0.0, 7.0]), wants_class_counts=wants)


def test_class_counts_go_both_ways() -> None:
    found = read_request(pack_request(counted(), ABOUT), SIZE)
    assert found.class_counts is not None
    assert found.class_counts.tolist() == [5, 0, 7]
    assert found.wants_class_counts
    reply = replace(REPLY, class_counts=torch.tensor([float(REPLY.samples), 0.0, 0.0]))
    sent = read_reply(pack_reply(reply), counted())
    assert sent.class_counts is not None
    assert sent.class_counts.tolist() == [REPLY.samples, 0, 0]
    assert read_request(pack_request(REQUEST, ABOUT), SIZE).class_counts is None


def test_class_counts_that_nobody_asked_for_are_not_read() -> None:
    reply = replace(REPLY, class_counts=torch.tensor([float(REPLY.samples), 0.0, 0.0]))
    assert read_reply(pack_reply(reply), counted(wants=False)).class_counts is None


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([1.0, 1.0, 1.0], "sum to 3"),
        ([float(REPLY.samples)], "counts 1 classes, not 3"),
        ([float(REPLY.samples) + 1, -1.0, 0.0], "0 or more"),
        ([math.nan, 0.0, 0.0], "0 or more"),
        ([], "no list of numbers"),
    ],
)
def test_class_counts_that_cannot_be_are_refused(counts: list[float], reason: str) -> None:
    content = pack_reply(replace(REPLY, class_counts=torch.tensor([1.0])))
    content.config_records["facts"]["class_counts"] = counts
    with pytest.raises(WireError, match=reason):
        read_reply(content, counted())
