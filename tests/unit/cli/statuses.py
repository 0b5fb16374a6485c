"""Statuses as a manager would send them: ordinary, empty, long and strange."""

from __future__ import annotations

from typing import Any

from shoal.cli.job_history import Story
from shoal.plan import Plan, Until
from shoal.states import JobState
from shoal.wire.messages import EvaluationView, EventView, Facts, JobView, NodeView, Progress, Status, WorkerView

JOB = "mnist-3fa2"


def worker(number: int, **values: Any) -> WorkerView:
    usual = {"state": "working", "batches": 10, "lease_s": 0.3, "bytes_up": 1_500_000, "bytes_down": 2_500_000}
    return WorkerView(node=f"device-{number}", **(usual | values))


def progress(**values: Any) -> Progress:
    usual: dict[str, Any] = {
        "state": "training",
        "version": 412,
        "durable_version": 400,
        "epoch": 1,
        "batches_applied": 546,
        "batches_total": 938,
        "accuracy": 0.9677,
        "loss": 0.1034,
        "train_loss": 0.0871,
        "rounds_per_s": 12.34,
        "examples_per_s": 3158.0,
        "seconds": 84.0,
        "workers": (worker(1), worker(2, slowness=2.34)),
    }
    return Progress(job=JOB, term=1, **(usual | values))


def job(**values: Any) -> JobView:
    usual: dict[str, Any] = {
        "job": JOB,
        "name": "mnist",
        "state": JobState.RUNNING,
        "reason": "led by manager",
        "leader": "manager",
        "term": 1,
        "since_s": 84.0,
        "heard_s": 0.4,
        "plan": Plan(until=Until(accuracy=0.98, epochs=5)),
        "progress": progress(),
    }
    return JobView(**(usual | values))


def event(seq: int, kind: str = "device.joined", reason: str = "device-1 is ready") -> EventView:
    return EventView(seq=seq, at_s=1_790_000_000.0 + seq, kind=kind, reason=reason)


def evaluation(epoch: int, accuracy: float) -> EvaluationView:
    return EvaluationView(
        version=epoch * 59, epoch=epoch, accuracy=accuracy, loss=0.2, examples=10_000, seconds=10.0 * epoch
    )


def node(name: str, **values: Any) -> NodeView:
    usual: dict[str, Any] = {"state": "alive", "facts": Facts(host=name, arch="aarch64", cpus=4, memory_mb=3794)}
    return NodeView(node=name, **(usual | values))


def status(*jobs: JobView, **values: Any) -> Status:
    usual: dict[str, Any] = {"events": (event(1),), "evaluations": (evaluation(1, 0.9677),)}
    return Status(cluster="home", manager="manager", jobs=jobs or (job(),), **(usual | values))


def story_of(told: Status) -> Story:
    story = Story(JOB)
    story.take(told)
    return story
