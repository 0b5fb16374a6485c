"""From what an operator was told to families of metrics: pure functions, with bounds on how many series there are."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cli.standing import STALLED, standing
from shoal.exporter.catalogue import CLUSTER, Described
from shoal.exporter.counters import OUTCOMES, PHASES, WAIT, Counters
from shoal.exporter.managers import SeenManager, samples_of_managers
from shoal.exporter.sample import Sample
from shoal.states import JobState, WorkerState
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, NodeView, ServedView, Status, WorkerView

#: If there are more devices than the limit, this many with the worst trouble have their own series.
TROUBLED_MAX = 50
#: The label of all other devices together. A device with this name is among them.
REST = "other"

JOBS_MAX = 20
ENDED_KEPT_S = 3600.0

_NODE_STATES = ("alive", "suspect", "dormant", "lost", "elsewhere", "pending", "drained", "revoked")
#: A device on its way to another manager counts as up.
_UP = ("alive", "elsewhere")
_CAUSES = ("silent", "cut", "left")
_WORKER_STATES = tuple(str(state) for state in WorkerState)
_TOPOLOGIES = ("star", "tree", "shard", "ring", "auto")
_PACES = ("sync", "buffered", "async", "auto")


def _one_of(known: tuple[str, ...], told: str) -> str:
    """Return the known value that a leader's text begins with, so that no text of a leader makes a new series."""
    return next((word for word in known if told.startswith(word)), REST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The exporter's data at one scrape."""

    #: None if the manager did not answer.
    status: Status | None
    counters: Counters = field(default_factory=Counters)
    #: Of the jobs that were asked for by themselves.
    served: Mapping[str, ServedView | None] = field(default_factory=dict)
    answer_s: float = 0.0
    certificate_expiry_s: float | None = None
    disk_free_bytes: int | None = None
    checkpoint_age_s: Mapping[str, float] = field(default_factory=dict)
    #: Every manager of the cluster, as far as the exporter knows.
    managers: Sequence[SeenManager] = ()
    #: Where the manager that answered is dialled.
    answered_by: str = ""


def samples_of(snapshot: Snapshot, *, nodes_max: int) -> list[Sample]:
    """Everything one scrape says."""
    samples = list(_of_exporter(snapshot))
    if snapshot.status is not None:
        samples += _of_nodes(snapshot, nodes_max=nodes_max)
        samples += _of_jobs(snapshot)
    return [sample for sample in samples if math.isfinite(sample.value)]


def described(family: str, catalogue: Iterable[Described] = CLUSTER) -> Described:
    return next(each for each in catalogue if each.name == family)


def build() -> Sample:
    return Sample("shoal_build", {"version": __version__, "python": platform.python_version()}, 1)


def _of_exporter(snapshot: Snapshot) -> Iterator[Sample]:
    yield build()
    yield from samples_of_managers(snapshot.managers)
    yield Sample("shoal_cluster_reachable", {}, int(snapshot.status is not None))
    yield Sample("shoal_exporter_events_missed", {}, snapshot.counters.missed)
    if snapshot.status is not None:
        yield Sample("shoal_status_duration_seconds", {"manager": snapshot.answered_by}, snapshot.answer_s)
    if snapshot.certificate_expiry_s is not None:
        yield Sample("shoal_certificate_expiry_timestamp_seconds", {}, snapshot.certificate_expiry_s)
    if snapshot.disk_free_bytes is not None:
        yield Sample("shoal_disk_free_bytes", {}, snapshot.disk_free_bytes)


# Devices ---------------------------------------------------------------------------------------------------


def _of_nodes(snapshot: Snapshot, *, nodes_max: int) -> Iterator[Sample]:
    assert snapshot.status is not None
    status, answered_by = snapshot.status, snapshot.answered_by
    # With one manager, a device does not name it.
    counted = Counter((node.manager or answered_by, node.standing or node.state) for node in status.nodes)
    reached = (seen.address for seen in snapshot.managers if seen.is_reached)
    for manager in sorted({answered_by, *reached, *(manager for manager, _ in counted)}):
        for state in _NODE_STATES:
            yield Sample("shoal_nodes", {"state": state, "manager": manager}, counted[manager, state])
    for cause in _CAUSES:
        yield Sample("shoal_node_losses", {"cause": cause}, snapshot.counters.losses[cause])
    workers = {worker.node: worker for job in status.jobs if job.progress for worker in job.progress.workers}
    shown, rest = in_trouble_first(status.nodes, workers, nodes_max=nodes_max)
    for node in shown:
        own = {"node": node.node, "manager": node.manager or answered_by}
        yield Sample("shoal_node_up", own, int(node.state in _UP))
        if node.heard_s >= 0:
            yield Sample("shoal_node_heartbeat_age_seconds", own, node.heard_s)
        if (worker := workers.get(node.node)) is not None and worker.lease_s > 0:
            yield Sample("shoal_node_slowness_ratio", {"node": node.node}, worker.slowness)
    if rest:
        others = {"node": REST, "manager": REST}
        yield Sample("shoal_node_up", others, sum(node.state in _UP for node in rest))
        ages = [node.heard_s for node in rest if node.heard_s >= 0]
        if ages:
            yield Sample("shoal_node_heartbeat_age_seconds", others, max(ages))
        slow = [w.slowness for node in rest if (w := workers.get(node.node)) is not None and w.lease_s > 0]
        if slow:
            yield Sample("shoal_node_slowness_ratio", {"node": REST}, max(slow))


def in_trouble_first(
    nodes: Iterable[NodeView], workers: Mapping[str, WorkerView], *, nodes_max: int
) -> tuple[list[NodeView], list[NodeView]]:
    """The devices that have series of their own, and the rest. Revoked devices have none."""
    members = [node for node in nodes if node.standing != "revoked"]
    if len(members) <= nodes_max:
        return members, []

    def trouble(node: NodeView) -> tuple[int, int, float]:
        worker = workers.get(node.node)
        alarm = {"lost": 2, "suspect": 1}.get(node.state, 0) if not node.standing else 0
        return (alarm, worker.failures if worker else 0, worker.slowness if worker else 0.0)

    ranked = sorted(members, key=lambda node: (*(-each for each in trouble(node)), node.node))
    most = min(TROUBLED_MAX, nodes_max)
    shown = [node for node in ranked[:most] if node.node != REST]
    own = {node.node for node in shown}
    return shown, [node for node in ranked if node.node not in own]


# Jobs ------------------------------------------------------------------------------------------------------


def shown_jobs(jobs: Iterable[JobView]) -> list[JobView]:
    """Open jobs, those that have trained nothing for longest first, then those that ended within the hour, latest
    first; a bounded number."""
    recent = [job for job in jobs if job.state.is_open or 0 <= job.since_s <= ENDED_KEPT_S]

    def order(job: JobView) -> tuple[bool, float, float, str]:
        return (not job.state.is_open, -_idle_s(job) if job.state.is_open else 0.0, job.since_s, job.job)

    return sorted(recent, key=order)[:JOBS_MAX]


def _of_jobs(snapshot: Snapshot) -> Iterator[Sample]:
    assert snapshot.status is not None
    for state in JobState:
        yield Sample("shoal_jobs", {"state": str(state)}, snapshot.status.count(state))
    for job in shown_jobs(snapshot.status.jobs):
        yield from _of_job(job, snapshot)


def _of_job(job: JobView, snapshot: Snapshot) -> Iterator[Sample]:
    own = {"shoal_job": job.job}
    progress, counters = job.progress, snapshot.counters.job(job.job)
    topology = (progress.topology if progress else "") or job.plan.topology
    yield Sample(
        "shoal_job",
        {
            **own,
            "name": job.name,
            "topology": _one_of(_TOPOLOGIES, topology),
            "pace": _one_of(_PACES, (progress.pace if progress else "") or job.plan.pace),
            "codec": job.plan.codec,
            "leader": job.leader,
            "manager": job.manager or snapshot.answered_by,
        },
        1,
    )
    if job.state.is_open:
        yield Sample("shoal_job_failing_devices", own, job.failing)
        yield Sample("shoal_job_idle_seconds", own, _idle_s(job))
    yield Sample("shoal_leader_changes", own, counters.terms.total)
    yield Sample("shoal_formation_changes", own, counters.formations)
    for outcome in OUTCOMES.values():
        yield Sample("shoal_leases", {**own, "outcome": outcome}, counters.leases[outcome])
    if (age_s := snapshot.checkpoint_age_s.get(job.job)) is not None:
        yield Sample("shoal_checkpoint_age_seconds", own, age_s)
    if counters.evaluated_s is not None:
        yield Sample("shoal_job_evaluation_timestamp_seconds", own, counters.evaluated_s)
    if (served := snapshot.served.get(job.job)) is not None:
        yield Sample("shoal_model_served_version", own, served.version)
        yield Sample("shoal_model_publishing_held", own, int(bool(served.hold)))
    if progress is None:
        return
    yield Sample("shoal_job_version", own, progress.version)
    yield Sample("shoal_job_durable_version", own, progress.durable_version)
    yield Sample("shoal_job_versions", own, counters.versions.total)
    yield Sample("shoal_job_examples", own, counters.examples.total)
    # A job that is over does nothing a second, whatever its leader's last word was.
    yield Sample("shoal_job_examples_per_second", own, progress.examples_per_s if job.state.is_open else 0.0)
    yield Sample("shoal_updates_refused", own, counters.refused.total)
    for direction, rising in (("up", counters.bytes_up), ("down", counters.bytes_down)):
        yield Sample("shoal_job_bytes", {**own, "direction": direction, "via": "leader"}, rising.total)
    for phase in (*PHASES.values(), WAIT):
        yield Sample("shoal_device_seconds", {**own, "phase": phase}, counters.device_s.get(phase, 0.0))
    states = Counter(_one_of(_WORKER_STATES, worker.state) for worker in progress.workers)
    for state in (*_WORKER_STATES, REST):
        if states[state] or state != REST:
            yield Sample("shoal_job_workers", {**own, "state": state}, states[state])
    yield from _of_metrics(job, own)


def _idle_s(job: JobView) -> float:
    """Return how long an open job has been in a state without training, or 0 if that is unknown."""
    told = standing(job)
    idle = ("waiting", "silent", STALLED, JobState.QUEUED)
    return max(0.0, told.since_s) if told.state in idle else 0.0


def _of_metrics(job: JobView, own: dict[str, str]) -> Iterator[Sample]:
    progress = job.progress
    assert progress is not None
    for metric in progress.metrics:
        if metric.value is None:
            continue
        yield Sample("shoal_job_metric", {**own, "metric": metric.name}, metric.value)
        if metric.name == "accuracy":
            yield Sample("shoal_job_accuracy_ratio", {**own, "split": "test"}, metric.value)
        if metric.name == "loss":
            yield Sample("shoal_job_loss", {**own, "split": "test"}, metric.value)
    if progress.train_loss is not None:
        yield Sample("shoal_job_loss", {**own, "split": "train"}, progress.train_loss)
