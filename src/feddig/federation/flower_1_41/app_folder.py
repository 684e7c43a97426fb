"""The Flower app that a moderator runs: a few files that point into this package."""

from pathlib import Path

from feddig._version import __version__

_PROJECT = """# The app of a FedDig federation, written by `feddig federation init`; its code is the installed feddig.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "feddig-federation"
version = "{version}"
description = "FedDig on Flower: a federation that remembers silos after they leave"
license = {{ file = "LICENSE" }}
dependencies = ["feddig", "flwr>=1.41,<1.42"]

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

_LICENCE = """FedDig is under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0
"""


def write_app(folder: Path) -> None:
    """Write the app into a new folder."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(_PROJECT.format(version=__version__), encoding="utf-8")
    (folder / "LICENSE").write_text(_LICENCE, encoding="utf-8")
