"""The moderator's side: keep digests, recall the absent, aggregate, update jointly."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from feddig.algorithms import Algorithm, Memory, Round
from feddig.digest import Digest, check_digest
from feddig.errors import DivergenceError, FileFormatError
from feddig.local import Effort, Trained, Trainee, train_locally
from feddig.messages import Reply, Request
from feddig.models.flat import FlatNetwork
from feddig.samples import DigestSamples
from feddig.settings import ModeratorSettings, TrainingSettings


class Moderator:
    """Holds the model M, the guidance producer P_G, the digests and the algorithm's memory.

    The memory mirrors each silo's own state, because it follows from updates that the moderator sees.
    A recall model continues its silo's mirror, and a silo that returns is sent the mirror with the model.
    """

    def __init__(
        self,
        *,
        silos: int,
        algorithm: Algorithm,
        classifier: FlatNetwork,
        guidance_producer: FlatNetwork | None,
        training: TrainingSettings,
        settings: ModeratorSettings,
        weighting: str,
        seed: int,
    ) -> None:
        self.silos, self.algorithm, self.guidance_producer = silos, algorithm, guidance_producer
        self.weights = classifier.weights()
        self.memory = algorithm.start(self.weights, silos)
        self.samples = [0] * silos
        """How many samples each silo last trained on; 0 before it joins."""
        self.digests: dict[int, Digest] = {}
        self._classifier, self._training, self._settings = classifier, training, settings
        self._weighting, self._seed = weighting, seed

    def push(self, round: int) -> list[Request]:
        """Address the model M to every silo; who does not answer is absent."""
        return [Request(silo, round, self.weights, self.memory.silos[silo]) for silo in range(self.silos)]

    def hold(self, digests: Iterable[Digest]) -> None:
        """Take in digests, each checked first."""
        for digest in digests:
            check_digest(digest, f"digest of silo {digest.silo}")
            if digest.silo not in range(self.silos):
                raise FileFormatError(
                    f"digest of silo {digest.silo}: there are only silos 0 to {self.silos - 1}"
                )
            for held in self.digests.values():
                if _shapes(held) != _shapes(digest):
                    raise FileFormatError(
                        f"digest of silo {digest.silo}: features and classes are shaped {_shapes(digest)}, "
                        f"those of silo {held.silo} {_shapes(held)}; use the federation's encoder and classes"
                    )
            self.digests[digest.silo] = digest.to(self._classifier.device)

    def recall(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """Stand in for each absent silo whose digest is held."""
        answered = {reply.silo for reply in replies}
        absent = [request for request in requests if request.silo not in answered]
        return [self._stand_in(request) for request in absent if request.silo in self.digests]

    def _stand_in(self, request: Request) -> Reply:
        """Train a recall model, a copy of M, on the silo's digest, exactly as the silo trains on its data."""
        assert self.guidance_producer is not None
        digest = self.digests[request.silo]
        self._classifier.load(request.weights)
        trained = train_locally(
            Trainee(self._classifier, self._training.lr),
            DigestSamples([digest], self.guidance_producer.module, train_guidance=False),
            self._training,
            effort=Effort(self._training.local_epochs),
            stream=(self._seed, "recall", request.silo, request.round),
            correction=self.algorithm.correction(request.weights, request.state),
            who=f"recall of silo {request.silo}, round {request.round}",
        )
        update = self._classifier.vector - request.weights
        return Reply(request.silo, request.round, update, trained.steps, digest.samples, trained.loss)

    def aggregate(self, round: int, replies: Sequence[Reply]) -> None:
        """Turn real and recalled updates alike into the model A; without any, everything stays."""
        if not replies:
            return
        for reply in replies:
            self.samples[reply.silo] = reply.samples
        importance: list[float] = (
            [1.0] * self.silos if self._weighting == "equal" else [*map(float, self.samples)]
        )
        in_order = sorted(replies, key=lambda reply: reply.silo)
        facts = Round(round, self.weights, in_order, importance, self._training.momentum)
        self.weights, self.memory = self.algorithm.aggregate(facts, self.memory)
        if not bool(torch.isfinite(self.weights).all()):
            raise DivergenceError(
                f"round {round}: the aggregated weights are not finite; lower training.lr or the algorithm's strength"
            )

    def joint_update(self, round: int) -> Trained | None:
        """Train A and P_G together on every digest held: that is M for the next round."""
        if not self.digests:
            return None
        assert self.guidance_producer is not None
        settings = self._settings
        joint_lr = settings.joint_lr or self._training.lr
        self._classifier.load(self.weights)
        held = [self.digests[silo] for silo in sorted(self.digests)]
        trained = train_locally(
            Trainee(self._classifier, joint_lr),
            DigestSamples(held, self.guidance_producer.module, train_guidance=True),
            self._training,
            effort=Effort(settings.joint_epochs, settings.joint_steps, settings.digest_budget),
            stream=(self._seed, "joint", round),
            companions=[Trainee(self.guidance_producer, settings.guidance_lr or joint_lr)],
            who=f"joint update, round {round}",
        )
        self.weights = self._classifier.weights()
        return trained

    def parameter_norm(self) -> float:
        """Give the length of the weights: a collapse shows here before it shows in the accuracy."""
        return float(self.weights.norm())

    def state(self) -> dict[str, Tensor]:
        """Give all that the next round depends on, apart from the digests."""
        state = {"weights": self.weights, "samples": torch.tensor(self.samples)}
        if self.guidance_producer is not None:
            state["guidance"] = self.guidance_producer.weights()
        state |= {f"shared.{name}": tensor for name, tensor in self.memory.shared.items()}
        for silo, memory in enumerate(self.memory.silos):
            state |= {f"silo.{silo}.{name}": tensor for name, tensor in memory.items()}
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take such a state over."""
        device = self._classifier.device
        if state["weights"].shape != self.weights.shape:
            raise FileFormatError(
                f"checkpoint: of a model of {len(state['weights']):,} parameters, not {len(self.weights):,}; "
                "experiment.toml was changed since"
            )
        self.weights = state["weights"].to(device)
        self.samples = [int(count) for count in state["samples"]]
        if self.guidance_producer is not None:
            self.guidance_producer.load(state["guidance"].to(device))
        shared = {name: state[f"shared.{name}"].to(device) for name in self.memory.shared}
        silos = tuple(
            {name: state[f"silo.{silo}.{name}"].to(device) for name in memory}
            for silo, memory in enumerate(self.memory.silos)
        )
        self.memory = Memory(shared, silos)


def _shapes(digest: Digest) -> tuple[tuple[int, ...], int]:
    return tuple(digest.features.shape[1:]), digest.labels.shape[1]
