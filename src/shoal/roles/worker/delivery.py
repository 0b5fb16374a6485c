"""How an update leaves its worker: whole, to the leader, or in pieces, to the aggregators of a route.

A whole update goes at once if its lease came with a credit; otherwise the worker offers it and waits for the leader's
``Go``. In pieces, the leader hears of it once every aggregator has taken its piece. Either way the leader may send it
another way: its ``Go`` names a formation, or none.

Where updates are sealed, an update is always offered, and nothing but masked words and what goes with them ever leaves:
not for a credit, not for a ``Go``, not for a route. The leader's ``Bind`` says which way the words go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from shoal.roles.worker.machine import WorkerMachine
from shoal.roles.worker.routes import Routes
from shoal.states import WorkerPhase
from shoal.wire.coded import Coded, bytes_of
from shoal.wire.messages import (
    Bind,
    Evaluated,
    Go,
    Hop,
    Offer,
    Route,
    Routed,
    ShardAck,
    Tensors,
    Unbind,
    Update,
    UpdateReady,
    UpdateRefused,
    UpdateShard,
    Work,
)

#: How many pieces are under way at a time.
SHARDS_AT_ONCE = 3

#: After this long the worker reports aggregators that have not taken their piece: a multiple of the usual time, and a
#: fixed one as long as the usual time is not known.
TAKEN_FIRST_S = 5.0
TAKEN_LEAST_S = 0.75
TAKEN_TIMES = 4.0

#: When a formation is over, the leader says at once where an update goes instead; or says nothing, if it has lent the
#: lease to another worker. After this the worker asks.
ASTRAY_S = 0.5

#: Why a worker waits once its result has left.
SENT = "the update was sent; waiting for the next version"

#: Fires when aggregators have had long enough to take their pieces.
TAKEN_TIMER = "taken"

#: Fires when the leader has had long enough to say where an update goes.
ASTRAY_TIMER = "astray"


@dataclass(frozen=True, slots=True)
class SealedWords:
    """An update under the masks of a group, and what goes to the leader with it."""

    group: int
    words: np.ndarray = field(repr=False)
    seals: np.ndarray = field(repr=False)


@dataclass(slots=True)
class Held:
    """The lease in hand, its result once there is one, and how far the delivery of that is."""

    work: Work
    #: Values of the lease's model are still to come from aggregators.
    lacks_values: bool = False
    result: Update | Evaluated | None = None
    #: The update in the form that pieces are cut from, if the plan has a codec.
    coded: Coded | None = None
    #: Where updates are sealed: what leaves of this one.
    sealed: SealedWords | None = None
    #: The formation that the update goes by; None: whole, to the leader.
    formation: int | None = None
    #: Aggregators whose piece was sent, and aggregators that have taken theirs.
    sent: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    #: When the first pieces were sent.
    sent_s: float = 0.0
    #: The leader has heard that every aggregator has its piece.
    is_reported: bool = False

    def is_of(self, message: Go | Bind | Unbind | UpdateRefused) -> bool:
        """Lease numbers start again with each term: both must match."""
        return (self.work.term, self.work.lease) == (message.term, message.lease)


class UpdateDelivery:
    """Keeps no lease itself: each input names the one in hand. True from it: the result is sent, and out of hand."""

    def __init__(
        self,
        worker: WorkerMachine,
        routes: Routes,
        *,
        is_sealed: bool = False,
        is_counted: Callable[[Work], bool] = lambda _: True,
    ) -> None:
        """``is_counted``: whether an update may leave. Of a private job, once its participation is durable."""
        self._worker = worker
        self._routes = routes
        self._is_sealed = is_sealed
        self._is_counted = is_counted
        #: How long the last updates took until every piece was taken.
        self._takings_s: deque[float] = deque(maxlen=9)
        #: The formation whose silent aggregators the worker reported last.
        self._complained_of: int | None = None

    def deliver(self, held: Held) -> bool:
        """Send a result by the way of its lease; keep it while there is no session."""
        worker, result = self._worker, held.result
        if not worker.is_connected or result is None:
            worker.become(WorkerPhase.WAITING, "the leader is not reachable; the update is kept")
            return False
        if isinstance(result, Update):
            if self._is_sealed:
                self._offer(held, result)
                return False
            if self._routes.get(held.formation) is not None:
                self._send_in_shards(held, result)
                return False
            if held.formation is not None or not held.work.credit:
                self._offer(held, result)
                return False
        # After this the leader speaks next: with work, a reason to wait, or a refusal.
        worker.become(WorkerPhase.WAITING, SENT)
        worker.send(worker.leader, result)
        return True

    def send_sealed(self, held: Held, sealed: SealedWords, *, formation: int) -> None:
        """Send masked words: to the aggregators of this formation, or straight to the leader."""
        update, worker = held.result, self._worker
        assert isinstance(update, Update)
        held.sent.clear()
        held.taken.clear()
        held.sealed, held.formation, held.is_reported = sealed, formation or None, not formation
        if not formation:
            worker.become(WorkerPhase.WAITING, "the sealed update was sent; waiting for the sum to be opened")
            tensors = {"words": sealed.words, "seals": sealed.seals}
            worker.send(worker.leader, replace(update, group=sealed.group, tensors=tensors))
        elif self._routes.get(formation) is None:
            # The leader hears that it is here still, and goes on without it.
            self._offer(held, update)
        else:
            self._routes.in_use = formation
            self._send_in_shards(held, update)

    # Inputs --------------------------------------------------------------------------------------------

    def on_go(self, held: Held, go: Go) -> bool:
        """The leader has room for the update, or wants it to go another way."""
        if self._is_sealed:
            return False
        formation = go.formation or None
        if held.work.formation != go.formation or held.formation != formation:
            self._routes.in_use = held.formation = formation
            held.is_reported = False
            held.taken.clear()
            held.sent.clear()
        if not isinstance(held.result, Update) or not self._is_counted(held.work):
            # Once it is made, and counted where that has to be, it goes this way.
            return False
        if formation is not None:
            return self.deliver(held)
        self._worker.become(WorkerPhase.WAITING, SENT)
        self._worker.send(self._worker.leader, held.result)
        return True

    def on_connected(self, held: Held, node: str) -> None:
        """Send an aggregator that is back the piece that it has not taken yet."""
        if isinstance(held.result, Update):
            self._send_shards(held, held.result, only=node)

    def on_disconnected(self, held: Held, node: str) -> None:
        """A piece that was on its way is lost with the session."""
        held.sent.discard(node)

    def on_shard_ack(self, held: Held, sender: str, taken: ShardAck) -> None:
        if not isinstance(held.result, Update):
            return
        if (taken.term, taken.lease, taken.formation) != (held.work.term, held.work.lease, held.formation):
            return
        if taken.group != (held.sealed.group if held.sealed is not None else 0):
            return
        held.taken.add(sender)
        if held.is_reported or self._may_report(held):
            self._takings_s.append(max(0.0, self._worker.now_s - held.sent_s))
            self._worker.cancel(TAKEN_TIMER)
            self._withdraw_complaint(held)
        self._send_shards(held, held.result)
        self._report(held, held.result)

    def on_taken_timer(self, held: Held) -> None:
        """Report to the leader the aggregators that do not take their piece."""
        worker, route = self._worker, self._routes.get(held.formation)
        if route is None or held.is_reported or held.result is None:
            return
        silent = tuple(hop.node for hop in route.hops if hop.node in held.sent and hop.node not in held.taken)
        if not silent or not worker.is_connected:
            return
        self._complained_of = route.formation
        routed = Routed(job=worker.job, term=route.term, formation=route.formation, unreached=silent)
        worker.send(worker.leader, routed)
        worker.timer(TAKEN_TIMER, TAKEN_FIRST_S)

    def on_tear_down(self, held: Held) -> None:
        if held.formation is not None:
            self._worker.timer(ASTRAY_TIMER, ASTRAY_S)

    def on_astray(self, held: Held) -> None:
        """Offer the leader an update that cannot go by its formation: the leader says how it goes, or that it is too
        late."""
        if held.formation is None or not isinstance(held.result, Update):
            return
        if self._is_sealed and held.is_reported:
            # The leader has what it needs, or will say that it has not.
            return
        route = self._routes.get(held.formation)
        if route is None or (not held.is_reported and not self._routes.reaches_all(route)):
            self._offer(held, held.result)

    # Whole ---------------------------------------------------------------------------------------------

    def _offer(self, held: Held, update: Update) -> None:
        worker = self._worker
        if self._is_sealed:
            # The words that it was sealed as are of no use: it is sealed again, in another group.
            held.sealed = held.formation = None
        worker.become(WorkerPhase.WAITING, "the update is ready; waiting for the leader to take it")
        if worker.is_connected:
            size_bytes = bytes_of(update.tensors)
            offer = Offer(job=worker.job, term=held.work.term, lease=held.work.lease, size_bytes=size_bytes)
            worker.send(worker.leader, offer)

    # In pieces -----------------------------------------------------------------------------------------

    def _send_in_shards(self, held: Held, update: Update) -> None:
        worker = self._worker
        worker.become(WorkerPhase.WAITING, "the update is on its way to the aggregators")
        held.sent_s = worker.now_s
        if not self._is_sealed:
            worker.send(worker.leader, UpdateReady(job=worker.job, term=held.work.term, lease=held.work.lease))
        self._send_shards(held, update)
        worker.timer(TAKEN_TIMER, self._patience_s())
        self._report(held, update)

    def _send_shards(self, held: Held, update: Update, *, only: str | None = None) -> None:
        """Send the pieces that are not taken yet to the aggregators that are there: a few at a time, each worker in
        another order.

        If every worker sent all its pieces at once, they would reach one aggregator at one moment, and small devices
        have short queues. Leases of a version have consecutive numbers, so each worker begins one hop after the last.
        """
        route = self._routes.get(held.formation)
        if route is None or (held.sealed is None if self._is_sealed else not self._is_counted(held.work)):
            return
        first = held.work.lease % len(route.hops)
        under_way = sum(self._routes.reaches(node) for node in held.sent - held.taken)
        for hop in (*route.hops[first:], *route.hops[:first]):
            if hop.node in held.taken or not self._routes.reaches(hop.node) or only not in (None, hop.node):
                continue
            if hop.node in held.sent or under_way >= SHARDS_AT_ONCE:
                continue
            held.sent.add(hop.node)
            under_way += 1
            self._worker.send(hop.node, _shard(held, update, route, hop))

    def _may_report(self, held: Held) -> bool:
        """Every aggregator has its piece, and the leader is there to hear of it."""
        route = self._routes.get(held.formation)
        return route is not None and self._worker.is_connected and all(hop.node in held.taken for hop in route.hops)

    def _report(self, held: Held, update: Update) -> None:
        """Tell the leader of an update that every aggregator has. The worker keeps it until the leader speaks: if a
        aggregator is lost, the update goes another way."""
        if not self._may_report(held):
            return
        held.is_reported = True
        waits_for = "every aggregator has the update; waiting for the next version"
        self._worker.become(WorkerPhase.WAITING, waits_for)
        group, tensors = (held.sealed.group, {"seals": held.sealed.seals}) if held.sealed is not None else (0, {})
        told = replace(update, formation=held.formation or 0, group=group, tensors=tensors)
        self._worker.send(self._worker.leader, told)

    def _withdraw_complaint(self, held: Held) -> None:
        """Tell the leader that the aggregators it heard of have answered after all."""
        route = self._routes.get(held.formation)
        if self._complained_of == held.formation and route is not None:
            self._complained_of = None
            self._routes.report(route)

    def _patience_s(self) -> float:
        """How long the aggregators may take, from how long they took before."""
        if not self._takings_s:
            return TAKEN_FIRST_S
        return max(TAKEN_LEAST_S, TAKEN_TIMES * median(self._takings_s))


def _shard(held: Held, update: Update, route: Route, hop: Hop) -> UpdateShard:
    if held.sealed is not None:
        tensors: Tensors = {"words": held.sealed.words[hop.start : hop.stop]}
    elif held.coded is not None:
        tensors = held.coded.part(hop.start, hop.stop)
    else:
        tensors = {"delta": update.tensors["delta"][hop.start : hop.stop]}
    return UpdateShard(
        job=update.job,
        term=update.term,
        formation=route.formation,
        lease=update.lease,
        version=update.version,
        group=held.sealed.group if held.sealed is not None else 0,
        tensors=tensors,
    )
