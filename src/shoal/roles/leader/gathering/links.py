"""Estimates the bandwidth of a job's workers and leader, from their own measurements and their leases. Pure state.

A worker reports the rate of its downloads, which is less than its link carries while other workers download too. The
time that its leases take beyond training says more, but may be time that they waited for the leader's link. So the
estimator plays a star through: if all other links were as good as the leader's, which rate of the leader's link would
make the ways there and back as long as they were?

The leader does not cause every long way. Served in turn or all at once, each worker is back soon after the one before;
a gap means that the workers behind it have slow links of their own. The estimator takes their uplink for the slow one,
as uplinks are slow in most homes. (If it is the downlink, or both, the sum is the same and so are the consequences:
such a worker becomes no aggregator, and is waited for as long.)

A star of many workers hides a slow link: by the time that all others are through the leader's link, so is the slow one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, median_high

from shoal.roles.leader.workers import WorkerRecord
from shoal.scheduling.placement import LINK_ASSUMED_BYTES_PER_S
from shoal.topology import predict
from shoal.topology.cluster import Cluster, ClusterNode

#: A worker that is back this much later than the one before, as a share of the way, is behind a gap; unless even links
#: would show a gap as large, or the leader causes it (``_gap``).
GAP = 0.1

#: Rates within this factor of the usual one count as equal.
ALIKE = 2.0

#: Rates are bounded: slower links train no model, and faster ones make no difference.
SLOWEST_BYTES_PER_S = 1e3
FASTEST_BYTES_PER_S = 1.25e9

#: A larger star is played through with a sample of this many workers, and their share of the leader's link.
PLAYED_MOST = 64

#: Iterations that find a rate from a way: a way is nearly the inverse of a rate, so few are enough.
TRIES = 8

LEADER = "the leader"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The lease times of one worker in a star."""

    node: str
    #: Beyond its training: the way of a model there and of an update back.
    way_s: float
    train_s: float


class LinkRates:
    def __init__(self, *, model_bytes: float) -> None:
        self._model_bytes = model_bytes
        #: The leader's link, or None before the first round of a star.
        self._leader_bytes_per_s: float | None = None
        #: Workers with a slow link of their own -> the rate of their uplink.
        self._slow: dict[str, float] = {}

    def observe(self, workers: Sequence[WorkerRecord]) -> None:
        """Estimate from rounds of a star, in which each of these workers trained one lease a round."""
        known = [worker for worker in workers if worker.durations_s and worker.trainings_s]
        if not known:
            return
        seen = [_seen(worker) for worker in known]
        # The worker that the leader served first was back first.
        seen.sort(key=lambda one: (one.way_s, one.node))
        count = min(len(seen), PLAYED_MOST)
        played = [seen[place * len(seen) // count] for place in range(count)]
        share = count / len(seen)
        slow = seen[_gap([one.way_s for one in seen], usual=self._usual_gap(played, share)) :]
        self._leader_bytes_per_s, self._slow = self._explain(played, slow, share)

    def _usual_gap(self, played: Sequence[LeaseTimes], share: float) -> float:
        """The largest gap in a star of even links whose median way is as long as it was."""
        rate, middle = LINK_ASSUMED_BYTES_PER_S, (len(played) - 1) // 2
        told_s: list[float] = []
        for _ in range(TRIES):
            told_s = sorted(self._ways_s(played, rate, share, {}).values())
            rate = _bounded(rate * told_s[middle] / played[middle].way_s)
        return max((later / before - 1 for before, later in pairwise(told_s[middle:])), default=0.0)

    def _explain(
        self, played: Sequence[LeaseTimes], slow: Sequence[LeaseTimes], share: float
    ) -> tuple[float, dict[str, float]]:
        """The rate of the leader's link that explains when the others were back, and the slow workers' uplinks."""
        rate = LINK_ASSUMED_BYTES_PER_S
        # A first guess: half of the way is the way back.
        ups = {one.node: _bounded(2 * self._model_bytes / one.way_s) for one in slow}
        longest_s = max(one.way_s for one in played if one.node not in ups)
        for _ in range(TRIES):
            told_s = self._ways_s(played, rate, share, ups)
            rate = _bounded(rate * max(told_s[node] for node in told_s if node not in ups) / longest_s)
            for one in slow:
                ups[one.node] = min(rate, _bounded(ups[one.node] * told_s.get(one.node, one.way_s) / one.way_s))
        return rate, ups

    def _ways_s(
        self, played: Sequence[LeaseTimes], rate: float, share: float, ups: Mapping[str, float]
    ) -> dict[str, float]:
        nodes = tuple(
            ClusterNode(
                name=one.node,
                up_bytes_per_s=ups.get(one.node, rate),
                down_bytes_per_s=rate,
                compute_s=one.train_s,
            )
            for one in played
        )
        leader = ClusterNode(name=LEADER, up_bytes_per_s=rate * share, down_bytes_per_s=rate * share)
        ways_s = predict.star_ways_s(Cluster(leader=leader, workers=nodes), model_bytes=self._model_bytes)
        return {one.node: way_s for one, way_s in zip(played, ways_s, strict=True)}

    def cluster(self, workers: Sequence[WorkerRecord], hubs: Sequence[WorkerRecord] = ()) -> Cluster:
        """These workers, these hubs and their leader with all that is known of their links, by their names."""
        times = [median(worker.trainings_s) for worker in workers if worker.trainings_s]
        typical_s = median(times) if times else 0.0
        told = [self._node(worker, typical_s) for worker in sorted(workers, key=lambda worker: worker.node)]
        nodes = _evened(told, is_played=self._leader_bytes_per_s is not None)
        usual = median(node.down_bytes_per_s for node in nodes)
        rate = self._leader_bytes_per_s or max(usual, LINK_ASSUMED_BYTES_PER_S)
        leader = ClusterNode(name=LEADER, up_bytes_per_s=rate, down_bytes_per_s=rate)
        # People put a hub on a good link: one that does not know its own has the best that is known here.
        best = max(rate, usual)
        return Cluster(leader=leader, workers=nodes, hubs=tuple(_hub(hub, best) for hub in hubs))

    def _node(self, worker: WorkerRecord, typical_s: float) -> ClusterNode:
        shared = self._leader_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
        is_known = self._leader_bytes_per_s is not None or not worker.down_bytes_per_s
        down = max(worker.down_bytes_per_s, shared) if is_known else worker.down_bytes_per_s
        up = worker.up_bytes_per_s or self._slow.get(worker.node, down)
        return ClusterNode(
            name=worker.node,
            up_bytes_per_s=max(up, SLOWEST_BYTES_PER_S),
            down_bytes_per_s=max(down, SLOWEST_BYTES_PER_S),
            compute_s=median(worker.trainings_s) if worker.trainings_s else typical_s,
            medium=worker.medium,
        )


def _hub(hub: WorkerRecord, otherwise: float) -> ClusterNode:
    down = hub.down_bytes_per_s or otherwise
    up = hub.up_bytes_per_s or down
    return ClusterNode(name=hub.node, up_bytes_per_s=_bounded(up), down_bytes_per_s=_bounded(down), medium=hub.medium)


def _evened(nodes: Sequence[ClusterNode], *, is_played: bool) -> tuple[ClusterNode, ...]:
    """Make rates equal that are nearly equal: measurements beside other traffic differ more than links do.

    Before a round of a star was played, downloads of a job's files are all that is known of the links. Workers fetch
    them at one moment, over the one link of the manager: a worker that came late had the link to itself and looks many
    times as fast as the others. It would lead most of a shard, and every round would wait for it. So no worker counts
    as faster than the usual one then.
    """
    up = median_high(node.up_bytes_per_s for node in nodes)
    down = median_high(node.down_bytes_per_s for node in nodes)

    def even(rate: float, usual: float) -> float:
        return usual if usual / ALIKE <= rate and (rate <= usual * ALIKE or not is_played) else rate

    return tuple(
        replace(
            node,
            up_bytes_per_s=even(node.up_bytes_per_s, up),
            down_bytes_per_s=even(node.down_bytes_per_s, down),
        )
        for node in nodes
    )


def _seen(worker: WorkerRecord) -> LeaseTimes:
    train_s = median(worker.trainings_s)
    return LeaseTimes(worker.node, max(1e-4, median(worker.durations_s) - train_s), train_s)


def _gap(ways_s: Sequence[float], *, usual: float) -> int:
    """Count those of these ways, in order, that are before the first gap: at least half of them.

    A leader has room for a few updates at a time: once n models are out and all but m updates in, the last m updates
    take their turn, and are back later by m / (2n - m).
    """
    count = len(ways_s)
    for place in range((count + 1) // 2, count):
        behind = count - place
        least = GAP + max(usual, behind / (2 * count - behind))
        if ways_s[place] > (1 + least) * ways_s[place - 1]:
            return place
    return count


def _bounded(rate: float) -> float:
    return min(max(rate, SLOWEST_BYTES_PER_S), FASTEST_BYTES_PER_S)
