"""Replies are read within limits of memory and time, and a broken reply does not end the moderator."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message import array as flowers_array
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from feddig.errors import FedDigError
from feddig.federation.flower_1_41.replies import CHUNK, NOTE, Answer, MeasuringReader, open_reader

pytestmark = pytest.mark.flower

LARGEST = 4000
UPDATE = np.linspace(-1, 1, 900, dtype=np.float32)


class UnreadBody(httpx.SyncByteStream):
    """A body that must not be read."""

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("it was read")


class FakeSuperLink:
    """A fake of the SuperLink's interface for replies, used by Flower's own HTTP client."""

    def __init__(self) -> None:
        self.announced: dict[str, Any] = {}
        self.objects: dict[str, bytes] = {}
        self.held_back: set[str] = set()
        """Objects that are announced but not available yet."""
        self.lengths: dict[str, int] = {}
        """The stated lengths of responses whose bodies must not be read."""
        self.confirmed: list[str] = []
        self.pulled: list[str] = []

    def reply(self, name: str, message: Message) -> str:
        """Store a reply to a message and return the reply's own name."""
        message.metadata.__dict__["_reply_to_message_id"] = name
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = get_all_nested_objects(message)
        self.objects |= {part: one.deflate() for part, one in parts.items()}
        announced = message_to_proto(message)
        announced.ClearField("content")
        self.announced[name] = (announced, get_object_tree(message))
        return message.object_id

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.rsplit("/", 1)[1]
        if path == "pull-messages":
            names = PullAppMessagesRequest.FromString(request.content).message_ids
            announced = [self.announced.pop(name) for name in names if name in self.announced]
            content: Any = PullAppMessagesResponse(
                messages_list=[one for one, _ in announced],
                message_object_trees=[tree for _, tree in announced],
            )
        elif path == "pull-object":
            name = PullObjectRequest.FromString(request.content).object_id
            self.pulled.append(name)
            if name in self.lengths:
                headers = {"content-length": str(self.lengths[name])}
                return httpx.Response(200, headers=headers, stream=UnreadBody())
            there = name in self.objects and name not in self.held_back
            content = PullObjectResponse(
                object_found=name in self.objects,
                object_available=there,
                object_content=self.objects[name] if there else b"",
            )
        else:
            self.confirmed.append(ConfirmMessageReceivedRequest.FromString(request.content).message_object_id)
            content = ConfirmMessageReceivedResponse()
        body = content.SerializeToString()
        return httpx.Response(200, headers={"content-length": str(len(body))}, content=body)


def grid_over(superlink: FakeSuperLink) -> HttpGrid:
    grid = HttpGrid("superlink:1", insecure=True, token="t")
    client = RuntimeHttpClient("http://superlink:1")
    client._client = httpx.Client(transport=httpx.MockTransport(superlink))
    grid._client = client
    grid.set_run(Run.create_empty(7))
    return grid


@pytest.fixture
def superlink() -> FakeSuperLink:
    return FakeSuperLink()


@pytest.fixture
def reader(superlink: FakeSuperLink) -> MeasuringReader:
    made = open_reader(grid_over(superlink))
    superlink.pulled.clear()
    assert isinstance(made, MeasuringReader)
    return made


def message(content: RecordDict | None = None, error: Error | None = None) -> Message:
    metadata = Metadata(
        run_id=7, message_id="", src_node_id=3, dst_node_id=1, reply_to_message_id="", group_id="0",
        created_at=1.0, ttl=60.0, message_type="train",
    )  # fmt: skip
    return Message(content=content, error=error, metadata=metadata)  # type: ignore[call-overload, no-any-return]


def with_update(values: Any) -> Message:
    return message(RecordDict({"model": ArrayRecord({"update": Array(values)})}))


def pull(reader: MeasuringReader, name: str = "asked", largest: int | None = LARGEST) -> list[Answer]:
    return reader.pull({name: largest}, time.monotonic() + 60)


def fault_of(reader: MeasuringReader) -> str:
    (answer,) = pull(reader)
    assert answer.content is None
    return answer.fault


def test_a_reply_is_read_as_it_was_sent_and_then_deleted(
    superlink: FakeSuperLink, reader: MeasuringReader
) -> None:
    own_name = superlink.reply("asked", with_update(UPDATE))
    (answer,) = pull(reader)
    assert (answer.name, answer.fault) == ("asked", "")
    assert answer.content is not None
    assert np.array_equal(answer.content.array_records["model"]["update"].numpy(), UPDATE)
    assert superlink.confirmed == [own_name]
    assert pull(reader) == []


def test_a_reply_of_several_chunks_is_read_as_it_was_sent(
    superlink: FakeSuperLink, reader: MeasuringReader
) -> None:
    values = np.random.default_rng(0).random(CHUNK // 8 + 5)
    superlink.reply("asked", with_update(values))
    (answer,) = pull(reader, largest=CHUNK + 1000)
    assert answer.content is not None
    assert np.array_equal(answer.content.array_records["model"]["update"].numpy(), values)


def test_a_reply_of_too_many_objects_is_refused_before_one_is_pulled(
    superlink: FakeSuperLink, reader: MeasuringReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flowers_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 64)
    own_name = superlink.reply("asked", with_update(UPDATE))
    assert "its reply is refused: it comes in 63 pieces" in fault_of(reader)
    assert superlink.pulled == []
    assert superlink.confirmed == [own_name], "the SuperLink may delete it"


def test_a_reply_of_too_many_bytes_is_refused(
    superlink: FakeSuperLink, reader: MeasuringReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flowers_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 40_000)
    superlink.reply("asked", with_update(np.arange(50_000.0)))
    assert "its reply is refused: it has more than 4,000 bytes" in fault_of(reader)
    assert len(superlink.pulled) == 2, "the rest was not pulled"


def test_an_object_that_is_too_long_is_not_read(superlink: FakeSuperLink, reader: MeasuringReader) -> None:
    superlink.reply("asked", with_update(UPDATE))
    superlink.lengths = dict.fromkeys(superlink.objects, 600_000_000)
    assert "600,000,000 bytes come at once" in fault_of(reader)
    assert len(superlink.pulled) == 1


def test_an_array_that_names_one_chunk_many_times_is_not_unfolded(
    superlink: FakeSuperLink, reader: MeasuringReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flowers_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 4096)
    superlink.reply("asked", with_update(np.zeros(10**6)))
    assert sum(map(len, superlink.objects.values())) < 3 * NOTE
    assert "its arrays unfold to 8," in fault_of(reader)


def test_a_large_object_that_is_no_array_is_refused(
    superlink: FakeSuperLink, reader: MeasuringReader
) -> None:
    superlink.reply("asked", message(RecordDict({"digest": ConfigRecord({"file": bytes(10**6)})})))
    (answer,) = pull(reader, largest=10**7)
    assert "bytes in a piece that belongs to no array" in answer.fault


def replace_object(superlink: FakeSuperLink, kind: bytes) -> None:
    """Replace the bytes of the first object of this kind."""
    name = next(name for name, piece in superlink.objects.items() if piece.startswith(kind))
    piece = b"ConfigRecord  3\0xyz"
    superlink.objects[name] = piece
    assert get_object_id(piece) != name


@pytest.mark.parametrize("kind", [b"Message", b"RecordDict", b"ArrayRecord", b"Array ", b"ArrayChunk"])
def test_a_reply_that_cannot_be_put_together_is_refused(
    superlink: FakeSuperLink, reader: MeasuringReader, kind: bytes
) -> None:
    superlink.reply("asked", with_update(UPDATE))
    replace_object(superlink, kind)
    assert "its reply is refused: it cannot be put together" in fault_of(reader)


def test_a_reply_without_content_is_refused(superlink: FakeSuperLink, reader: MeasuringReader) -> None:
    hidden = message(error=Error(0, "hidden"))
    superlink.reply("asked", hidden)
    superlink.announced["asked"][0].ClearField("error")
    assert "it has no content" in fault_of(reader)


def test_a_reply_that_does_not_arrive_delays_no_other(
    superlink: FakeSuperLink, reader: MeasuringReader
) -> None:
    superlink.reply("slow", with_update(UPDATE))
    superlink.held_back = set(superlink.objects)
    superlink.reply("asked", with_update(UPDATE + 1))
    limits = dict.fromkeys(("slow", "asked"), LARGEST)
    assert [answer.name for answer in reader.pull(limits, time.monotonic() + 60)] == ["asked"]
    assert pull(reader, "slow") == []
    superlink.held_back.clear()
    (answer,) = pull(reader, "slow")
    assert answer.content is not None


def test_nothing_is_pulled_after_the_deadline(superlink: FakeSuperLink, reader: MeasuringReader) -> None:
    superlink.reply("asked", with_update(UPDATE))
    assert reader.pull({"asked": LARGEST}, time.monotonic()) == []
    assert superlink.pulled == []
    (answer,) = pull(reader, largest=None)
    assert answer == Answer("asked", fault="it was not whole in time")


def test_no_object_of_a_late_reply_is_pulled(superlink: FakeSuperLink, reader: MeasuringReader) -> None:
    own_name = superlink.reply("asked", with_update(UPDATE))
    assert pull(reader, largest=None) == [Answer("asked")]
    assert superlink.pulled == []
    assert superlink.confirmed == [own_name]


def test_a_reply_with_a_missing_object_is_refused(superlink: FakeSuperLink, reader: MeasuringReader) -> None:
    superlink.reply("asked", with_update(UPDATE))
    superlink.objects.popitem()
    assert "no more of it will come" in fault_of(reader)


@pytest.mark.parametrize("code", [ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MESSAGE_UNAVAILABLE])
def test_an_error_is_one_line(superlink: FakeSuperLink, reader: MeasuringReader, code: int) -> None:
    superlink.reply("asked", message(error=Error(code, "it\n\x1b[31mfailed" + "x" * 10**4)))
    (answer,) = pull(reader)
    assert answer.fault.startswith("it [31mfailedxxx")
    assert len(answer.fault) == 300
    assert answer.expired == (code == ErrorCode.MESSAGE_UNAVAILABLE)


def test_announcements_that_are_too_long_are_not_read(
    superlink: FakeSuperLink, reader: MeasuringReader, caplog: pytest.LogCaptureFixture
) -> None:
    superlink.reply("asked", message(error=Error(0, "x" * 10**6)))
    assert pull(reader) == []
    assert "what came from 1 silos is refused" in caplog.text


# --- if Flower changes


def test_a_grid_without_its_client_is_refused(superlink: FakeSuperLink) -> None:
    grid = grid_over(superlink)
    grid._client._client = object()  # type: ignore[assignment, union-attr]
    with pytest.raises(FedDigError, match=r"flwr .* cannot be used: its grid has no HTTP client.*install"):
        open_reader(grid)


def test_a_client_that_reads_before_it_can_be_measured_is_refused(superlink: FakeSuperLink) -> None:
    class Eager(httpx.Client):
        def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            response = superlink(request)
            response.request = request
            return response

    grid = grid_over(superlink)
    grid._client._client = Eager()  # type: ignore[union-attr]
    with pytest.raises(FedDigError, match="read before they can be measured; install"):
        open_reader(grid)


def test_a_new_kind_of_grid_is_refused() -> None:
    class TelepathicGrid(Grid):
        pass

    TelepathicGrid.__abstractmethods__ = frozenset()  # type: ignore[misc]
    with pytest.raises(FedDigError, match="replies come through TelepathicGrid; install"):
        open_reader(TelepathicGrid())  # type: ignore[abstract]


def test_a_client_that_was_replaced_is_measured_too(
    superlink: FakeSuperLink, reader: MeasuringReader
) -> None:
    reader._grid._client = grid_over(superlink)._client
    superlink.reply("asked", with_update(UPDATE))
    superlink.lengths = dict.fromkeys(superlink.objects, 600_000_000)
    assert "come at once" in fault_of(reader)
