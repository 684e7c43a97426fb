"""Log a run to TensorBoard: event files in tensorboard/ of the results folder."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feddig.experiment.experiment import Experiment
from feddig.report.run_files import read_class_names
from feddig.runs.loggers.base import LAST_NUMBER, FinishedRun, numbers_of, settings_of

FOLDER = "tensorboard"


class TensorBoardLog:
    """Scalars with the round as their step; at the end hyperparameters with the accuracies, and pictures."""

    name = "TensorBoard"

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._experiment, self._classes = experiment, read_class_names(folder)
        path = folder / FOLDER
        self.next_round = _count_rounds(path)
        # TensorBoard ignores earlier events from this step on: those of an interrupted round
        purge_step = self.next_round if path.exists() else None
        self._writer = SummaryWriter(path, purge_step=purge_step)

    def log_round(self, row: Mapping[str, Any]) -> None:
        """Write a round's numbers to disk."""
        for name, value in numbers_of(row, self._classes).items():
            self._writer.add_scalar(name, value, self.next_round)
        self._writer.flush()
        self.next_round += 1

    def finish(self, run: FinishedRun) -> None:
        """Write hyperparameters with the accuracies, and pictures."""
        measures = {f"accuracy/{name}": value for name, value in run.measures.items()}
        # in the same folder, because TensorBoard treats every other folder as another run
        self._writer.add_hparams(settings_of(self._experiment), measures, run_name=".")
        for name, png in run.pictures().items():
            with Image.open(BytesIO(png)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(name, pixels, self.next_round - 1, dataformats="HWC")
        self._writer.flush()

    def close(self, ended: str) -> None:
        """Close the event file."""
        self._writer.close()


def _count_rounds(folder: Path) -> int:
    """Count the complete rounds in the event files."""
    if not folder.exists():
        return 0
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0}).Reload()
    if LAST_NUMBER not in events.Tags()[SCALARS]:
        return 0
    steps = {event.step for event in events.Scalars(LAST_NUMBER)}
    # TensorBoard needs steps in order, so logging continues at the first missing round
    return next(round for round in range(len(steps) + 1) if round not in steps)
