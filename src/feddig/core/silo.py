"""A silo: it makes its digest once, then trains when asked and replies with its update."""

import torch
from torch import nn

from feddig.core.algorithms import Algorithm
from feddig.core.local import Effort, Trainee, count_classes, log_prior_ratio, train_locally
from feddig.core.messages import Reply, Request
from feddig.core.samples import RawSamples
from feddig.core.workers import Worker
from feddig.digest.digest import Digest, make_digest
from feddig.errors import SettingError
from feddig.models.encoder import TRIED, check_codes, encoder_hash
from feddig.privacy.mechanisms import MECHANISMS
from feddig.settings import DigestSettings, PrivacySettings, TrainingSettings


class Silo:
    """One silo with its own training samples, which never leave it."""

    def __init__(
        self,
        index: int,
        samples: RawSamples,
        algorithm: Algorithm,
        training: TrainingSettings,
        seed: int,
        *,
        classes: int = 0,
        prior_correction: bool = False,
    ) -> None:
        self.index, self.samples = index, samples
        self._class_counts = count_classes(samples.labels, classes) if prior_correction else None
        self._algorithm, self._training, self._seed = algorithm, training, seed

    def make_digest(
        self, encoder: nn.Module, classes: int, settings: DigestSettings, privacy: PrivacySettings
    ) -> Digest:
        """Make the digest D that is sent once, before the silo's first round."""
        return make_digest_of(self.index, self.samples, encoder, classes, settings, privacy)

    def train(self, request: Request, worker: Worker) -> Reply:
        """Train the moderator's model on the raw data for some epochs and reply with the update."""
        own, prior = self._class_counts, None
        if own is not None and request.class_counts is not None:
            prior = log_prior_ratio(own, request.class_counts.to(own.device))
        # over the wire they come as CPU tensors
        device = worker.network.device
        weights, state = (
            request.weights.to(device),
            {name: one.to(device) for name, one in request.state.items()},
        )
        worker.network.load(weights)
        trained = train_locally(
            Trainee(worker.network, self._training.lr),
            self.samples,
            self._training,
            effort=Effort(self._training.local_epochs),
            stream=(self._seed, "batches", self.index, request.round),
            correction=self._algorithm.correction(weights, state),
            prior=prior,
            recorder=worker.recorder,
            who=f"silo {self.index}, round {request.round + 1}",
        )
        update = worker.network.vector - weights
        return Reply(
            self.index,
            request.round,
            update,
            trained.steps,
            len(self.samples),
            trained.loss,
            class_counts=own if request.wants_class_counts else None,
        )


def make_digest_of(
    silo: int,
    samples: RawSamples,
    encoder: nn.Module,
    classes: int,
    settings: DigestSettings,
    privacy: PrivacySettings,
) -> Digest:
    """Make the digest of a silo's samples, if the encoder's codes are what the mechanism relies on."""
    features = samples.features
    if features is None:
        raise ValueError("a silo whose samples have no features cannot make a digest")
    # values that are not finite are refused by make_digest
    if len(features) and bool(torch.isfinite(features).all()):
        lowest = float(features.min())
        if lowest < 0 and MECHANISMS[privacy.mechanism].epsilon_is:
            # the discrete mechanisms would cut it to zero, and the paper's tau bounds the distance of two codes only
            # if neither is negative
            raise SettingError(
                f"digest.encoder: gives a code of {lowest:.3g} for an image of silo {silo}, but {privacy.mechanism} "
                "relies on codes that are not below zero; end the encoder with a ReLU"
            )
        tried = torch.arange(min(TRIED, len(features)), device=features.device)
        check_codes(encoder, samples.images(tried))
    return make_digest(
        silo, features, samples.labels, classes,
        settings=settings, privacy=privacy, encoder=encoder_hash(encoder), groups=samples.groups,
    )  # fmt: skip
