"""An observer's view of each job in a simulation: its leaders, their leases, and the history that survived.

``invariants`` fills it and checks against it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from shoal.wire.messages import JobSpec


@dataclass(slots=True)
class SeenLease:
    """A lease as it was given out."""

    node: str
    version: int
    epoch: int
    batches: tuple[int, ...]
    kind: str
    #: When the leader takes it back, or infinity while its update waits to be taken or is on its way.
    deadline_s: float
    #: The version its update was made against, once one came.
    answered: int | None = None
    #: Whether its update came and will be in a version.
    counts: bool = False
    #: The formation that its update goes through.
    formation: int = 0


@dataclass(slots=True)
class SeenLeader:
    """One leader of a job, under its term. Another may lead at the same time under another term."""

    node: str
    term: int
    version: int
    #: The version it began with.
    began: int
    lent: dict[int, SeenLease] = field(default_factory=dict)
    #: Those of them that are not answered, refused or over.
    open: dict[int, SeenLease] = field(default_factory=dict)
    #: Leases that may upload now -> their worker.
    credits: dict[int, str] = field(default_factory=dict)
    #: Whether it decided that the job ends, so that leases no longer count.
    is_closing: bool = False
    #: Whether its model was suspected, so that updates that had come are in no version.
    went_back: bool = False
    #: Whether it went on at another pace, so that versions are of as many updates as it found best.
    changed_pace: bool = False
    #: How many versions were skipped, since no device could take part in them.
    passed: int = 0
    #: How many updates came for open leases, and the number at which none was open any more.
    answers: int = 0
    quiet: set[int] = field(default_factory=set)
    #: How many of these are in saved versions.
    applied: int = 0
    #: Lease -> the first of those that an aggregator summed up together with it.
    summed: dict[int, int] = field(default_factory=dict)
    #: Version -> the leases it was made of, as far as saves have shown.
    made_of: dict[int, list[int]] = field(default_factory=dict)
    #: Since when it has no session to the manager and nothing was saved, or `None` if it has a session.
    cut_s: float | None = None
    #: Each update that came for an open lease: when it came, its lease, and the version at that time.
    updates: list[tuple[float, int, int]] = field(default_factory=list)
    #: When the present manager first heard it report under a term that was over.
    claimed_s: float = -1.0

    def trained(self, *, after_s: float, until_s: float) -> set[str]:
        """Return the workers with an update between these times that is in a version, without those lost with their
        aggregator."""
        merged = (
            self.lent[lease] for at_s, lease, at in self.updates if after_s < at_s < until_s and at < self.version
        )
        return {lent.node for lent in merged if lent.counts}


@dataclass(slots=True)
class SeenJob:
    """One job as observed from outside."""

    spec: JobSpec
    model_bytes: int
    #: Node -> the last leader of this job there.
    tenures: dict[str, SeenLeader] = field(default_factory=dict)
    #: The newest term that is durable, and the newest that someone led under.
    kept_term: int = 0
    led_term: int = 0
    #: Terms that were led under -> on which node.
    led: dict[int, str] = field(default_factory=dict)
    past: list[SeenLeader] = field(default_factory=list)
    #: The newest version that a leader knows to be durable, and the one at the time when each term became durable.
    acknowledged: int = -1
    floor: dict[int, int] = field(default_factory=dict)
    #: Term -> the version that its leader handed over in order.
    handed: dict[int, int] = field(default_factory=dict)
    #: The older term whose leader is asked for its history, and the least number of the version that it hands over.
    adopting: int = 0
    least: int = -1
    #: The term whose leader was told to step down for it.
    deposed: int = 0
    #: When the leader last reported to the job's manager, and when its session broke after that.
    heard_s: float = -1.0
    broke_s: float = -1.0
    #: Since when nobody leads it under the newest term, or `None` if someone does.
    vacant_s: float | None = 0.0
    #: The newest version that is durable, and each (term, version) that ever became so.
    durable: int = -1
    durables: set[tuple[int, int]] = field(default_factory=set)
    durable_term: int = 0
    ending: bool = False
    #: The same history: (epoch, batch) -> under which term a worker trained it.
    trained_by: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    #: Term -> the workers that trained under it, by what the present manager read or was sent, and how many of
    #: them have batches in a version.
    told: dict[int, set[str]] = field(default_factory=dict)
    told_workers: dict[int, int] = field(default_factory=dict)
    #: Older term -> how many workers trained what would be lost with its leader, by the same source. And the newest
    #: term when a history was adopted last, and the one that the manager declared over.
    claimed: dict[int, int] = field(default_factory=dict)
    told_after: int = 0
    term_over: int = 0
    #: (term, version) -> when the manager took it to be kept; and when it took the last version of the job.
    taken_s: dict[tuple[int, int], float] = field(default_factory=dict)
    ended_s: float = math.inf
    state: str = ""
    #: The surviving history: (epoch, batch) -> version.
    history: dict[tuple[int, int], int] = field(default_factory=dict)
    per_epoch: Counter[int] = field(default_factory=Counter)
    history_version: int = 0
    moved_s: float = 0.0
    #: (epoch, kind of lease, batch) -> how often a worker reported that it failed.
    failures: Counter[tuple[int, str, int]] = field(default_factory=Counter)
