"""The paths in a federation's folders: the whole folder that `init` writes, the moderator's, and one for each silo.

The moderator's folder and each silo's are complete in themselves and can be moved to another machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTRACT = "federation.toml"
RUN_SHEET = "RUN-SHEET.md"
CONTAINER = "Containerfile"


@dataclass(frozen=True)
class Folder:
    """A folder that holds the contract."""

    path: Path

    @property
    def contract(self) -> Path:
        """The contract."""
        return self.path / CONTRACT


@dataclass(frozen=True)
class PartyFolder(Folder):
    """What the folders of the moderator and of a silo have alike."""

    @property
    def ca(self) -> Path:
        """The certificate of the federation's authority, by which silos know their moderator."""
        return self.path / "ca.crt"

    @property
    def logs(self) -> Path:
        """The folder of its processes' log files."""
        return self.path / "logs"

    @property
    def flower_home(self) -> Path:
        """Flower's own folder (FLWR_HOME)."""
        return self.path / "flwr"

    @property
    def run_sheet(self) -> Path:
        """The page with its commands."""
        return self.path / RUN_SHEET

    @property
    def container(self) -> Path:
        """The file from which a container is built that runs it."""
        return self.path / CONTAINER


@dataclass(frozen=True)
class SiloFolder(PartyFolder):
    """The folder of a silo."""

    @property
    def name(self) -> str:
        """The silo's name."""
        return self.path.name

    @property
    def key(self) -> Path:
        """The private key by which the moderator knows this silo; it never leaves."""
        return self.path / "key"

    @property
    def public_key(self) -> Path:
        """The public half, which the moderator registers."""
        return self.path / "key.pub"

    @property
    def silo_file(self) -> Path:
        """The file that says which silo this is, and where its data lies."""
        return self.path / "silo.toml"

    @property
    def released(self) -> Path:
        """The folder with what has left this silo: its digest, the ledger, and its last answers."""
        return self.path / "released"

    @property
    def digest(self) -> Path:
        """The digest, which is sent again as it is."""
        return self.released / "digest.safetensors"

    @property
    def ledger(self) -> Path:
        """The ledger of releases."""
        return self.released / "ledger.jsonl"

    @property
    def answers(self) -> Path:
        """The folder of its last answers, of each kind and under each contract."""
        return self.released / "answers"

    @property
    def model(self) -> Path:
        """The trained model that the moderator sent last."""
        return self.path / "model.safetensors"

    @property
    def finished(self) -> Path:
        """The note that the federation has ended, with the hash of its model."""
        return self.path / "finished.json"

    @property
    def unit(self) -> Path:
        """The systemd unit that runs it."""
        return self.path / "feddig-silo.service"


@dataclass(frozen=True)
class ModeratorFolder(PartyFolder):
    """The folder of the moderator."""

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
    def run(self) -> Path:
        """The results folder."""
        return self.path / "run"

    @property
    def status(self) -> Path:
        """The file with the federation's state."""
        return self.path / "status.json"

    @property
    def pause(self) -> Path:
        """The file that is there while the operator lets the federation pause."""
        return self.path / "pause"

    @property
    def app(self) -> Path:
        """The Flower app that is run, written at each start."""
        return self.path / "app"

    @property
    def flower_config(self) -> Path:
        """The file that tells Flower's commands where the SuperLink is."""
        return self.flower_home / "config.toml"

    @property
    def unit(self) -> Path:
        """The systemd unit that runs it."""
        return self.path / "feddig-moderator.service"

    def public_key(self, name: str) -> Path:
        """Return the path of a silo's public key."""
        return self.public_keys / f"{name}.pub"


@dataclass(frozen=True)
class FederationFolder(Folder):
    """The folder that `federation init` writes; its subfolders are handed to the moderator and the silos."""

    @property
    def ca(self) -> Path:
        """The folder of the certificate authority."""
        return self.path / "ca"

    @property
    def ca_key(self) -> Path:
        """The authority's key, which is given to nobody."""
        return self.ca / "ca.key"

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which every party gets."""
        return self.ca / "ca.crt"

    @property
    def moderator(self) -> ModeratorFolder:
        """The moderator's folder."""
        return ModeratorFolder(self.path / "moderator")

    def silo(self, name: str) -> SiloFolder:
        """Return the folder of the silo of this name."""
        return SiloFolder(self.path / "silos" / name)

    def silos(self, names: Sequence[str]) -> list[SiloFolder]:
        """Return the folders of these silos."""
        return [self.silo(name) for name in names]
