"""The moderator: it holds digests, trains on them, and aggregates updates into the model."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from feddig.core.algorithms import Algorithm, Memory, Round
from feddig.core.local import Effort, Trained, Trainee, count_in_digest, log_prior_ratio, train_locally
from feddig.core.messages import Reply, Request, State
from feddig.core.plus import Votes, coverage, train_expert
from feddig.core.samples import DigestSource, Samples
from feddig.core.workers import Done, Worker, WorkerPool
from feddig.digest.digest import Digest, check_digest
from feddig.errors import DivergenceError, FileFormatError
from feddig.models.flat import FlatNetwork
from feddig.settings import ModeratorSettings, TrainingSettings

log = logging.getLogger("feddig")

GROWTH = 3.0
"""A model whose norm grows by more than this factor is warned of, where its algorithm has advice."""


@dataclass(frozen=True)
class Recalling:
    """Recall models in training."""

    futures: Sequence[Future[Done[Reply]]]

    def finish(self) -> list[Reply]:
        """Wait for the recall models and return their updates."""
        done = [future.result() for future in self.futures]
        return [replace(one.result, seconds=one.seconds) for one in done]


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
        workers: WorkerPool,
        guidance_producer: FlatNetwork | None,
        expert: FlatNetwork | None = None,
        training: TrainingSettings,
        settings: ModeratorSettings,
        weighting: str | None,
        seed: int,
        prior_correction: bool = False,
    ) -> None:
        self.silos, self.algorithm, self.guidance_producer = silos, algorithm, guidance_producer
        self.weights = workers.first.network.weights()
        self._first_norm, self._has_grown = self.parameter_norm(), False
        self.memory = algorithm.start(self.weights, silos)
        self.samples = [0] * silos
        """How many samples each silo last trained on; 0 before it joins."""
        self.digests: dict[int, Digest] = {}
        self.expert = expert
        """The digest expert of FedDig+."""
        self._expert_is_due = False
        self._votes = Votes(silos, keep=bool(settings.votes))
        self._forgotten: set[int] = set()
        self._class_counts: dict[int, Tensor] = {}
        """Of silos without a digest, where the loss is prior-corrected."""
        self._prior_correction = prior_correction
        self._workers, self._training, self._settings = workers, training, settings
        self._to_recall: DigestSource | None = None
        self._to_train_on: DigestSource | None = None
        self._weighting, self._seed = weighting or algorithm.weighting, seed

    def push(self, round: int) -> list[Request]:
        """Return a request to every silo; a silo that does not reply is absent."""
        counts = self._federation_counts() if self._prior_correction else None
        return [
            Request(
                silo,
                round,
                self.weights,
                self.memory.silos[silo],
                counts,
                self._prior_correction and silo not in self.digests and silo not in self._class_counts,
            )
            for silo in range(self.silos)
        ]

    def _federation_counts(self) -> Tensor | None:
        """Return the federation's samples of each class, from digests and from what silos without one replied."""
        known = [count_in_digest(self.digests[silo]) for silo in sorted(self.digests)]
        known += [self._class_counts[silo] for silo in sorted(self._class_counts) if silo not in self.digests]
        return torch.stack(known).sum(0) if known else None

    def hold(self, digests: Iterable[Digest]) -> None:
        """Check these digests and hold them."""
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
            self.digests[digest.silo] = digest.to(self._device)
            self._to_recall = self._to_train_on = None
            self._expert_is_due = True

    def begin_recall(self, requests: Sequence[Request]) -> Recalling:
        """Start to train the recall models of these silos, as far as their digests are held."""
        held = [request for request in requests if request.silo in self.digests]
        if held:
            self._pool_digests()
        return Recalling([self._workers.submit(self._stand_in(request)) for request in held])

    def recall(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[Reply]:
        """Return the recall models' updates for the silos that did not reply and whose digests are held."""
        answered = {reply.silo for reply in replies}
        return self.begin_recall([request for request in requests if request.silo not in answered]).finish()

    def seconds_of(self, stand_ins: Sequence[Reply]) -> float:
        """Return the seconds that recall models took, divided by the number of workers."""
        return sum(reply.seconds for reply in stand_ins) / self._workers.count

    def _stand_in(self, request: Request) -> Callable[[Worker], Reply]:
        """Train a recall model, a copy of M, on the silo's digest, exactly as the silo trains on its data."""
        assert self._to_recall is not None
        digest, samples = self.digests[request.silo], self._to_recall.of(request.silo)
        prior = None
        if request.class_counts is not None:
            prior = log_prior_ratio(count_in_digest(digest), request.class_counts)

        def train(worker: Worker) -> Reply:
            worker.network.load(request.weights)
            trained = train_locally(
                Trainee(worker.network, self._training.lr),
                samples,
                self._training,
                effort=Effort(self._settings.recall_epochs or self._training.local_epochs),
                stream=(self._seed, "recall", request.silo, request.round),
                correction=self.algorithm.correction(request.weights, request.state),
                prior=prior,
                recorder=worker.recorder,
                who=f"recall of silo {request.silo}, round {request.round + 1}",
            )
            update = worker.network.vector - request.weights
            return Reply(request.silo, request.round, update, trained.steps, digest.samples, trained.loss)

        return train

    def aggregate(self, round: int, replies: Sequence[Reply], stand_ins: Sequence[Reply] = ()) -> None:
        """Aggregate real and recalled updates into the model A; without any, the model stays."""
        for reply in replies:
            if reply.class_counts is not None:
                self._class_counts[reply.silo] = reply.class_counts.to(self._device)
        before = self.weights
        voters = self._votes.of_absent(replies, before) if self._settings.votes else {}
        stand_ins = [self._with_vote(reply, voters.pop(reply.silo, None)) for reply in stand_ins]
        self._votes.take(replies, before)
        if not (replies or stand_ins or voters):
            return
        for reply in (*replies, *stand_ins):
            self.samples[reply.silo] = reply.samples
        importance: list[float] = (
            [1.0] * self.silos if self._weighting == "equal" else [*map(float, self.samples)]
        )
        for silo in self._forgotten:
            importance[silo] = 0.0
        for silo in voters:
            importance[silo] *= self._settings.votes or 0
        in_order = sorted([*replies, *stand_ins, *voters.values()], key=lambda reply: reply.silo)
        facts = Round(round, self.weights, in_order, importance, self._training.momentum)
        self.weights, self.memory = self.algorithm.aggregate(facts, self.memory)
        if not bool(torch.isfinite(self.weights).all()):
            raise DivergenceError(
                f"round {round + 1}: the aggregated weights are not finite; lower training.lr or the algorithm's "
                "strength"
            )
        self._warn_of_growth(round)
        self._votes.follow(replies, self.weights)

    def _warn_of_growth(self, round: int) -> None:
        """Warn once if the model has grown so much that its base algorithm is the likely cause."""
        advice = self.algorithm.advice_on_growth()
        if advice is None or self._has_grown:
            return
        norm = self.parameter_norm()
        if norm <= GROWTH * self._first_norm:
            return
        self._has_grown = True
        log.warning(
            "round %d: the model's norm is %.3g, more than %g times its first %.3g; %s",
            round + 1, norm, GROWTH, self._first_norm, advice,
        )  # fmt: skip

    def _with_vote(self, stand_in: Reply, vote: Reply | None) -> Reply:
        """Mix a recall model's update with its silo's vote."""
        if vote is None:
            return stand_in
        return replace(stand_in, update=torch.lerp(stand_in.update, vote.update, self._settings.votes or 0))

    def joint_update(self, round: int) -> Trained | None:
        """Train A and P_G jointly on all held digests; the result is M of the next round."""
        if not self.digests:
            return None
        self._pool_digests()
        return self._workers.run_alone(lambda worker: self._train_jointly(round, worker))

    def _train_jointly(self, round: int, worker: Worker) -> Trained:
        assert self.guidance_producer is not None
        assert self._to_train_on is not None
        settings = self._settings
        joint_lr = settings.joint_lr or self._training.lr
        worker.network.load(self.weights)
        trained = train_locally(
            Trainee(worker.network, joint_lr),
            Samples(self._to_train_on),
            self._training,
            effort=Effort(settings.joint_epochs, settings.joint_steps, self._within_budget()),
            stream=(self._seed, "joint", round),
            companions=[Trainee(self.guidance_producer, settings.guidance_lr or joint_lr)],
            recorder=worker.recorder,
            who=f"joint update, round {round + 1}",
        )
        self.weights = worker.network.weights()
        return trained

    def update_expert(self) -> Trained | None:
        """Train the digest expert if a digest has arrived since it was trained."""
        if self.expert is None or not self._expert_is_due:
            return None
        self._expert_is_due = False
        return train_expert(
            self.expert, self._held(), noise_aware=self._settings.noise_aware, seed=self._seed
        )

    def model(self) -> Tensor:
        """Return the weights of the model that is evaluated and published; in FedDig+ those of the committee."""
        if self.expert is None:
            return self.weights
        if self.digests:
            expert, covered = self.expert.vector, coverage(self._held(), self._votes.rounds.tolist())
        else:  # M decides alone
            expert, covered = (
                torch.zeros_like(self.expert.vector),
                torch.ones_like(self.expert.parameters[-1]),
            )
        return torch.cat([covered, self.weights, expert])  # in the order of the committee's parameters

    def _held(self) -> list[Digest]:
        return [self.digests[silo] for silo in sorted(self.digests)]

    def _within_budget(self) -> Callable[[torch.Generator], Tensor] | None:
        """Return a function that draws the digests of a pass, or None if the joint update uses all."""
        budget, held = self._settings.digest_budget, self._held()
        if not budget or budget >= sum(map(len, held)):
            return None
        silos = np.repeat(sorted(self.digests), [len(digest) for digest in held])
        classes = np.concatenate([digest.labels.argmax(1).cpu().numpy() for digest in held])
        return lambda stream: draw_fairly(silos, classes, budget, stream)

    def _pool_digests(self) -> None:
        """Pool the held digests as samples, unless that is done."""
        if self._to_recall is None:
            assert self.guidance_producer is not None
            self._to_recall = DigestSource(
                self._held(), self.guidance_producer.module, noise_aware=self._settings.noise_aware
            )
            self._to_train_on = self._to_recall.with_guidance_in_training()
            self.digests = self._to_recall.digests()

    @property
    def _device(self) -> torch.device:
        return self._workers.first.network.device

    def parameter_norm(self) -> float:
        """Return the norm of the weights; a collapse shows here before it shows in the accuracy."""
        return float(self.weights.norm())

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next round depends on, apart from the digests."""
        state = {"weights": self.weights, "samples": torch.tensor(self.samples)}
        if self.guidance_producer is not None:
            state["guidance"] = self.guidance_producer.weights()
        state |= {f"shared.{name}": tensor for name, tensor in self.memory.shared.items()}
        for silo, memory in enumerate(self.memory.silos):
            state |= {f"silo.{silo}.{name}": tensor for name, tensor in memory.items()}
        if self._settings.votes or self.expert is not None:
            state |= self._votes.state()
        if self.expert is not None and self.digests and not self._expert_is_due:
            state["expert"] = self.expert.weights()
        return state | {f"class_counts.{silo}": counts for silo, counts in self._class_counts.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load such a state; the digests of that time are held already.

        Silos that have joined the federation since are not in it.
        """
        device = self._device
        if state["weights"].shape != self.weights.shape:
            raise FileFormatError(
                f"checkpoint: of a model of {len(state['weights']):,} parameters, not {len(self.weights):,}; "
                "experiment.toml was changed since"
            )
        self.weights = state["weights"].to(device)
        known = [int(count) for count in state["samples"]]
        self.samples = known + [0] * (self.silos - len(known))
        if self.guidance_producer is not None:
            self.guidance_producer.load(state["guidance"].to(device))

        def load(where: str, fresh: State) -> State:
            # files hold a single number as a list of one
            return {name: state[f"{where}.{name}"].to(device).view_as(one) for name, one in fresh.items()}

        silos = (
            load(f"silo.{silo}", fresh) if silo < len(known) else fresh
            for silo, fresh in enumerate(self.memory.silos)
        )
        self.memory = Memory(load("shared", self.memory.shared), tuple(silos))
        if self._settings.votes or self.expert is not None:
            self._votes.restore(state, device)
        if self.expert is not None and "expert" in state:
            self.expert.load(state["expert"].to(device))
            self._expert_is_due = False
        for silo in range(self.silos):
            if f"class_counts.{silo}" in state:
                self._class_counts[silo] = state[f"class_counts.{silo}"].to(device)

    def forget(self, silo: int) -> None:
        """Drop a silo's digest, vote and state; from now on it counts for nothing."""
        self.digests.pop(silo, None)
        self._to_recall = self._to_train_on = None
        self._expert_is_due = bool(self.digests)
        self._votes.forget(silo)
        self._class_counts.pop(silo, None)
        self.samples[silo] = 0
        silos = list(self.memory.silos)
        silos[silo] = self.algorithm.start(self.weights, self.silos).silos[silo]
        self.memory = Memory(self.memory.shared, tuple(silos))
        self._forgotten.add(silo)


def _shapes(digest: Digest) -> tuple[tuple[int, ...], int]:
    return tuple(digest.features.shape[1:]), digest.labels.shape[1]


def draw_fairly(silos: np.ndarray, classes: np.ndarray, budget: int, stream: torch.Generator) -> Tensor:
    """Draw `budget` digests in random order, equally many from each silo and, within a silo, from each class.

    Silos or classes with fewer digests give all they have. A digest's class is the one with the largest share in it.
    """
    shuffled = torch.randperm(len(silos), generator=stream).numpy()
    kinds = np.unique(np.stack([silos, classes]), axis=1, return_inverse=True)[1].reshape(-1)
    rank_in_class = _ranks(kinds[shuffled])
    by_class = np.argsort(rank_in_class, kind="stable")
    rank_in_silo = np.empty_like(rank_in_class)
    rank_in_silo[by_class] = _ranks(silos[shuffled][by_class])
    chosen = np.argsort(rank_in_silo, kind="stable")[:budget]
    return torch.from_numpy(shuffled[np.sort(chosen)])


def _ranks(groups: np.ndarray) -> np.ndarray:
    """Number the members of each group in order: 0, 1, 2, ..."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(groups)), 0))
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - first
    return ranks
