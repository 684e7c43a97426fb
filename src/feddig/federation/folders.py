"""Where everything of a federation lies: the organiser's folder, the moderator's, and one for each silo.

A moderator's or a silo's folder is whole in itself: it can be moved to another machine alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTRACT = "federation.toml"
RUN_SHEET = "RUN-SHEET.md"


@dataclass(frozen=True)
class SiloFolder:
    """What a silo holds."""

    path: Path

    @property
    def name(self) -> str:
        """The silo's name."""
        return self.path.name

    @property
    def contract(self) -> Path:
        """What all have agreed to."""
        return self.path / CONTRACT

    @property
    def key(self) -> Path:
        """The private key by which the moderator knows this silo; it never leaves."""
        return self.path / "key"

    @property
    def public_key(self) -> Path:
        """The public half, which the moderator registers."""
        return self.path / "key.pub"

    @property
    def ca(self) -> Path:
        """The certificate by which this silo knows its moderator."""
        return self.path / "ca.crt"

    @property
    def silo_file(self) -> Path:
        """Which silo this is, and where its data lies."""
        return self.path / "silo.toml"

    @property
    def released(self) -> Path:
        """What has left this silo: its digest, and the ledger."""
        return self.path / "released"

    @property
    def digest(self) -> Path:
        """The digest that was made, to be sent again as it is."""
        return self.released / "digest.safetensors"

    @property
    def ledger(self) -> Path:
        """The ledger of releases."""
        return self.released / "ledger.jsonl"

    @property
    def logs(self) -> Path:
        """What its processes said."""
        return self.path / "logs"

    @property
    def lock(self) -> Path:
        """Held by the process that is at work for this party."""
        return self.path / "lock"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder (FLWR_HOME)."""
        return self.path / "flwr"

    @property
    def programs(self) -> Path:
        """What its node starts instead of Flower's own programs."""
        return self.flower_home / "bin"

    @property
    def run_sheet(self) -> Path:
        """The commands for this silo's people."""
        return self.path / RUN_SHEET


@dataclass(frozen=True)
class ModeratorFolder:
    """What the moderator holds."""

    path: Path

    @property
    def contract(self) -> Path:
        """What all have agreed to."""
        return self.path / CONTRACT

    @property
    def ca(self) -> Path:
        """The certificate of the federation's authority."""
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The moderator's certificate."""
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        """The key of that certificate; it never leaves."""
        return self.path / "server.key"

    @property
    def public_keys(self) -> Path:
        """The public keys of the silos, NAME.pub each."""
        return self.path / "silos"

    @property
    def test_set(self) -> Path:
        """The moderator's own test images, which are optional: x_test and y_test in an npz file."""
        return self.path / "test.npz"

    @property
    def database(self) -> Path:
        """Where Flower's SuperLink keeps nodes and messages."""
        return self.path / "state.db"

    @property
    def run(self) -> Path:
        """The results folder."""
        return self.path / "run"

    @property
    def status(self) -> Path:
        """How the federation stands."""
        return self.path / "status.json"

    @property
    def app(self) -> Path:
        """The Flower app that is run."""
        return self.path / "app"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder (FLWR_HOME)."""
        return self.path / "flwr"

    @property
    def flower_config(self) -> Path:
        """Where Flower's commands find the SuperLink."""
        return self.flower_home / "config.toml"

    @property
    def logs(self) -> Path:
        """What its processes said."""
        return self.path / "logs"

    @property
    def lock(self) -> Path:
        """Held by the process that is at work for this party."""
        return self.path / "lock"

    @property
    def run_sheet(self) -> Path:
        """The commands for the moderator's people."""
        return self.path / RUN_SHEET

    def public_key(self, name: str) -> Path:
        """The public key of a silo."""
        return self.public_keys / f"{name}.pub"


@dataclass(frozen=True)
class FederationFolder:
    """What whoever sets a federation up holds, before the parts go to their parties."""

    path: Path

    @property
    def contract(self) -> Path:
        """What all have agreed to."""
        return self.path / CONTRACT

    @property
    def ca(self) -> Path:
        """The folder of the certificate authority."""
        return self.path / "ca"

    @property
    def ca_key(self) -> Path:
        """The authority's key, which goes to nobody."""
        return self.ca / "ca.key"

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which goes to everybody."""
        return self.ca / "ca.crt"

    @property
    def moderator(self) -> ModeratorFolder:
        """The moderator's part."""
        return ModeratorFolder(self.path / "moderator")

    @property
    def lock(self) -> Path:
        """Held by the process that is at work on the whole."""
        return self.path / "lock"

    def silo(self, name: str) -> SiloFolder:
        """The part of the silo of this name."""
        return SiloFolder(self.path / "silos" / name)

    def silos(self, names: Sequence[str]) -> list[SiloFolder]:
        """The parts of these silos."""
        return [self.silo(name) for name in names]
