"""Algorithms that leaders ask in drawn cases. They make what the plan would make by itself, so that a history on paper
holds for them too, and keep in their state how many versions they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shoal.learning.algorithm import Algorithm, AlgorithmState, UpdateFacts, WaitingDevice
from shoal.learning.algorithm_name import AlgorithmName
from shoal.plan import Plan
from shoal.roles.actions import AskAlgorithm, Save
from shoal.roles.events import AlgorithmAnswered
from shoal.roles.leader.training_state import ASKED
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.sim.rng import Stream
from shoal.wire.messages import JobSpec

MADE = "made"
#: The methods of an algorithm, as they are drawn.
DRAWN = ("merge", "finish", "choose", "merge choose", "finish choose")


def _counted(state: AlgorithmState) -> AlgorithmState:
    return {MADE: state.get(MADE, np.zeros(1)) + 1}


class DrawnAlgorithm(Algorithm):
    """All three methods. The plan names those that its leader asks."""

    def __init__(self, *, by_device: bool) -> None:
        self._by_device = by_device

    def merge(
        self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState
    ) -> tuple[np.ndarray, AlgorithmState]:
        assert len(updates) == len(facts) == len({each.node for each in facts})
        weights = np.array([1 if self._by_device else each.examples for each in facts], dtype=np.float64)
        return weights @ updates / weights.sum(), _counted(state)

    def finish(
        self, mean: Mapping[str, np.ndarray], state: AlgorithmState
    ) -> tuple[Mapping[str, np.ndarray], AlgorithmState]:
        return mean, _counted(state)

    def choose(self, candidates: Sequence[WaitingDevice], count: int, rng: np.random.Generator) -> Sequence[str]:
        return [str(name) for name in rng.permutation([each.node for each in candidates])[:count]]


def algorithm_for(plan: Plan) -> DrawnAlgorithm | None:
    return DrawnAlgorithm(by_device=plan.weights == "device") if plan.algorithm else None


def asking_plan(plan: Plan, stream: Stream) -> Plan:
    """A plan whose leader asks an algorithm, with what its methods cannot do without."""
    hooks = stream.pick(DRAWN)
    topology = plan.topology
    if "merge" in hooks or ("finish" in hooks and topology != "tree"):
        topology = "star"
    cohort, chooses = stream.pick((2, 3, 4)), "choose" in hooks
    return replace(
        plan,
        algorithm=f"drawn:DrawnAlgorithm {hooks}",
        pace="sync",
        topology=topology,
        cohort=plan.cohort or cohort if chooses else plan.cohort,
        sampling="" if chooses else plan.sampling,
        work="leased" if chooses and plan.work == "fixed" else plan.work,
    )


def makes_versions(plan: Plan) -> bool:
    return bool(plan.algorithm) and AlgorithmName.parse(plan.algorithm).hooks != {"choose"}


def wrong_count(save: Save, plan: Plan, *, made: int) -> str | None:
    """Return what is wrong if a saved state does not count the versions that its history has, or None."""
    if not makes_versions(plan):
        return None
    state = save.tensors.get(f"{ASKED}{MADE}")
    count = 0 if state is None else int(state[0])
    if count == made:
        return None
    return f"the algorithm's state of version {save.version} counts {count} versions, and its history has {made}"


class AskingOracle:
    """An observer that raises where anything is handed to a leader before the answer that it waits for."""

    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._jobs = {spec.job for spec in specs if spec.plan.algorithm}
        self.questions = self.restored = 0
        #: Node and job -> whether its leader waits for an answer.
        self._waits: dict[tuple[str, str], bool] = {}

    def step(self, step: Step) -> None:
        if step.role != "leader" or step.job not in self._jobs:
            return
        key = step.node, step.job
        if self._waits.get(key) and not isinstance(step.event, AlgorithmAnswered):
            raise Violation(f"{step.job}: {type(step.event).__name__} came before the answer of the algorithm")
        asked = sum(isinstance(action, AskAlgorithm) for action in step.actions)
        self._waits[key] = asked > 0
        self.questions += asked

    def mark(self, mark: Mark) -> None:
        if mark.kind == "led" and mark.facts["job"] in self._jobs:
            self._waits.pop((mark.node, mark.facts["job"]), None)
            self.restored += mark.facts["version"] > 0
