"""A whole simulated cluster whose task has metrics of its own: a plateau ends the job, and says why."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.learning.metrics import MetricSum
from shoal.plan import Plan, Until
from shoal.roles.actions import Evaluate, Record, Train
from shoal.sim.devices import Build
from shoal.sim.jobs import (
    EvaluationResult,
    LearningResult,
    SimulatedJob,
    TrainingResult,
    bare_spec,
    examples_to_judge,
    examples_to_train,
)
from shoal.sim.metrics import Metrics
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.outcome import Outcome
from shoal.sim.rates import Steady
from shoal.sim.world import Settings, World
from shoal.until import metric, plateau
from shoal.wire.messages import JobSpec

SIZE = 8
LINE = AccessLink(up=Steady(1e6), down=Steady(1e6), latency_s=0.001)
BOARD = Build(
    kind="board",
    seconds_per_gmac=0.0,
    seconds_per_batch=0.5,
    jitter=0.1,
    memory_mb=1024,
    battery_wh=0.0,
    train_watts=5.0,
    idle_watts=1.0,
    heat=None,
    line=LINE,
)


class Halving:
    """A regression: every version has half of the error of the one before, until it rests at 1."""

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        examples = examples_to_train(spec, lease.batches)
        return TrainingResult(examples, float(examples), np.ones(SIZE, dtype=np.float32))

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        raise NotImplementedError

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        examples = examples_to_judge(spec, lease)
        error = max(1.0, 64.0 * 0.5 ** float(model[0]))
        sums = (error * examples, float(examples))
        return EvaluationResult(examples, (MetricSum(name="mae", kind="mean", sums=sums, lower=True),))


class Records:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def step(self, step: Step) -> None:
        self.told += [(act.kind, act.reason) for act in step.actions if isinstance(act, Record) and act.job == "job"]

    def mark(self, mark: Mark) -> None:
        pass


def played(until: Until, *, seed: int) -> tuple[Outcome, Records]:
    """Two devices and one version of four batches an epoch."""
    plan = Plan(batch_size=100, momentum=0.0, workers_min=2, workers_max=2, cohort=2, until=until)
    model = np.zeros(SIZE, dtype=np.float32)
    model.flags.writeable = False
    job = SimulatedJob(
        spec=bare_spec("job", plan, examples=400, test_examples=3500),
        layout=Layout.of([("weight", (SIZE,), "parameter")]),
        model=model,
        training=Halving(),
        gmacs_per_example=0.0,
        start_s=0.5,
        submit_s=1.0,
    )
    metrics, records = Metrics(2), Records()
    line = AccessLink(up=Steady(1e7), down=Steady(1e7), latency_s=0.001)
    settings = Settings(seed=seed, builds=[BOARD] * 2, home_line=line, jobs=[job], arrive_within_s=0.0)
    world = World(settings, observers=[metrics, records])
    world.begin()
    assert world.run(limit_s=600.0, events_max=200_000)
    return metrics.outcome(world, "job"), records


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_plateau_ends_a_job(seed: int) -> None:
    outcome, records = played(plateau("mae", patience=3) | Until(epochs=50), seed=seed)
    reason = "mae is on a plateau: no better than 1 in 3 evaluations in a row, lately 1"
    assert (outcome.state, outcome.reason) == ("finished", reason)
    # Two versions an epoch: 64 / 4, / 16, / 64, and then three that are no better.
    assert [point.metrics for point in outcome.evaluations] == [{"mae": error} for error in (16, 4, 1, 1, 1, 1)]
    assert {point.accuracy for point in outcome.evaluations} == {None}
    told = [reason for kind, reason in records.told if kind == "job.evaluated"]
    assert told[0] == "epoch 1: mae 16 (version 2, 3,500 held-out examples)"


def test_a_goal_ends_a_job_and_an_unknown_one_is_told_once() -> None:
    outcome, records = played((metric("mae") <= 4) | (metric("f1") >= 0.9), seed=1)
    assert (outcome.state, outcome.reason) == ("finished", "mae reached 4, the goal was mae <= 4")
    unknown = "the job is to end by f1, which its evaluations do not report; they report mae"
    assert [reason for kind, reason in records.told if kind == "goal.unmeasured"] == [unknown]
