"""The aggregator of one formation: sums up its members' updates and gives values out. It decides; a driver acts.

In a tree, an aggregator serves one group and the whole model: the leader merges its sum like one update, and sends it
one model for the whole group (EDDL's leader role splitting, §4.3). In a shard it serves every member and one
part of the model, and takes the outer step for that part itself, unless the leader has to: where it opens sums, or adds
noise to them. Either way it lends nothing and keeps no ledger: the leader names the leases that a sum is made of, and
only once it is sure of them. So the leader can discard a sum at any time, and nothing is lost.

A piece stays in the tray until the leader has it counted, one piece a member: no piece can be taken out of a sum again.
In a tree the leader has a piece counted as soon as it hears of it; in a shard at the end of the round, when all pieces
together are one model. Where updates are sealed, pieces are words under masks: they are summed up at the end of a round
too, and nothing else is done with them (``sealed_tray``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse, add_to
from shoal.errors import BadValues, PeerViolation
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.partial import Partial
from shoal.roles.actions import End
from shoal.roles.aggregator.sealed_tray import SealedTray
from shoal.roles.events import Event, Received, StopRequested
from shoal.roles.leader.gathering.comparing import compared
from shoal.roles.machine import Machine
from shoal.trust import Rule
from shoal.wire.checks import flat
from shoal.wire.coded import bytes_of, code_with, decode, decode_exact, encode_exact, norm_of
from shoal.wire.messages import (
    BadShard,
    ModelShard,
    Reduce,
    ReduceResult,
    RelayModel,
    SetUpAggregator,
    ShardAck,
    Tensors,
    UpdateShard,
    clip,
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A member's piece that the leader has not had counted yet."""

    member: str
    delta: np.ndarray | Sparse


class Aggregator(Machine):
    def __init__(self, form: SetUpAggregator, *, node: str, leader: str) -> None:
        super().__init__()
        self._form = form
        self._node = node
        self._leader = leader
        self._members = form.members
        self._size = form.stop - form.start
        self._codec, self._down = Codec.parse(form.codec), Codec.parse(form.codec_down)
        #: How many values each tensor has. Without a codec one size is enough: nothing depends on where a tensor ends.
        self._sizes = form.sizes or (self._size,)
        #: Where updates are sealed.
        self._sealed = SealedTray(self._size, form.word_bits) if form.word_bits else None
        #: It takes the step of its part.
        self._steps = form.kind == "shard" and not form.sums_only
        self._partial = Partial(0 if form.word_bits else self._size)
        #: Lease -> its piece.
        self._tray: dict[int, _Kept] = {}
        #: Member -> the newest lease that it sent a piece for. A member has one lease at a time, and numbers grow.
        self._newest: dict[str, int] = {}
        #: Leases in the sum.
        self._counted: list[int] = []
        #: The largest norm that a piece may have, as the leader said last; None: any finite norm.
        self._norm_max = form.norm_max or None
        #: Bytes that came from members and went to them since the last sum.
        self._bytes_up = self._bytes_down = 0
        #: The state of its part in a shard. The leader sends it when the formation begins to hold.
        self._model: np.ndarray | None = None
        self._rule = form.outer_rule
        self._outer: OuterState | None = None
        #: The rest of the outer step that the codec has not given out yet.
        self._residual: np.ndarray | None = None
        #: Where pieces are cut back to, if they are: its part of the last mean. And by lease, where those were
        #: measured from that the leader has not had counted yet: another mean may come in between.
        self._centre: np.ndarray | None = None
        self._measured: dict[int, np.ndarray] = {}

    @property
    def formation(self) -> int:
        return self._form.formation

    def on_event(self, event: Event) -> None:
        match event:
            case Received(message=UpdateShard() as shard):
                self._bytes_up += event.size_bytes
                self._on_shard(event.sender, shard)
            case Received(message=Reduce() as count):
                self._on_reduce(count)
            case Received(message=RelayModel() as passed):
                self._on_relay_model(passed)
            case Received(message=SetUpAggregator() as form):
                self._on_set_up_aggregator(form)
            case StopRequested():
                self.act(End(reason=event.reason))
            case _:
                pass

    def _on_set_up_aggregator(self, form: SetUpAggregator) -> None:
        self._members, self._norm_max = form.members, form.norm_max or None
        if "model" in form.tensors:
            self._model, self._outer, self._residual = _part_of(form)
        if "centre" in form.tensors:
            self._centre = _own(form, "centre", self._size)
        if not self._steps and self._sealed is None:
            # The leader has had counted what it wanted of members that left, but for what it had measured: it says how
            # much of that counts when it has heard how far it is. The tray would keep the rest for ever.
            self._tray = {
                lease: kept
                for lease, kept in self._tray.items()
                if kept.member in form.members or lease in self._measured
            }
            self._measured = {lease: centre for lease, centre in self._measured.items() if lease in self._tray}

    def _on_relay_model(self, passed: RelayModel) -> None:
        # A copy: the driver uses the memory of a message again before the values are sent on.
        tensors = {name: np.array(array) for name, array in passed.tensors.items()}
        if "centre" in tensors:
            self._centre = decode_exact("centre", {"centre": tensors.pop("centre")}, size=self._size)
        if "model" in tensors:
            flat("model", tensors, size=self._size)
        self._give_out(self._values(passed.version, tensors, base=passed.base))

    def _on_shard(self, member: str, shard: UpdateShard) -> None:
        form = self._form
        job, term, formation = form.job, form.term, form.formation
        if member not in self._members:
            return
        if self._sealed is not None:
            self._take_words(self._sealed, member, shard)
            return
        try:
            delta = decode(self._codec, shard.tensors, self._sizes, entries=self._form.entries)
            # A part is no longer than the whole: a norm that is too large for an update is too large for its piece.
            if self._norm_max is not None and (norm := norm_of(delta)) > self._norm_max:
                raise BadValues(f"an update of norm {norm:.3g}, far from what is usual; {self._norm_max:.3g} may be")
        except PeerViolation as violation:
            self._send_bad_shard(member, shard, violation)
            return
        self.send(member, ShardAck(job=job, term=term, formation=formation, lease=shard.lease))
        newest = self._newest.get(member, 0)
        if shard.lease < newest or (shard.lease == newest and shard.lease not in self._tray):
            # A late copy: older than the piece in the tray, or counted already and sent again as its answer was lost.
            return
        self._tray.pop(newest, None)
        self._newest[member] = shard.lease
        # A copy: the driver uses the memory of a message again for the next one.
        self._tray[shard.lease] = _Kept(member, delta if isinstance(delta, Sparse) else np.array(delta))

    def _send_bad_shard(self, member: str, shard: UpdateShard, violation: PeerViolation) -> None:
        form = self._form
        bad = BadShard(
            job=form.job,
            term=form.term,
            formation=form.formation,
            lease=shard.lease,
            node=member,
            reason=clip(violation.reason),
        )
        self.record("update.invalid", f"piece of {member}: {violation.reason}", job=form.job)
        self.send(self._leader, bad)

    def _take_words(self, sealed: SealedTray, member: str, shard: UpdateShard) -> None:
        form = self._form
        try:
            sealed.take(member, shard)
        except PeerViolation as violation:
            self._send_bad_shard(member, shard, violation)
            return
        taken = ShardAck(job=form.job, term=form.term, formation=form.formation, lease=shard.lease, group=shard.group)
        self.send(member, taken)

    def _sum_words(self, sealed: SealedTray, count: Reduce) -> None:
        form = self._form
        leases, words = sealed.total(count.group, count.leases)
        result = ReduceResult(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=count.version,
            leases=leases,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            group=count.group,
            tensors={"words": words} if leases else {},
        )
        self._bytes_up = self._bytes_down = 0
        self.send(self._leader, result)

    def _on_reduce(self, count: Reduce) -> None:
        if self._sealed is not None:
            self._sum_words(self._sealed, count)
            return
        self._norm_max = count.norm_max or None
        if count.weigh:
            self._compare(count)
            return
        way = count.kept or (1.0,) * len(count.leases)
        for lease, weight, scale, part in zip(count.leases, count.weights, count.scales, way, strict=True):
            kept = self._tray.pop(lease, None)
            if kept is not None:
                self._partial.add(kept.delta, weight=weight * part, scale=scale)
                if part < 1.0:
                    self._partial.add(self._measured[lease], weight=weight * (1.0 - part))
                self._counted.append(lease)
            self._measured.pop(lease, None)
        if count.last:
            self._reduce(count)

    def _compare(self, count: Reduce) -> None:
        """Tell the leader how the pieces lie to each other, or to the centre. They stay in the tray."""
        form, rule = self._form, cast(Rule, count.weigh)
        here = [place for place, lease in enumerate(count.leases) if lease in self._tray]
        if rule == "clip":
            if self._centre is None:
                # It was lost on the way here, with the state of its part.
                here = []
            else:
                self._measured |= dict.fromkeys((count.leases[place] for place in here), self._centre)
        pieces, scales = [self._tray[count.leases[place]].delta for place in here], [count.scales[p] for p in here]
        answer = ReduceResult(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=count.version,
            leases=tuple(count.leases[place] for place in here),
            weighed=rule,
            tensors=compared(rule, pieces, scales, self._centre) if here else {},
        )
        self.send(self._leader, answer)

    def _reduce(self, count: Reduce) -> None:
        """Send the leader the sum; in a shard, take the step of its part and give the new values out."""
        form = self._form
        if self._steps and self._model is None:
            # The state of its part was lost on the way here. After a sum without a step every member would wait for
            # values: an empty sum makes the leader look for another aggregator.
            self._counted.clear()
        counted, weight = tuple(self._counted), self._partial.weight
        mean = self._partial.mean() if counted else None
        if mean is not None and form.kind == "shard" and self._centre is not None:
            self._centre = mean
        self._partial.clear()
        self._counted.clear()
        tensors: dict[str, np.ndarray] = {}
        values: ModelShard | None = None
        if mean is not None:
            tensors = self._written(mean)
            if self._steps:
                # No later version takes the pieces that the leader did not have counted.
                self._tray.clear()
                self._measured.clear()
                given = self._step(mean, count)
                base = -1 if "model" in given else count.version - 1
                values = self._values(count.version, given, base=base)
                if base >= 0:
                    tensors["moved"] = given[str(count.version)]
        result = ReduceResult(
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
        self.send(self._leader, result)
        if values is not None:
            self._give_out(values)

    def _written(self, mean: np.ndarray) -> dict[str, np.ndarray]:
        mean.flags.writeable = False
        return {"mean": mean} if self._codec.form == "dense" else encode_exact(mean, name="mean")

    def _step(self, mean: np.ndarray, count: Reduce) -> Tensors:
        """Move its part of the model, as the leader would. Returns the tensors to give out."""
        assert self._model is not None
        assert self._outer is not None
        weights = None
        if self._rule.decays:
            parameters = slice(0, self._form.parameters)
            weights = self._model[parameters]
            weights = weights if self._residual is None else weights + self._residual[parameters]
        change, self._outer = outer_step(self._rule, self._outer, mean, rate=count.outer_rate, weights=weights)
        self._model = self._model.copy()
        if self._residual is None:
            add_to(self._model, change)
            return {"model": self._model}
        coded, self._residual = code_with(self._down, self._residual, change, self._sizes)
        add_to(self._model, coded.values)
        return coded.tensors(name=str(count.version))

    def _values(self, version: int, tensors: Tensors, *, base: int) -> ModelShard:
        """Values of a version for every member. Their bytes count from here on."""
        form = self._form
        for array in tensors.values():
            array.flags.writeable = False
        self._bytes_down += bytes_of(tensors) * len(self._members)
        return ModelShard(
            job=form.job,
            term=form.term,
            formation=form.formation,
            version=version,
            start=form.start,
            stop=form.stop,
            base=base,
            tensors=tensors,
        )

    def _give_out(self, values: ModelShard) -> None:
        """Send values to every member. Each aggregator begins with another, so that no member is last everywhere."""
        after = sum(member <= self._node for member in self._members)
        for member in (*self._members[after:], *self._members[:after]):
            self.send(member, values)


def _part_of(form: SetUpAggregator) -> tuple[np.ndarray, OuterState, np.ndarray | None]:
    """The state of this part (model, what its step keeps, residual), in memory of its own."""
    size = form.stop - form.start
    residual = _own(form, "residual", size) if form.codec_down != "dense" else None
    second = _own(form, "second", form.parameters) if form.outer_rule.is_adaptive else np.zeros(0, dtype=np.float32)
    outer = OuterState(_own(form, "velocity", form.parameters), second, form.outer_steps)
    return _own(form, "model", size), outer, residual


def _own(form: SetUpAggregator, name: str, size: int) -> np.ndarray:
    return np.array(flat(name, {name: form.tensors[name]} if name in form.tensors else {}, size=size))
