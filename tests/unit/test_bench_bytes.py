"""What is counted as bytes to an accuracy: every frame, the first model, and nothing after the goal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.byte_count import FETCHED, Account, Goal, Remembered, Run, run
from benchmarks.bytes_to_accuracy import FULL, QUICK, best_plan, memoryless, one_gradient_plan
from benchmarks.digits_cnn import DigitsCnn
from shoal.compress.codec import Codec
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Evaluate, Train
from shoal.sim.jobs import (
    EvaluationResult,
    SimulatedJob,
    SystemOnly,
    TrainingResult,
    bare_spec,
    examples_to_judge,
    judged,
)
from shoal.sim.profiles import builds, home_line
from shoal.sim.rng import Rng
from shoal.wire.coded import code, sizes_of
from shoal.wire.frames import frames
from shoal.wire.messages import JobSpec, Update

LAYOUT = Layout.of([("weight", (40, 50), "parameter")])
DEVICES = 4
GOAL = Goal(accuracy=0.6, versions_max=20)


class Climb(SystemOnly):
    """Every lease moves the same values by one: after v versions the share v/5 of held-out examples is right."""

    def __init__(self) -> None:
        super().__init__(LAYOUT.size)
        self.trainings = 0

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        self.trainings += 1
        delta = np.zeros(LAYOUT.size, dtype=np.float32)
        delta[::100] = 1.0
        return TrainingResult(10 * len(lease.batches), 1.0, delta)

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        examples = examples_to_judge(spec, lease)
        return judged(examples, 1.0, int(examples * min(1.0, float(model[0]) / 5)))


def _job(**changes: object) -> SimulatedJob:
    plan = {
        "codec": "top1%+ef+4bit",
        "batch_size": 10,
        "momentum": 0.0,
        "workers_min": DEVICES,
        "until": Until(epochs=1000),
        "evaluate_every_epochs": 1000,
    }
    return SimulatedJob(
        spec=bare_spec("climb", Plan(**(plan | changes)), examples=400, test_examples=1500),
        layout=LAYOUT,
        model=np.zeros(LAYOUT.size, dtype=np.float32),
        training=Climb(),
        gmacs_per_example=0.001,
        fetch_bytes=8_000,
    )


def _run(job: SimulatedJob, goal: Goal = GOAL, *, churn: float = 0.0) -> Run:
    devices = builds("even", DEVICES, Rng(0))
    return run(job, devices, home_line("even"), goal, seed=0, churn=churn)


def test_a_run_ends_at_the_first_version_that_is_good_enough() -> None:
    reached = _run(_job())
    assert (reached.is_reached, reached.accuracy, reached.versions) == (True, pytest.approx(0.6), 3)
    assert (reached.updates, reached.examples, reached.refused) == (3 * DEVICES, 3 * DEVICES * 10, 0)
    given_up = _run(_job(), replace(GOAL, versions_max=2))
    assert (given_up.is_reached, given_up.accuracy, given_up.versions) == (False, pytest.approx(0.4), 2)
    assert given_up.up_bytes < reached.up_bytes


def test_versions_in_between_are_not_judged() -> None:
    assert _run(_job(), replace(GOAL, every=2)).versions == 4


def test_every_update_is_counted_by_its_frames() -> None:
    counted = _run(_job())
    delta = Climb().train(_job().spec, np.zeros(0), Train(lease=1, epoch=0, batches=(0,))).delta
    tensors = code(Codec.parse("top1%+ef+4bit"), delta, sizes_of(LAYOUT)).tensors()
    update = Update(job="climb", term=1, lease=1, version=1, examples=10, loss_sum=1.0, train_s=0.1, tensors=tensors)
    frame_bytes = sum(map(len, frames(update)))
    # Numbers in an envelope take a byte more or less: its lease, its version, and how long it trained.
    assert counted.kinds["Update"] == pytest.approx(3 * DEVICES * frame_bytes, rel=0.05)


def test_what_crossed_is_all_that_was_packed() -> None:
    counted = _run(_job())
    packed = sum(counted.kinds.values())
    assert counted.kinds[FETCHED] == DEVICES * 8_000
    assert counted.up_bytes > counted.kinds["Update"]
    # What is still on its way when the goal is reached crossed nothing yet: at most a few short messages a device.
    assert 0 <= packed - counted.total_bytes < 200 * DEVICES


def test_the_first_model_counts_as_received() -> None:
    job = _job()
    more = _run(replace(job, fetch_bytes=job.fetch_bytes + 1_000_000))
    assert more.down_bytes - _run(job).down_bytes == DEVICES * 1_000_000


def test_a_codec_takes_fewer_bytes_than_all_values() -> None:
    sparse, dense = _run(_job()), _run(_job(codec="dense"))
    assert dense.kinds["Update"] > 3 * DEVICES * LAYOUT.size * 4
    assert sparse.kinds["Update"] < dense.kinds["Update"] / 50


def test_churn_restarts_whoever_sent_an_update() -> None:
    churned, quiet = _run(_job(), churn=1.0), _run(_job())
    assert quiet.restarts == 0
    assert churned.restarts == churned.updates
    assert churned.is_reached
    assert churned.kinds["Ready"] > quiet.kinds["Ready"]


def test_frames_come_out_as_they_went_in() -> None:
    account = Account()
    update = Update(job="climb", term=1, lease=1, version=1, examples=10, tensors={"delta": np.ones(3, np.float32)})
    read, size_bytes = account.pack(update)
    assert isinstance(read, Update)
    assert read.tensors["delta"].tolist() == [1, 1, 1]
    assert account.kinds == {"Update": size_bytes} == {"Update": sum(map(len, frames(update)))}


def test_the_same_lease_on_the_same_model_is_trained_once() -> None:
    climb, job = Climb(), _job()
    training = Remembered(climb)
    lease = Train(lease=1, epoch=0, batches=(1, 2))
    first = training.train(job.spec, job.model, lease)
    assert training.train(job.spec, job.model.copy(), lease) is first
    assert climb.trainings == 1
    other = (replace(lease, epoch=1), replace(lease, batches=(1,)), replace(lease, rate=0.5), replace(lease, version=1))
    for model, changed in ((job.model + 1, lease), *((job.model, each) for each in other)):
        training.train(job.spec, model, changed)
    assert climb.trainings == 6


def test_plans_lend_a_whole_epoch_in_each_round() -> None:
    for scale in (FULL, QUICK):
        plan = best_plan(scale, seed=0)
        assert plan.lease_batches * plan.batch_size * scale.devices == scale.train
        assert not Codec.parse(plan.codec).feedback
        assert Codec.parse(best_plan(scale, seed=0, feedback=True).codec).feedback
        assert one_gradient_plan(scale, seed=0).lease_batches == 1
    assert len(memoryless(7)) == 7


def test_the_network_is_the_papers() -> None:
    task = DigitsCnn()
    model = task.model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 211_690
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    assert 0.19 < largest <= 0.2
    x = torch.arange(2 * 784, dtype=torch.uint8).reshape(2, 1, 28, 28)
    x[1] = 7
    images, _ = task.batch(x, torch.zeros(2))
    assert images[0].mean().item() == pytest.approx(0, abs=1e-6)
    assert images[0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert images[1].abs().max().item() == 0
    assert model(images).shape == (2, 10)
