"""How much work an audit may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes that an audit is capped at; what was really used stands in its report."""

    digests: int = 400
    """Digests with known members that are attacked."""
    pool: int = 10_000
    """Candidates for unmixing, members among them."""
    records: int = 2000
    """Members, and non-members, whose membership in the file is asked for."""
    canaries: int = 1000
    public: int = 10_000
    """Public images that attackers learn from."""
    inverted: int = 100
    """Digests that are turned into images."""
    training_steps: int = 1000
    """Of the pseudo-inverse; a denoiser gets as many."""
    changes: int = 300
    """Of an optimised image."""
    unmixing_work: int = 25_600
    """Digests times SpD squared, at most, because the search takes about that long."""
    largest_unmixed: int = 64
    """SpD up to which it is made at all."""

    def quick(self) -> "Effort":
        """Give sizes for two minutes on two cores."""
        return Effort(
            digests=min(self.digests, 150),
            pool=min(self.pool, 3000),
            records=min(self.records, 500),
            canaries=min(self.canaries, 500),
            public=min(self.public, 3000),
            inverted=min(self.inverted, 32),
            training_steps=min(self.training_steps, 250),
            changes=min(self.changes, 120),
            unmixing_work=min(self.unmixing_work, 2400),
            largest_unmixed=min(self.largest_unmixed, 16),
        )
