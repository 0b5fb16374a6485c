"""Where updates of a job are summed: at its leader, or by aggregators that the leader set up. A part of the leader.

The leader leases, keeps the only ledger and decides, whatever the shape is: that stays a star of small messages. Only
the paths of tensors have a shape. A *formation* names the aggregators, their parts of the model and their members; a
new one is set up while the old one still holds, and begins to hold between two versions. A lease is made under a
formation; its worker cuts the update to the parts of the aggregators, and once each has its piece the worker tells the
leader (``arrived``). When every awaited update has arrived, the leader tells the aggregators which leases to sum up:
every part of a version is of the same ones.

Nothing is lost with an aggregator. A worker keeps its update until the leader speaks again, and an update that has
arrived is still a lease in the ledger: the next formation, or the leader itself, gets it again (``Go``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse, add_to
from shoal.errors import PeerViolation
from shoal.learning.layout import Layout
from shoal.roles.actions import Record
from shoal.roles.leader.gathering.comparing import ComparedRound, distances_of
from shoal.roles.leader.gathering.formation import AggregatorShare, ArrivedUpdate, Formation
from shoal.roles.leader.gathering.gathering import Summed
from shoal.roles.leader.gathering.model_relay import ModelRelay
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.leader.weighing import WeightsGiven
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.wire.coded import cut, decode, decode_exact, entries_max, norm_of, sizes_of
from shoal.wire.messages import (
    AggregatorReady,
    Go,
    JobSpec,
    Reduce,
    ReduceResult,
    Route,
    Routed,
    SetUpAggregator,
    TearDown,
    Tensors,
    clip,
)

#: How long aggregators and routes may take to be set up: this, or this many lease times. Messages about it wait
#: behind models that are on their way.
FORM_S = 12.0
FORM_LEASES = 3.0

#: While every worker waits for them, since the present formation is broken, they have this long.
FORM_HURRY_S = 1.0

#: A sum that takes longer than this, and several times as long as a lease's transfer may, does not come any more.
GATHER_S = 10.0


#: Values of few bits are rounded, up or down: a coded sum may be this many times as long as the exact one.
ROUNDING = 2.0


def _is_silent(formation: Formation, share: AggregatorShare, told: int) -> bool:
    """Enough members got no answer. In a tree they go straight to the leader; in a shard of two only one asks."""
    least = min(2, len(share.members) - 1) if formation.kind == "shard" else 2
    return told >= max(1, least) and 3 * told >= len(share.members)


def _check_norm(what: str, update: np.ndarray | Sparse, most: float) -> None:
    """An aggregator is not trusted further than a worker: its sum is no longer than updates may be."""
    if (norm := norm_of(update)) > ROUNDING * most:
        raise PeerViolation(f"{what} of norm {norm:.3g}, where at most {most:.3g} can come of the updates")


class Formations:
    def __init__(
        self,
        machine: Machine,
        *,
        spec: JobSpec,
        term: int,
        layout: Layout,
        training: TrainingState,
        norm_max: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._machine = machine
        self._spec = spec
        self._term = term
        self._layout = layout
        self._training = training
        #: The largest norm that an update may have now. 0 allows any finite one.
        self._norm_max = norm_max
        #: The norms that aggregators were told: the last, and the one before. In a private job it is always the clip.
        self._norms_told = (norm_max(), norm_max()) if spec.plan.has_leaders_noise else (0.0, 0.0)
        self._sizes = sizes_of(layout)
        self._entries = entries_max(Codec.parse(spec.plan.codec), self._sizes)
        self._down = Codec.parse(spec.plan.down)
        #: The formation that holds, or None in a star.
        self.now: Formation | None = None
        #: The one that is being set up.
        self.next: Formation | None = None
        self._last = 0
        self._why_star: str | None = None
        #: Lease -> the formation that its update goes by. Updates of other leases go straight to the leader.
        self._lent: dict[int, int] = {}
        #: What aggregators give out.
        self.relay = ModelRelay(spec, term, training)
        sealed = spec.plan.believes.sealed is not None
        #: Bits of a word if updates are sealed, else 0.
        self._word_bits = Codec.parse(spec.plan.codec).word_bits if sealed else 0
        #: The leader takes every step: aggregators of a shard only sum up.
        self._sums_only = spec.plan.is_stepped_by_leader
        #: Every device of a version counts as one, whatever its examples.
        self._is_private = spec.plan.has_leaders_noise
        #: Aggregators have words of a sealed sum: no other shape holds before they were asked for them.
        self.keeps_words = False

    # Setting up ------------------------------------------------------------------------------------------

    def begin(self, kind: str, shares: Sequence[AggregatorShare], *, reason: str, lease_s: float = 0.0) -> None:
        """Have aggregators set up; then routes are tried; then it may hold (``is_ready``, ``hold``)."""
        self._drop_next("another is set up in its place")
        self._last += 1
        now_s = self._machine.now_s
        patience_s = max(FORM_S, FORM_LEASES * lease_s)
        self.next = Formation(
            number=self._last, kind=kind, shares=list(shares), reason=reason, begun_s=now_s, patience_s=patience_s
        )
        self._record("topology.planned", f"{self.next.notation}: {reason}")
        for share in self.next.shares:
            self._send_form(self.next, share)

    def _send_form(self, formation: Formation, share: AggregatorShare, *, with_part: bool = False) -> None:
        self._machine.send(share.node, self._form(formation, share, with_part=with_part))

    def _form(self, formation: Formation, share: AggregatorShare, *, with_part: bool = False) -> SetUpAggregator:
        """Return the message that sets up an aggregator; ``with_part``: with the state of its share of the model."""
        size = self._layout.parameters_size
        parameters = min(max(size - share.start, 0), share.stop - share.start)
        plan = self._spec.plan
        tensors: dict[str, np.ndarray] = {}
        centre = self._training.centre
        if with_part and centre is not None:
            tensors["centre"] = centre[share.start : share.stop]
        if with_part and formation.kind == "shard":
            tensors["model"] = self._training.model[share.start : share.stop]
            tensors["velocity"] = self._training.velocity[share.start : share.start + parameters]
            if plan.outer_rule.is_adaptive:
                tensors["second"] = self._training.second[share.start : share.start + parameters]
            if self._training.residual is not None:
                tensors["residual"] = self._training.residual[share.start : share.stop]
        rule = plan.outer_rule
        return SetUpAggregator(
            job=self._spec.job,
            term=self._term,
            formation=formation.number,
            kind=formation.kind,
            version=self._training.version,
            start=share.start,
            stop=share.stop,
            parameters=parameters,
            momentum=rule.momentum,
            members=tuple(sorted(share.members)),
            codec=plan.codec,
            sizes=self._part_sizes(share),
            entries=min(self._entries, share.stop - share.start),
            codec_down=plan.down,
            outer_rate=rule.rate,
            outer=rule.kind,
            outer_beta2=rule.beta2,
            outer_epsilon=rule.epsilon,
            weight_decay=rule.weight_decay,
            inner_rate=rule.inner_rate,
            outer_steps=self._training.outer_steps if rule.is_adaptive else 0,
            norm_max=self._norm_told(),
            word_bits=self._word_bits,
            sums_only=self._sums_only,
            tensors=tensors,
        )

    def _norm_told(self) -> float:
        """Return the largest norm that an aggregator may take from now on, or 0 for any finite one."""
        norm = self._norm_max()
        if norm != self._norms_told[0]:
            self._norms_told = (norm, self._norms_told[0])
        return norm

    def _part_sizes(self, share: AggregatorShare) -> tuple[int, ...]:
        return cut(self._sizes, share.start, share.stop)[1]

    def on_aggregator_ready(self, sender: str, message: AggregatorReady) -> None:
        formation = self.next if self.next and self.next.number == message.formation else None
        share = formation.share_led_by(sender) if formation else None
        if formation is None or share is None:
            return
        if not message.endpoint:
            formation.broken, formation.broken_by = f"{sender} could not be set up: {message.reason}", sender
            return
        share.endpoint = message.endpoint
        if not formation.is_formed or formation.routes_told:
            return
        formation.routes_told = True
        for worker in formation.members:
            self._route(formation, worker)

    def _route(self, formation: Formation, worker: str) -> None:
        hops = formation.hops_of(worker)
        route = Route(job=self._spec.job, term=self._term, formation=formation.number, hops=hops)
        self._machine.send(worker, route)

    def on_routed(self, sender: str, message: Routed) -> None:
        formation = self._numbered(message.formation)
        if message.unreached and all(each is None or each.number > message.formation for each in (self.now, self.next)):
            # The worker was away when that formation ended, and waits for its aggregators.
            reason = "that formation is over"
            told = TearDown(job=self._spec.job, term=self._term, formation=message.formation, reason=reason)
            self._machine.send(sender, told)
        if formation is None or sender not in formation.members:
            return
        if message.unreached:
            formation.unreached[sender] = message.unreached
            formation.routed.discard(sender)
        else:
            formation.unreached.pop(sender, None)
            formation.routed.add(sender)

    def again(self, lease: Lease) -> None:
        """A worker lost its route, though the formation holds: send the route again."""
        assert self.now is not None
        self._route(self.now, lease.worker)
        self.go(lease)

    def _numbered(self, number: int) -> Formation | None:
        return next((each for each in (self.now, self.next) if each is not None and each.number == number), None)

    def is_ready(self) -> bool:
        """The next formation can hold: everyone reaches everyone, or has had time to."""
        formation = self.next
        if formation is None or formation.broken or not formation.is_formed:
            return False
        patience_s = formation.patience_s if self.held_up() is None else FORM_HURRY_S
        late = self._machine.now_s - formation.begun_s > patience_s
        settled = all(member in formation.routed or member in formation.unreached for member in formation.members)
        return formation.is_routed or ((late or settled) and formation.is_mostly_routed)

    def complaints(self) -> list[str]:
        """Aggregators of the present formation that do not answer a third of their members, and more than one member:
        the fault of one is its own."""
        now = self.now
        if now is None or now.broken or not now.unreached:
            return []
        told = Counter(node for nodes in now.unreached.values() for node in nodes)
        return [share.node for share in now.shares if _is_silent(now, share, told[share.node])]

    def trouble(self) -> tuple[str, list[str]] | None:
        """Return why the formation that is being set up is given up, and the nodes at fault, or None if it is not."""
        formation = self.next
        if formation is None:
            return None
        if formation.broken:
            return formation.broken, [formation.broken_by] if formation.broken_by is not None else []
        away = list(dict.fromkeys(node for nodes in formation.unreached.values() for node in nodes))
        if formation.is_formed and len(formation.unreached) * 4 > len(formation.members):
            return f"{len(formation.unreached)} workers do not reach {', '.join(away[:4])}", away
        if self._machine.now_s - formation.begun_s <= formation.patience_s or self.is_ready():
            return None
        slow = [share.node for share in formation.shares if not share.endpoint]
        if slow:
            return f"{', '.join(slow[:4])} did not answer in {formation.patience_s:g} s", slow
        return f"too few workers reached their aggregators in {formation.patience_s:g} s", away

    # Holding ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """The next formation holds from now on. Leases made under the one before are delivered by this one."""
        formation = self.next
        assert formation is not None
        old, self.now, self.next = self.now, formation, None
        self.relay.clear()
        took_s = self._machine.now_s - formation.begun_s
        self._record("topology.changed", f"{formation.notation}, after {took_s:.1f} s: {formation.reason}")
        if (formation.kind == "shard" and not self._sums_only) or self._training.centre is not None:
            for share in formation.shares:
                self._send_form(formation, share, with_part=True)
        if old is not None:
            # Also to members of a formation in between that was given up.
            self._tear_down([old, formation], formation.number - 1, "another formation holds")

    def star(self, reason: str) -> None:
        """No formation holds, and none is set up: updates go straight to the leader."""
        old, dropped = self.now, self.next
        self.now = self.next = None
        self._why_star = reason
        self.relay.clear()
        if old is not None:
            self._record("topology.changed", f"star: {reason}")
        self._tear_down([each for each in (old, dropped) if each is not None], self._last, reason)

    def give_up_next(self) -> None:
        self._drop_next("it could not be set up")

    def mark_broken(self, reason: str) -> None:
        """The aggregators of the present formation can sum up nothing any more."""
        if self.now is not None:
            self.now.broken = self.now.broken or reason

    @property
    def kind(self) -> str:
        return self.now.kind if self.now is not None else "star"

    @property
    def is_closed(self) -> bool:
        """Updates go to the aggregators or nowhere: those of a shard take the step of their parts, and one that the
        leader merged alone would be missing there."""
        return self.now is not None and self.now.kind == "shard" and not self._sums_only

    @property
    def notation(self) -> str:
        return self.now.notation if self.now is not None else "star"

    @property
    def reason(self) -> str | None:
        return self.now.reason if self.now is not None else self._why_star

    @property
    def next_kind(self) -> str | None:
        return self.next.kind if self.next is not None else None

    def _drop_next(self, reason: str) -> None:
        old, self.next = self.next, None
        if old is None:
            return
        if self.now is not None:
            # The one that holds has a lower number: it must not be taken for this one. It is forgotten in its turn.
            return
        self._tear_down([old], old.number, reason)

    def _tear_down(self, formations: Sequence[Formation], up_to: int, reason: str) -> None:
        tear_down = TearDown(job=self._spec.job, term=self._term, formation=up_to, reason=clip(reason))
        nodes = dict.fromkeys(node for each in formations for node in (*each.members, *each.aggregators))
        for node in nodes:
            self._machine.send(node, tear_down)

    def redeliver(self, leases: Sequence[Lease], is_here: Callable[[str], bool]) -> tuple[list[Lease], list[Lease]]:
        """Leases made under an earlier formation are delivered by the present one, or straight to the leader.

        Return them, and the leases that cannot be: their batches must be leased again.
        """
        going: list[Lease] = []
        astray: list[Lease] = []
        present = self.now.number if self.now else 0
        for lease in leases:
            by = self._lent.get(lease.id, 0)
            if by in (0, present):
                continue
            way = self.way(lease.worker)
            if not is_here(lease.worker) or (not way and self.is_closed):
                astray.append(lease)
                self._lent.pop(lease.id, None)
                continue
            self.lend(lease.id, way)
            going.append(lease)
        return going, astray

    def lent_by(self, lease: int) -> int:
        """Return the formation that its update goes by, or 0 if it goes straight to the leader."""
        return self._lent.get(lease, 0)

    def go(self, lease: Lease) -> None:
        go = Go(job=self._spec.job, term=self._term, lease=lease.id, formation=self._lent.get(lease.id, 0))
        self._machine.send(lease.worker, go)

    # Workers come and go -----------------------------------------------------------------------------------

    def on_joined(self, node: str) -> None:
        """A worker came: it gets a place in the present formation, and in the next."""
        for formation in (self.now, self.next):
            if formation is None or formation.broken or formation.shares_of(node):
                continue
            shares = formation.shares
            if formation.kind == "tree":
                shares = [min(shares, key=lambda share: (len(share.members), share.node))]
            for share in shares:
                share.members.append(node)
                self._send_form(formation, share)
            if formation.routes_told:
                self._route(formation, node)

    def on_left(self, node: str, reason: str) -> None:
        """A worker is gone. If it was an aggregator, its sum is gone too."""
        self.relay.on_missing(node)
        for formation in (self.now, self.next):
            if formation is None:
                continue
            formation.routed.discard(node)
            formation.unreached.pop(node, None)
            if formation.share_led_by(node) is not None and not formation.broken:
                formation.broken = f"{node}, an aggregator, is gone: {reason}"
            for share in formation.shares_of(node):
                share.members.remove(node)
                if share.node != node and not formation.broken:
                    self._send_form(formation, share)

    def is_aggregator(self, node: str) -> bool:
        return any(f is not None and f.share_led_by(node) is not None for f in (self.now, self.next))

    # Lending -----------------------------------------------------------------------------------------------

    def way(self, node: str) -> int:
        """Return the formation that an update of this worker goes by, or 0 if it goes straight to the leader."""
        return self.now.number if self.now is not None and self.now.reaches(node) else 0

    def hindrance(self, node: str) -> str | None:
        """Return why this worker can get no lease now, or None if it can."""
        now = self.now
        if now is None or now.kind != "shard" or self._word_bits:
            # Leases of sealed updates belong to no formation: their group says which way the words go.
            return None
        if any(share.asked is not None for share in now.shares):
            # Every share of it is of the same leases: no other can be part of it any more.
            return f"version {self._training.version + 1} is being summed up"
        if node in now.routed or not self.is_closed:
            return None
        away = now.unreached.get(node, ())
        return f"does not reach {', '.join(away[:4]) or 'every node'} that leads a share of the model"

    def is_left_out(self, node: str) -> bool:
        """Whether a worker takes no part in a shard: it does not reach every aggregator."""
        now = self.now
        return now is not None and self.is_closed and not now.broken and node not in now.routed

    def held_up(self) -> str | None:
        """Return why no worker can get a lease now, or None while the present formation holds."""
        return f"regrouping devices: {self.now.broken}" if self.now is not None and self.now.broken else None

    def lend(self, lease: int, formation: int) -> None:
        if formation:
            self._lent[lease] = formation
        else:
            self._lent.pop(lease, None)

    # Summing up --------------------------------------------------------------------------------------------

    def has_arrived(self, lease: int) -> bool:
        return self.now is not None and lease in self.now.arrived

    def awaits_sum(self, node: str) -> bool:
        """An update of this worker is with the aggregators and in no version yet."""
        return self.now is not None and any(report.lease.worker == node for report in self.now.arrived.values())

    def is_due(self, lease: Lease, formation: int) -> bool:
        """Return whether the lease goes by this formation, and this formation holds."""
        now = self.now
        holds = now is not None and not now.broken and now.number == formation
        return holds and self._lent.get(lease.id, 0) == formation

    def bars_whole(self, lease: int) -> str | None:
        """Return why the leader may not take the whole update of this lease itself, or None if it may."""
        if self.has_arrived(lease):
            return f"lease {lease} is with the aggregators already"
        if self.is_closed and lease in self._lent:
            return f"lease {lease} goes to the aggregators of a shard"
        return None

    def note_arrival(self, report: ArrivedUpdate) -> None:
        """Every aggregator of the worker's route has its piece."""
        now = self.now
        assert now is not None
        if report.lease.id in now.arrived:
            return
        if now.kind == "shard":
            now.arrived[report.lease.id] = report
            return
        share = now.shares_of(report.lease.worker)[0]
        now.arrived[report.lease.id] = replace(report, at=share.node)
        count = self._count([report])
        if (rule := self._training.rule) is not None:
            now.measured_s[report.lease.id] = self._machine.now_s
            count = replace(count, weigh=rule)
        self._machine.send(share.node, count)

    def _take_distances(self, now: Formation, sender: str, message: ReduceResult) -> None:
        """An aggregator of a tree told how far updates are from the centre. That decides how much of each counts."""
        reports = [now.arrived[lease] for lease in message.leases if lease in now.measured_s]
        if not message.leases or any(report.at != sender for report in reports):
            raise PeerViolation(f"it sent distances of leases {message.leases[:8]}, whose updates it does not have")
        if len(reports) < len(message.leases):
            # A copy.
            return
        verdict = self._training.weigh(reports, distances_of(message.tensors, len(reports)))
        for place, report in enumerate(reports):
            del now.measured_s[report.lease.id]
            now.verdicts[report.lease.id] = verdict.of(place)
        self._machine.send(sender, replace(self._count(reports), kept=verdict.kept))

    def forget(self, lease: int) -> None:
        """A lease was taken back."""
        self._lent.pop(lease, None)
        now = self.now
        if now is None or now.arrived.pop(lease, None) is None:
            return
        now.measured_s.pop(lease, None)
        if now.kind == "tree" or any(share.asked is not None for share in now.shares):
            now.broken = now.broken or f"lease {lease} is in a sum and was taken back"

    def _count(self, reports: Sequence[ArrivedUpdate], *, last: bool = False) -> Reduce:
        assert self.now is not None
        return Reduce(
            job=self._spec.job,
            term=self._term,
            formation=self.now.number,
            version=self._training.version + 1,
            leases=tuple(report.lease.id for report in reports),
            weights=tuple(self._weight_of(report) for report in reports),
            scales=tuple(report.scale for report in reports),
            last=last,
            norm_max=self._norm_told(),
            outer_rate=self._spec.plan.outer_rate_at(self._training.version) if last else 0.0,
        )

    def _weight_of(self, report: ArrivedUpdate) -> float:
        return 1.0 if self._is_private else self._spec.plan.weight_of(report.update.examples)

    def gather(self, leases: Sequence[Lease]) -> bool:
        """Ask the aggregators from whose members no update is awaited for their sums, given all leases that are out.

        Return whether at least one was asked.
        """
        now = self.now
        if now is None or now.broken or not now.arrived:
            return False
        awaited = [lease for lease in leases if self._lent.get(lease.id) == now.number and lease.id not in now.arrived]
        if now.kind == "shard":
            if awaited or any(share.asked is not None for share in now.shares):
                return False
            reports = list(now.arrived.values())
            now.comparison = None
            if (rule := self._training.rule) is not None:
                now.comparison = ComparedRound(rule, tuple(self._weight_of(report) for report in reports))
            for share in now.shares:
                self._ask(share, reports, reports, weigh=rule or "")
            return True
        waited_for = {lease.worker for lease in awaited}
        asked = {lease for share in now.shares for lease in share.asked or ()}
        is_asked = False
        for share in now.shares:
            if share.asked is not None or waited_for.intersection(share.members):
                continue
            here = [r for r in now.arrived.values() if r.at == share.node and r.lease.id not in asked]
            if here and not any(report.lease.id in now.measured_s for report in here):
                # They were counted as they came.
                self._ask(share, here, [])
                is_asked = True
        return is_asked

    def _ask(
        self, share: AggregatorShare, of: Sequence[ArrivedUpdate], counted: Sequence[ArrivedUpdate], *, weigh: str = ""
    ) -> None:
        """Ask for a sum; ``weigh``: for a comparison by this rule, before the sum."""
        share.asked = tuple(report.lease.id for report in of)
        share.asked_s = self._machine.now_s
        count = self._count(counted, last=not weigh)
        self._machine.send(share.node, replace(count, weigh=weigh) if weigh else count)

    def _take_products(self, now: Formation, share: AggregatorShare, message: ReduceResult) -> None:
        """An aggregator told how its pieces lie to each other. Once all did, the sums are asked for."""
        comparison = now.comparison
        if comparison is None or message.version != self._training.version + 1 or share.node in comparison.parts:
            # A copy, of this round or of one before.
            return
        if message.leases != share.asked or message.weighed != comparison.rule:
            raise PeerViolation(
                f"it sent products of leases {message.leases[:8]}; it was asked about {(share.asked or ())[:8]}"
            )
        comparison.add(share.node, message.tensors)
        if len(comparison.parts) < len(now.shares):
            return
        reports = [now.arrived[lease] for lease in message.leases]
        verdict = comparison.verdict = self._training.weigh(reports, comparison.total())
        count = self._count(reports, last=True)
        scales = tuple(scale * voice for scale, voice in zip(count.scales, verdict.voices, strict=True))
        for each in now.shares:
            each.asked_s = self._machine.now_s
            self._machine.send(each.node, replace(count, scales=scales, kept=verdict.kept))

    def late(self, *, allowance_s: float) -> str | None:
        """Return the aggregator whose sum is overdue, or None."""
        limit_s = max(GATHER_S, allowance_s)
        now = self.now
        if now is None or now.broken:
            return None
        # In a shard the sums that came wait for the others.
        slow = [lease for lease, asked_s in now.measured_s.items() if self._machine.now_s - asked_s > limit_s]
        if slow:
            return now.arrived[slow[0]].at
        missing = [share for share in now.shares if share.asked is not None and not now.has_answered(share.node)]
        return next((share.node for share in missing if self._machine.now_s - share.asked_s > limit_s), None)

    def awaits(self, sender: str, message: ReduceResult) -> bool:
        """Whether this aggregator was asked for a sum that has not come, or for distances of updates."""
        now = self.now
        if now is None or now.number != message.formation or now.broken:
            return False
        share = now.share_led_by(sender)
        return share is not None and (share.asked is not None or bool(now.measured_s))

    def without_its_shard(self, sender: str, message: ReduceResult) -> ArrivedUpdate | None:
        """The one update that an aggregator lacks although its worker said that every aggregator had a piece of it.

        An aggregator that lacks several updates has lost them. One that lacks a single update never got it.
        """
        now = self.now
        share = now.share_led_by(sender) if now is not None and now.number == message.formation else None
        if now is None or now.broken or share is None or share.asked is None or not message.leases:
            return None
        if message.weighed and now.kind == "tree":
            # In a tree updates are measured one by one: a copy of such an answer says nothing of a sum.
            return None
        lacking = [lease for lease in share.asked if lease not in message.leases]
        is_part = set(message.leases) < set(share.asked)
        return now.arrived.get(lacking[0]) if is_part and len(lacking) == 1 else None

    def on_reduce_result(self, sender: str, message: ReduceResult) -> Summed | None:
        """A sum has come. Returns updates to be merged, if they are whole by it.

        Raises PeerViolation for a sum that is not what was asked for: its aggregator cannot be part of a formation.
        """
        now = self.now
        if now is None or now.broken or now.number != message.formation:
            return None
        share = now.share_led_by(sender)
        if share is not None and message.weighed and now.kind == "tree":
            self._take_distances(now, sender, message)
            return None
        if share is None or share.asked is None:
            return None
        if message.leases and not any(lease in now.arrived for lease in message.leases):
            # All of them are in a version: a sum that came before, once more.
            return None
        if message.weighed:
            self._take_products(now, share, message)
            return None
        if set(message.leases) != set(share.asked) or len(message.leases) != len(share.asked):
            raise PeerViolation(f"its sum is of leases {message.leases[:8]}; it was asked about {share.asked[:8]}")
        reports = tuple(now.arrived[lease] for lease in share.asked)
        weight = sum(self._weight_of(report) for report in reports)
        if abs(message.weight - weight) > 1e-6 * weight:
            raise PeerViolation(f"ReduceResult.weight is {message.weight:g}; its updates have {weight:g}")
        mean, moved = self._read_sum(now, share, message)
        if now.comparison is not None:
            now.comparison.check_sum(sender, mean)
        if now.kind == "tree":
            share.asked = None
            verdicts = [now.verdicts[report.lease.id] for report in reports if report.lease.id in now.verdicts]
            for report in reports:
                self._done(now, report)
            return Summed(reports, mean, weight, verdict=WeightsGiven.together(verdicts) if verdicts else None)
        now.sums[sender] = (np.array(mean), moved)
        if len(now.sums) < len(now.shares):
            return None
        return self._whole(now, reports, weight)

    def _read_sum(
        self, now: Formation, share: AggregatorShare, message: ReduceResult
    ) -> tuple[np.ndarray, np.ndarray | Sparse | None]:
        size = share.stop - share.start
        tensors = dict(message.tensors)
        moved = tensors.pop("moved", None)
        mean = self.read_mean(tensors, size=size)
        if (moved is not None) != (now.kind == "shard" and self._down.form != "dense"):
            raise PeerViolation("a sum that does not say how its part moved, or does where nobody asked")
        if moved is None:
            return mean, None
        change = decode(self._down, {"moved": moved}, self._part_sizes(share), name="moved")
        _check_norm("a step", change, self._step_max(mean, share))
        return mean, change if isinstance(change, Sparse) else np.array(change)

    def read_mean(self, tensors: Tensors, *, size: int) -> np.ndarray:
        """The mean of an aggregator's sum, checked."""
        mean = decode_exact("mean", tensors, size=size)
        _check_norm("a mean", mean, max(self._norms_told) if all(self._norms_told) else math.inf)
        return mean

    def _step_max(self, mean: np.ndarray, share: AggregatorShare) -> float:
        """The most that a part can move by: its residual, its momentum, and this mean."""
        plan, training, part = self._spec.plan, self._training, slice(share.start, share.stop)
        held_back = norm_of(training.residual[part]) if training.residual is not None else 0.0
        if plan.outer_rule.is_adaptive:
            # No norm bounds it as tightly as the step itself, which the leader can take for any part.
            return held_back + norm_of(training.step_of(mean, part)[0])
        velocity = norm_of(training.velocity[part]) * plan.momentum + norm_of(mean)
        looked_ahead = plan.momentum * velocity + norm_of(mean) if plan.outer == "nesterov" else 0.0
        return held_back + max(1.0, plan.outer_rate) * max(velocity, looked_ahead)

    def _whole(self, now: Formation, reports: tuple[ArrivedUpdate, ...], weight: float) -> Summed:
        mean = np.empty(self._layout.size, dtype=np.float32)
        steps = np.zeros(self._layout.size, dtype=np.float32) if self._down.form != "dense" else None
        for share in now.shares:
            mean[share.start : share.stop], moved = now.sums[share.node]
            share.asked = None
            if steps is not None and moved is not None:
                add_to(steps[share.start : share.stop], moved)
        now.sums.clear()
        verdict = now.comparison.verdict if now.comparison is not None else None
        now.comparison = None
        for report in reports:
            self._done(now, report)
        # Its aggregators have taken the step for it already and give it out, or wait for the leader's step.
        if not self._sums_only:
            self.relay.on_given(now.routed, now, self._training.version + 1)
        return Summed(reports, mean, weight, steps, verdict)

    def _done(self, formation: Formation, report: ArrivedUpdate) -> None:
        del formation.arrived[report.lease.id]
        formation.verdicts.pop(report.lease.id, None)
        self._lent.pop(report.lease.id, None)

    def _record(self, kind: str, reason: str) -> None:
        # Not by ``Leader.record``: the round statistics are not told of these.
        self._machine.act(Record(kind=kind, reason=clip(reason), job=self._spec.job))
