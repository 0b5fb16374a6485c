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

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse, add_to
from shoal.errors import BadValues, PeerViolation
from shoal.learning.outer import outer_change
from shoal.learning.partial import Partial
from shoal.roles.actions import Action, End, Record, Send
from shoal.roles.events import Event, Received, StopRequested
from shoal.wire.checks import flat
from shoal.wire.coded import bytes_of, code_with, decode, encode_exact, norm_of
from shoal.wire.messages import Count, Form, Gathered, Pass, Piece, Spoilt, Taken, Tensors, Values, clip


@dataclass(frozen=True, slots=True)
class _Kept:
    """A member's piece that was not counted yet."""

    member: str
    delta: np.ndarray | Sparse


class SubLeader:
    def __init__(self, form: Form, *, node: str, leader: str) -> None:
        self._form = form
        self._node = node
        self._leader = leader
        self._members = form.members
        self._size = form.stop - form.start
        self._codec, self._down = Codec.parse(form.codec), Codec.parse(form.codec_down)
        #: Without a codec nobody asks where one tensor ends.
        self._sizes = form.sizes or (self._size,)
        self._partial = Partial(self._size)
        #: Lease -> its piece.
        self._tray: dict[int, _Kept] = {}
        #: Member -> the newest lease of which it sent a piece. It has one at a time, and their numbers grow.
        self._newest: dict[str, int] = {}
        #: Leases in the sum.
        self._counted: list[int] = []
        #: The largest norm of a piece that is taken, as the leader said last; 0: any that is finite.
        self._norm_max = form.norm_max
        #: What came from members and went to them since the last sum.
        self._bytes_up = self._bytes_down = 0
        #: Where its part of a shard stands. It comes when the formation begins to hold.
        self._model: np.ndarray | None = None
        self._velocity: np.ndarray | None = None
        #: What its part was to move by and did not yet, since it was not given out.
        self._residual: np.ndarray | None = None

    @property
    def formation(self) -> int:
        return self._form.formation

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Received(message=Piece() as piece):
                self._bytes_up += event.size_bytes
                return self._on_piece(event.sender, piece)
            case Received(message=Count() as count):
                return self._on_count(count)
            case Received(message=Pass() as passed):
                # In memory of its own: what it came in is used again before it is sent on.
                tensors = {name: np.array(array) for name, array in passed.tensors.items()}
                if "model" in tensors:
                    flat("model", tensors, size=self._size)
                return self._give_out(passed.version, tensors, base=passed.base)
            case Received(message=Form() as form):
                self._on_form(form)
                return []
            case StopRequested():
                return [End(reason=event.reason)]
            case _:
                return []

    def _on_form(self, form: Form) -> None:
        self._members, self._norm_max = form.members, form.norm_max
        if form.tensors:
            self._model, self._velocity, self._residual = _part_of(form)
        if form.kind == "tree":
            # What counts of those who are gone is counted. The rest would lie here for as long as the formation does.
            self._tray = {lease: kept for lease, kept in self._tray.items() if kept.member in form.members}

    def _on_piece(self, member: str, piece: Piece) -> list[Action]:
        form = self._form
        job, term, formation = form.job, form.term, form.formation
        if member not in self._members:
            return []
        try:
            delta = decode(self._codec, piece.tensors, self._sizes, entries=self._form.entries)
            # A part is no longer than the whole: what is too long for an update is for a piece of one.
            if self._norm_max and (norm := norm_of(delta)) > self._norm_max:
                raise BadValues(f"an update of norm {norm:.3g}, far from what is usual; {self._norm_max:.3g} may be")
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
        self._tray[piece.lease] = _Kept(member, delta if isinstance(delta, Sparse) else np.array(delta))
        return [taken]

    def _on_count(self, count: Count) -> list[Action]:
        self._norm_max = count.norm_max
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
        counted, weight = tuple(self._counted), self._partial.weight
        mean = self._partial.mean() if counted else None
        self._partial.clear()
        self._counted.clear()
        tensors: dict[str, np.ndarray] = {}
        given_out: list[Action] = []
        if mean is not None:
            tensors = self._written(mean)
            if form.kind == "shard":
                # Nothing is left over: what was not counted is of no version that will be.
                self._tray.clear()
                given = self._step(mean, count.version)
                base = -1 if "model" in given else count.version - 1
                given_out = self._give_out(count.version, given, base=base)
                if base >= 0:
                    tensors["moved"] = given[str(count.version)]
        gathered = Gathered(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=count.version,
            leases=counted,
            weight=weight if counted else 0.0,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            tensors=tensors,
        )
        self._bytes_up = self._bytes_down = 0
        return [Send(to=self._leader, message=gathered), *given_out]

    def _written(self, mean: np.ndarray) -> dict[str, np.ndarray]:
        mean.flags.writeable = False
        return {"mean": mean} if self._codec.form == "dense" else encode_exact(mean, name="mean")

    def _step(self, mean: np.ndarray, version: int) -> Tensors:
        """Move its part of the model, as the leader would; what is given out of that."""
        form = self._form
        assert self._model is not None
        assert self._velocity is not None
        change, self._velocity = outer_change(
            self._velocity,
            mean,
            momentum=form.momentum,
            parameters_size=form.parameters,
            rate=form.outer_rate,
            nesterov=form.nesterov,
        )
        self._model = self._model.copy()
        if self._residual is None:
            add_to(self._model, change)
            return {"model": self._model}
        coded, self._residual = code_with(self._down, self._residual, change, self._sizes)
        add_to(self._model, coded.values)
        return coded.tensors(name=str(version))

    def _give_out(self, version: int, tensors: Tensors, *, base: int) -> list[Action]:
        """The values of a version to every member; each sub-leader begins with another, so that all are served."""
        form = self._form
        for array in tensors.values():
            array.flags.writeable = False
        values = Values(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=version,
            start=form.start,
            stop=form.stop,
            base=base,
            tensors=tensors,
        )
        self._bytes_down += bytes_of(tensors) * len(self._members)
        after = sum(member <= self._node for member in self._members)
        return [Send(to=member, message=values) for member in (*self._members[after:], *self._members[:after])]


def _part_of(form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Where this part of the model stands, in memory of its own."""
    size = form.stop - form.start

    def own(name: str, size: int) -> np.ndarray:
        return np.array(flat(name, {name: form.tensors[name]} if name in form.tensors else {}, size=size))

    residual = own("residual", size) if form.codec_down != "dense" else None
    return own("model", size), own("velocity", form.parameters), residual
