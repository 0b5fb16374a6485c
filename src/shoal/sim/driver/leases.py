"""A lease on a simulated device: the computation that it needs, and what a trainer answers. Full devices and rows of a
cohort share it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from shoal.roles.actions import Evaluate, Train
from shoal.roles.events import EvaluationDone, Trained
from shoal.sim.devices import Build, ComputeJob
from shoal.sim.jobs import LearningResult, LocalDevices, SimulatedJob, examples_to_judge, examples_to_train
from shoal.wire.messages import DeviceState


def compute_job(job: SimulatedJob, action: Train | Evaluate, *, node: str, seen: int = 0) -> ComputeJob:
    """Return the computation that a lease needs on a device that has trained on ``seen`` of its own examples before."""
    if not isinstance(action, Train):
        judged = examples_to_judge(job.spec, action)
        batches = -(-judged // job.spec.plan.batch_size)
        return ComputeJob(gmacs_per_example=job.gmacs_per_example, examples=judged, batches=batches, trains=False)
    examples, batches = action.examples, len(action.batches)
    if examples:
        plan = job.spec.plan
        examples, batches = examples * plan.passes, -(-examples // plan.batch_size) * plan.passes
    else:
        examples = examples_to_train(job.spec, action.batches)
    work = ComputeJob(gmacs_per_example=job.gmacs_per_example, examples=examples, batches=batches)
    if job.local is None:
        return work
    return _own_work(job, job.local, work, node=node, seen=seen, asked=action.examples)


def _own_work(
    job: SimulatedJob, local: LocalDevices, work: ComputeJob, *, node: str, seen: int, asked: int
) -> ComputeJob:
    """Return the computation of a lease on a device that has fewer examples than were asked for, or new ones."""
    plan = job.spec.plan
    size, held = plan.batch_size, local.held(node)
    judged, examples = min(held - seen, asked), min(held, asked)
    return replace(
        work,
        examples=examples * plan.passes,
        batches=-(-examples // size) * plan.passes,
        judged_examples=judged,
        judged_batches=-(-judged // size),
    )


def device_state(job: SimulatedJob, build: Build, examples: int) -> DeviceState | None:
    """Return the state of a device with this many examples of its own, or None if the plan does not need it."""
    plan = job.spec.plan
    if plan.data != "local" and plan.work != "sized":
        return None
    # A modelled battery has no more than it begins with. What the plan does not need is not sent.
    battery_j = build.battery_wh * 3600 if plan.budget_battery_percent else 0.0
    return _state(build.kind, float(build.memory_mb), battery_j or None, examples if plan.data == "local" else 0)


@lru_cache(maxsize=4096)
def _state(kind: str, memory_mb: float, battery_j: float | None, examples: int) -> DeviceState:
    """Return a state, cached: a device has the same one in each of its leases."""
    return DeviceState(kind=kind, memory_total_mb=memory_mb, battery_joules=battery_j, examples=examples)


def joules_of(job: SimulatedJob, build: Build, seconds: float) -> float:
    """Return the energy of this much training, or 0 if the plan does not ask for it."""
    return seconds * build.train_watts if job.spec.plan.has_energy_budget else 0.0


def learned_of(job: SimulatedJob, action: Train, learned: LearningResult, *, seconds: float, build: Build) -> Trained:
    """Return a trainer's answer for a device's own examples."""
    return Trained(
        lease=action.lease,
        examples=learned.trained.examples,
        loss_sum=learned.trained.loss_sum,
        seconds=seconds,
        tensors={"delta": learned.trained.delta},
        fresh=learned.fresh,
        fresh_metrics=learned.fresh_metrics,
        labels=learned.labels if job.spec.plan.share_labels else (),
        joules=joules_of(job, build, seconds),
        state=device_state(job, build, learned.held),
        logged=learned.logged,
    )


def result_of(
    job: SimulatedJob, action: Train | Evaluate, model: np.ndarray, seconds: float
) -> Trained | EvaluationDone:
    """Return a trainer's answer for shared examples, as a function of the model and the lease."""
    if isinstance(action, Train):
        trained = job.training.train(job.spec, model, action)
        return Trained(
            lease=action.lease,
            examples=trained.examples,
            loss_sum=trained.loss_sum,
            seconds=seconds,
            tensors={"delta": trained.delta},
        )
    judged = job.training.evaluate(job.spec, model, action)
    return EvaluationDone(lease=action.lease, examples=judged.examples, metrics=judged.metrics)
