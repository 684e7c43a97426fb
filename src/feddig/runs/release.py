"""Work outside a run: make a silo's own digest, note its release, describe a digest file, prepare a public encoder.

An encoder can be trained on a public data set instead of generated images. Every silo gets the encoder, which may
reveal what it was trained on, so use it only with data that anybody may see.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import make_digest_of
from feddig.data.dataset import Dataset
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import lay_out, load_data
from feddig.files import content_hash, path_fingerprint, state_folder, write_atomically
from feddig.models.encoder import load_encoder
from feddig.models.train_encoder import EncoderTraining
from feddig.privacy.accounting import Budget
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import Entry
from feddig.settings import DataSettings


def digest_of_silo(experiment: Experiment, silo: int, *, all_data: bool = False, classes: int = 0) -> Digest:
    """Make the digest of a silo's share of the experiment's data, or of all of it."""
    experiment = experiment.resolved()
    if all_data:
        dataset = load_data(experiment)
        rows = np.arange(len(dataset.train))
    else:
        layout = lay_out(experiment)
        dataset, shares = layout.dataset, layout.partition.shares
        if silo not in range(len(shares)):
            raise SettingError(
                f"--silo: {silo} asked for, but data.silos is {len(shares)}; they count from 0"
            )
        rows = shares[silo].train
    if classes and classes < dataset.classes:
        raise SettingError(f"--classes: {classes} given, but the data has labels up to {dataset.classes - 1}")
    encoder = load_encoder(experiment.digest.encoder, padded_shape(dataset.train)[0])
    samples = RawSamples(ImageSource(dataset.train, encoder, torch.device("cpu")), rows)
    return make_digest_of(
        silo, samples, encoder, classes or dataset.classes, experiment.digest, experiment.privacy
    )


def note_release(
    ledger: Path | None, digest: Digest, experiment: Experiment, recipient: str, data: Path | None = None
) -> Entry:
    """Note in a ledger that this digest is about to leave, or refuse it if it is over the budget.

    `data` is where the silo's data lies. It has one ledger: that which charged it before, wherever a digest goes.
    """
    if data is None:
        assert ledger is not None
        return Ledger(ledger).release(digest.hash, digest.promise, recipient, budget_of(experiment))
    fingerprint = path_fingerprint(data)
    place = ledger_of(data, ledger, fingerprint)
    budget = budget_of(experiment)
    entry = Ledger(place).release(digest.hash, digest.promise, recipient, budget, fingerprint)
    remember_ledger(data, place, fingerprint)
    return entry


def budget_of(experiment: Experiment) -> Budget:
    """Return the most that an experiment lets a record be charged."""
    return Budget(experiment.privacy.budget_epsilon, experiment.privacy.budget_delta)


def ledger_of(data: Path, chosen: Path | None, fingerprint: str = "") -> Path:
    """Return the ledger of a silo's data: the chosen one, or one in the user's own folder.

    Data that was charged before, found by its place (or that of a folder around or in it) or by its content, keeps its
    ledger.
    """
    fingerprint = fingerprint or path_fingerprint(data)
    inside = sorted(each for each in data.iterdir() if each.is_dir()) if data.is_dir() else []
    places = [data.resolve(), *data.resolve().parents, *(each.resolve() for each in inside)]
    pointers = [_pointer(fingerprint), *(_pointer(content_hash(str(place).encode())) for place in places)]
    try:
        known = {Path(pointer.read_text().strip()) for pointer in pointers if pointer.exists()}
    except OSError as error:
        raise _unusable(error) from None
    if len(known) > 1:
        raise SettingError(
            f"{data}: is charged in several ledgers ({', '.join(map(str, sorted(known)))}), because parts of it were "
            "released from several places; keep each in its own place"
        )
    for found in known:
        if not found.exists():
            raise FileFormatError(
                f"{found}: this data's ledger is gone, so what was spent is not known; put it back"
            )
        if chosen is not None and found.absolute() != chosen.absolute():
            raise SettingError(
                f"{chosen}: {data} is charged in another ledger; give {found}, so that costs add up"
            )
        return found
    return (chosen or _pointer(f"{fingerprint[:16]}.jsonl")).absolute()


def remember_ledger(data: Path, ledger: Path, fingerprint: str) -> None:
    """Keep where the ledger of this data is, by its content and by its place."""
    try:
        for name in (fingerprint, content_hash(str(data.resolve()).encode())):
            write_atomically(_pointer(name), f"{ledger}\n")
    except OSError as error:
        raise _unusable(error) from None


def _pointer(name: str) -> Path:
    return state_folder() / "ledgers" / name


def _unusable(error: OSError) -> FedDigError:
    return FedDigError(
        f"{state_folder() / 'ledgers'}: cannot be used ({error.strerror}), and it says where the ledgers of data are; "
        "correct that, or set XDG_STATE_HOME to a folder that can be written"
    )


def describe_digest(path: Path) -> dict[str, Any]:
    """Read a digest file and return what it holds and what it promises."""
    digest = read_digest(path)
    facts = digest.facts
    shape = tuple(digest.features.shape[1:])
    source = {
        "system": "the system's entropy",
        "seeded": "a seed, for simulation only: anyone who knows it can remove the noise",
    }
    return {
        "silo": digest.silo,
        "digests": len(digest),
        "samples_mixed": digest.samples,
        "samples_left_out": facts["left_out"],
        "feature_shape": list(shape),
        "feature_range": [round(float(edge), 4) for edge in (digest.features.min(), digest.features.max())],
        "classes": int(digest.labels.shape[1]),
        # how many samples of each class, where the weights are equal
        "label_mass": [round(float(mass) * digest.samples / len(digest), 1) for mass in digest.labels.sum(0)],
        "bytes": digest.size,
        **{
            key: facts[key]
            for key in ("samples_per_digest", "mixing", "weights", "mechanism", "epsilon", "scale_size")
        },
        **{key: facts[key] for key in digest.mechanism.fact_types},
        "random": source.get(str(facts["random"]), facts["random"]),
        "promise": ("not private: " if facts["random"] == "seeded" else "") + digest.promise.sentence,
        "encoder": facts["encoder"],
        "hash": digest.hash,
    }


def load_public(name: str, path: Path | None, data_dir: Path | None) -> Dataset:
    """Load a data set as an experiment with this data.name, data.path and --data-dir would."""
    data = DataSettings(name=name, path=str(path) if path is not None else None)
    return load_data(Experiment(data=data).located(data_dir))


def check_channels(dataset: Dataset, wanted: int | None) -> int:
    """Return the number of channels of the images; raise an error if another number was asked for."""
    channels = padded_shape(dataset.train)[0]
    if wanted is not None and wanted != channels:
        raise SettingError(
            f"--channels: {wanted} asked for, but the images of {dataset.name} have {channels}; leave it out"
        )
    return channels


def training_on(dataset: Dataset) -> EncoderTraining:
    """Return the shipped encoders' training, but on the set's training images, padded as silos see them."""
    source = ImageSource(dataset.train, None, torch.device("cpu"))

    def draw(count: int, channels: int, generator: torch.Generator) -> Tensor:
        return source.images(torch.randint(len(source), (count,), generator=generator))

    return EncoderTraining(f"images of {dataset.name}, noisy code", draw)


def facts_about(dataset: Dataset) -> dict[str, str]:
    """Return the facts about the training data that the encoder's file records."""
    return {
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint(),
        "data_images": str(len(dataset.train)),
    }
