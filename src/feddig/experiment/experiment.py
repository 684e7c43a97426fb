"""One experiment: everything that decides a run's numbers, one field per section of the TOML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from feddig.core.algorithms import BASES, Algorithm
from feddig.core.recipe import Recipe, read_recipe
from feddig.data.download import find_folder
from feddig.data.public_sets import PUBLISHED
from feddig.errors import SettingError
from feddig.privacy.mechanisms import MECHANISMS
from feddig.settings import (
    DRAWN,
    AbsenceSettings,
    AlgorithmSettings,
    DataSettings,
    DigestSettings,
    LoggingSettings,
    ModelSettings,
    ModeratorSettings,
    PrivacySettings,
    TrainingSettings,
    setting,
)

Value = TypeVar("Value")

DRAWN_SILOS = 4
"""How many silos are drawn where data.silos is left out."""


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers, apart from the device."""

    seed: int = setting(0, "the seed that all others derive from", least=0)
    """The seed that all others derive from."""
    data: DataSettings = field(default_factory=DataSettings)
    """`[data]`: the data set, and who holds which part."""
    absence: AbsenceSettings = field(default_factory=AbsenceSettings)
    """`[absence]`: who is away when."""
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    """`[algorithm]`: which algorithm, and the settings of its base."""
    digest: DigestSettings = field(default_factory=DigestSettings)
    """`[digest]`: how digests are mixed."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    """`[privacy]`: the noise on digests, and what it promises."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """`[model]`: the networks."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """`[training]`: rounds, and the local training of silos."""
    moderator: ModeratorSettings = field(default_factory=ModeratorSettings)
    """`[moderator]`: what FedDig adds at the moderator."""
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    """`[logging]`: extra records of a run."""

    @property
    def recipe(self) -> Recipe:
        """What the algorithm's name stands for."""
        return read_recipe(self.algorithm.name)

    @property
    def scenario_rounds(self) -> int:
        """The number of rounds that the absence scenario is drawn for."""
        return self.absence.rounds or self.training.rounds

    def with_rounds(self, rounds: int) -> "Experiment":
        """Return the experiment with this many rounds and the absence that it has now, not one that is drawn again."""
        drawn = self.scenario_rounds
        keep = self.absence.scenario != "none" and drawn != rounds
        return replace(
            self,
            training=replace(self.training, rounds=rounds),
            absence=replace(self.absence, rounds=drawn if keep else None),
        )

    def base_algorithm(self) -> Algorithm:
        """Build the base algorithm with its own settings."""
        base = self.recipe.base
        return BASES[base](**self.algorithm.bases.get(base, {}))

    def _bases_for_rounds(self) -> Mapping[str, Mapping[str, float]]:
        """Return the settings of the bases, with those filled in that follow from the number of rounds."""
        before = self.base_algorithm()
        after = before.planned(self.training.rounds)
        if after == before:
            return self.algorithm.bases
        return {**self.algorithm.bases, self.recipe.base: algorithm_settings(after)}

    @property
    def promises_privacy(self) -> bool:
        """Whether digests promise a record an epsilon: sound noise, from numbers that nobody can draw again."""
        sound = MECHANISMS[self.privacy.mechanism].epsilon_is == "record"
        return self.recipe.collects_digests and sound and self.privacy.random == "system"

    def say_promise(self) -> str:
        """Say in plain words what a record is promised, and what is not covered."""
        privacy, recipe = self.privacy, self.recipe
        unit, means = "record", "A record is one image, not one patient"
        if self.promises_privacy and privacy.unit == "group":
            unit, means = "group", "A group is all images that the data names as one, such as one patient's"
        if self.promises_privacy:
            epsilon = privacy.epsilon + (privacy.label_epsilon or 0)
            public = (
                "its class is public" if privacy.adjacency == "same-label" else "its class is covered too"
            )
            promised = f"epsilon {epsilon:g} and delta {privacy.delta:g} for the digest, and {public}"
        elif not recipe.collects_digests:
            promised = "nothing: there is no digest"
        elif MECHANISMS[privacy.mechanism].epsilon_is == "record":
            promised = "nothing: the noise comes from a seed, and anyone who knows it can remove the noise"
        elif not MECHANISMS[privacy.mechanism].epsilon_is:
            promised = "nothing: the digest has no noise"
        else:
            promised = f"nothing: {privacy.mechanism} bounds no record's epsilon"
        sent = "updates of the model, losses and validation accuracies"
        sent = sent if recipe.silos_train else "validation accuracies"
        return f"A {unit} is promised {promised}. Not covered: {sent}. {means}."

    def check_told(self, *, no_privacy: bool, otherwise: str = "say --no-privacy") -> None:
        """Refuse to go on with real data as long as nobody has chosen what a record is promised.

        `otherwise` is what else can be done.
        """
        if no_privacy or self.promises_privacy:
            return
        key, remedy = "privacy.mechanism", 'set "discrete-gaussian" with epsilon, delta and clip_bound'
        if not self.recipe.collects_digests:
            key, remedy = "algorithm.name", "choose one with digests and a privacy.mechanism"
        elif self.privacy.random != "system":
            key, remedy = "privacy.random", 'set "system"'
        raise SettingError(
            f"{key}: for real data, choose. {self.say_promise()} Either {remedy} (`feddig advise` finds settings), or "
            f"{otherwise}"
        )

    def located(self, data_dir: Path | None = None) -> "Experiment":
        """Make paths absolute: a relative data.path is taken from `data_dir`, others from the working folder.

        A public data set that is found on this computer gets its folder, so that a resumed run finds it again.
        """
        path, dealt, file = self.data.path, self.data.partition_file, self.absence.file
        folder = data_dir or Path()
        if path is None and self.data.name in PUBLISHED:
            found = find_folder(PUBLISHED[self.data.name], data_dir)
            path = str(found.absolute()) if found is not None else None
        return replace(
            self,
            data=replace(
                self.data,
                path=path and _absolute(path, folder),
                partition_file=dealt and _absolute(dealt, Path()),
            ),
            absence=replace(self.absence, file=file and _absolute(file, Path())),
            digest=replace(self.digest, encoder=_located_network(self.digest.encoder)),
            model=replace(self.model, classifier=_located_network(self.model.classifier)),
        )

    def resolved(self) -> "Experiment":
        """Fill in the settings that follow from others, so that the saved file leaves nothing open.

        Natural silos are counted when the data is read; until then their number, and an order by it, stay open.
        """
        whole, order = self.located(), self.absence.order
        silos = self.data.silos or (DRAWN_SILOS if self.data.partition in DRAWN else 0)
        if order == "auto" and silos:
            order = "index" if silos <= 4 else "random"
        joint_lr = self.moderator.joint_lr or self.training.lr
        plus = self.recipe.expert and self.recipe.silos_train
        threads = 1 if self.model.classifier == "small" else 0
        return replace(
            whole,
            data=replace(whole.data, silos=silos, seed=_given(self.data.seed, self.seed)),
            absence=replace(
                whole.absence,
                order=order,
                seed=_given(self.absence.seed, self.seed),
            ),
            digest=replace(whole.digest, seed=_given(self.digest.seed, self.seed)),
            algorithm=replace(
                whole.algorithm,
                prior_correction=_given(self.algorithm.prior_correction, plus),
                weighting=self.algorithm.weighting or BASES[self.recipe.base].weighting,
                bases=self._bases_for_rounds(),
            ),
            training=replace(whole.training, threads=_given(self.training.threads, threads)),
            moderator=replace(
                whole.moderator,
                joint_lr=joint_lr,
                guidance_lr=self.moderator.guidance_lr or joint_lr,
                votes=_given(self.moderator.votes, float(plus)),
            ),
        )


def algorithm_settings(algorithm: Algorithm) -> dict[str, float]:
    """Return the settings of an algorithm that are not left open."""
    return {name: value for name, value in vars(algorithm).items() if value is not None}


def _given(value: Value | None, otherwise: Value) -> Value:
    return otherwise if value is None else value


def _located_network(name: str) -> str:
    return _absolute(name, Path()) if name.endswith(".safetensors") else name


def _absolute(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute())
