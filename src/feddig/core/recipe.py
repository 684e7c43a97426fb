"""What an algorithm's name stands for: its base, its model, and what the moderator does with digests."""

from dataclasses import dataclass

from feddig.core.algorithms import BASES
from feddig.errors import SettingError, nearest

LARGE = "-large"
PLUS, EXPERT = "feddig-plus", "digest-expert"
FEDDIG = ("feddig", "feddig-no-recall", "feddig-no-joint")


@dataclass(frozen=True)
class Recipe:
    """What an algorithm does, read from its name."""

    name: str
    base: str = "fedavg"
    """The algorithm that corrects gradients and aggregates."""
    sees_features: bool = False
    """The larger model: it has F_D and sees the encoded feature next to the image."""
    collects_digests: bool = False
    silos_train: bool = True
    recall: bool = False
    joint: bool = False
    expert: bool = False
    """A digest expert decides together with the model that silos train, as feddig.core.plus says."""
    frozen: bool = False
    """Not trained again after the first leave."""
    centralised: bool = False
    """Trained on all silos' data in one place, as an upper bound."""

    def say(self) -> str:
        """Say in one sentence what it does."""
        if self.centralised:
            return "One model is trained on all silos' data in one place, as an upper bound; nobody is ever away."
        if not self.silos_train:
            what = "a classifier of digests" if self.expert else "the model"
            return f"Silos send their digests and never train; the moderator trains {what} on the digests."
        train = f"Silos train, and {self.base} aggregates their updates"
        if self.frozen:
            return f"{train} until the first silo leaves; then the model stays as it is."
        if self.expert:
            return (
                f"{train}; an absent silo votes with the last model that it returned, and a classifier of digests "
                "decides together with the model."
            )
        parts = [
            *(["a model that is trained on an absent silo's digest takes its place"] if self.recall else []),
            *(["after each round the moderator trains on all digests"] if self.joint else []),
        ]
        away = "" if self.recall else "; absent silos do not count"
        larger = (
            ", of a larger model that also sees encoded images" if self.sees_features and not parts else ""
        )
        return "; ".join([train + larger + away, *parts]) + "."


def read_recipe(name: str) -> Recipe:
    """Return what a name stands for; the error for an unknown name gives the nearest known one."""
    kind, plus, base = name.partition("+")
    base = base if plus else "fedavg"
    if kind in FEDDIG and base in BASES:
        return Recipe(
            name, base, sees_features=True, collects_digests=True,
            recall=kind != "feddig-no-recall", joint=kind != "feddig-no-joint",
        )  # fmt: skip
    if kind == PLUS and base in BASES:
        return Recipe(name, base, collects_digests=True, expert=True)
    if name == EXPERT:
        return Recipe(name, collects_digests=True, silos_train=False, expert=True)
    if kind == "frozen" and base in BASES:
        return Recipe(name, base, frozen=True)
    if name == "centralised":
        return Recipe(name, centralised=True)
    if name == "digests-only":
        return Recipe(name, sees_features=True, collects_digests=True, silos_train=False, joint=True)
    if name.removesuffix(LARGE) in BASES:
        return Recipe(name, name.removesuffix(LARGE), sees_features=name.endswith(LARGE))
    raise SettingError(f"algorithm.name: unknown algorithm {name!r}; {nearest(name, names())}")


def names() -> list[str]:
    """Return every name that can be run."""
    alone = [*BASES, *(base + LARGE for base in BASES), "centralised", "digests-only", EXPERT]
    over_a_base = [
        kind + tail for kind in (*FEDDIG, PLUS, "frozen") for tail in ("", *("+" + base for base in BASES))
    ]
    return alone + over_a_base
