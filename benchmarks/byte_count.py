"""Plays a job in the simulator up to an accuracy, and counts its bytes on the wire. Knows no plan and no task.

Every message is made into its frames and read again. What crossed is what the network delivered to and from devices,
whatever for; what a device fetches before it begins is a part of what it received.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dst.encoded import Encoded
from shoal.roles.actions import Evaluate, Send, Train
from shoal.roles.events import Received
from shoal.roles.leader.evaluation import EVALUATION_CHUNK
from shoal.roles.leader.leader import Leader
from shoal.sim.devices import Build
from shoal.sim.jobs import EvaluationResult, LearningResult, SimulatedJob, Training, TrainingResult
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.world import AGENT_START_S, Settings, World
from shoal.wire.messages import JobSpec, Message, Update, UpdateRefused, figure_of, views_of
from testbed.results import say

#: What devices fetch beforehand, among the kinds of messages.
FETCHED = "fetched"

LIMIT_S = 30 * 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """When a run ends: at the first version that is good enough, or after so many."""

    accuracy: float
    versions_max: int
    #: Versions between two looks.
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training up to its goal, or as far as it came."""

    is_reached: bool
    accuracy: float
    versions: int
    #: All that came to the leader, and those of them that came too late.
    updates: int
    refused: int
    #: Those of all updates, with repetition.
    examples: int
    up_bytes: int
    down_bytes: int
    #: What was sent, both ways, by kind of message.
    kinds: dict[str, int]
    #: Processes that ended and began anew.
    restarts: int

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes


class Account(Encoded):
    """Adds up the bytes of each kind of message."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def pack(self, message: Message) -> tuple[Message, int]:
        read, size_bytes = super().pack(message)
        self.kinds[type(message).__name__] += size_bytes
        return read, size_bytes


class Remembered:
    """Trains what was not trained before. Runs that differ in what becomes of an update begin with the same ones, and
    an update is a function of the model and its number, the epoch, the batches and the rate alone."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._results: dict[tuple[bytes, int, tuple[int, ...], float, int], TrainingResult] = {}

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        key = (hashlib.sha256(model.data).digest(), lease.epoch, lease.batches, lease.rate, lease.version)
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = self._training.train(spec, model, lease)
        return result

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        return self._training.evaluate(spec, model, lease)

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        return self._training.learn(spec, model, node, lease)


class Watch:
    """An observer that judges versions. By chance it has a device's process end after its update, and start again:
    whatever that had held back of its updates is lost."""

    def __init__(self, world: World, job: SimulatedJob, goal: Goal, *, churn: float) -> None:
        self._world = world
        self._job = job
        self._goal = goal
        self._churn = churn
        self._chance = world.rng.stream("churn")
        self.version = 0
        self.accuracy = 0.0
        self.updates = self.refused = self.examples = self.restarts = 0

    @property
    def is_reached(self) -> bool:
        return self.accuracy >= self._goal.accuracy

    @property
    def is_over(self) -> bool:
        return self.is_reached or self.version >= self._goal.versions_max

    def step(self, step: Step) -> None:
        if step.role != "leader" or self.is_over:
            return
        if isinstance(step.event, Received) and isinstance(step.event.message, Update):
            self._arrived(step.event.sender, step.event.message)
        self.refused += sum(type(action) is Send and type(action.message) is UpdateRefused for action in step.actions)
        leader = self._world.leader(step.job)
        if isinstance(leader, Leader) and leader.version > self.version:
            self.version = leader.version
            if self.version % self._goal.every == 0:
                self._judge(leader.model)

    def mark(self, mark: Mark) -> None:
        pass

    def _arrived(self, sender: str, update: Update) -> None:
        self.updates += 1
        self.examples += update.examples
        if self._churn and self._chance.happens(self._churn):
            self.restarts += 1
            # Once the leader has acted: an observer changes nothing in the middle of a step.
            self._world.kernel.after(0.0, self._world.kill, sender)
            self._world.kernel.after(AGENT_START_S, self._world.start, sender)

    def _judge(self, model: np.ndarray) -> None:
        spec = self._job.spec
        chunks = tuple(range(-(-spec.test.examples // EVALUATION_CHUNK)))
        result = self._job.training.evaluate(spec, model, Evaluate(lease=0, chunks=chunks))
        self.accuracy = figure_of(views_of(result.metrics), "accuracy") or 0.0
        up_bytes, down_bytes = crossed(self._world)
        say(f"  version {self.version}: {self.accuracy:.2%}, {up_bytes / 1e6:.3f} MB up, {down_bytes / 1e6:.2f} down")


def crossed(world: World) -> tuple[int, int]:
    """Bytes that devices sent so far, and that they received."""
    network, devices = world.network, world.agents
    return sum(map(network.sent_bytes, devices)), sum(map(network.received_bytes, devices))


def run(
    job: SimulatedJob, devices: Sequence[Build], home_line: AccessLink, goal: Goal, *, seed: int, churn: float = 0.0
) -> Run:
    """Play a job until its model is good enough. ``churn`` is the share of updates after which a process ends."""
    account = Account()
    world = World(Settings(seed=seed, builds=devices, home_line=home_line, jobs=[job]), sizer=account)
    watch = Watch(world, job, goal, churn=churn)
    world.observers.append(watch)
    world.begin()
    world.kernel.run(lambda: watch.is_over, limit_s=LIMIT_S)
    up_bytes, down_bytes = crossed(world)
    return Run(
        is_reached=watch.is_reached,
        accuracy=watch.accuracy,
        versions=watch.version,
        updates=watch.updates,
        refused=watch.refused,
        examples=watch.examples,
        up_bytes=up_bytes,
        down_bytes=down_bytes,
        kinds={**account.kinds, FETCHED: len(devices) * job.fetch_bytes},
        restarts=watch.restarts,
    )
