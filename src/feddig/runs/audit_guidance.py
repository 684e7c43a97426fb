"""The guidance that a moderator would learn from a silo's digests, for the audit's pictures where no run gave one."""

from dataclasses import replace

import torch
from torch import nn

from feddig.core.moderator import Moderator
from feddig.core.workers import build_lanes
from feddig.digest.digest import Digest
from feddig.experiment.experiment import Experiment
from feddig.experiment.networks import Networks, build_networks
from feddig.models.flat import FlatNetwork
from feddig.settings import ModelSettings, ModeratorSettings, TrainingSettings

STEPS = 200
"""Joint steps: as many as docs/privacy.md shows guidance after."""
TRAINING = TrainingSettings(batch=64, lr=0.01, clip_norm=1.0)
"""Gradients are kept short, because an audit's digests may have noise of any strength."""


def learn_guidance(
    digest: Digest, encoder: nn.Module, image_shape: tuple[int, int, int], *, seed: int, steps: int = STEPS
) -> nn.Module:
    """Hold the digests as a moderator does, update jointly, and give the guidance producer P_G that this leaves."""
    experiment = Experiment(
        seed=seed,
        model=ModelSettings(classifier="small"),
        training=TRAINING,
        moderator=ModeratorSettings(joint_steps=steps),
    )
    classes = int(digest.labels.shape[1])
    _, classifier, guidance = build_networks(experiment, image_shape, classes, Networks(encoder=encoder))
    assert guidance is not None
    producer = FlatNetwork(guidance, torch.device("cpu"))
    moderator = Moderator(
        silos=1,
        algorithm=experiment.base_algorithm(),
        lanes=build_lanes(FlatNetwork(classifier, torch.device("cpu")), bf16=False, record=False),
        guidance_producer=producer,
        training=experiment.training,
        settings=experiment.moderator,
        weighting=experiment.algorithm.weighting,
        seed=seed,
    )
    # the only silo here, whatever number it has in its federation
    moderator.hold([replace(digest, silo=0)])
    moderator.joint_update(0)
    return producer.module.eval().requires_grad_(False)
