"""The sub-leader of one formation: sums up a share of its members' updates, and gives values out. Decides only.

In a tree it does so for a group and for the whole model: the leader merges its sum like one update, and sends it one
model for all of them (EDDL's leader role splitting, §4.3). In a shard it does so for everyone and for a part of the
model, and takes the step for that part itself. Either way it lends nothing and keeps no ledger: which leases are in a
sum, the leader says, and only once it is sure of them. So a sum can be thrown away at any time, and nothing is lost.

What has come is kept apart until it is counted, one piece a member: a sum from which something must be taken back out
would be no sum any more. In a tree a piece is counted as soon as the leader has heard of it; in a shard at the end of
the round, where all pieces together are one model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.errors import PeerViolation
from shoal.learning.outer import momentum_step
from shoal.learning.partial import Partial
from shoal.roles.actions import Action, End, Record, Send
from shoal.roles.events import Event, Received, StopRequested
from shoal.wire.checks import dense, flat
from shoal.wire.messages import Count, Form, Gathered, Pass, Piece, Spoilt, Taken, Values, clip


@dataclass(frozen=True, slots=True)
class _Kept:
    """A member's piece that was not counted yet."""

    member: str
    delta: np.ndarray


class SubLeader:
    def __init__(self, form: Form, *, node: str, leader: str) -> None:
        self._form = form
        self._node = node
        self._leader = leader
        self._members = form.members
        self._size = form.stop - form.start
        self._partial = Partial(self._size)
        #: Lease -> its piece.
        self._tray: dict[int, _Kept] = {}
        #: Member -> the newest lease of which it sent a piece. It has one at a time, and their numbers grow.
        self._newest: dict[str, int] = {}
        #: Leases in the sum.
        self._counted: list[int] = []
        #: Where its part of a shard stands. It comes when the formation begins to hold.
        self._model: np.ndarray | None = None
        self._velocity: np.ndarray | None = None

    @property
    def formation(self) -> int:
        return self._form.formation

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Received(message=Piece() as piece):
                return self._on_piece(event.sender, piece)
            case Received(message=Count() as count):
                return self._on_count(count)
            case Received(message=Pass() as passed):
                # In memory of its own: what it came in is used again before it is sent on.
                model = np.array(flat("model", passed.tensors, size=self._size))
                return self._give_out(passed.version, model)
            case Received(message=Form() as form):
                self._on_form(form)
                return []
            case StopRequested():
                return [End(reason=event.reason)]
            case _:
                return []

    def _on_form(self, form: Form) -> None:
        self._members = form.members
        if form.tensors:
            self._model, self._velocity = _part_of(form)
        if form.kind == "tree":
            # What counts of those who are gone is counted. The rest would lie here for as long as the formation does.
            self._tray = {lease: kept for lease, kept in self._tray.items() if kept.member in form.members}

    def _on_piece(self, member: str, piece: Piece) -> list[Action]:
        form = self._form
        job, term, formation = form.job, form.term, form.formation
        if member not in self._members:
            return []
        try:
            delta = dense("delta", piece.tensors, size=self._size)
        except PeerViolation as violation:
            spoilt = Spoilt(
                job=job, term=term, formation=formation, lease=piece.lease, node=member, reason=clip(violation.reason)
            )
            told = Record(kind="spoilt", reason=f"piece of {member}: {violation.reason}", job=job)
            return [told, Send(to=self._leader, message=spoilt)]
        taken = Send(to=member, message=Taken(job=job, term=term, formation=formation, lease=piece.lease))
        newest = self._newest.get(member, 0)
        if piece.lease < newest or (piece.lease == newest and piece.lease not in self._tray):
            # Counted already and sent again since its answer was lost, or older than what is kept: a late copy.
            return [taken]
        self._tray.pop(newest, None)
        self._newest[member] = piece.lease
        # The memory it came in is used again for the next.
        self._tray[piece.lease] = _Kept(member, np.array(delta))
        return [taken]

    def _on_count(self, count: Count) -> list[Action]:
        for lease, weight, scale in zip(count.leases, count.weights, count.scales, strict=True):
            kept = self._tray.pop(lease, None)
            if kept is not None:
                self._partial.add(kept.delta, weight=weight, scale=scale)
                self._counted.append(lease)
        return self._gather(count) if count.last else []

    def _gather(self, count: Count) -> list[Action]:
        form = self._form
        if form.kind == "shard" and self._model is None:
            # Where its part stands was lost on the way here. A sum without the step after it would leave everyone
            # waiting for values: a sum of nothing makes the leader look for another.
            self._counted.clear()
        mean = self._partial.mean() if self._counted else None
        if mean is not None:
            mean.flags.writeable = False
        gathered = Gathered(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=count.version,
            leases=tuple(self._counted),
            weight=self._partial.weight if self._counted else 0.0,
            tensors={} if mean is None else {"mean": mean},
        )
        actions: list[Action] = [Send(to=self._leader, message=gathered)]
        self._partial.clear()
        self._counted.clear()
        if mean is None or self._model is None or self._velocity is None:
            return actions
        # In a shard nothing is left over: what was not counted is of no version that will be.
        self._tray.clear()
        self._model, self._velocity = momentum_step(
            self._model, self._velocity, mean, momentum=form.momentum, parameters_size=form.parameters
        )
        return [*actions, *self._give_out(count.version, self._model)]

    def _give_out(self, version: int, model: np.ndarray) -> list[Action]:
        """The values of a version to every member; each sub-leader begins with another, so that all are served."""
        form = self._form
        model.flags.writeable = False
        values = Values(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=version,
            start=form.start,
            stop=form.stop,
            tensors={"model": model},
        )
        after = sum(member <= self._node for member in self._members)
        return [Send(to=member, message=values) for member in (*self._members[after:], *self._members[:after])]


def _part_of(form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Where this part of the model stands, in memory of its own."""
    parts = [(name, {name: form.tensors[name]} if name in form.tensors else {}) for name in ("model", "velocity")]
    model, velocity = (
        np.array(flat(name, part, size=size))
        for (name, part), size in zip(parts, (form.stop - form.start, form.parameters), strict=True)
    )
    return model, velocity
