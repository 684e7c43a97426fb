"""A rehearsal: one data set dealt out to the silos' folders, exactly as an experiment in one process deals it.

So the same federation can be run in one process and compared number by number.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddig.data.images import Images
from feddig.data.lazy import choose
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.layout import Layout, lay_out


@dataclass(frozen=True)
class Rehearsal:
    """The data of a rehearsal, dealt out."""

    layout: Layout

    @classmethod
    def of(cls, experiment: Experiment) -> "Rehearsal":
        """Deal out the data of an experiment."""
        layout = lay_out(experiment)
        for silo, share in enumerate(layout.partition.shares):
            if not len(share.validation):
                raise SettingError(
                    f"data.split: leaves silo {silo} without validation images; give them a larger share"
                )
        return cls(layout)

    @property
    def experiment(self) -> Experiment:
        """The experiment, with nothing left open."""
        return self.layout.experiment

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.layout.dataset.train.pixels.shape[1:]
        return channels, height, width

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.layout.dataset.class_names

    def write_silo(self, path: Path, silo: int) -> None:
        """Write the images of a silo, in the order in which it would train on them in one process."""
        train, validation = self.layout.training_rows()[silo], self.layout.partition.shares[silo].validation
        x_train, y_train = _arrays(self.layout.dataset.train, train)
        x_test, y_test = _arrays(self.layout.dataset.train, validation)
        np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)

    def write_test_set(self, path: Path) -> None:
        """Write the moderator's test images."""
        test = self.layout.dataset.test
        x_test, y_test = _arrays(test, np.arange(len(test)))
        np.savez(path, x_test=x_test, y_test=y_test)


def _arrays(images: Images, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(choose(images.pixels, rows)), images.labels[rows]
