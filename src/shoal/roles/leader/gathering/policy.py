"""Which shape and pace a job is to have, from its workers and its rounds. A part of the leader.

It chooses; the aggregation controller sets the choice up. A shape that the plan names is taken. ``auto`` begins as a
star, measures links and devices by its rounds, takes the shape that is predicted to be fastest, watches whether rounds
are as predicted, and chooses again with the measured times if they are not.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from shoal.plan import Plan
from shoal.roles.leader.gathering.formation import AggregatorShare
from shoal.roles.leader.gathering.links import LinkRates
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.topology import predict
from shoal.topology.choose import ROUNDS_OFF, Choice, Off, Watch, choose, choose_again
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.shard import water_fill
from shoal.topology.split import split
from shoal.trust import DEVICES_LEAST, DEVICES_MAX
from shoal.wire.messages import TopologyView, clip

#: The fewest workers for which a shape is worth having.
LEAST = {"star": 1, "tree": 3, "shard": 2}

#: Every worker of a shard is connected with every other: beyond this many, that is too much to ask of them.
SHARD_MOST = 64

#: Workers come one after the other: a formation is set up this long after the last came.
SETTLED_S = 2.0

#: Rounds of a star that are seen before ``auto`` chooses.
ROUNDS_FIRST = 3

#: Each return to a topology that was faster doubles the rounds until the next, up to this many times.
RETURNS_COUNTED = 5

#: Once a formation failed, the next is tried this much later, and ever later.
AGAIN_S = (2.0, 5.0, 15.0, 60.0, 300.0)

#: A node that made a formation fail is not an aggregator for this long, and ever longer.
UNFIT_S = (10.0, 30.0, 120.0, 600.0)

#: A round made of late updates is worth less: a pace that waits for no worker must be this many times as fast.
LATE_COSTS = 1.5

#: A worker that trains for longer than this many medians is not waited for in a buffered round.
STRAGGLES = 1.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shape and a pace to change to; without shares: a star."""

    kind: str
    shares: tuple[AggregatorShare, ...]
    reason: str
    #: None: the present one.
    pace: str | None = None
    #: Updates in a version of a buffered pace.
    buffer: int = 1


class TopologyPolicy:
    def __init__(self, machine: Machine, plan: Plan, *, size: int, wire_bytes: float | None = None) -> None:
        """``wire_bytes``: the mean bytes of a model and an update on the wire, or None if they are not coded."""
        self._machine = machine
        self._plan = plan
        self._size = size
        self._wire_bytes = 4.0 * size if wire_bytes is None else wire_bytes
        self._links = LinkRates(model_bytes=self._wire_bytes)
        #: When a worker last came or went.
        self._changed_s = 0.0
        #: Not before this.
        self._again_s = 0.0
        self._failures = 0
        #: Node -> until when it may not be an aggregator.
        self._unfit: dict[str, float] = {}
        self._times_unfit: Counter[str] = Counter()
        #: Rounds since a worker came or went, or the shape changed; and their shape.
        self._rounds: deque[float] = deque(maxlen=16)
        self._rounds_of: str | None = None
        self._choice: Choice | None = None
        self._watch: Watch | None = None
        self._off: Off | None = None
        #: Topology -> what a batch took these workers in it, in step.
        self._took_s: dict[str, float] = {}
        #: How often another topology was taken since the present one was slower than that had been.
        self._returns = 0
        self._views: tuple[TopologyView, ...] = ()
        #: The pace that trees are split for.
        self._pace = plan.paces[0]

    # What happens ----------------------------------------------------------------------------------------

    def on_workers_changed(self) -> None:
        """A worker came or went."""
        self._changed_s = self._machine.now_s
        self._rounds.clear()
        self._took_s.clear()
        self._returns = 0
        self._watch = None

    def on_failed(self, nodes: Sequence[str]) -> None:
        """A formation failed because of these nodes."""
        self.exclude(nodes)
        self._again_s = self._machine.now_s + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
        self._failures += 1
        # The choice does not hold: after some rounds of the present shape another is chosen.
        self._rounds.clear()
        self._watch = None

    def exclude(self, nodes: Sequence[str]) -> None:
        """Choose none of these nodes as an aggregator for a while."""
        for node in nodes:
            self._times_unfit[node] += 1
            after_s = UNFIT_S[min(self._times_unfit[node], len(UNFIT_S)) - 1]
            self._unfit[node] = max(self._unfit.get(node, 0.0), self._machine.now_s + after_s)

    def on_sum_merged(self) -> None:
        """The shape works: the leader merged a sum of its aggregators."""
        self._failures = 0

    def on_round(self, round_s: float, kind_now: str) -> None:
        """One version after another, with nothing amiss in between."""
        if kind_now != self._rounds_of:
            self._rounds.clear()
            self._rounds_of = kind_now
        self._rounds.append(round_s)
        if self._watch is not None and self._choice is not None and kind_now == self._choice.best.topology:
            self._off = self._watch.measured(round_s) or self._off
            if (took_s := self._watch.took_s) is not None and self._pace == "sync":
                self._took_s[kind_now] = took_s

    @property
    def is_star(self) -> bool:
        """The plan asks for a star at a pace that stays: no other shape will ever be wanted."""
        return self._plan.topology == "star" and self._plan.pace != "auto"

    # The next shape --------------------------------------------------------------------------------------

    def wanted(
        self,
        workers: Sequence[WorkerRecord],
        present: Sequence[str],
        kind_now: str,
        pace_now: str,
        hubs: Sequence[WorkerRecord] = (),
    ) -> Wanted | None:
        """Return what to change to, given the workers, the present aggregators and the hubs, or None to stay."""
        now_s = self._machine.now_s
        if now_s - self._changed_s < SETTLED_S or now_s < self._again_s or not workers:
            return None
        plan = self._plan
        if plan.topology == "auto" or plan.pace == "auto":
            return self._best(workers, present, kind_now, pace_now, hubs)
        if (kind_now, pace_now) == ("star", "sync") and self._rounds:
            self._links.observe(workers)
        if plan.topology != kind_now:
            return self.arrange(plan.topology, workers, hubs)
        return self._again(kind_now, workers, present, hubs)

    def _again(
        self, kind: str, workers: Sequence[WorkerRecord], present: Sequence[str], hubs: Sequence[WorkerRecord]
    ) -> Wanted | None:
        """Return the same topology with aggregators that came since, or None if it is as good as it is."""
        if kind == "tree":
            return self._with_more_hubs(workers, present, hubs)
        return self._share_out_again(workers, present) if kind == "shard" else None

    def _with_more_hubs(
        self, workers: Sequence[WorkerRecord], present: Sequence[str], hubs: Sequence[WorkerRecord]
    ) -> Wanted | None:
        """A hub came since, or is fit again: a tree that has more hubs than the present one takes its place."""
        names = {hub.node for hub in self._fit_hubs(hubs)}
        if not names.difference(present):
            return None
        wanted = self.arrange("tree", workers, hubs)
        led = {share.node for share in wanted.shares} if wanted is not None else set()
        return wanted if len(names & led) > len(names.intersection(present)) else None

    def _fit_hubs(self, hubs: Sequence[WorkerRecord]) -> list[WorkerRecord]:
        return [hub for hub in hubs if self._unfit.get(hub.node, 0.0) <= self._machine.now_s]

    def _share_out_again(self, workers: Sequence[WorkerRecord], present: Sequence[str]) -> Wanted | None:
        """Workers that came since lead nothing: once many of them would, the shares are divided again."""
        if (len(workers) - len(present)) * 4 < len(workers):
            return None
        wanted = self.arrange("shard", workers)
        # A worker whose link is too slow for a share leads nothing then either.
        new = sum(share.node not in present for share in wanted.shares) if wanted is not None else 0
        return wanted if new * 4 >= len(workers) else None

    def _best(
        self,
        workers: Sequence[WorkerRecord],
        present: Sequence[str],
        kind_now: str,
        pace_now: str,
        hubs: Sequence[WorkerRecord],
    ) -> Wanted | None:
        is_first = self._watch is None and len(self._rounds) >= ROUNDS_FIRST
        if self._off is None and not is_first:
            return None
        if (kind_now, pace_now) == ("star", "sync") and self._rounds:
            self._links.observe(workers)
        cluster = self._links.cluster(workers, self._fit_hubs(hubs))
        topologies = self._topologies(len(workers), pace_now)
        took_s = self._took_s if pace_now == "sync" else None
        if self._off is not None and self._choice is not None:
            off, self._off = self._off, None
            self._returns += off.is_behind
            choice = choose_again(
                cluster,
                self._choice,
                measured_s=off.measured_s,
                model_bytes=self._wire_bytes,
                topologies=topologies,
                above=_above(pace_now),
                took_s=took_s,
            )
            choice = replace(choice, reason=f"{off.reason}; {choice.reason}")
        else:
            known = dict(self._choice.corrections) if self._choice is not None else {}
            if took_s is not None:
                took_s[kind_now] = median(self._rounds)
            choice = choose(
                cluster,
                model_bytes=self._wire_bytes,
                topologies=topologies,
                above=_above(pace_now),
                corrections=known,
                took_s=took_s,
            )
        pace, buffer, why = self._pace_for(cluster, choice, pace_now)
        if pace != pace_now:
            topologies = self._topologies(len(workers), pace)
            choice = choose(cluster, model_bytes=self._wire_bytes, topologies=topologies, above=_above(pace))
        # Two that are nearly as fast take turns ever more seldom.
        rounds = ROUNDS_OFF * 2 ** min(self._returns, RETURNS_COUNTED)
        watch = Watch(choice, took_s=self._took_s if pace == "sync" else None, rounds=rounds)
        self._choice, self._watch, self._pace = choice, watch, pace
        self._views = _views(choice, cluster, self._wire_bytes, paces=len(self._plan.paces) > 1)
        kind, reason = choice.best.topology, "; ".join(filter(None, (why, choice.reason)))
        # A tree of workers may be the faster one: then no hub takes part in it.
        chosen = hubs if choice.tree is None or choice.tree.hubs else ()
        if (kind, pace) == (kind_now, pace_now):
            # The same; but workers and hubs that came since may lead nothing yet.
            return self._again(kind, workers, present, chosen)
        if kind == "star":
            return Wanted("star", (), reason, pace, buffer)
        groups = len(choice.tree.groups) if choice.tree is not None else 0
        wanted = self.arrange(kind, workers, chosen, aggregators=groups)
        return replace(wanted, reason=reason, pace=pace, buffer=buffer) if wanted is not None else None

    def _topologies(self, workers: int, pace: str) -> tuple[str, ...]:
        """Those that may be chosen from."""
        able = [topology for topology in self._plan.topologies if workers >= LEAST[topology]]
        if pace != "sync" or workers > SHARD_MOST:
            able = [topology for topology in able if topology != "shard"]
        return tuple(able) or ("star",)

    def _pace_for(self, cluster: Cluster, choice: Choice, pace_now: str) -> tuple[str, int, str]:
        """In step, unless stragglers make that much slower than not to wait for them."""
        if self._plan.pace != "auto":
            return pace_now, self._plan.buffer, ""
        together_s = choice.best.batch_s
        if pace_now != "sync":
            topologies = self._topologies(len(cluster.workers), "sync")
            together_s = choose(cluster, model_bytes=self._wire_bytes, topologies=topologies).best.batch_s
        flowing_s = predict.flowing_s(cluster, model_bytes=self._wire_bytes)
        usual_s = median(worker.compute_s for worker in cluster.workers)
        quick = sum(worker.compute_s <= STRAGGLES * usual_s for worker in cluster.workers)
        # Those that make a version are compared with each other under some plans: not too few, and not too many.
        is_compared = self._plan.believes.rule == "nearest"
        least, most = (DEVICES_LEAST, DEVICES_MAX) if is_compared else (2, quick)
        is_allowed = "buffered" in self._plan.paces and quick >= least
        if is_allowed and flowing_s * LATE_COSTS < together_s and quick < len(cluster.workers):
            why = f"{len(cluster.workers) - quick} stragglers: {flowing_s:.2f} s for a lease of each if nobody waits"
            return "buffered", min(quick, most), f"{why}, {together_s:.2f} s in step"
        return "sync", 1, ""

    def arrange(
        self, kind: str, workers: Sequence[WorkerRecord], hubs: Sequence[WorkerRecord] = (), *, aggregators: int = 0
    ) -> Wanted | None:
        """Return this shape for these nodes, or None if workers are too few or no node may be an aggregator."""
        if len(workers) < LEAST[kind] or kind == "star":
            return None
        cluster = self._links.cluster(workers, self._fit_hubs(hubs) if kind == "tree" else ())
        fit = [node for node in cluster.workers if self._unfit.get(node.name, 0.0) <= self._machine.now_s]
        if not fit and not cluster.hubs:
            return None
        if kind == "tree":
            count = min(aggregators or self._plan.aggregators, len(cluster.hubs) + len(fit))
            if not cluster.hubs or count > len(cluster.hubs):
                # Some of the workers lead.
                fitted = replace(cluster, workers=tuple(fit))
                shares, reason = self._tree(fitted, min(count, len(fit)))
            else:
                shares, reason = self._tree(cluster, min(count, len(workers)))
        else:
            shares, reason = self._shard(fit)
        for node in cluster.workers:
            if kind == "shard":
                for share in shares:
                    share.members.append(node.name)
            elif not any(node.name in share.members for share in shares):
                min(shares, key=lambda share: (len(share.members), share.node)).members.append(node.name)
        return Wanted(kind, tuple(shares), reason)

    def _tree(self, cluster: Cluster, count: int) -> tuple[list[AggregatorShare], str]:
        tree = split(cluster, aggregators=count or None, like_speeds_together=self._pace != "sync")
        shares = [
            AggregatorShare(
                group.aggregator,
                0,
                self._size,
                [*(() if group.is_hub else (group.aggregator,)), *group.members],
                is_hub=group.is_hub,
            )
            for group in tree.groups
        ]
        return shares, tree.reason

    def _shard(self, nodes: Sequence[ClusterNode]) -> tuple[list[AggregatorShare], str]:
        """Parts of the model after each other, as large as the shares; those with none are left out."""
        filled = water_fill(nodes, model_bytes=self._wire_bytes)
        shares: list[AggregatorShare] = []
        part, start = 0.0, 0
        for node, share in zip(filled.nodes, filled.shares, strict=True):
            part += share
            stop = min(self._size, round(part * self._size))
            if stop > start:
                shares.append(AggregatorShare(node, start, stop, []))
                start = stop
        shares[-1].stop = self._size
        return shares, filled.reason

    # What people see ---------------------------------------------------------------------------------------

    @property
    def views(self) -> tuple[TopologyView, ...]:
        """Return what there was to choose from, and how long each was predicted to take per batch."""
        return self._views

    @property
    def predicted_s(self) -> float:
        return self._choice.best.batch_s if self._choice is not None and self._watch is not None else 0.0


def _above(pace: str) -> str:
    return "sync" if pace == "sync" else "async"


def _views(choice: Choice, cluster: Cluster, model_bytes: float, *, paces: bool) -> tuple[TopologyView, ...]:
    views = [
        TopologyView(
            topology=told.topology, batch_s=told.batch_s, detail=clip(told.detail, 400), chosen=told is choice.best
        )
        for told in choice.alternatives
    ]
    if paces:
        flowing_s = predict.flowing_s(cluster, model_bytes=model_bytes)
        detail = "star, nobody waits for anybody: a lease of each worker in the mean; late updates are worth less"
        views.append(TopologyView(topology="star", pace="buffered", batch_s=flowing_s, detail=detail))
    return tuple(views)
