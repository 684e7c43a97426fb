"""Talking to the moderator's own SuperLink: who may take part, and which run goes on."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

from feddig.errors import FedDigError
from feddig.federation.certificates import fingerprint, read_public_key
from feddig.federation.contract import Contract
from feddig.federation.folders import ModeratorFolder
from feddig.federation.processes.processes import find_program, quoted, surroundings

LINK = "moderator"
"""What the SuperLink is called in Flower's configuration."""
START_SECONDS = 120
UNFINISHED = ("pending", "starting", "running")


class NoAnswerError(FedDigError):
    """The SuperLink is gone or going, or did not do what it was asked to; another try may help."""


def write_flower_config(folder: ModeratorFolder, contract: Contract) -> None:
    """Tell Flower's commands where the SuperLink is; at each start, as the folder may have been moved."""
    lines = [
        "[superlink]",
        f'default = "{LINK}"',
        "",
        f"[superlink.{LINK}]",
        f'address = "{own_address(contract)}"',
        f"root-certificates = {quoted(folder.ca)}",
    ]
    folder.flower_home.mkdir(exist_ok=True)
    folder.flower_config.write_text("\n".join(lines) + "\n", encoding="utf-8")


def own_address(contract: Contract) -> str:
    """Give the address of the SuperLink for programs on the moderator's machine."""
    return f"127.0.0.1:{contract.address.rpartition(':')[2]}"


class Control:
    """The moderator's say over its SuperLink."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def register(self, folder: ModeratorFolder, contract: Contract) -> None:
        """Let the silos of the contract in; those that were let in before stay as they are."""
        known = set(self.nodes())
        for member in contract.members:
            key = read_public_key(folder.public_key(member.name))
            if fingerprint(key) != member.fingerprint:
                raise FedDigError(
                    f"{folder.public_key(member.name)}: is not the key that the contract names for "
                    f"{member.name}; copy the silo's key.pub here"
                )
            if member.fingerprint not in known:
                request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=member.name)
                with _said_clearly(f"cannot register {member.name}"):
                    self._client.RegisterNode(request)

    def nodes(self) -> dict[str, tuple[int, str]]:
        """List the registered nodes: fingerprint to number and standing (registered, online, offline)."""
        with _said_clearly("cannot list the silos"):
            listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {
            fingerprint(bytes_to_public_key(node.public_key)): (node.node_id, node.status)
            for node in listed
            if node.status != "unregistered"
        }

    def run_status(self, run: int) -> tuple[str, str]:
        """Tell how a run stands (pending, starting, running, or finished: completed, failed, stopped) and why."""
        with _said_clearly("cannot ask about the run"):
            status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return f"{status.status}:{status.sub_status}".rstrip(":"), status.details

    def stop_runs(self) -> None:
        """Stop the runs that a killed SuperLink left: they cannot go on, and must not be taken up again."""
        with _said_clearly("cannot stop old runs"):
            for number, run in self._client.ListRuns(ListRunsRequest()).run_dict.items():
                if run.status.status in UNFINISHED:
                    self._client.StopRun(StopRunRequest(run_id=number))


@contextmanager
def connect(folder: ModeratorFolder, contract: Contract) -> Iterator[Control]:
    """Open the way to the SuperLink."""
    client = ControlHttpClient.from_server_address(
        own_address(contract),
        insecure=False,
        root_certificates=folder.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield Control(client)
    finally:
        client.close()


def start_run(folder: ModeratorFolder, app: Path | None = None) -> int:
    """Start a run of the app, and give its number."""
    command = [
        find_program("flwr"), "run", str(app or folder.app), LINK,
        "--run-config", f"folder={quoted(folder.path)}",
        "--format", "json",
    ]  # fmt: skip
    environment = surroundings(folder.path, folder.flower_home)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        answer = json.loads(done.stdout)
        return int(answer["run-id"])
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"flwr run: no answer in {START_SECONDS} s; see {folder.logs}") from None
    except (ValueError, KeyError, TypeError):
        reason = " ".join((done.stdout + done.stderr).split())
        raise NoAnswerError(f"flwr run: the run did not start ({reason[-300:]})") from None


@contextmanager
def _said_clearly(what: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = f"{error.response.status_code} {error.response.text[:200]}"
        raise NoAnswerError(f"the SuperLink says: {what} ({reason})") from None
    except (httpx.HTTPError, OSError) as error:
        raise NoAnswerError(f"the SuperLink does not answer: {what} ({error})") from None
