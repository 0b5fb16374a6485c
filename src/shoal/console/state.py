"""The ``state`` document that viewers hold: a cluster as its manager reports it, sentences first. Pure functions.

No object in it holds a null, since a merge patch could not express that. Texts come from devices: each is one
printable line of bounded length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.cli.drift import drift_of
from shoal.cli.foremost import foremost
from shoal.cli.render.plain_json import to_plain
from shoal.cli.render.topologies import kind_of
from shoal.cli.render.view import until_text
from shoal.cli.standing import standing
from shoal.console.devices import NAME_CHARS, TEXT_CHARS, clean, coarse_s, node_state, significant
from shoal.console.failing import failing_devices, is_stuck
from shoal.console.patch import Document, without_nulls
from shoal.console.sentences import Failing, Headline, cluster_headline, job_headline, unreachable_headline
from shoal.plan import Plan
from shoal.version import __version__
from shoal.wire.messages.metrics import plain_views

if TYPE_CHECKING:
    from shoal.console.flows import Flows
    from shoal.wire.messages import (
        EvaluationView,
        EventView,
        JobView,
        Progress,
        PublishedView,
        ServedView,
        Status,
        VersionList,
        WorkerView,
    )

EVALUATIONS_SHOWN = 500
EVENTS_SHOWN = 200
CLUSTER_EVENTS_SHOWN = 50
#: How many jobs a state lists: the open ones, then the newest.
JOBS_SHOWN = 20
#: How many lines the drawing has at most: those that carry most.
EDGES_MAX = 128
#: The most workers between which to draw the lines of a shard.
MESH_WORKERS_MAX = 12

_FIGURES = (
    "version",
    "durable_version",
    "epoch",
    "batches_applied",
    "batches_total",
    "bytes_up",
    "bytes_down",
    "refused",
    "staleness_max",
    "saturated_at",
)
_RATES = ("train_loss", "rounds_per_s", "examples_per_s", "staleness", "round_s", "sync_s", "predicted_s")

#: Members of every JavaScript object, which do not work as keys.
_UNSAFE_KEYS = frozenset({"__proto__", "constructor", "prototype"})


@dataclass(slots=True)
class JobDetails:
    """Details of a job that its view does not have, kept from one poll to the next."""

    events: Sequence[EventView] = ()
    evaluations: Sequence[EvaluationView] = ()
    versions: VersionList | None = None
    #: The served version by the last poll of this job; the view of the cluster does not have it.
    served: ServedView | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The inputs of one state."""

    status: Status | None
    at_s: float
    details: Mapping[str, JobDetails] = field(default_factory=dict)
    flows: Flows | None = None
    #: How long the manager has not answered, or `None` if it did.
    unanswered_s: float | None = None
    unanswered_why: str = ""
    #: How long the manager has been reachable or unreachable.
    since_s: float = 0.0


def state_of(look: Look) -> Document:
    """Return the document without its ``seq`` and ``at_s``."""
    status = look.status
    if status is None:
        headline = unreachable_headline(None, since_s=look.unanswered_s or 0.0, reason=look.unanswered_why)
        return {"cluster": _cluster("", headline, look, ()), "nodes": {}, "jobs": {}}
    jobs = shown_jobs(status)
    events = _merged_events(status, look.details)
    failing = {job.job: failing_devices(job, events=_events_of(job, look), at_s=look.at_s) for job in jobs}
    headline = cluster_headline(status, events=events, failing=failing, at_s=look.at_s)
    if look.unanswered_s is not None:
        headline = unreachable_headline(status, since_s=look.unanswered_s, reason=look.unanswered_why)
    workers = {
        (job.job, worker.node): worker for job in jobs if job.progress is not None for worker in job.progress.workers
    }
    open_jobs = [job for job in status.jobs if job.state.is_open]
    document = {
        "cluster": _cluster(status.cluster, headline, look, status.events),
        "nodes": {
            key(node.node): node_state(
                node,
                workers.get((node.job, node.node)),
                open_jobs,
                fails=failing.get(node.job, {}).get(node.node, "") or node.trouble,
            )
            for node in status.nodes
        },
        "jobs": {key(job.job): _job(job, look, status, failing) for job in jobs},
    }
    return dict(without_nulls(document))


def shown_jobs(status: Status) -> list[JobView]:
    """Return the open jobs and the newest of the others, in the manager's order."""
    ranked = sorted(enumerate(status.jobs), key=lambda pair: (not pair[1].state.is_open, -pair[0]))
    kept = {job.job for _, job in ranked[:JOBS_SHOWN]}
    return [job for job in status.jobs if job.job in kept]


def _ended_unlisted(status: Status | None) -> int | None:
    """Return how many ended jobs the page does not list, or None if it lists all of them."""
    if status is None:
        return None
    shown = sum(job.state.is_ended for job in shown_jobs(status))
    listed = sum(job.state.is_ended for job in status.jobs)
    return status.ended_unlisted + listed - shown or None


def key(name: str) -> str:
    """Return a name that is safe as a key of a JavaScript object."""
    plain = clean(name, NAME_CHARS)
    return f"_{plain}" if plain in _UNSAFE_KEYS else plain


def _cluster(name: str, headline: Headline, look: Look, events: Sequence[EventView]) -> Document:
    return {
        "name": clean(name, NAME_CHARS),
        "version": __version__,
        "tone": headline.tone,
        "sentence": headline.sentence,
        "manager": "reachable" if look.unanswered_s is None else "unreachable",
        "manager_node": clean(look.status.manager, NAME_CHARS) if look.status is not None else None,
        "ended_unlisted": _ended_unlisted(look.status),
        "since_s": coarse_s(look.since_s),
        "events": [_event(event) for event in foremost(events, CLUSTER_EVENTS_SHOWN)],
    }


def _merged_events(status: Status, details: Mapping[str, JobDetails]) -> list[EventView]:
    """Return the events of the cluster and of its jobs by time."""
    every = [*status.events, *(event for each in details.values() for event in each.events)]
    return sorted(every, key=lambda event: event.at_s)


def _events_of(job: JobView, look: Look) -> Sequence[EventView]:
    details = look.details.get(job.job)
    return details.events if details is not None else ()


def _job(job: JobView, look: Look, status: Status, failing: Failing) -> Document:
    told, details = standing(job), look.details.get(job.job) or JobDetails()
    fails = failing.get(job.job, {})
    headline = job_headline(job, nodes=status.nodes, drift=drift_of(details.evaluations), failing=fails)
    progress = job.progress
    served = job.served or details.served
    return {
        "name": clean(job.name, NAME_CHARS),
        # A leader whose every device fails still reports "training", since it keeps giving out leases.
        "state": "failing" if is_stuck(job, fails) else clean(told.state, 20),
        "reason": clean(told.reason, TEXT_CHARS),
        "since_s": coarse_s(told.since_s) if told.since_s >= 0 else None,
        "leader": key(job.leader),
        "manager": clean(job.manager, NAME_CHARS),
        "term": job.term,
        "open": job.state.is_open,
        "tone": headline.tone,
        "sentence": headline.sentence,
        "judged_by": clean(job.plan.judged_by, 40),
        "until": clean(until_text(job.plan.until), TEXT_CHARS),
        "model_size": job.model_size,
        "train_examples": job.train_examples,
        "test_examples": job.test_examples,
        "progress": _progress(progress),
        "metrics": _metrics(progress),
        "workers": [key(worker.node) for worker in progress.workers] if progress is not None else [],
        "topology": _topology(job, look.flows),
        "choices": [to_plain(choice) | {"detail": clean(choice.detail, 400)} for choice in _choices(progress)],
        **_plan(job.plan),
        "evaluations": [_evaluation(view) for view in list(details.evaluations)[-EVALUATIONS_SHOWN:]],
        "events": [_event(event) for event in foremost(details.events, EVENTS_SHOWN)],
        "versions": [_version(each) for each in details.versions.versions] if details.versions is not None else [],
        "served": _served(served) if served is not None else None,
    }


def _progress(progress: Progress | None) -> Document | None:
    if progress is None:
        return None
    told: Document = {name: getattr(progress, name) for name in _FIGURES}
    told |= {name: significant(getattr(progress, name), 4) for name in _RATES}
    told["seconds"] = round(progress.seconds, 1)
    told["saturation"] = clean(progress.saturation, 20)
    told["saturation_reason"] = clean(progress.saturation_reason, 400)
    told["pace"] = clean(progress.pace, 20)
    return told


def _choices(progress: Progress | None) -> Sequence[Any]:
    return progress.alternatives[:20] if progress is not None else ()


def _metrics(progress: Progress | None) -> Document:
    if progress is None:
        return {}
    metrics = progress.metrics or plain_views(accuracy=progress.accuracy, loss=progress.loss)
    return {
        key(metric.name): {"value": significant(metric.value, 6), "lower": metric.lower}
        for metric in metrics
        if metric.value is not None
    }


def _topology(job: JobView, flows: Flows | None) -> Document:
    progress = job.progress
    if progress is None or not job.state.is_open:
        return {"kind": "", "why": "", "edges": []}
    kind = clean(kind_of(progress.topology), 20)
    return {
        "kind": kind,
        "name": clean(progress.topology, 60),
        "why": clean(progress.topology_reason, 400),
        "edges": _edges(job, kind, progress.workers, flows),
    }


def _edges(job: JobView, kind: str, workers: Sequence[WorkerView], flows: Flows | None) -> list[list[Any]]:
    """Return the flows between devices. The leader counts what it sends and receives; nobody counts between workers."""
    leader = key(job.leader)
    told: list[list[Any]] = []
    for worker in workers:
        node = key(worker.node)
        if node == leader:
            continue
        up, down = flows.rates(job.job, worker.node) if flows is not None else (0.0, 0.0)
        told += [[node, leader, significant(up, 2)], [leader, node, significant(down, 2)]]
    if len(told) > EDGES_MAX:
        told = sorted(told, key=lambda edge: -edge[2])[:EDGES_MAX]
    if kind == "shard" and len(workers) <= MESH_WORKERS_MAX:
        names = sorted(key(worker.node) for worker in workers)
        told += [[one, two, None] for place, one in enumerate(names) for two in names[place + 1 :]]
    return sorted(told, key=lambda edge: (edge[0], edge[1]))


def _plan(plan: Plan) -> Document:
    usual = Plan()
    values: Document = {each.name: getattr(plan, each.name) for each in dataclasses.fields(plan)}
    changed = [name for name, value in values.items() if value != getattr(usual, name)]
    values["until"] = until_text(plan.until)
    told = {
        name: clean(value, TEXT_CHARS) if isinstance(value, str) else to_plain(value) for name, value in values.items()
    }
    return {"plan": told, "plan_changed": changed}


def _evaluation(view: EvaluationView) -> Document:
    return {
        "version": view.version,
        "epoch": view.epoch,
        "seconds": round(view.seconds, 1),
        "examples": view.examples,
        "metrics": {key(metric.name): significant(metric.value, 6) for metric in view.metrics},
    }


def _event(event: EventView) -> Document:
    return {
        "seq": event.seq,
        "at_s": round(event.at_s, 2),
        "kind": clean(event.kind, 30),
        "reason": clean(event.reason, TEXT_CHARS),
    }


def _version(each: PublishedView) -> Document:
    return {
        "version": each.version,
        "number": each.number,
        "epoch": each.epoch,
        "accuracy": significant(each.accuracy, 6),
        "examples": each.examples,
        "at_s": round(each.at_s, 1),
        "reason": clean(each.reason, TEXT_CHARS),
        "size_bytes": each.size_bytes,
        "metrics": {key(metric.name): significant(metric.value, 6) for metric in each.metrics},
    }


def _served(served: ServedView) -> Document:
    return {
        "version": served.version,
        "reason": clean(served.reason, TEXT_CHARS),
        "hold": clean(served.hold, TEXT_CHARS),
        "verdict": clean(served.verdict, TEXT_CHARS),
    }
