"""No noise: the control of an experiment. It promises nothing."""

from collections.abc import Mapping

from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms.base import UPDATES, Fact, Mechanism, no_promise

NO_NOISE = "There is no noise, so nothing is promised, and no clip, so nothing bounds a record's part."


class NoNoise(Mechanism):
    """Send mixed features and labels as they are."""

    def noise_deviation(self, facts: Mapping[str, Fact], largest: float | None = None) -> float | None:
        """Return 0."""
        return 0.0

    def promise(self, facts: Mapping[str, Fact], elements: int) -> Promise:
        """Return the promise of nothing."""
        return no_promise(facts, "no noise: record epsilon is infinite", (NO_NOISE, UPDATES))
