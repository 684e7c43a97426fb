"""The program that a silo's node starts for every message imports only what it needs, to start fast."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

pytestmark = pytest.mark.flower

# it ends at its missing arguments, before it would ask the node for its message
SCRIPT = """
import json, sys
from feddig.federation.flower_1_41 import local_app
sys.argv = ["flwr-clientapp"]
try:
    local_app.main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
NEEDLESS = (
    "matplotlib", "pooch", "PIL.Image",
    "feddig.cli", "feddig.report", "feddig.federation.moderator",
    "sqlalchemy", "alembic", "uvicorn", "flwr.supernode.start_client_internal",
)  # fmt: skip


def test_an_app_imports_no_more_than_it_needs_to_train() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--runtime-api-address" in done.stderr, "it came as far as its arguments"
    imported = set(json.loads(done.stdout))
    assert {"torch", "feddig.federation.client_app", "flwr.supernode.runtime.run_clientapp"} <= imported
    assert imported.isdisjoint(NEEDLESS), sorted(imported.intersection(NEEDLESS))
