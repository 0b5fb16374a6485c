"""How the updates of a version become one sum: the questions of a leader, and the answers.

A leader has one ``Gathering`` for its whole term. It hands over each message about updates, and asks ``gather`` when it
wants to move on. The gathering sends what has to be sent and returns what the leader has to do (an ``Outcome``): the
leader merges, refuses, leases and decides. ``PlainGathering`` takes updates as they are, in a star, a tree or a shard;
``Sealing`` takes masked ones, on the same ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.weighing import WeightsGiven
from shoal.roles.leader.workers import WorkerRecord
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import (
    AggregatorReady,
    Agreed,
    BadShard,
    MaskSum,
    Message,
    Offer,
    Opened,
    ReduceResult,
    Routed,
    SealKey,
    SealRefused,
    Update,
)

#: What aggregators, and workers that look for them, send a leader.
AggregatorMessage = AggregatorReady | Routed | BadShard | ReduceResult
#: What members of a sealed sum send a leader beside their updates.
MemberMessage = SealKey | SealRefused | Agreed | Opened


@dataclass(frozen=True, slots=True)
class Summed:
    """Updates of these leases as one, ready to be merged."""

    reports: tuple[ArrivedUpdate, ...]
    mean: np.ndarray
    weight: float
    #: How the model moved by them, where aggregators have taken the step and said so.
    moved: np.ndarray | None = None
    #: How its updates were weighed against each other, where they were.
    verdict: WeightsGiven | None = None
    #: The aggregator that summed them, or empty if the leader knows of no single one.
    by: tuple[str, ...] = ()
    #: The leader has not counted the work of these workers yet: no report came before the sum.
    is_news: bool = False


@dataclass(frozen=True, slots=True)
class CheckedUpdate:
    """One update that came straight to the leader, checked: it is merged by itself."""

    worker: WorkerRecord
    update: Update
    lease: Lease
    delta: np.ndarray | Sparse


@dataclass(frozen=True, slots=True)
class Delivered:
    """A worker has done its part. Aggregators have its update, which counts once its sum is merged."""

    worker: WorkerRecord
    update: Update
    lease: Lease


@dataclass(frozen=True, slots=True)
class BadUpdate:
    """An update that the leader must refuse and count against its worker."""

    worker: WorkerRecord
    update: Update
    lease: Lease
    violation: PeerViolation
    #: It is only longer than is usual.
    is_unusual: bool = False


@dataclass(frozen=True, slots=True)
class Declined:
    """An update that is not taken now, through no fault of its worker."""

    worker: WorkerRecord
    what: Offer | Update
    reason: str


@dataclass(frozen=True, slots=True)
class Progressed:
    """Something that a sum or a lease may have waited for happened: the leader should see how far it can move on."""

    #: The only node whose state changed, or None if it may be several.
    node: str | None = None


Outcome = Summed | CheckedUpdate | Delivered | BadUpdate | Declined | Progressed | None


@dataclass(frozen=True, slots=True)
class Underway:
    """Sums are being made and none is ready."""

    #: Nothing is leased until the sum is merged: it is of the last updates of its version.
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Hopeless:
    """No sum will ever be made: the job has to fail, for this reason."""

    reason: str


class Gathering(Protocol):
    """How the updates of a version become one sum."""

    @property
    def helper(self) -> str | None:
        """The node that only opens sums, if the plan names one. It is leased nothing."""

    def on_helper(self, message: Message) -> None:
        """Take any message of that node."""

    def on_gone(self, node: str, reason: str) -> None:
        """A node is lost, or the manager wants it back."""

    def held_up(self) -> str | None:
        """Return why no sum could be made now, however many updates came, or None if one could."""

    def route(self, node: str, lease: Lease) -> tuple[int, bool]:
        """Decide where the update of a new lease goes: the number of a formation, or 0 for the leader itself. Return
        it, and whether the update may be sent without an offer."""

    def awaits(self, sender: str, message: ReduceResult | MaskSum) -> bool:
        """Return whether this sum was asked for and has not come."""

    def on_offer(self, worker: WorkerRecord, offer: Offer, lease: Lease) -> Outcome:
        """A worker has an update and asks where it may send it."""

    def on_update(self, worker: WorkerRecord, update: Update, lease: Lease) -> Outcome:
        """Take an update of an open lease, or the report that aggregators have it."""

    def on_aggregator(self, sender: str, message: AggregatorMessage) -> Outcome:
        """Take a message of an aggregator, or about one."""

    def on_member(self, sender: str, message: MemberMessage) -> Outcome:
        """Take a message of a member of a sealed sum."""

    def gather(self, *, is_last: bool) -> Summed | Underway | Hopeless | None:
        """Move the sums of this version on. Return a sum to merge, or why there is none yet; None if no update waits in
        a sum, so that pace and leases decide. ``is_last``: this leader will lease nothing more."""

    def has_only_offers(self) -> bool:
        """Return whether every open lease is an update that waits for others, which may never come."""

    def let_go(self, reason: str) -> None:
        """Free the devices that wait for a sum: nothing more is trained."""

    def waive_rest(self) -> None:
        """End an epoch in which fewer leases are left than a sum needs."""
