"""A run in TensorBoard: event files in tensorboard/ of the results folder."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feddig.experiment.experiment import Experiment
from feddig.runs.loggers.base import LAST, Outcome, numbers_of, settings_of

FOLDER = "tensorboard"


class TensorBoardLog:
    """Scalars with the round as their step; at the end hyperparameters with the accuracies, and pictures."""

    name = "TensorBoard"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._experiment = experiment
        place = folder / FOLDER
        self.next_round = _rounds_in(place)
        # TensorBoard forgets steps from there on: those of a round that was cut off
        again = self.next_round if place.exists() else None
        self._writer = SummaryWriter(place, purge_step=again)

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Write a round's numbers through to the disk."""
        for name, value in numbers_of(row).items():
            self._writer.add_scalar(name, value, self.next_round)
        self._writer.flush()
        self.next_round += 1

    def finish(self, outcome: Outcome) -> None:
        """Write hyperparameters with what they led to, and the pictures."""
        measures = {f"accuracy/{name}": value for name, value in outcome.measures.items()}
        # in this same folder: TensorBoard would make a run of its own of any other
        self._writer.add_hparams(settings_of(self._experiment), measures, run_name=".")
        for name, png in outcome.pictures().items():
            with Image.open(BytesIO(png)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(name, pixels, self.next_round - 1, dataformats="HWC")
        self._writer.flush()

    def close(self, ended: str) -> None:
        """Close the event file."""
        self._writer.close()


def _rounds_in(folder: Path) -> int:
    """Count the whole rounds that the event files hold."""
    if not folder.exists():
        return 0
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0}).Reload()
    if LAST not in events.Tags()[SCALARS]:
        return 0
    steps = {event.step for event in events.Scalars(LAST)}
    # a gap cannot be filled afterwards, as TensorBoard wants steps in order: go on after what is whole
    return next(round for round in range(len(steps) + 1) if round not in steps)
