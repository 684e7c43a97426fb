"""What stands before Flower's SuperLink: who gets in, how much at once, and what stays in memory of it."""

import asyncio
import datetime
import gc
import weakref
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.supercore import sql_mixin
from flwr.supercore.date import now
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from starlette.middleware import Middleware

from feddig.federation.flower_1_41.frugality import OFTEN, Sweep, keep_little
from feddig.federation.flower_1_41.gate import PUSHED, Gate
from feddig.federation.flower_1_41.intake import CHUNK
from feddig.federation.flower_1_41.superlink import LAYERS, check_layers
from feddig.federation.flower_1_41.turns import AT_ONCE, Turns, signer

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("client", "path", "status"),
    [
        (("127.0.0.1", 1), "/v1/control/start-run", 200),
        (("::1", 1), "/v1/control/start-run", 200),
        (("192.0.2.7", 1), "/v1/fleet/pull-messages", 200),
        (("192.0.2.7", 1), "/v1/control/start-run", 403),
        (("192.0.2.7", 1), "/v1/fleet/../control/start-run", 200),  # the app finds no such path
        (("192.0.2.7", 1), "//v1/fleet/x", 403),
        (("nonsense", 1), "/v1/runtime/x", 403),
        (None, "/v1/control/start-run", 403),
    ],
)
def test_the_gate(client: tuple[str, int] | None, path: str, status: int) -> None:
    assert at_the_gate(client, path) == status


def at_the_gate(client: tuple[str, int] | None, path: str, headers: Mapping[str, str] | None = None) -> int:
    """Give the HTTP status with which a request is answered."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    told: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        told.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    asyncio.run(Gate(app)({"type": "http", "path": path, "client": client, "headers": named}, receive, send))
    return int(told[0]["status"])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("push-object", {"content-length": f"{CHUNK}"}, 200),
        ("push-object", {"content-length": "600000000"}, 413),
        ("push-object", {"transfer-encoding": "chunked"}, 411),
        ("push-object", {"content-length": "-1"}, 411),
        ("push-messages", {"content-length": "60000"}, 200),
        ("push-messages", {"content-length": f"{CHUNK}"}, 413),
        ("pull-messages", {}, 200),
    ],
)
def test_the_gate_lets_nothing_in_that_is_too_long(path: str, headers: dict[str, str], status: int) -> None:
    assert at_the_gate(("192.0.2.7", 1), f"/v1/fleet/{path}", headers) == status
    assert at_the_gate(("127.0.0.1", 1), f"/v1/fleet/{path}", headers) == status, "also from this machine"


def test_a_flower_that_takes_no_gate_is_not_started() -> None:
    ours = [Middleware(layer) for layer in LAYERS]
    check_layers(SimpleNamespace(_get_middleware=lambda: ours))
    for others in ([], ours[:2], ours[::-1]):
        with pytest.raises(SystemExit, match="takes no gate"):
            check_layers(SimpleNamespace(_get_middleware=lambda others=others: others))


class Silo:
    """Somebody with a key, who signs requests."""

    def __init__(self) -> None:
        self._private, public = generate_key_pairs()
        self.key = public_key_to_bytes(public)

    def headers(self, age: float = 0.0) -> dict[str, str]:
        time = (now() - datetime.timedelta(seconds=age)).isoformat()
        return {
            "flwr-public-key": b64encode(self.key).decode(),
            "flwr-signature": b64encode(sign_message(self._private, time.encode())).decode(),
            "flwr-timestamp": time,
        }


class Link:
    """A SuperLink behind turns, at which some silos are registered; it remembers who was let in and what came."""

    def __init__(self, *silos: Silo, patience: float = 5.0) -> None:
        self._turns = Turns(self._take, patience)
        self._known = {silo.key: number for number, silo in enumerate(silos)}
        self.inside, self.most, self.came = 0, 0, list[bytes]()
        self.open = asyncio.Event()

    async def _take(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append((await receive())["body"])
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        self.inside -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def push(self, headers: Mapping[str, str], *parts: bytes, path: str = PUSHED) -> tuple[int, int]:
        """Send a piece in parts, or one that never comes; give the status and how often something was read."""
        told, coming, read = list[int](), list(parts), 0

        async def receive() -> Any:
            nonlocal read
            read += 1
            if not coming:
                await asyncio.Event().wait()
            return {
                "type": "http.request",
                "body": coming.pop(0),
                "more_body": read < len(parts) or not parts,
            }

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                told.append(message["status"])

        state = SimpleNamespace(get_node_id_by_public_key=self._known.get)
        app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state)))
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._turns(
            {"type": "http", "path": path, "client": ("192.0.2.7", 1), "headers": named, "app": app},
            receive,
            send,
        )
        return told[0], read


def test_a_silo_has_a_few_pieces_at_the_superlink_at_once_and_keeps_nobody_else_from_it() -> None:
    async def scene() -> None:
        greedy, modest = Silo(), Silo()
        link = Link(greedy, modest)
        many = [asyncio.create_task(link.push(greedy.headers(), b"greedy")) for _ in range(5 * AT_ONCE)]
        await reached(lambda: link.inside == AT_ONCE)
        one = asyncio.create_task(link.push(modest.headers(), b"mod", b"est"))
        await reached(lambda: link.inside == AT_ONCE + 1)
        await asyncio.sleep(0.2)
        assert len(link.came) == AT_ONCE + 1, "what waits is not read"
        assert b"modest" in link.came
        link.open.set()
        assert {status for status, _ in await asyncio.gather(*many, one)} == {200}
        assert (link.most, len(link.came)) == (AT_ONCE + 1, 5 * AT_ONCE + 1)

    asyncio.run(scene())


async def reached(holds: Any) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


def test_of_a_piece_that_no_silo_signed_nothing_is_read() -> None:
    async def scene() -> None:
        member, stranger = Silo(), Silo()
        link = Link(member)
        link.open.set()
        good = member.headers()
        bad = {
            "nobody's": {},
            "a stranger's": stranger.headers(),
            "in another's name": stranger.headers() | {"flwr-public-key": good["flwr-public-key"]},
            "of an hour ago": member.headers(age=3600),
            "of tomorrow": member.headers(age=-86400),
            "signed for another time": good | {"flwr-timestamp": now().isoformat()},
            "no base64": good | {"flwr-signature": "!"},
            "no key": good | {"flwr-public-key": b64encode(b"key").decode()},
            "no time": good | {"flwr-timestamp": "noon"},
            "a time without a zone": good | {"flwr-timestamp": "2026-01-01T00:00:00"},
        }
        for name, headers in bad.items():
            assert await link.push(headers, b"piece") == (401, 0), name
        assert await link.push(good, b"piece") == (200, 1)
        assert await link.push({}, b"note", path="/v1/fleet/push-messages") == (200, 1), "Flower asks itself"

    asyncio.run(scene())


def test_a_signature_is_what_flower_takes_for_one() -> None:
    silo = Silo()
    assert signer(silo.headers()) == silo.key
    assert signer(silo.headers(age=290)) == silo.key
    assert signer(silo.headers(age=310)) is None


def test_a_piece_that_stops_coming_gives_its_turn_back() -> None:
    async def scene() -> None:
        silo = Silo()
        link = Link(silo, patience=0.2)
        link.open.set()
        gone = [link.push(silo.headers()) for _ in range(2 * AT_ONCE)]
        later = link.push(silo.headers(), b"piece")
        *stalled, came = await asyncio.gather(*gone, later)
        assert stalled == [(408, 1)] * (2 * AT_ONCE)
        assert came == (200, 1)
        assert link.came == [b"piece"]

    asyncio.run(scene())


def test_a_sender_who_goes_away_is_not_answered() -> None:
    told: list[Any] = []

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    async def scene() -> None:
        silo = Silo()
        link = Link(silo)
        state = SimpleNamespace(get_node_id_by_public_key=lambda key: 1)
        app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: state)))
        named = [(name.encode(), value.encode()) for name, value in silo.headers().items()]
        await link._turns({"type": "http", "path": PUSHED, "headers": named, "app": app}, gone, send)
        assert (link.came, told) == ([], [])

    asyncio.run(scene())


class Leftover:
    """Something that refers to itself, as what Flower's requests leave behind."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def only_swept() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("only_swept")
def test_what_a_large_request_leaves_behind_is_freed_with_it() -> None:
    left: list[weakref.ref[Leftover]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": (await receive())["body"]})
        left.append(weakref.ref(Leftover()))

    async def scene() -> None:
        sweep = Sweep(app)
        for size in (0, 10, OFTEN // 4, OFTEN // 2, 0):

            async def receive(size: int = size) -> Any:
                return {"type": "http.request", "body": b"x" * size}

            async def send(message: Any) -> None:
                pass

            await sweep({"type": "http"}, receive, send)
            # half goes in and the same half out again
            assert (left[-1]() is None) == (size in (0, OFTEN // 2) and len(left) != 5), size

    asyncio.run(scene())


@pytest.mark.filterwarnings("ignore:No path_separator found")
def test_the_database_keeps_little_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    keep_little(sql_mixin)
    store = SqlObjectStore(str(tmp_path / "state.db"), verify=False)
    store.initialize()
    found = {
        name: store.query(f"PRAGMA {name}")[0][name] for name in ("cache_size", "mmap_size", "journal_mode")
    }
    assert found == {"cache_size": -2000, "mmap_size": 0, "journal_mode": "wal"}


def test_a_flower_whose_database_cannot_be_told_so_is_not_started() -> None:
    with pytest.raises(SystemExit, match="does not set mmap_size of its database; install flwr"):
        keep_little(SimpleNamespace(SQLITE_PRAGMAS=(("cache_size", "-64000"),)))
