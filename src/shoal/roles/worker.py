"""The worker of one job: takes leases, has them trained, returns updates. Decides only; a driver acts.

It keeps no state that training needs (EDDL §4.4): whatever it loses, the leader leases out again. With error feedback
it keeps what it has not sent yet of its updates, for as long as its process lives; what is lost with that is a part of
the last few updates, which training makes up for (``benchmarks.bytes_to_accuracy`` measures what it costs).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.roles.actions import (
    Action,
    CancelTimer,
    End,
    Evaluate,
    Interrupt,
    Prepare,
    Record,
    Send,
    SetTimer,
    Stage,
    Train,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    LinkMeasured,
    Prepared,
    PrepareFailed,
    Reassigned,
    Received,
    Started,
    StopRequested,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.roles.staging import Staging
from shoal.wire.checks import flat
from shoal.wire.coded import Coded, bytes_of, code, cut, decode_changes
from shoal.wire.limits import TRACEBACK_MAX_CHARS
from shoal.wire.messages import (
    FIRST_HELD,
    DeviceState,
    Disband,
    Evaluated,
    Failed,
    Finished,
    Go,
    Hop,
    JobSpec,
    Made,
    Message,
    Offer,
    Piece,
    Ready,
    Refused,
    Route,
    Routed,
    Taken,
    Tensors,
    Update,
    Values,
    Wait,
    Work,
    clip,
)

#: Updates whose versions are remembered, to know which of them a new leader lacks.
CODED_KEPT = 1000

#: Waits between attempts to get a broken trainer going again.
RETRY_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

#: How long a worker tries to reach every sub-leader of a route before it says that it does not.
ROUTE_S = 8.0

#: Pieces that are under way at a time.
PIECES_AT_ONCE = 3

#: A piece that nobody has taken so long after others took theirs is told of; at first nobody knows what is usual.
TAKEN_FIRST_S = 5.0
TAKEN_LEAST_S = 0.75
TAKEN_TIMES = 4.0

#: Values of a version are waited for at least this long, and for a part of the lease's time.
VALUES_LEAST_S = 3.0

#: An update whose formation is over goes where the leader says, and it says so at once; or has nothing to say, where it
#: has lent the lease anew. After this it is asked.
ASTRAY_S = 0.5

#: Routes that are remembered besides the one in use: those that are tried, or were.
ROUTES_KEPT = 3

_DEADLINE = "lease-deadline"
_RETRY = "retry"
_ROUTE = "route"
_TAKEN = "taken"
_VALUES = "values"
_ASTRAY = "astray"
_ASK = "ask-again"


@dataclass(slots=True)
class _Held:
    """The lease in hand, and the update once it is made."""

    work: Work
    result: Update | Evaluated | None = None
    #: The update as it is cut for sub-leaders, where it is coded.
    coded: Coded | None = None
    #: The formation by which the update goes; 0: whole, to the leader.
    formation: int = 0
    #: Sub-leaders to whom their piece is on its way, and those that have it.
    sent: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    #: Values of its model are still to come.
    lacks_values: bool = False
    #: When its pieces were first sent.
    sent_s: float = 0.0
    #: The leader has heard that every sub-leader has its piece.
    is_reported: bool = False

    def is_of(self, message: Go | Refused) -> bool:
        """Lease numbers begin anew with each term: both must match."""
        return (self.work.term, self.work.lease) == (message.term, message.lease)


class Worker:
    def __init__(self, *, spec: JobSpec, leader: str, term: int) -> None:
        self._spec = spec
        self._leader = leader
        self._term = term
        self._connected = False
        self._prepared = False
        self._held: _Held | None = None
        #: (term, version) of the model the trainer holds.
        self._holds: tuple[int, int] = (0, -1)
        #: (term, number) of the last lease that came.
        self._newest: tuple[int, int] = (0, 0)
        self._codec, self._down = Codec.parse(spec.plan.codec), Codec.parse(spec.plan.down)
        #: How many values each tensor of the model has.
        self._sizes: tuple[int, ...] = ()
        self._feedback: Feedback | None = None
        #: For which term updates were coded last, and against which versions.
        self._coded: tuple[int, deque[int]] = (0, deque(maxlen=CODED_KEPT))
        #: (term, lease) of the last update that was made, and what had been held back before it.
        self._made: tuple[tuple[int, int], np.ndarray] | None = None
        self._failures = 0
        #: A timer will have it prepared again.
        self._retry_waits = False
        #: Formation -> the sub-leaders to which updates go by it.
        self._routes: dict[int, Route] = {}
        #: The one by which the last lease goes.
        self._in_use = 0
        #: Sub-leaders with whom there is a session.
        self._reached: set[str] = set()
        #: A timer will look which routes are whole.
        self._route_waits = False
        self._staging = Staging()
        #: How long the last pieces took to be taken, each time.
        self._takings_s: deque[float] = deque(maxlen=9)
        #: The formation of which the leader heard that some do not answer.
        self._complained_of = 0
        self._now_s = 0.0
        self._link = LinkMeasured()
        #: With local data: how the device was when a lease was last trained.
        self._state: DeviceState | None = None
        self.state = "preparing"
        self.reason = "fetching the task and its data"

    @property
    def leader(self) -> str:
        return self._leader

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self._now_s = now_s
        match event:
            case Started():
                return [Prepare(spec=self._spec)]
            case Prepared():
                self._prepared = True
                self._holds = FIRST_HELD if event.holds_first else (0, -1)
                self._sizes = event.sizes
                self._state = event.state
                return self._ready()
            case LinkMeasured():
                self._link = event
                return []
            case PrepareFailed():
                return self._on_prepare_failed(event)
            case Connected():
                reached = self._on_reached(event.node)
                return [*(self._on_connected() if event.node == self._leader else []), *reached]
            case Disconnected():
                self._reached.discard(event.node)
                if self._held is not None:
                    # What was on its way there is lost with the session.
                    self._held.sent.discard(event.node)
                if event.node != self._leader:
                    # Each attempt in vain ends here too: to wait anew each time would be to wait for ever.
                    later = [] if self._route_waits else self._look_at_routes_later()
                    return [*self._on_values_lost(), *later]
                self._connected = False
                if self._down.form == "dense":
                    # A model may have been on its way into the trainer's memory: what lies there is no version.
                    self._holds = (0, -1)
                return []
            case Reassigned():
                return self._on_reassigned(event)
            case Received():
                return self._on_message(event.sender, event.message)
            case Trained():
                return self._on_trained(event)
            case EvaluationDone():
                return self._on_evaluated(event)
            case TrainerFailed():
                return self._on_trainer_failed(event)
            case TimerFired():
                return self._on_timer(event.name)
            case StopRequested():
                return [End(reason=event.reason)]
            case _:
                return []

    # Messages ------------------------------------------------------------------------------------

    def _on_message(self, sender: str, message: Message) -> list[Action]:
        match message:
            case Work():
                return self._on_work(message)
            case Go():
                return self._on_go(message)
            case Route():
                return self._on_route(message)
            case Values():
                return self._on_values(sender, message)
            case Taken():
                return self._on_taken(sender, message)
            case Disband():
                return self._on_disband(message)
            case Wait():
                return self._on_wait(message)
            case Refused():
                return self._on_refused(message)
            case Finished():
                return [CancelTimer(name=_DEADLINE), End(reason=message.reason)]
            case _:
                return []

    def _on_wait(self, wait: Wait) -> list[Action]:
        self.state, self.reason = "waiting", wait.reason
        if not wait.retry_after_s:
            return []
        if self._held is not None and self._held.is_reported:
            # It would have been lent something by now: what sub-leaders had of it is in a version, or of no use.
            self._held = None
        return [SetTimer(name=_ASK, after_s=wait.retry_after_s)]

    def _on_work(self, work: Work) -> list[Action]:
        if work.term < self._term or not self._prepared:
            return []
        self._term = work.term
        taken_back = self._on_began(work)
        return [*taken_back, *self._take_on(work)]

    def _on_began(self, work: Work) -> list[Action]:
        """A new leader may have gone on from before our last updates. What was held back of those is trained again."""
        term, versions = self._coded
        if work.term == term:
            return []
        self._coded = (work.term, deque(maxlen=CODED_KEPT))
        lost = [version for version in versions if version >= work.began]
        if not lost or self._feedback is None:
            return []
        if len(lost) == 1 and self._made is not None:
            self._take_back()
        else:
            self._feedback.reset()
            self._made = None
        told = f"the job goes on from version {work.began}, without {len(lost)} of our updates: their rest is dropped"
        return [Record(kind="residual", reason=told, job=self._spec.job)]

    def _take_on(self, work: Work) -> list[Action]:
        if self._held is not None and not self._held.is_reported:
            self._unsend(self._held)
        self._held = held = _Held(work, formation=work.formation)
        self._newest = (work.term, work.lease)
        self._in_use = work.formation or work.values_by
        timer = SetTimer(name=_DEADLINE, after_s=work.deadline_s)
        if "model" in work.tensors or self._has(work.version):
            return [timer, *self._begin(held)]
        if work.tensors and self._has(work.base):
            return self._on_changes(held, timer)
        route = self._routes.get(work.values_by)
        if route is not None and not self._staging.is_spent(work.values_by, work.version, route):
            if self._staging.is_whole(work.values_by, work.version, route):
                return [timer, *self._begin(held, staged=True)]
            held.lacks_values = True
            self.state, self.reason = "waiting", f"values of version {work.version} are on their way"
            patience = SetTimer(name=_VALUES, after_s=max(VALUES_LEAST_S, work.deadline_s / 4))
            return [timer, patience, *self._on_values_lost()]
        # The leader thinks we hold this version. We say what we do hold, and are sent it.
        self._held = None
        return self._ready()

    def _has(self, version: int) -> bool:
        """Whether the trainer holds this version. The first is the same under every leader."""
        return self._holds == (self._term, version) or self._holds == FIRST_HELD == (0, version)

    def _on_changes(self, held: _Held, timer: SetTimer) -> list[Action]:
        work = held.work
        try:
            changes = decode_changes(self._down, work.tensors, self._sizes, base=work.base, version=work.version)
        except PeerViolation as violation:
            self._held, self._holds = None, (0, -1)
            told = Record(kind="spoilt", reason=f"changes of the leader: {violation.reason}", job=self._spec.job)
            return [told, *self._ready()]
        return [timer, *self._begin(held, changes=changes)]

    def _begin(
        self, held: _Held, *, staged: bool = False, changes: tuple[np.ndarray | Sparse, ...] = ()
    ) -> list[Action]:
        work = held.work
        held.lacks_values = False
        if staged:
            self._staging.spend()
        self._holds = (work.term, work.version)
        self.state = "training" if work.kind == "train" else "evaluating"
        self.reason = f"version {work.version}, {len(work.batches)} batch(es) of epoch {work.epoch}"
        # Changes that came although they were made already are of no use.
        model = work.tensors if "model" in work.tensors else {}
        if work.kind == "train":
            train = Train(
                lease=work.lease,
                epoch=work.epoch,
                batches=work.batches,
                examples=work.examples,
                tensors=model,
                changes=changes,
                staged=staged,
            )
            return [train]
        return [Evaluate(lease=work.lease, chunks=work.batches, tensors=model, changes=changes, staged=staged)]

    def _on_go(self, message: Go) -> list[Action]:
        held = self._held
        if held is None and (message.term, message.lease) == self._newest and message.formation:
            # It went to sub-leaders that are no more, and is not here any longer: someone else will train it.
            return self._ready()
        if held is None or not held.is_of(message):
            return []
        if held.work.formation != message.formation or held.formation != message.formation:
            self._in_use = held.formation = message.formation
            held.is_reported = False
            held.taken.clear()
            held.sent.clear()
        if not isinstance(held.result, Update):
            return []
        if not message.formation:
            return self._send_result(held.result)
        return self._deliver(held)

    def _on_refused(self, message: Refused) -> list[Action]:
        """The leader counts us as ready from here on, and speaks next: asking again would void the lease it sends.

        Unless it believes that we have a lease which never came. Messages come in order, so that one was lost with the
        session it was sent on, and only we know.
        """
        if self._held is not None and self._held.is_of(message) and self._held.result is not None:
            self._held = None
            self.state, self.reason = "waiting", f"the update was refused: {message.reason}"
        if self._made is not None and self._made[0] == (message.term, message.lease):
            self._take_back()
        record = Record(kind="refused", reason=message.reason, job=self._spec.job)
        if message.holds and message.term == self._term and (message.term, message.holds) > self._newest:
            return [record, *self._ready()]
        return [record]

    # Sub-leaders -----------------------------------------------------------------------------------

    def _on_route(self, route: Route) -> list[Action]:
        if route.term < self._term:
            return []
        self._routes[route.formation] = route
        for old in sorted(self._routes)[:-ROUTES_KEPT]:
            # Several may have come to nothing since the one that still holds.
            if old != self._in_use:
                del self._routes[old]
        return [self._routed(route)] if self._reaches(route) else self._look_at_routes_later()

    def _look_at_routes_later(self) -> list[Action]:
        self._route_waits = True
        return [SetTimer(name=_ROUTE, after_s=ROUTE_S)]

    def _reaches(self, route: Route) -> bool:
        return all(hop.node in self._reached for hop in route.hops)

    def _routed(self, route: Route) -> Send:
        away = tuple(hop.node for hop in route.hops if hop.node not in self._reached)
        routed = Routed(job=self._spec.job, term=route.term, formation=route.formation, unreached=away)
        return Send(to=self._leader, message=routed)

    def _on_reached(self, node: str) -> list[Action]:
        """A sub-leader is there (again): what it did not take yet is sent. The leader hears which routes are whole by
        that; all of them when it is there again itself, for what was said in between is lost."""
        is_news = node not in self._reached
        self._reached.add(node)
        if all(self._reaches(route) for route in self._routes.values()):
            # Who is lost from now on has all the time again.
            self._route_waits = False
        through = [route for route in self._routes.values() if any(hop.node == node for hop in route.hops)]
        routes = list(self._routes.values()) if node == self._leader else through if is_news else []
        actions: list[Action] = [self._routed(route) for route in routes if self._reaches(route)]
        held = self._held
        if held is not None and held.formation and isinstance(held.result, Update):
            actions += self._pieces(held, held.result, only=node)
        return actions

    def _on_unreached(self) -> list[Action]:
        """Time is over: the leader hears which sub-leaders cannot be reached from here. An update that cannot go to
        them is offered to the leader itself: it says which way that goes, or that it is too late."""
        away = [route for route in self._routes.values() if not self._reaches(route)]
        actions: list[Action] = [self._routed(route) for route in away]
        return [*actions, *self._on_astray()]

    def _on_astray(self) -> list[Action]:
        held = self._held
        if held is None or not held.formation or not isinstance(held.result, Update):
            return []
        route = self._routes.get(held.formation)
        is_astray = route is None or (not held.is_reported and not self._reaches(route))
        return self._offer(held, held.result) if is_astray else []

    def _on_values(self, sender: str, values: Values) -> list[Action]:
        route = self._routes.get(values.formation)
        if route is None or values.term != route.term or not self._prepared:
            return []
        hop = next((hop for hop in route.hops if hop.node == sender), None)
        if hop is None or (hop.start, hop.stop) != (values.start, values.stop):
            return []
        try:
            stage = self._stage(values)
        except PeerViolation as violation:
            return [Record(kind="spoilt", reason=f"values of {sender}: {violation.reason}", job=self._spec.job)]
        if stage is None:
            # What it is to be made of is not here: the leader will hear what is.
            self._staging.skip(values)
            is_awaited = self._held is not None and self._held.work.version <= values.version
            return self._on_values_lost(for_good=True) if is_awaited else []
        if not self._staging.add(values):
            return []
        actions: list[Action] = [stage]
        held = self._held
        if held is None or not held.lacks_values or held.work.values_by != values.formation:
            return actions
        if self._staging.is_whole(values.formation, held.work.version, route):
            return [*actions, CancelTimer(name=_VALUES), *self._begin(held, staged=True)]
        if self._staging.is_spent(values.formation, held.work.version, route):
            # In a tree whose groups do not wait, another of the group was lent a newer version.
            return [*actions, *self._on_values_lost(for_good=True)]
        return actions

    def _stage(self, values: Values) -> Stage | None:
        """What to keep of values that came; None: they change what is not here."""
        if "model" in values.tensors:
            flat("model", values.tensors, size=values.stop - values.start)
            return Stage(start=values.start, tensors=values.tensors)
        on = self._staging.follows(values, self._holds)
        if not on:
            return None
        sizes = cut(self._sizes, values.start, values.stop)[1]
        changes = decode_changes(self._down, values.tensors, sizes, base=values.base, version=values.version)
        return Stage(start=values.start, changes=changes, anew=on == "held")

    def _on_values_lost(self, *, for_good: bool = False) -> list[Action]:
        """Values do not come from one who is out of reach: we say what we do hold, and are sent the whole model."""
        held = self._held
        if held is None or not held.lacks_values:
            return []
        route = self._routes.get(held.work.values_by)
        if not for_good and route is not None:
            missing = [hop for hop in route.hops if not self._staging.has(hop.start)]
            if all(hop.node in self._reached for hop in missing):
                return []
        self._held = None
        return [CancelTimer(name=_DEADLINE), CancelTimer(name=_VALUES), *self._ready()]

    def _on_taken(self, sender: str, taken: Taken) -> list[Action]:
        held = self._held
        if held is None or not isinstance(held.result, Update):
            return []
        if (taken.term, taken.lease, taken.formation) != (held.work.term, held.work.lease, held.formation):
            return []
        held.taken.add(sender)
        reports = [*self._pieces(held, held.result), *self._report(held, held.result)]
        if held.is_reported:
            self._takings_s.append(max(0.0, self._now_s - held.sent_s))
            reports = [CancelTimer(name=_TAKEN), *self._reached_after_all(held.formation), *reports]
        return reports

    def _patience_s(self) -> float:
        """How long the last piece may take to be taken, from how long it took before."""
        if not self._takings_s:
            return TAKEN_FIRST_S
        return max(TAKEN_LEAST_S, TAKEN_TIMES * median(self._takings_s))

    def _on_untaken(self) -> list[Action]:
        """Pieces lie with those who do not answer: the leader hears of whom."""
        held = self._held
        route = self._routes.get(held.formation) if held is not None and not held.is_reported else None
        if held is None or route is None or held.result is None:
            return []
        silent = tuple(hop.node for hop in route.hops if hop.node in held.sent and hop.node not in held.taken)
        if not silent or not self._connected:
            return []
        self._complained_of = route.formation
        told = Routed(job=self._spec.job, term=route.term, formation=route.formation, unreached=silent)
        return [Send(to=self._leader, message=told), SetTimer(name=_TAKEN, after_s=TAKEN_FIRST_S)]

    def _reached_after_all(self, formation: int) -> list[Action]:
        route = self._routes.get(formation)
        if self._complained_of != formation or route is None:
            return []
        self._complained_of = 0
        return [self._routed(route)]

    def _pieces(self, held: _Held, update: Update, *, only: str = "") -> list[Action]:
        """To sub-leaders that are there what they have not taken yet: a few at a time, each worker in another order.

        All at once they would arrive at one sub-leader at one moment from everyone, and queues of small devices are
        short. Leases of a version have numbers in a row, so that one begins where the next one goes on.
        """
        route = self._routes.get(held.formation)
        if route is None:
            return []
        first = held.work.lease % len(route.hops)
        under_way = sum(node in self._reached for node in held.sent - held.taken)
        actions: list[Action] = []
        for hop in (*route.hops[first:], *route.hops[:first]):
            if hop.node in held.taken or hop.node not in self._reached or only not in ("", hop.node):
                continue
            if hop.node in held.sent or under_way >= PIECES_AT_ONCE:
                continue
            held.sent.add(hop.node)
            under_way += 1
            actions.append(self._piece(held, update, hop))
        return actions

    def _piece(self, held: _Held, update: Update, hop: Hop) -> Send:
        piece = Piece(
            job=update.job,
            term=update.term,
            formation=held.formation,
            lease=update.lease,
            version=update.version,
            tensors=self._part(held, update, hop),
        )
        return Send(to=hop.node, message=piece)

    def _part(self, held: _Held, update: Update, hop: Hop) -> Tensors:
        if held.coded is not None:
            return held.coded.part(hop.start, hop.stop)
        return {"delta": update.tensors["delta"][hop.start : hop.stop]}

    def _report(self, held: _Held, update: Update) -> list[Action]:
        """The leader hears of an update once every sub-leader has its piece. It is kept until the leader speaks: should
        a sub-leader be lost, it goes another way."""
        route = self._routes.get(held.formation)
        if route is None or not self._connected or any(hop.node not in held.taken for hop in route.hops):
            return []
        held.is_reported = True
        self.state, self.reason = "waiting", "every sub-leader has the update; waiting for the next version"
        return [Send(to=self._leader, message=replace(update, formation=held.formation, tensors={}))]

    def _on_disband(self, message: Disband) -> list[Action]:
        for old in [number for number in self._routes if number <= message.formation]:
            del self._routes[old]
        later = [SetTimer(name=_ASTRAY, after_s=ASTRAY_S)] if self._held is not None and self._held.formation else []
        return [*self._on_values_lost(), *later]

    # The trainer ---------------------------------------------------------------------------------

    def _on_trained(self, event: Trained) -> list[Action]:
        held = self._held
        if held is None or held.work.lease != event.lease:
            return []
        if not math.isfinite(event.loss_sum):
            return self._on_diverged(held, "training")
        tensors = event.tensors
        if self._codec.form != "dense":
            held.coded = self._code(held.work, event.tensors["delta"])
            tensors = held.coded.tensors()
        update = Update(
            job=self._spec.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            loss_sum=event.loss_sum,
            train_s=event.seconds,
            fresh=event.fresh,
            fresh_correct=event.fresh_correct,
            fresh_loss_sum=event.fresh_loss_sum,
            labels=event.labels,
            joules=event.joules,
            joules_measured=event.joules_measured,
            state=event.state,
            tensors=tensors,
        )
        self._state = event.state
        return self._on_made(held, update)

    def _code(self, work: Work, delta: np.ndarray) -> Coded:
        """What is sent of an update. The rest is held back for the next one."""
        if not self._codec.feedback:
            return code(self._codec, delta, self._sizes)
        if self._feedback is None:
            self._feedback = Feedback(delta.size)
        self._made = ((work.term, work.lease), self._feedback.snapshot())
        self._coded[1].append(work.version)
        coded = code(self._codec, self._feedback.add(delta), self._sizes)
        self._feedback.sent(coded.values)
        return coded

    def _unsend(self, held: _Held) -> None:
        """An update that was made is not sent any more."""
        if held.result is not None and self._made is not None and self._made[0] == (held.work.term, held.work.lease):
            self._take_back()

    def _take_back(self) -> None:
        """The last update is in no version: its batches are trained anew, by whoever it may be. What was held back
        before it still is."""
        if self._feedback is not None and self._made is not None:
            self._feedback.restore(self._made[1])
            if self._coded[1]:
                self._coded[1].pop()
        self._made = None

    def _on_evaluated(self, event: EvaluationDone) -> list[Action]:
        held = self._held
        if held is None or held.work.lease != event.lease:
            return []
        if not math.isfinite(event.loss_sum):
            return self._on_diverged(held, "evaluation")
        evaluated = Evaluated(
            job=self._spec.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            loss_sum=event.loss_sum,
            correct=event.correct,
        )
        return self._on_made(held, evaluated)

    def _on_made(self, held: _Held, result: Update | Evaluated) -> list[Action]:
        self._failures = 0
        held.result = result
        return [CancelTimer(name=_DEADLINE), *self._deliver(held)]

    def _on_diverged(self, held: _Held, what: str) -> list[Action]:
        """The device works and the trainer lives; the numbers are of no use to anyone."""
        self._held = None
        reason = f"{what} gave a loss that is not finite: try a lower learning rate"
        actions: list[Action] = [
            CancelTimer(name=_DEADLINE),
            Record(kind="diverged", reason=reason, job=self._spec.job),
        ]
        if self._connected:
            failed = Failed(
                job=self._spec.job, term=held.work.term, lease=held.work.lease, reason=reason, diverged=True
            )
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._ready()]

    def _deliver(self, held: _Held) -> list[Action]:
        """Send what was made: at once with a credit, else offer it. Silent while there is no session."""
        if held.work.term < self._term:
            self._unsend(held)
            self._held = None
            return self._ready()
        if not self._connected or held.result is None:
            self.state, self.reason = "waiting", "the leader is not reachable; the update is kept"
            return []
        if isinstance(held.result, Update) and held.formation and held.formation not in self._routes:
            return self._offer(held, held.result)
        if isinstance(held.result, Update) and held.formation:
            self.state, self.reason = "waiting", "the update is on its way to the sub-leaders"
            held.sent_s = self._now_s
            made = Made(job=self._spec.job, term=held.work.term, lease=held.work.lease)
            patience = SetTimer(name=_TAKEN, after_s=self._patience_s())
            pieces, report = self._pieces(held, held.result), self._report(held, held.result)
            return [Send(to=self._leader, message=made), *pieces, patience, *report]
        if isinstance(held.result, Update) and not held.work.credit:
            return self._offer(held, held.result)
        return self._send_result(held.result)

    def _offer(self, held: _Held, update: Update) -> list[Action]:
        self.state, self.reason = "waiting", "the update is ready; waiting for the leader to take it"
        size_bytes = bytes_of(update.tensors)
        offer = Offer(job=self._spec.job, term=held.work.term, lease=held.work.lease, size_bytes=size_bytes)
        return [Send(to=self._leader, message=offer)] if self._connected else []

    def _send_result(self, result: Update | Evaluated) -> list[Action]:
        """After this the leader speaks next: with work, a reason to wait, or a refusal."""
        self._held = None
        self.state, self.reason = "waiting", "the update was sent; waiting for the next version"
        return [Send(to=self._leader, message=result)]

    def _on_trainer_failed(self, event: TrainerFailed) -> list[Action]:
        self._prepared = False
        # The model went with the trainer, perhaps before parts of the next one were made of it: none of them counts.
        self._holds = (0, -1)
        self._staging.spend()
        self._failures += 1
        actions: list[Action] = [
            CancelTimer(name=_DEADLINE),
            Record(kind="trainer-failed", reason=event.reason, job=self._spec.job),
        ]
        held, self._held = self._held, None
        if held is not None and held.work.lease == event.lease and self._connected and not held.is_reported:
            failed = Failed(
                job=self._spec.job,
                term=held.work.term,
                lease=held.work.lease,
                reason=clip(event.reason),
                traceback=clip(event.traceback, TRACEBACK_MAX_CHARS),
            )
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._retry(event.reason)]

    def _on_prepare_failed(self, event: PrepareFailed) -> list[Action]:
        reason = event.reason
        self._failures += 1
        actions: list[Action] = [Record(kind="prepare-failed", reason=reason, job=self._spec.job)]
        if self._connected:
            # Lease 0 is nobody's: the leader counts the failure and shows the reason.
            traceback = clip(event.traceback, TRACEBACK_MAX_CHARS)
            failed = Failed(job=self._spec.job, term=self._term, lease=0, reason=clip(reason), traceback=traceback)
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._retry(reason)]

    def _retry(self, reason: str) -> list[Action]:
        wait_s = RETRY_S[min(self._failures - 1, len(RETRY_S) - 1)]
        self.state, self.reason = "failing", reason
        if wait_s == 0:
            return [Prepare(spec=self._spec)]
        self._retry_waits = True
        return [SetTimer(name=_RETRY, after_s=wait_s)]

    # Sessions and time -----------------------------------------------------------------------------

    def _on_connected(self) -> list[Action]:
        self._connected = True
        if self._retry_waits:
            # Most preparations fail for want of a connection: now that there is one, it need not wait any longer.
            self._retry_waits = False
            return [CancelTimer(name=_RETRY), Prepare(spec=self._spec)]
        return self._resume()

    def _resume(self) -> list[Action]:
        """A session (again): deliver what is made, say nothing while training, else ask for work."""
        if self._held is not None and self._held.result is not None:
            return self._deliver(self._held)
        if self._held is not None:
            return []
        return self._ready()

    def _ready(self) -> list[Action]:
        if not (self._connected and self._prepared) or self._held is not None:
            return []
        self.state, self.reason = "ready", "waiting for a lease"
        term, version = self._holds
        link = self._link
        ready = Ready(
            job=self._spec.job,
            holds_term=term,
            holds_version=version,
            up_bytes_per_s=link.up_bytes_per_s,
            down_bytes_per_s=link.down_bytes_per_s,
            medium=link.medium,
            state=self._state,
        )
        return [Send(to=self._leader, message=ready)]

    def _on_reassigned(self, event: Reassigned) -> list[Action]:
        if event.term < self._term:
            return []
        newer = event.term > self._term
        self._term, self._leader = event.term, event.leader
        if newer:
            # Formations are of a term.
            self._routes.clear()
            if self._held is not None and self._held.lacks_values:
                self._held = None
        if newer and self._held is not None and self._held.result is not None:
            self._unsend(self._held)
            self._held = None
        return self._resume()

    def _on_timer(self, name: str) -> list[Action]:
        if name == _RETRY:
            self._retry_waits = False
            return [Prepare(spec=self._spec)]
        if name == _ROUTE:
            self._route_waits = False
            return self._on_unreached()
        if name == _TAKEN:
            return self._on_untaken()
        if name == _ASTRAY:
            return self._on_astray()
        if name == _ASK:
            return self._ready()
        if name == _VALUES:
            return self._on_values_lost(for_good=True)
        held = self._held
        if name != _DEADLINE or held is None or held.result is not None:
            return []
        reason = f"no result within the lease's {held.work.deadline_s:.1f} s"
        return [Interrupt(lease=held.work.lease, reason=reason)]
