"""The records that a simulated manager keeps in its home, and how it mends a store that went back. The twin of
``store.remembered`` and ``store.mending``; the deployed role (``going_back``) decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.going_back import is_first_to_find, jumped_term

if TYPE_CHECKING:
    from dst.managers.shared_store import SharedStore, SimTenure


@dataclass(slots=True)
class SimRemembered:
    """The records in a manager's home, which survive its process."""

    #: The last record that this manager wrote of each open job, and of each that it saw end.
    open: dict[str, JobRecord] = field(default_factory=dict)
    ended: dict[str, JobRecord] = field(default_factory=dict)
    incidents: int = 0
    seat: str = ""
    beats: int = 0

    def on_kept(self, record: JobRecord) -> bool:
        """Note a record. Return whether it is of an open job that was not known."""
        job = record.spec.job
        is_new = record.is_open and job not in self.open
        if record.is_open:
            self.open[job] = record
        else:
            self.open.pop(job, None)
            self.ended[job] = record
        return is_new

    def on_seen(self, records: Iterable[JobRecord]) -> None:
        """Note which jobs have ended at any manager, as the store shows."""
        for record in records:
            if not record.is_open:
                self.on_kept(record)

    def on_counted(self, tenure: SimTenure) -> None:
        self.seat, self.beats = tenure.holder, tenure.counted


def is_behind(store: SharedStore, remembered: SimRemembered, tenure: SimTenure) -> bool:
    """Whether the store lacks something that this manager wrote, or another manager found so."""
    jobs = store.truth.jobs
    reopened = any(job in jobs and jobs[job].is_open for job in remembered.ended)
    behind = any(job in jobs and jobs[job].term < record.term for job, record in remembered.open.items())
    known = {**tenure.ended_before, tenure.before: tenure.before_beats}
    counted_back = known.get(remembered.seat, remembered.beats) < remembered.beats
    is_gone = bool(remembered.seat) and remembered.seat not in known
    return reopened or behind or counted_back or is_gone or store.incidents != remembered.incidents


def mend(store: SharedStore, remembered: SimRemembered, tenure: SimTenure) -> None:
    """Write again what this manager remembers. The first to notice has all terms jump and all others start over."""
    is_first = is_first_to_find(store.incidents, remembered.incidents)
    if is_first:
        store.incidents = max(store.incidents, remembered.incidents) + 1
    remembered.incidents = store.incidents
    jobs, changed = store.truth.jobs, set[str]()
    for job, record in [*jobs.items()]:
        if not record.is_open:
            continue
        known, ended = remembered.open.get(job), remembered.ended.get(job)
        after = _jumped(record, known, is_first=is_first)
        if ended is not None:
            after = replace(after, state=ended.state, reason=ended.reason, leader=None)
        if after is not record:
            changed.add(store.managers.get(job, ""))
            store.write_again(after)
    for job, record in [*remembered.open.items(), *remembered.ended.items()]:
        if job not in jobs:
            # Such a job belongs to no manager. One that starts takes these jobs one by one.
            store.managers.pop(job, None)
            lost = JobRecord(spec=record.spec)
            store.write_again(_jumped(lost, record, is_first=True) if record.is_open else record)
    others = {seat.holder for seat in store.seats.look()} - {tenure.holder}
    store.seats.rewind(others if is_first else others & changed)


def _jumped(record: JobRecord, known: JobRecord | None, *, is_first: bool) -> JobRecord:
    """Return a record whose term has jumped. It keeps who had which term, so that such a leader's history can be
    adopted."""
    term = jumped_term(record.term, known.term if known is not None else 0, is_first=is_first)
    terms = {**record.terms, **(known.terms if known is not None else {})}
    if term == record.term and terms == record.terms:
        return record
    leader = record.leader if term == record.term else None
    return JobRecord(spec=record.spec, state=record.state, reason=record.reason, term=term, leader=leader, terms=terms)
