"""Control the moderator's own SuperLink: configure it, register the silos' keys, start and stop runs of the app."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from feddig._version import __version__
from feddig.errors import FedDigError
from feddig.federation.certificates import fingerprint, read_public_key
from feddig.federation.contract import Contract
from feddig.federation.flower_1_41 import names
from feddig.federation.folders import ModeratorFolder
from feddig.federation.processes.processes import find_program, party_environment, quoted
from feddig.files import write_atomically

LINK = "moderator"
"""The SuperLink's name in Flower's configuration."""
START_SECONDS = 120
UNFINISHED = ("pending", "starting", "running")

_PROJECT = """# The app of a FedDig federation, written at each start of the moderator. Its code is the installed feddig
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "feddig-federation"
version = "{version}"
description = "FedDig on Flower: a federation that remembers silos after they leave"
license = {{ file = "LICENSE" }}
dependencies = ["feddig", "{flower}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "feddig"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "feddig.federation.server_app:app"
clientapp = "feddig.federation.client_app:app"

[tool.flwr.app.config]
folder = ""                     # the moderator's folder by its whole path
"""
_LICENCE = "FedDig is under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"


class NoAnswerError(FedDigError):
    """The SuperLink did not answer, or did not do what it was asked to; another try may help."""


def write_app(folder: Path) -> None:
    """Write the Flower app that is run; over an older one, whose modules may have moved since."""
    write_atomically(folder / "pyproject.toml", _PROJECT.format(version=__version__, flower=names.RELEASES))
    write_atomically(folder / "LICENSE", _LICENCE)


def write_flower_config(folder: ModeratorFolder, contract: Contract) -> None:
    """Write where Flower's commands find the SuperLink; at each start, as the folder may have been moved."""
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
    """Return the address of the SuperLink for programs on the moderator's machine."""
    return f"127.0.0.1:{contract.address.rpartition(':')[2]}"


class Control:
    """A connection to the moderator's SuperLink, by which silos are registered and runs are watched and stopped."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def register(self, folder: ModeratorFolder, contract: Contract) -> None:
        """Register the keys of the contract's silos; those that are registered stay as they are."""
        known = set(self.nodes())
        for member in (contract.members[silo] for silo in contract.active):
            key = read_public_key(folder.public_key(member.name))
            if fingerprint(key) != member.fingerprint:
                raise FedDigError(
                    f"{folder.public_key(member.name)}: is not the key that the contract names for "
                    f"{member.name}; copy the silo's key.pub here"
                )
            if member.fingerprint not in known:
                encoded = names.KEY_TO_BYTES.get()(key)
                request = names.REGISTER_NODE.get()(public_key=encoded, name=member.name)
                with _clear_errors(f"cannot register {member.name}"):
                    self._client.RegisterNode(request)

    def nodes(self) -> dict[str, tuple[int, str]]:
        """Return the registered nodes: fingerprint to number and state (registered, online, offline)."""
        with _clear_errors("cannot list the silos"):
            listed = self._client.ListNodes(names.LIST_NODES.get()()).nodes_info
        return {
            fingerprint(names.KEY_FROM_BYTES.get()(node.public_key)): (node.node_id, node.status)
            for node in listed
            if node.status != "unregistered"
        }

    def run_status(self, run: int) -> tuple[str, str]:
        """Return a run's state (pending, starting, running, or finished:completed, :failed, :stopped) and why."""
        with _clear_errors("cannot ask about the run"):
            status = self._client.ListRuns(names.LIST_RUNS.get()(run_id=run)).run_dict[run].status
        return f"{status.status}:{status.sub_status}".rstrip(":"), status.details

    def stop_runs(self) -> None:
        """Stop the runs that a killed SuperLink left: they cannot continue, and must not be started again."""
        with _clear_errors("cannot stop old runs"):
            for number, run in self._client.ListRuns(names.LIST_RUNS.get()()).run_dict.items():
                if run.status.status in UNFINISHED:
                    self._client.StopRun(names.STOP_RUN.get()(run_id=number))


@contextmanager
def connect(folder: ModeratorFolder, contract: Contract) -> Iterator[Control]:
    """Connect to the SuperLink."""
    client = names.CONTROL_CLIENT.get().from_server_address(
        own_address(contract),
        insecure=False,
        root_certificates=folder.ca.read_bytes(),
        interceptors=[names.VERSION_HEADER.get()(component_name="flwr CLI")],
    )
    try:
        yield Control(client)
    finally:
        client.close()


def start_run(folder: ModeratorFolder, app: Path | None = None) -> int:
    """Start a run of the app, and return its number."""
    command = [
        find_program("flwr"), "run", str(app or folder.app), LINK,
        "--run-config", f"folder={quoted(folder.path)}",
        "--format", "json",
    ]  # fmt: skip
    environment = party_environment(folder.path, folder.flower_home)
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
def _clear_errors(what: str) -> Iterator[None]:
    """Turn an error of the connection into one line."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        reason = f"{error.response.status_code} {error.response.text[:200]}"
        raise NoAnswerError(f"the SuperLink says: {what} ({reason})") from None
    except (httpx.HTTPError, OSError) as error:
        raise NoAnswerError(f"the SuperLink does not answer: {what} ({error})") from None
