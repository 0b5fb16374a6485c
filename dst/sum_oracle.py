"""What must never be false of formations, checked from the outside: what is summed up, reported, and trained on.

As the invariants of leases and versions, it looks at events and actions. Of the leader it knows the model of each
version, and of a trainer what it was given: the two must be one, bit for bit, whichever way the values went.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.roles.actions import Role, Send
from shoal.roles.events import Liveness, PeerChanged, Received
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.coded import decode, decode_exact
from shoal.wire.messages import (
    Reduce,
    ReduceResult,
    RelayModel,
    Route,
    SetUpAggregator,
    ShardAck,
    Update,
    UpdateShard,
    Work,
)

#: Finds the leader of a job on a node; None: there is none.
LeaderAt = Callable[[str, str], Role | None]

#: Job, term, formation, aggregator.
_Place = tuple[str, int, int, str]


@dataclass(slots=True)
class _Tray:
    """One aggregator as seen from outside."""

    #: Lease -> its newest piece that was taken.
    pieces: dict[int, np.ndarray] = field(default_factory=dict)
    #: Lease -> the weight and scale that the leader gave it, and how much of its way from the centre it keeps.
    counted: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    #: Leases in a sum that was sent.
    summed: set[int] = field(default_factory=set)
    #: Where pieces are cut back to, if they are.
    centre: np.ndarray | None = None
    #: Lease -> where it was measured from.
    measured: dict[int, np.ndarray] = field(default_factory=dict)


class SumOracle:
    """An observer that raises at the first step that breaks one."""

    def __init__(self, leader_at: LeaderAt) -> None:
        self._leader_at = leader_at
        #: (job, term, version) -> the leader's model; its mean of versions by its own number.
        self._models: dict[tuple[str, int, int], np.ndarray] = {}
        #: (node, job, lease) -> the term and version that were lent to it there.
        self._lent: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._trays: dict[_Place, _Tray] = {}
        #: (node, job, term, formation) -> the aggregators to which a worker's updates go.
        self._hops: dict[tuple[str, str, int, int], tuple[str, ...]] = {}
        #: (leader's node, job, term, formation) -> its aggregators, and those of them that were lost.
        self._formed: dict[tuple[str, str, int, int], set[str]] = {}
        self._lost: dict[tuple[str, str, int, int], set[str]] = {}
        #: What each aggregator was told of its part.
        self._forms: dict[_Place, SetUpAggregator] = {}

    # What roles did --------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        match step.role:
            case "leader":
                self._leader(step)
            case "aggregator":
                self._aggregator(step)
            case "worker":
                self._worker(step)
            case _:
                pass

    def _leader(self, step: Step) -> None:
        self._know_model(step)
        event = step.event
        if isinstance(event, PeerChanged) and event.state is Liveness.LOST:
            for key, nodes in self._formed.items():
                if key[:2] == (step.node, step.job) and event.node in nodes:
                    self._lost.setdefault(key, set()).add(event.node)
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case SetUpAggregator() as form:
                    self._formed.setdefault((step.node, form.job, form.term, form.formation), set()).add(action.to)
                    self._forms[form.job, form.term, form.formation, action.to] = form
                case Reduce(weigh="") as count:
                    self._count(step, action.to, count)
                case Work() as work if work.formation or work.values_by:
                    self._lends(step, action.to, work)
                case _:
                    pass

    def _know_model(self, step: Step) -> None:
        for action in step.actions:
            work = action.message if isinstance(action, Send) else None
            if isinstance(work, Work) and work.version < -1 and "model" in work.tensors:
                # A mean of versions: ``dst.oracles`` knows whether it is the right one.
                self._models.setdefault((step.job, work.term, work.version), np.array(work.tensors["model"]))
        leader = self._leader_at(step.node, step.job)
        model = getattr(leader, "model", None)
        if model is None:
            return
        key = (step.job, int(getattr(leader, "term", 0)), int(getattr(leader, "version", 0)))
        if key not in self._models:
            self._models[key] = np.array(model)

    def _count(self, step: Step, to: str, count: Reduce) -> None:
        tray = self._tray(step.job, count.term, count.formation, to)
        kept = count.kept or (1.0,) * len(count.leases)
        for lease, *told in zip(count.leases, count.weights, count.scales, kept, strict=True):
            weight, scale, way = told
            again = tray.counted.setdefault(lease, (weight, scale, way)) != (weight, scale, way)
            self._hold(not again, step, f"{to} was told to count lease {lease} twice, each time for another weight")
            self._hold(lease in tray.pieces, step, f"{to} was told to count lease {lease}, and never took its piece")

    def _lends(self, step: Step, to: str, work: Work) -> None:
        for number in {work.formation, work.values_by} - {0}:
            key = (step.node, work.job, work.term, number)
            self._hold(key in self._formed, step, f"{to} was lent a lease by formation {number}, which nobody formed")
        away = self._lost.get((step.node, work.job, work.term, work.formation))
        self._hold(not away, step, f"{to} was lent a lease by formation {work.formation}, which lost {away}")

    def _aggregator(self, step: Step) -> None:
        event = step.event
        if isinstance(event, Received):
            self._hears_of_centre(step, event.message)
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case ShardAck() as taken:
                    assert isinstance(event, Received)
                    assert isinstance(event.message, UpdateShard)
                    tray = self._tray(step.job, taken.term, taken.formation, step.node)
                    form = self._forms[step.job, taken.term, taken.formation, step.node]
                    if form.word_bits:
                        # What is in them, nobody knows here: ``sealed_shape_oracle`` adds them up.
                        tray.pieces.setdefault(taken.lease, np.empty(0))
                        continue
                    codec = Codec.parse(form.codec)
                    piece = decode(
                        codec, event.message.tensors, form.sizes or (form.stop - form.start,), entries=form.entries
                    )
                    flat = piece.dense() if isinstance(piece, Sparse) else piece
                    tray.pieces.setdefault(taken.lease, flat.astype(np.float64))
                case ReduceResult(weighed="") as gathered:
                    self._gathered(step, gathered)
                case _:
                    pass

    def _hears_of_centre(self, step: Step, message: object) -> None:
        match message:
            case SetUpAggregator() | RelayModel() if "centre" in message.tensors:
                tray = self._tray(step.job, message.term, message.formation, step.node)
                form = self._forms[step.job, message.term, message.formation, step.node]
                told = {"centre": message.tensors["centre"]}
                tray.centre = decode_exact("centre", told, size=form.stop - form.start).astype(np.float64)
            case Reduce(weigh="clip"):
                tray = self._tray(step.job, message.term, message.formation, step.node)
                if tray.centre is not None:
                    tray.measured |= dict.fromkeys(message.leases, tray.centre)
            case _:
                pass

    def measured(self, job: str, term: int, formation: int, lease: int) -> np.ndarray:
        """The centre that an update was measured from by its aggregator in a tree."""
        trays = (tray for place, tray in self._trays.items() if place[:3] == (job, term, formation))
        return next(tray.measured[lease] for tray in trays if lease in tray.measured)

    def _gathered(self, step: Step, gathered: ReduceResult) -> None:
        """A sum is of leases that the leader counted, of each once, and is their mean."""
        tray = self._tray(step.job, gathered.term, gathered.formation, step.node)
        leases = gathered.leases
        self._hold(len(set(leases)) == len(leases), step, f"a sum of {step.node} names a lease twice: {leases}")
        strange = [lease for lease in leases if lease not in tray.counted]
        self._hold(not strange, step, f"a sum of {step.node} is also of leases {strange}, which nobody counted")
        if gathered.group:
            # A device may seal an update again, in another group.
            return
        again = [lease for lease in leases if lease in tray.summed]
        self._hold(not again, step, f"leases {again} are in a second sum of {step.node}")
        tray.summed.update(leases)
        if not leases:
            return
        weights = [tray.counted[lease][0] for lease in leases]
        total = np.zeros(tray.pieces[leases[0]].size)
        for lease in leases:
            weight, scale, way = tray.counted[lease]
            total += weight * scale * way * tray.pieces[lease]
            if way < 1.0:
                total += weight * (1.0 - way) * tray.measured[lease]
        told = f"a sum of {step.node} of leases {leases}"
        self._hold(
            math.isclose(gathered.weight, sum(weights), rel_tol=1e-12),
            step,
            f"{told} weighs {gathered.weight}, not {sum(weights)}",
        )
        mean = decode_exact("mean", {"mean": gathered.tensors["mean"]}, size=tray.pieces[leases[0]].size)
        self._hold(np.allclose(mean, total / sum(weights), atol=1e-5), step, f"{told} is not their mean")
        if (
            tray.centre is not None
            and self._forms[step.job, gathered.term, gathered.formation, step.node].kind == "shard"
        ):
            tray.centre = mean.astype(np.float64)

    def whole(self, job: str, term: int, formation: int, lease: int) -> np.ndarray:
        """Every aggregator of a shard took its piece of an update."""
        parts = {
            form.start: self._trays[place].pieces[lease]
            for place, form in self._forms.items()
            if place[:3] == (job, term, formation)
        }
        return np.concatenate([parts[start] for start in sorted(parts)])

    def _worker(self, step: Step) -> None:
        event = step.event
        if isinstance(event, Received):
            match event.message:
                case Work() as work:
                    self._lent[step.node, step.job, work.lease] = (work.term, work.version)
                case Route() as route:
                    hops = tuple(hop.node for hop in route.hops)
                    self._hops[step.node, step.job, route.term, route.formation] = hops
                case _:
                    pass
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Update) and action.message.formation:
                self._reported(step, action.message)

    def _reported(self, step: Step, update: Update) -> None:
        """A leader hears of an update when every aggregator has its piece."""
        is_bare = set(update.tensors) == ({"seals"} if update.group else set())
        self._hold(is_bare, step, f"{step.node} sent lease {update.lease} in pieces and whole")
        for hop in self._hops[step.node, step.job, update.term, update.formation]:
            tray = self._tray(step.job, update.term, update.formation, hop)
            self._hold(
                update.lease in tray.pieces,
                step,
                f"{step.node} reported lease {update.lease}, which {hop} has not taken",
            )

    # What trainers were given ------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        if mark.kind != "trains":
            return
        job, lease, model = mark.facts["job"], int(mark.facts["lease"]), mark.facts["model"]
        if model is None:
            # The trainer was lost a moment ago, and says so; staged values are never lost.
            if mark.facts["staged"]:
                raise Violation(f"at {mark.at_s:.3f} s: {mark.node} trains lease {lease} on values that are not there")
            return
        term, version = self._lent[mark.node, job, lease]
        expected = self._models[job, term, version]
        if not np.array_equal(model, expected):
            raise Violation(
                f"at {mark.at_s:.3f} s: {mark.node} trains lease {lease} on another model than version {version}:"
                f" {model}, {expected}"
            )

    def _tray(self, job: str, term: int, formation: int, node: str) -> _Tray:
        return self._trays.setdefault((job, term, formation, node), _Tray())

    def _hold(self, holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
