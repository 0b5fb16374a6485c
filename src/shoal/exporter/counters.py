"""Counters made of statuses and journal events: they never go back while the exporter runs. Pure; time is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.roles.node.failure_detector import NO_RECONNECT, SILENT
from shoal.runtime.event_kinds import device_of
from shoal.states import WorkerState

if TYPE_CHECKING:
    from shoal.wire.messages import EventView, JobView, Progress, Status

#: If two samples are further apart than this, it is unknown what workers did in between.
SPAN_MAX_S = 120.0

#: The outcome of a lease, by the kind of event that reports it.
OUTCOMES = {"lease.expired": "expired", "lease.returned": "returned", "lease.failed": "failed"}

#: How a device spends its time, by the state of its worker. Any other state is a wait.
WAIT = "wait"
PHASES: dict[str, str] = {
    WorkerState.WORKING: "work",
    WorkerState.DELIVERING: "upload",
    WorkerState.EVALUATING: "evaluate",
}


def loss_cause(reason: str) -> str:
    """Return why the manager declared a device lost: ``silent``, ``cut`` or ``left``, by the cause of its event."""
    if reason.startswith(SILENT):
        return "silent"
    return "cut" if NO_RECONNECT in reason else "left"


def examples_of(job: JobView, progress: Progress) -> int | None:
    """Return how many examples the model was trained on. None with local data: devices do not report them."""
    if job.plan.data != "shared" or not job.train_examples:
        return None
    of_epoch = min(progress.batches_applied * job.plan.batch_size, job.train_examples)
    return progress.epoch * job.train_examples + of_epoch


@dataclass(slots=True)
class Rising:
    """A total from readings of a counter that another process keeps, and may begin again."""

    total: float = 0.0
    _last: float = 0.0

    def read(self, value: float, *, began_again: bool = False) -> None:
        """``began_again``: the counter belongs to a process that has counted from 0 since the last reading."""
        since = value if began_again else value - self._last
        self.total += max(0.0, since)
        self._last = value


@dataclass(slots=True)
class JobCounters:
    versions: Rising = field(default_factory=Rising)
    examples: Rising = field(default_factory=Rising)
    bytes_up: Rising = field(default_factory=Rising)
    bytes_down: Rising = field(default_factory=Rising)
    refused: Rising = field(default_factory=Rising)
    #: Terms that ended: a new leader has a new one.
    terms: Rising = field(default_factory=Rising)
    leases: Counter[str] = field(default_factory=Counter)
    device_s: dict[str, float] = field(default_factory=dict)
    formations: int = 0
    evaluated_s: float | None = None
    #: The latest event that was counted. None before the first sample, which only reads the journal's position.
    seen_event: int | None = None
    _term: int = 0
    _at_s: float | None = None

    def on_view(self, job: JobView, *, now_s: float) -> None:
        if job.term:
            self.terms.read(job.term - 1)
        progress = job.progress
        if progress is None:
            return
        # A leader counts from 0 when it takes over.
        new_leader = self._term not in (0, progress.term)
        self._term = progress.term
        self.versions.read(progress.version)
        self.bytes_up.read(progress.bytes_up, began_again=new_leader)
        self.bytes_down.read(progress.bytes_down, began_again=new_leader)
        self.refused.read(progress.refused, began_again=new_leader)
        span_s = now_s - self._at_s if self._at_s is not None else 0.0
        self._at_s = now_s
        known = examples_of(job, progress)
        if known is not None:
            self.examples.read(known)
        elif job.state.is_open and 0 < span_s <= SPAN_MAX_S:
            self.examples.total += max(0.0, progress.examples_per_s) * span_s
        if job.state.is_open and 0 < span_s <= SPAN_MAX_S:
            for worker in progress.workers:
                phase = PHASES.get(worker.state, WAIT)
                self.device_s[phase] = self.device_s.get(phase, 0.0) + span_s

    def on_event(self, event: EventView) -> None:
        if (outcome := OUTCOMES.get(event.kind)) is not None:
            self.leases[outcome] += 1
        elif event.kind == "topology.changed":
            self.formations += 1
        elif event.kind == "job.evaluated":
            self.evaluated_s = event.at_s


@dataclass(slots=True)
class Counters:
    """What was counted since the exporter began."""

    losses: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    jobs: dict[str, JobCounters] = field(default_factory=dict)
    seen_event: int | None = None
    _begun: bool = False

    def job(self, job: str) -> JobCounters:
        if job not in self.jobs:
            # All of a job that came after the exporter began is counted.
            self.jobs[job] = JobCounters(seen_event=0 if self._begun else None)
        return self.jobs[job]

    def on_status(self, status: Status, *, now_s: float) -> None:
        """The status of the whole cluster, with its events after ``seen_event``."""
        for job in status.jobs:
            self.job(job.job).on_view(job, now_s=now_s)
        self._begun = True
        self.seen_event = self._count(status.events, self.seen_event, None)
        known = {job.job for job in status.jobs}
        for gone in [job for job in self.jobs if job not in known]:
            del self.jobs[gone]

    def on_job(self, job: str, status: Status) -> None:
        """The status of one job, with its events after its ``seen_event``."""
        counters = self.job(job)
        counters.seen_event = self._count(status.events, counters.seen_event, counters)

    def _count(self, events: Sequence[EventView], seen: int | None, job: JobCounters | None) -> int:
        new = sorted((event for event in events if event.seq > (seen or 0)), key=lambda event: event.seq)
        if seen is None:
            # What was before the exporter is nobody's rate; when the model was last evaluated is still of use.
            for event in new:
                if job is not None and event.kind == "job.evaluated":
                    job.evaluated_s = event.at_s
            return new[-1].seq if new else 0
        if new:
            self.missed += max(0, new[-1].seq - seen - len(new))
        for event in new:
            if event.kind == "device.lost":
                device = device_of(event.kind, event.reason)
                self.losses[loss_cause(event.reason.removeprefix(f"{device}: "))] += 1
            if job is not None:
                job.on_event(event)
        return new[-1].seq if new else seen
