"""Flower's private names: FedDig refuses to start if one is missing or has another shape."""

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.errors import FedDigError
from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import (
    NODE,
    SERVER_APP,
    SUPERLINK,
    TABLE,
    Name,
    check_flower,
)

pytestmark = pytest.mark.flower

SOURCE = Path(names.__file__).parents[2]
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
EACH = pytest.mark.parametrize("name", TABLE, ids=str)


def owner_of(name: Name) -> tuple[Any, str]:
    """Return the module or the class that holds a name, where a class may have inherited it."""
    owner, attribute = name._owner()
    holders = owner.__mro__ if isinstance(owner, type) else [owner]
    return next(holder for holder in holders if attribute in vars(holder)), attribute


def test_this_release_of_flower_has_every_name() -> None:
    check_flower()
    for process in (SUPERLINK, SERVER_APP, NODE):
        assert any(name.process == process for name in TABLE)


@EACH
def test_a_name_that_is_missing_is_refused(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = owner_of(name)
    if attribute == "__init__":  # every class inherits an __init__
        monkeypatch.setattr(owner, attribute, object.__init__)
    else:
        monkeypatch.delattr(owner, attribute)
    with pytest.raises(
        FedDigError, match=rf"flwr .* cannot be used: .*{attribute}.*; install flwr>=1\.41,<1\.42"
    ):
        check_flower(name.process)


@EACH
def test_a_name_of_another_shape_is_refused(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(something_else: Any) -> None:
        """A function with another parameter."""

    owner, attribute = owner_of(name)
    monkeypatch.setattr(owner, attribute, other)
    with pytest.raises(FedDigError, match=rf"cannot be used: .*{attribute} .*; install"):
        check_flower(name.process)


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (lambda obj: None, ""),
        (lambda obj, more=1, *rest, **others: None, ""),
        (lambda obj, more: None, "needs the parameter more"),
        (lambda given: None, r"has the parameters \(given\), not \(obj\)"),
        ("text", "cannot be called"),
    ],
)
def test_further_parameters_must_be_optional(
    ours: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flwr.supercore.inflatable.inflatable_object.get_object_tree", ours)
    if not message:
        check_flower(NODE)
        return
    with pytest.raises(FedDigError, match=message):
        check_flower(NODE)


def test_the_order_of_parameters_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents",
        lambda object_contents, object_id: None,
    )
    with pytest.raises(FedDigError, match=r"has the parameters \(object_contents, object_id\)"):
        check_flower(SERVER_APP)


def test_a_function_that_no_longer_uses_what_we_replace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.superlink.main._get_middleware", lambda: ())
    with pytest.raises(FedDigError, match="_get_middleware does not use extensions"):
        check_flower(SUPERLINK)


def test_no_other_module_imports_private_names() -> None:
    for file in SOURCE.rglob("*.py"):
        if file == Path(names.__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            private = [one for one in imported if re.match(r"flwr\b", one) and one not in PUBLIC]
            assert not private, f"{file}: {private}"


# deletes a name of Flower's, as if a release did not have it, and then runs one of our programs
WITHOUT = """
import importlib, runpy, sys
module, attribute, program = sys.argv[1:4]
delattr(importlib.import_module(module), attribute)
sys.argv = [program, *sys.argv[4:]]
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
PROGRAMS = {
    "node": (names.CONNECT, ["{address}"]),
    "superlink": (names.MIDDLEWARE, ["--insecure", "--host", "127.0.0.1", "--port", "0"]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_ends_before_it_connects(program: str, tmp_path: Path) -> None:
    name, options = PROGRAMS[program]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        given = [option.format(address=address) for option in options]
        module = f"feddig.federation.flower_1_41.{program}"
        done = subprocess.run(
            [sys.executable, "-P", "-c", WITHOUT, name.module, name.path, module, *given],
            env={**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):  # no connection was made
            listener.accept()
    assert done.returncode == 2
    assert re.search(
        rf"(^| ERROR )feddig: error: flwr .* cannot be used: {name} is missing; install", done.stderr, re.M
    )
