"""Every private name of Flower that FedDig uses, and one check of them all before a process connects to anything.

Public are only flwr.app, flwr.clientapp and flwr.serverapp. Everything else may change with any release of Flower, so
it stands in the table below, other modules take it from here, and a process does not start if a name is missing or
has another shape.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import CodeType
from typing import Any

import httpx

from feddig.errors import FedDigError

log = logging.getLogger("feddig")

SUPERLINK, SERVER_APP, NODE = "superlink", "server app", "node"
"""The processes of a federation: two of the moderator's, and a silo's."""
RELEASES = "flwr>=1.41,<1.42"

FLEET_PATH, PUSH_OBJECT_PATH = "/v1/fleet/", "/v1/fleet/push-object"
"""The SuperLink's interface for silos' nodes, and where they send the parts of a reply."""
PULL_MESSAGES_PATH, PULL_OBJECT_PATH = "/v1/runtime/pull-messages", "/v1/runtime/pull-object"
"""Where the moderator's app asks which replies there are, and takes a part of one."""

CANNOT_ANSWER, OTHER_CONTRACT = 2, 100
"""The codes of the errors by which a silo's node says that it cannot answer, and that the contracts differ."""


@dataclass(frozen=True)
class Name:
    """A private name of Flower, and the shape that our code relies on."""

    process: str
    """Which process uses it."""
    module: str
    path: str
    """The name in its module; `Class.method` for what a class holds."""
    parameters: tuple[str, ...] | None = None
    """What is passed to it, in its order; further parameters must be optional. None: it is not called."""
    kind: type | None = None
    """What it is an instance of, where it is not called."""
    fields: tuple[str, ...] = ()
    """The fields of a protobuf message that are used."""
    mentions: tuple[str, ...] = ()
    """Names and texts that must occur in the function's own code."""

    def __str__(self) -> str:
        """Return the whole name."""
        return f"{self.module}.{self.path}"

    def get(self) -> Any:
        """Return what Flower has under this name."""
        owner, attribute = self._owner()
        try:
            return getattr(owner, attribute)
        except AttributeError:
            raise unfit(f"{self} is missing") from None

    def replace(self, ours: Any) -> None:
        """Put ours in the place of what Flower has, which must be there."""
        self.get()
        owner, attribute = self._owner()
        setattr(owner, attribute, ours)

    def fault(self) -> str:
        """Return what is wrong with it; nothing if it has the right shape."""
        found = self.get()
        if self.kind is not None and not isinstance(found, self.kind):
            return f"is {type(found).__name__}, not {self.kind.__name__}"
        if self.parameters is not None and (fault := _call_fault(found, self.parameters)):
            return fault
        fields = getattr(getattr(found, "DESCRIPTOR", None), "fields_by_name", ())
        if missing := set(self.fields) - set(fields):
            return f"has no field {min(missing)}"
        if missing := set(self.mentions) - set(_words(getattr(found, "__code__", None))):
            return f"does not use {min(missing)}"
        return ""

    def _owner(self) -> tuple[Any, str]:
        *owners, attribute = self.path.split(".")
        try:
            owner: Any = importlib.import_module(self.module)
            for part in owners:
                owner = getattr(owner, part)
        except (ImportError, AttributeError) as error:
            raise unfit(f"{self} is missing ({error})") from None
        return owner, attribute


def unfit(fault: str) -> FedDigError:
    """Return the error that says why this release of Flower cannot be used."""
    return FedDigError(f"flwr {version('flwr')} cannot be used: {fault}; install {RELEASES}")


def check_flower(*processes: str) -> None:
    """Check the private names that these processes use, or all of them; refuse to go on if one is not as expected."""
    for name in TABLE:
        if (not processes or name.process in processes) and (fault := name.fault()):
            raise unfit(f"{name} {fault}")


def start_checked(main: Callable[[], None], *processes: str) -> None:
    """Check the names that a process uses, then run it; exit with one line if that is refused."""
    try:
        check_flower(*processes)
        main()
    except FedDigError as error:
        log.error("feddig: error: %s", error)
        raise SystemExit(2) from None
    except Exception:
        log.exception("this process fails, which is a fault of the program; report it")
        raise SystemExit(1) from None


def http_client(grid: Any) -> tuple[Any, httpx.Client]:
    """Return the client by which a grid talks to the SuperLink, and the HTTP client inside it."""
    client = getattr(grid, "_runtime_client", None)
    http = getattr(client, "_client", None)
    if not isinstance(http, httpx.Client):
        raise unfit("its grid has no HTTP client where it was")
    return client, http


def _call_fault(found: Any, wanted: tuple[str, ...]) -> str:
    """Return why this cannot be called with these parameters; nothing if it can."""
    try:
        given = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return "cannot be called"
    if tuple(name for name in given if name in wanted) != wanted:
        return f"has the parameters ({', '.join(given)}), not ({', '.join(wanted)})"
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in given.values() if one.default is one.empty and one.kind not in variable]
    if others := [name for name in needed if name not in wanted]:
        return f"needs the parameter {others[0]}"
    return ""


def _words(code: CodeType | None) -> Iterator[str]:
    """Give the names and the texts in a function's code, and in the functions inside it."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield constant
            elif isinstance(constant, CodeType):
                yield from _words(constant)


# --- the process of the SuperLink, and the program that starts and asks it

_MAIN, _CLI = "flwr.superlink.main", "flwr.superlink.cli.flower_superlink"
_CONTROL, _CLIENT = "flwr.proto.control_pb2", "flwr.supercore.control"
_KEYS = "flwr.supercore.primitives.asymmetric"

RUN_SUPERLINK = Name(SUPERLINK, _CLI, "flower_superlink", parameters=())
GRPC_CONTROL = Name(SUPERLINK, "flwr.common.constant", "FLWR_INTERNAL_GRPC_CONTROL_API", kind=str)
GRPC_FLEET = Name(SUPERLINK, "flwr.common.constant", "FLWR_INTERNAL_GRPC_FLEET_API", kind=str)
IN_MEMORY = Name(SUPERLINK, "flwr.supercore.constant", "FLWR_IN_MEMORY_DB_NAME", kind=str)
EXTRA_MIDDLEWARE = Name(SUPERLINK, "flwr.superlink.extensions", "get_middleware", parameters=())
MIDDLEWARE = Name(
    SUPERLINK, _MAIN, "_get_middleware", parameters=(), mentions=("extensions", "get_middleware")
)

CONTROL_CLIENT = Name(SUPERLINK, _CLIENT, "ControlHttpClient", kind=type)
VERSION_HEADER = Name(
    SUPERLINK, "flwr.supercore.interceptors.http.runtime_version", "RuntimeVersionHttpInterceptor",
    parameters=("component_name",),
)  # fmt: skip
KEY_FROM_BYTES = Name(SUPERLINK, _KEYS, "bytes_to_public_key", parameters=("public_key_bytes",))
KEY_TO_BYTES = Name(SUPERLINK, _KEYS, "public_key_to_bytes", parameters=("public_key",))
REGISTER_NODE = Name(SUPERLINK, _CONTROL, "RegisterNodeRequest", fields=("public_key", "name"))
LIST_NODES = Name(SUPERLINK, _CONTROL, "ListNodesRequest", kind=type)
LIST_RUNS = Name(SUPERLINK, _CONTROL, "ListRunsRequest", fields=("run_id",))
STOP_RUN = Name(SUPERLINK, _CONTROL, "StopRunRequest", fields=("run_id",))

# --- the process of the moderator's app

_INFLATE, _GRID, _MESSAGE = "flwr.supercore.inflatable", "flwr.superlink.grid", "flwr.proto.message_pb2"
_RUNTIME = "flwr.supercore.runtime"

CHUNK_SIZE = Name(SERVER_APP, "flwr.common.constant", "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", kind=int)
MESSAGE_UNAVAILABLE = Name(SERVER_APP, "flwr.common.constant", "ErrorCode.MESSAGE_UNAVAILABLE", kind=int)
HTTP_GRID = Name(SERVER_APP, _GRID, "HttpGrid", kind=type)
IN_MEMORY_GRID = Name(SERVER_APP, _GRID, "InMemoryGrid", kind=type)
PULL_MESSAGES = Name(SERVER_APP, "flwr.proto.runtime_pb2", "PullAppMessagesRequest", fields=("message_ids",))
PULL_OBJECT = Name(SERVER_APP, _MESSAGE, "PullObjectRequest", fields=("node", "run_id", "object_id"))
CONFIRM_RECEIVED = Name(
    SERVER_APP, _MESSAGE, "ConfirmMessageReceivedRequest", fields=("node", "run_id", "message_object_id")
)
OBJECT_HEAD = Name(
    SERVER_APP, f"{_INFLATE}.inflatable_object", "get_object_head_values_from_object_content",
    parameters=("object_content",),
)  # fmt: skip
OBJECT_BODY = Name(
    SERVER_APP, f"{_INFLATE}.inflatable_object", "get_object_body", parameters=("object_content", "cls")
)
OBJECT_TREE = Name(SERVER_APP, f"{_INFLATE}.inflatable_object", "iterate_object_tree", parameters=("tree",))
ASSEMBLE = Name(
    SERVER_APP, f"{_INFLATE}.inflatable_utils", "inflate_object_from_contents",
    parameters=("object_id", "object_contents"),
)  # fmt: skip

# --- the process of a silo's node

CONNECT = Name(
    NODE, "flwr.supernode.fleet_http_connection", "http_request_response",
    parameters=("server_address", "insecure", "root_certificates", "authentication_keys"),
)  # fmt: skip
FETCH = Name(
    NODE, f"{_INFLATE}.inflatable_utils", "pull_and_inflate_object_from_tree",
    parameters=(
        "object_tree", "pull_object_fn", "confirm_object_received_fn", "return_type", "initial_backoff"
    ),
)  # fmt: skip
TREE_OF = Name(NODE, f"{_INFLATE}.inflatable_object", "get_object_tree", parameters=("obj",))
PARTS_OF = Name(NODE, f"{_INFLATE}.inflatable_object", "get_all_nested_objects", parameters=("obj",))
PUSH_PARTS = Name(
    NODE, f"{_INFLATE}.inflatable_utils", "push_objects",
    parameters=("objects", "push_object_fn", "object_ids_to_push"),
)  # fmt: skip

# --- what our code reaches through the names above: methods, and fields of answers

_REACHED = (
    Name(SUPERLINK, _MAIN, "create_app", mentions=("_get_middleware",)),
    Name(
        SUPERLINK, "flwr.superlink.routers.fleet.node_auth", "NodeAuthMiddleware.dispatch",
        mentions=(FLEET_PATH, "authenticate_node"),
    ),
    Name(
        SUPERLINK, "flwr.supernode.fleet_http_client", "FleetHttpClient.PushObject",
        mentions=(PUSH_OBJECT_PATH,),
    ),
    Name(SUPERLINK, _CLIENT, "ControlHttpClient.close", parameters=("self",)),
    Name(
        SUPERLINK, _CLIENT, "ControlHttpClient.from_server_address",
        parameters=("server_address", "insecure", "root_certificates", "interceptors"),
    ),
    *(
        Name(SUPERLINK, _CLIENT, f"ControlHttpClient.{method}", parameters=("self", "request"))
        for method in ("RegisterNode", "ListNodes", "ListRuns", "StopRun")
    ),
    Name(SUPERLINK, _CONTROL, "ListNodesResponse", fields=("nodes_info",)),
    Name(SUPERLINK, _CONTROL, "ListRunsResponse", fields=("run_dict",)),
    Name(SUPERLINK, "flwr.proto.run_pb2", "Run", fields=("status",)),
    Name(SUPERLINK, "flwr.proto.run_pb2", "RunStatus", fields=("status", "sub_status", "details")),
    Name(SUPERLINK, "flwr.proto.node_pb2", "NodeInfo", fields=("node_id", "status", "public_key")),
    Name(SERVER_APP, "flwr.proto.node_pb2", "NodeInfo", fields=("node_id", "public_key", "last_activated_at")),
    Name(SERVER_APP, _GRID, "HttpGrid._runtime_client", kind=property),
    Name(SERVER_APP, _GRID, "HttpGrid.__init__", mentions=("node",)),
    Name(SERVER_APP, "flwr.supercore.protobuf.client", "ProtobufClient.__init__", mentions=("_client", "httpx")),
    Name(
        SERVER_APP, _RUNTIME, "RuntimeHttpClient.PullMessages",
        parameters=("self", "request"), mentions=(PULL_MESSAGES_PATH,),
    ),
    Name(
        SERVER_APP, _RUNTIME, "RuntimeHttpClient.PullObject",
        parameters=("self", "request"), mentions=(PULL_OBJECT_PATH,),
    ),
    Name(SERVER_APP, _RUNTIME, "RuntimeHttpClient.ConfirmMessageReceived", parameters=("self", "request")),
    Name(
        SERVER_APP, "flwr.proto.runtime_pb2", "PullAppMessagesResponse",
        fields=("messages_list", "message_object_trees"),
    ),
    Name(
        SERVER_APP, _MESSAGE, "PullObjectResponse",
        fields=("object_found", "object_available", "object_content"),
    ),
    Name(SERVER_APP, _MESSAGE, "Message", fields=("metadata", "error")),
    Name(SERVER_APP, _MESSAGE, "Metadata", fields=("message_id", "reply_to_message_id")),
    Name(SERVER_APP, _MESSAGE, "ObjectTree", fields=("object_id",)),
)  # fmt: skip

TABLE: tuple[Name, ...] = (*(one for one in list(globals().values()) if isinstance(one, Name)), *_REACHED)
