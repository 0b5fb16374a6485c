"""Invariants of a private job, checked on what leaves its devices and what its leaders draw. Keeps a ledger of its own.

Every update that leaves was counted on its device's disk; none is longer than the plan says, none comes too often or
too soon, and a device never forgets one. No leader draws the noise of another, nor more than its chain is for. Where
devices add the noise before they seal, each group is counted; what is masked is as short as the plan says, has as much
noise as the smallest sum needs of one device, and no noise is used again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dst.toy_task import LAYOUT
from shoal.compress.codec import Codec
from shoal.learning.blt_table import TABLE
from shoal.learning.privacy import Privacy, SharedPrivacy
from shoal.plan import Plan
from shoal.roles.actions import Send
from shoal.roles.events import Received
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.coded import cut, decode, norm_of, sizes_of
from shoal.wire.messages import Hop, JobSpec, Ready, Route, Update, UpdateShard


def noise_at(privacy: Privacy, normals: Sequence[np.ndarray], place: int) -> np.ndarray:
    """The noise of a version, by the definition of its chain: what the inverse of C makes of fresh noise."""
    count = place + 1
    if len(normals) < count:
        raise Violation(f"version {count} of a chain was made, and noise was drawn {len(normals)} times")
    row = TABLE[min(size for size in TABLE if size >= privacy.versions)]
    lower = np.eye(count)
    for late in range(1, count):
        parts = (weight * decay ** (late - 1) for decay, weight in zip(row.decays, row.weights, strict=True))
        lower += sum(parts) * np.eye(count, k=-late)
    drawn = np.array(normals[:count], dtype=np.float64) * privacy.deviation
    return np.asarray(np.linalg.solve(lower, drawn)[place])


def smallest_sum(plan: Plan) -> int:
    """Of a sealed plan: the fewest devices whose sum may be opened."""
    sealed = plan.believes.sealed
    assert sealed is not None
    left = math.ceil(plan.cohort * (1 - sealed.lost) - 1e-9) if plan.believes.private else 0
    return max(sealed.least, left)


def epsilon_of_shares(plan: Plan, *, length: int, variance: int, often: int) -> float:
    """What a device spends that takes part so often, by the bound for Skellam noise and its conversion, spelt out."""
    sealed, private = plan.believes.sealed, plan.believes.private
    assert sealed is not None
    assert private is not None
    certain = smallest_sum(plan) - math.ceil(plan.cohort * sealed.colluding - 1e-9)
    mu, square, found = float(variance * certain), float(length) ** 2, math.inf
    for order in range(2, 600):
        more = min(((2 * order - 1) * square + 6 * square) / (4 * mu * mu), 3 * square / (2 * mu))
        loss = often * (order * square / (2 * mu) + more)
        found = min(found, loss + math.log1p(-1 / order) - math.log(private.delta * order) / (order - 1))
    return found


class PrivacyOracle:
    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._private = {spec.job: (spec.plan, spec.plan.privacy) for spec in specs}
        #: (device, job) -> the (term, lease, group) of each participation on its disk.
        self._counted: dict[tuple[str, str], set[tuple[int, int, int]]] = {}
        #: (device, job) -> the (term, lease, group) of each update that left, and its version.
        self._left: dict[tuple[str, str], dict[tuple[int, int, int], int]] = {}
        #: (device, job, term, formation) -> aggregator -> its part of the device's updates.
        self._hops: dict[tuple[str, str, int, int], dict[str, Hop]] = {}
        #: (device, job) -> (term, lease, formation) -> aggregator -> the square of the piece that it was sent.
        self._pieces: dict[tuple[str, str], dict[tuple[int, int, int], dict[str, float]]] = {}
        #: (device, job, term) -> lease -> the durable version that its update is in.
        self._merged: dict[tuple[str, str, int], dict[int, int]] = {}
        #: Of noise in shares, in units of its variance: the sum of squares, and of how many numbers.
        self._squares, self._numbers = 0.0, 0
        #: (job, term) -> how often noise was drawn; and all of it.
        self._draws: dict[tuple[str, int], int] = {}
        self._drawn: set[bytes] = set()

    def mark(self, mark: Mark) -> None:
        if mark.kind == "counted":
            of = (mark.facts["term"], mark.facts["lease"], mark.facts.get("group", 0))
            self._counted.setdefault((mark.node, mark.facts["job"]), set()).add(of)
        elif mark.kind == "noise":
            self._on_noise(mark)
        elif mark.kind == "share":
            self._on_share(mark)
        elif mark.kind == "durable":
            self._on_durable(mark)

    def _on_durable(self, mark: Mark) -> None:
        """How far apart a device takes part is by the versions whose noise hides it."""
        save, (_, privacy) = mark.facts["save"], self._private[mark.facts["job"]]
        if privacy is None:
            return
        for row in save.applied:
            merged = self._merged.setdefault((row.node, mark.facts["job"], int(save.state["term"])), {})
            near = [at for lease, at in merged.items() if lease != row.lease and abs(at - row.version) < privacy.apart]
            if near:
                raise Violation(
                    f"at {mark.at_s:.3f} s: {row.node} is in version {row.version}, too close to those of {near}"
                )
            merged[row.lease] = row.version

    def _on_share(self, mark: Mark) -> None:
        """A device seals: what it masks is bounded, and has its share of noise."""
        facts, (plan, privacy) = mark.facts, self._private[mark.facts["job"]]
        who, what = (mark.node, facts["job"]), f"at {mark.at_s:.3f} s: {mark.node} seals for group {facts['group']}"
        if (facts["term"], facts["lease"], facts["group"]) not in self._counted.get(who, ()):
            raise Violation(f"{what}, and it was not counted")
        point, noise = facts["point"], facts["noise"]
        assert isinstance(privacy, SharedPrivacy)
        spent = epsilon_of_shares(plan, length=point.length, variance=point.variance, often=privacy.participations)
        if spent > privacy.epsilon * (1 + 1e-9):
            raise Violation(f"{what} with too little noise: its share is worth an epsilon of {spent}")
        steps = facts["steps"] - noise
        if int(np.dot(steps, steps)) > point.length**2 or point.clip != plan.clip_update:
            raise Violation(f"{what} {math.sqrt(np.dot(steps, steps))} steps long, of {point.length}")
        drawn = noise.tobytes()
        if drawn in self._drawn:
            raise Violation(f"{what}: its noise was another's before")
        self._drawn.add(drawn)
        self._squares += float(np.dot(noise, noise)) / point.variance
        self._numbers += noise.size
        off = abs(self._squares / self._numbers - 1)
        if self._numbers >= 60 and off > 7 * math.sqrt(2 / self._numbers):
            raise Violation(f"{what}: {self._numbers} numbers of noise have a variance that is {off:.0%} off")

    def _on_noise(self, mark: Mark) -> None:
        _, privacy = self._private[mark.facts["job"]]
        of, drawn = (mark.facts["job"], mark.facts["term"]), mark.facts["normals"].tobytes()
        self._draws[of] = self._draws.get(of, 0) + 1
        if privacy is None or self._draws[of] > privacy.versions:
            raise Violation(f"noise was drawn {self._draws[of]} times under term {of[1]}")
        if drawn in self._drawn:
            raise Violation(f"at {mark.at_s:.3f} s: the noise of a version of term {of[1]} was another's before")
        self._drawn.add(drawn)

    def step(self, step: Step) -> None:
        if step.role != "worker":
            return
        plan, privacy = self._private[step.job]
        if privacy is None:
            return
        if isinstance(step.event, Received) and isinstance(route := step.event.message, Route):
            hops = {hop.node: hop for hop in route.hops}
            self._hops[step.node, step.job, route.term, route.formation] = hops
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            if isinstance(action.message, Update):
                self._on_update(step, action.message, privacy, Codec.parse(plan.codec))
            elif isinstance(action.message, UpdateShard) and not isinstance(privacy, SharedPrivacy):
                self._on_piece(step, action.to, action.message, privacy, Codec.parse(plan.codec))
            elif isinstance(action.message, Ready):
                self._on_ready(step, action.message)

    def _on_piece(self, step: Step, to: str, shard: UpdateShard, privacy: Privacy, codec: Codec) -> None:
        """A part of an update leaves for an aggregator: it is counted, and no longer together with the others."""
        who, what = (step.node, step.job), f"at {step.at_s:.3f} s: a piece of {step.node} for {to}"
        if (shard.term, shard.lease, 0) not in self._counted.get(who, ()):
            raise Violation(f"{what} leaves, and was not counted")
        of = self._pieces.setdefault(who, {}).setdefault((shard.term, shard.lease, shard.formation), {})
        hop = self._hops[step.node, step.job, shard.term, shard.formation][to]
        sizes = cut(sizes_of(LAYOUT), hop.start, hop.stop)[1]
        of[to] = norm_of(decode(codec, shard.tensors, sizes, entries=LAYOUT.size)) ** 2
        length = math.sqrt(sum(of.values()))
        if length > privacy.clip * (1 + 1e-6):
            raise Violation(f"{what} is {length} long with the others, of {privacy.clip}")
        self._takes_part(step, (shard.term, shard.lease, 0), shard.version, privacy, what)

    def _on_update(self, step: Step, update: Update, privacy: Privacy, codec: Codec) -> None:
        who, what = (step.node, step.job), f"at {step.at_s:.3f} s: an update of {step.node}"
        lease = (update.term, update.lease, update.group)
        if lease not in self._counted.get(who, ()):
            raise Violation(f"{what} leaves, and was not counted")
        if not isinstance(privacy, SharedPrivacy) and not update.formation:
            length = norm_of(decode(codec, update.tensors, sizes_of(LAYOUT)))
            if length > privacy.clip * (1 + 1e-6):
                raise Violation(f"{what} is {length} long, of {privacy.clip}")
        if update.loss_sum or update.fresh or update.fresh_metrics or update.labels or update.logged:
            raise Violation(f"{what} tells more of its examples than itself")
        self._takes_part(step, lease, update.version, privacy, what)

    def _takes_part(self, step: Step, lease: tuple[int, int, int], version: int, privacy: Privacy, what: str) -> None:
        left = self._left.setdefault((step.node, step.job), {})
        near = [at for (term, other, _), at in left.items() if term == lease[0] and other != lease[1]]
        left[lease] = version
        if len(left) > privacy.participations:
            raise Violation(f"{what} is its participation {len(left)}, of {privacy.participations}")
        if any(abs(version - at) < privacy.apart for at in near):
            raise Violation(f"{what} of version {version} is too close to those of {near}")

    def _on_ready(self, step: Step, ready: Ready) -> None:
        left = len(self._left.get((step.node, step.job), ()))
        told = ready.state.participations if ready.state is not None else 0
        if told < left:
            raise Violation(f"at {step.at_s:.3f} s: {step.node} says that it took part {told} times, and did {left}")
        counted = len(self._counted.get((step.node, step.job), ()))
        if told > counted:
            raise Violation(f"at {step.at_s:.3f} s: {step.node} says that it took part {told} times, of {counted}")
