"""The networks of an experiment: those that it names, or a user's own."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.models.check import check_networks
from feddig.models.classifier import SIZES, build_classifier
from feddig.models.encoder import feature_shape, load_encoder
from feddig.models.guidance import build_guidance
from feddig.seeds import derive


@dataclass(frozen=True)
class Networks:
    """A user's own networks, in place of those the experiment names. They are copied, never changed."""

    encoder: nn.Module | None = None
    """P_R: image to non-negative feature; fixed."""
    guidance: nn.Module | None = None
    """P_G: feature to something shaped like an image."""
    classifier: nn.Module | None = None
    """M: called with (image) or (image, feature), gives logits."""
    raw_extractor: nn.Module | None = None
    """F_R inside the named classifier."""


def build_networks(
    experiment: Experiment, image_shape: tuple[int, int, int], classes: int, given: Networks
) -> tuple[nn.Module | None, nn.Module, nn.Module | None]:
    """Build P_R, M and P_G as far as the algorithm needs them, and check that they fit together."""
    recipe, model = experiment.recipe, experiment.model
    given = copy.deepcopy(given)
    encoder, guidance, code = None, None, None
    if recipe.sees_features:
        encoder = given.encoder
        if encoder is None:
            encoder = load_encoder(experiment.digest.encoder, image_shape[0])
        encoder = encoder.eval().requires_grad_(False)
        code = feature_shape(encoder, image_shape)
    classifier = given.classifier
    if given.raw_extractor is not None and (classifier is not None or model.classifier not in SIZES):
        raise SettingError(
            "Networks.raw_extractor: goes into a named classifier; a classifier of your own has its own"
        )
    if classifier is None:
        with _initial_weights(experiment, "classifier"):
            classifier = build_classifier(model.classifier, image_shape, classes, code, given.raw_extractor)
    if recipe.collects_digests and code is not None:
        guidance = given.guidance
        if guidance is None:
            with _initial_weights(experiment, "guidance"):
                guidance = build_guidance(model.guidance, code, image_shape)
    check_networks(classifier, guidance, image_shape=image_shape, feature_shape=code, classes=classes)
    return encoder, classifier, guidance


@contextmanager
def _initial_weights(experiment: Experiment, name: str) -> Iterator[None]:
    """Draw a network's initial weights from its own stream, and leave torch's global one as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(experiment.seed, "initial weights", name))
        yield
