"""Which topology: the alternatives, the predicted time per batch in each, the best and why; and when to choose again.
Pure.

A topology with more parts can fail in more ways, so a simpler one is kept unless the other is faster by ``WORTH``. The
answer is only as good as the measurements, so ``Watch`` compares the rounds with the prediction. It reports when they
have differed for long enough to measure and choose again. If the rounds still differ from the new prediction, the model
is wrong about this topology. ``choose_again`` keeps a correction factor for each topology that was tried. So a job
returns to a topology that was faster in fact, and does not switch back and forth.

The model has links and devices, but not the processor time that the messages of a topology cost. A topology that was
tried shows that cost: its measured rounds (``took_s``) replace its prediction, however close the two are. ``Watch``
also reports when a topology that was tried before was faster than the present one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from shoal.errors import Misuse
from shoal.topology import predict
from shoal.topology.cluster import Cluster
from shoal.topology.predict import HOLD_S, TopologyPrediction
from shoal.topology.shard import Shares, water_fill
from shoal.topology.split import Tree, aggregators_about, split

#: In the order of complexity, the simplest first.
TOPOLOGIES = ("star", "tree", "shard")

#: A topology with more parts must be faster by this share of the simpler one's time.
WORTH = 0.05

#: Measured and predicted may differ by this share of the prediction ...
MARGIN = 0.15
#: ... before this many rounds in a row, all slower or all faster, are a reason to choose again.
ROUNDS_OFF = 5
#: Rounds after a choice that do not count: models are still moving to their new leaders.
ROUNDS_SETTLING = 3
#: The present topology may be slower by this share than one that was tried before: a smaller difference is noise.
SLOWER = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The best topology with the data needed to build it, and the alternatives."""

    best: TopologyPrediction
    #: One per topology, the simplest first.
    alternatives: tuple[TopologyPrediction, ...]
    reason: str
    tree: Tree | None = None
    shares: Shares | None = None
    #: Topology -> measured time of a batch as a multiple of the prediction, only for those tried that differed.
    corrections: tuple[tuple[str, float], ...] = ()


def choose(
    cluster: Cluster,
    *,
    model_bytes: float,
    topologies: tuple[str, ...] = TOPOLOGIES,
    above: str = "sync",
    hold_s: float = HOLD_S,
    corrections: Mapping[str, float] | None = None,
    took_s: Mapping[str, float] | None = None,
) -> Choice:
    """Return the fastest of ``topologies`` for these devices, or a simpler one that is nearly as fast.

    ``above`` is the pace at the leader: ``sync`` waits for all, ``async`` for nobody. ``took_s``: measured seconds per
    batch in the topologies that these devices tried.
    """
    if not topologies or any(topology not in TOPOLOGIES for topology in topologies):
        raise Misuse(f"topologies is {list(topologies)}; choose from {', '.join(TOPOLOGIES)}")
    alternatives: list[TopologyPrediction] = []
    tree, shares = None, None
    for topology in sorted(set(topologies), key=TOPOLOGIES.index):
        if topology == "star" and above == "async":
            alternatives.append(predict.flowing(cluster, model_bytes=model_bytes))
        elif topology == "star":
            alternatives.append(predict.star(cluster, model_bytes=model_bytes, hold_s=hold_s))
        elif topology == "tree":
            tree, told = best_tree(cluster, model_bytes=model_bytes, above=above, hold_s=hold_s)
            alternatives.append(told)
        else:
            shares = water_fill(cluster.workers, model_bytes=model_bytes)
            alternatives.append(predict.shard(cluster, model_bytes=model_bytes, shares=shares))
    known = dict(corrections or {})
    for told in alternatives:
        if took_s is not None and told.topology in took_s:
            known[told.topology] = _positive(took_s[told.topology]) / _positive(told.batch_s)
    alternatives = [_corrected(told, known.get(told.topology, 1.0), cluster) for told in alternatives]
    best = alternatives[0]
    for other in alternatives[1:]:
        if other.batch_s < best.batch_s * (1 - WORTH):
            best = other
    return Choice(
        best=best,
        alternatives=tuple(alternatives),
        reason=_reason(cluster, best, alternatives),
        tree=tree if best.topology == "tree" else None,
        shares=shares if best.topology == "shard" else None,
        corrections=tuple(sorted(known.items())),
    )


def choose_again(
    cluster: Cluster,
    before: Choice,
    *,
    measured_s: float,
    model_bytes: float,
    topologies: tuple[str, ...] = TOPOLOGIES,
    above: str = "sync",
    hold_s: float = HOLD_S,
    took_s: Mapping[str, float] | None = None,
) -> Choice:
    """Choose for the cluster as measured now, given what a batch really takes in the present topology and took in
    others (``took_s``)."""
    _positive(measured_s)
    if took_s:
        took_s = {**took_s, before.best.topology: measured_s}
    plain = choose(cluster, model_bytes=model_bytes, topologies=topologies, above=above, hold_s=hold_s)
    corrections = dict(before.corrections)
    corrections.pop(before.best.topology, None)
    for told in plain.alternatives:
        if told.topology == before.best.topology and abs(measured_s / told.batch_s - 1) > MARGIN:
            corrections[told.topology] = measured_s / told.batch_s
    if not corrections and not took_s:
        return plain
    return choose(
        cluster,
        model_bytes=model_bytes,
        topologies=topologies,
        above=above,
        hold_s=hold_s,
        corrections=corrections,
        took_s=took_s,
    )


def _corrected(told: TopologyPrediction, factor: float, cluster: Cluster) -> TopologyPrediction:
    if factor == 1.0:
        return told
    batch_s = _positive(told.batch_s * factor)
    detail = f"{told.detail}; {factor:.2f} times the model's {told.batch_s:.2f} s, as measured"
    return TopologyPrediction(
        topology=told.topology, batch_s=batch_s, sync_s=max(0.0, batch_s - cluster.slowest_s), detail=detail
    )


def best_tree(
    cluster: Cluster, *, model_bytes: float, above: str = "sync", hold_s: float = HOLD_S
) -> tuple[Tree, TopologyPrediction]:
    """Return the tree with the best number of aggregators near √n: rates differ, so the numbers around it are tried
    too. If there are hubs, trees of hubs are tried as well, and chosen unless a tree of workers is faster."""
    found: list[tuple[float, int, Tree, TopologyPrediction]] = []
    for hubs in dict.fromkeys((cluster.hubs, ())):
        some = replace(cluster, hubs=hubs)
        about, most = aggregators_about(some), min(len(hubs or cluster.workers), len(cluster.workers))
        for count in (count for count in range(about - 2, about + 3) if 1 <= count <= most):
            tree = split(some, aggregators=count, like_speeds_together=above == "async")
            told = predict.tree(some, tree, model_bytes=model_bytes, above=above, hold_s=hold_s)
            found.append((told.batch_s, len(found), tree, told))
    _, _, tree, told = min(found, key=lambda one: one[:2])
    return tree, told


def _reason(cluster: Cluster, best: TopologyPrediction, alternatives: list[TopologyPrediction]) -> str:
    others = [other for other in alternatives if other is not best]
    told = f"{best.topology}: {best.batch_s:.2f} s per batch"
    if others:
        told += ", where " + " and ".join(f"a {other.topology} takes {other.batch_s:.2f} s" for other in others)
    told += f"; {best.detail}"
    faster = min(others, key=lambda other: other.batch_s, default=best)
    if faster.batch_s < best.batch_s:
        told += f"; a {faster.topology} is not faster by {100 * WORTH:.0f} %, and has more parts"
    media = sorted({worker.medium for worker in cluster.workers if worker.medium})
    if best.topology == "star" and media and others:
        told += f"; {', '.join(media)} is shared: bytes that one link saves, others send over the same channel"
    return told


@dataclass(frozen=True, kw_only=True, slots=True)
class Off:
    """Rounds differ from the prediction, or are slower than those of another topology were."""

    predicted_s: float
    measured_s: float
    reason: str
    is_behind: bool = False


class Watch:
    """Compares rounds with the prediction for the present topology and with topologies tried before, and reports when
    to choose again. Use a new one for each choice.

    One slow round is only a straggler. Several in a row, all slower or all faster, are a reason.
    """

    def __init__(self, choice: Choice, *, took_s: Mapping[str, float] | None = None, rounds: int = ROUNDS_OFF) -> None:
        """``took_s``: seconds per batch in each topology that was tried. ``rounds``: rounds to compare it with."""
        self._topology = choice.best.topology
        others = [(seconds, name) for name, seconds in (took_s or {}).items() if name != self._topology]
        #: The fastest of the others, and its seconds per batch.
        self._rival = min(others, default=None)
        #: The last rounds.
        self._recent: deque[float] = deque(maxlen=rounds)
        self._rounds = rounds
        self._expected_s = _positive(choice.best.batch_s)
        self._settling = ROUNDS_SETTLING
        #: Consecutive rounds that differed from the prediction.
        self._off: deque[float] = deque(maxlen=ROUNDS_OFF)
        self._way = 0

    def measured(self, batch_s: float) -> Off | None:
        """Record one round. Return what is wrong, if it has been for long enough, else None."""
        ratio = _positive(batch_s) / self._expected_s
        if self._settling:
            self._settling -= 1
            return None
        self._recent.append(batch_s)
        return self._off_prediction(batch_s, ratio) or self._behind_rival()

    @property
    def took_s(self) -> float | None:
        """Return the median seconds per batch of recent rounds in this topology, or None if there are too few."""
        return median(self._recent) if len(self._recent) >= ROUNDS_OFF else None

    def _behind_rival(self) -> Off | None:
        took_s = self.took_s if len(self._recent) == self._rounds else None
        if took_s is None or self._rival is None or took_s <= self._rival[0] * (1 + SLOWER):
            return None
        rival_s, rival = self._rival
        reason = f"{self._rounds} rounds of a {self._topology} took {took_s:.2f} s, those of a {rival} {rival_s:.2f} s"
        return Off(predicted_s=self._expected_s, measured_s=took_s, reason=reason, is_behind=True)

    def _off_prediction(self, batch_s: float, ratio: float) -> Off | None:
        way = 1 if ratio > 1 + MARGIN else -1 if ratio < 1 - MARGIN else 0
        if way != self._way:
            self._off.clear()
            self._way = way
        if way == 0:
            return None
        self._off.append(batch_s)
        if len(self._off) < ROUNDS_OFF:
            return None
        measured_s = median(self._off)
        reason = (
            f"{ROUNDS_OFF} rounds in a row took {'longer' if way > 0 else 'less'} than predicted for a"
            f" {self._topology}: {measured_s:.2f} s, not {self._expected_s:.2f} s"
            f" ({100 * (measured_s / self._expected_s - 1):+.0f} %)"
        )
        return Off(predicted_s=self._expected_s, measured_s=measured_s, reason=reason)


def _positive(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise Misuse(f"a batch took {seconds} s; it must take a positive time")
    return seconds
