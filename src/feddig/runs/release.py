"""Digests outside a run: make a silo's own, note its release, describe a digest file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import make_digest_of
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import lay_out, load_data
from feddig.models.encoder import load_encoder
from feddig.privacy.accounting import Budget
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import Entry


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


def note_release(ledger: Path, digest: Digest, experiment: Experiment, recipient: str) -> Entry:
    """Note in a silo's ledger that this digest is about to leave, or refuse it if it is over the budget."""
    privacy = experiment.privacy
    budget = Budget(privacy.budget_epsilon, privacy.budget_delta)
    return Ledger(ledger).release(digest.hash, digest.promise, recipient, budget)


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
        "promise": digest.promise.sentence,
        "encoder": facts["encoder"],
        "hash": digest.hash,
    }
