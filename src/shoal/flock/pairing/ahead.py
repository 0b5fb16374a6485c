"""The next pair if links differ: the first pair of the best plan. The plan is computed again each time and not kept.

Each time a device becomes free, the best order (``exact``) is computed again for the devices that are free or will be
soonest, and its first pair begins. Since no plan is kept, no event can make one stale: a device that is lost, or comes
back early, is absent or present in the next plan.

The inputs: the links; the end of each running merge; the end of each training if it can be predicted (``ready_s`` of
``coming``), else infinite. Devices without a prediction are assumed to come within half a merge. That guess may make
others wait, but only while some merge is running. So no device waits for one that never comes.

If two directions take about the same time, the device that spent less energy receives. For this the plan adds up to
``alike_share`` to the time of a merge whose receiver spent more, so fairness makes a plan longer by at most that share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.flock.pairing.exact import DEVICES_MOST, exact
from shoal.flock.pairing.links import Links, table_s
from shoal.flock.pairing.pairs import ALIKE_SHARE, EarliestTwo, Holder, Pair

#: Devices per plan. With no more devices than this, the plan covers all of them.
WINDOW = 10
#: With more devices than this, the two that were free first merge: a plan for each of a thousand merges takes a minute.
DEVICES_PLANNED = 128
#: When a device without a prediction is assumed to come, in merges from now.
GUESS_MERGES = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class LookAhead:
    """The first pair of the best plan, or of ``EarliestTwo`` if merges take about equally long or there are too many
    devices."""

    window: int = WINDOW
    alike_share: float = ALIKE_SHARE

    def __post_init__(self) -> None:
        if not 2 <= self.window <= DEVICES_MOST:
            raise Misuse(f"window is {self.window}; it must be from 2 to {DEVICES_MOST} devices")

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        if len(free) < 2:
            return None
        earliest = EarliestTwo(alike_share=self.alike_share)
        if links is None or len(free) + len(coming) > DEVICES_PLANNED:
            return earliest.next_pair(free, links=links, coming=coming)
        free_first = sorted(free, key=_soonest) + sorted(coming, key=_soonest)
        ahead = free_first[: self.window]
        way_s = table_s([each.name for each in ahead], links)
        apart_s = way_s[~np.eye(len(ahead), dtype=bool)]
        if float(apart_s.max()) <= float(apart_s.min()) * (1 + self.alike_share):
            return earliest.next_pair(free, links=links, coming=coming)
        return self._planned(ahead, way_s, free_count=min(len(free), len(ahead)))

    def _planned(self, ahead: list[Holder], way_s: np.ndarray, *, free_count: int) -> Pair | None:
        now_s = max(each.ready_s for each in ahead[:free_count])
        guess_s = now_s + GUESS_MERGES * float(way_s.sum()) / (len(ahead) * (len(ahead) - 1))
        # A device that is later than predicted counts as one without a prediction.
        foretold = [now_s < each.ready_s < math.inf for each in ahead[free_count:]]
        later_s = [each.ready_s if told else guess_s for each, told in zip(ahead[free_count:], foretold, strict=True)]
        ready_s = [now_s] * free_count + later_s
        fair_s = way_s * (1 + self.alike_share * _spent_share(ahead))
        pair = _first(ahead, ready_s, fair_s, free_count=free_count)
        if pair is None and not any(foretold):
            here = slice(free_count)
            pair = _first(ahead[here], ready_s[here], fair_s[here, here], free_count=free_count)
        return pair


def _first(ahead: list[Holder], ready_s: list[float], way_s: np.ndarray, *, free_count: int) -> Pair | None:
    """Return the pair that the best plan begins now, or None. Both must be among the first ``free_count``, which are
    free."""
    best = exact(ready_s, merge_s=way_s)
    seen: set[int] = set()
    for sender, receiver in best.pairs:
        is_first = sender not in seen and receiver not in seen
        if is_first and max(sender, receiver) < free_count:
            reason = f"begins the best plan for {len(ahead)} devices, {best.makespan_s - max(ready_s):.3g} s"
            reason += " after the last of them is ready"
            return Pair(sender=ahead[sender].name, receiver=ahead[receiver].name, reason=reason)
        seen.update((sender, receiver))
    return None


def _soonest(holder: Holder) -> tuple[float, str]:
    return holder.ready_s, holder.name


def _spent_share(holders: Sequence[Holder]) -> np.ndarray:
    """Return a number per device, from 0 for the one that spent least energy to 1 for the one that spent most."""
    spent = np.array([each.spent_joules for each in holders])
    span = float(spent.max() - spent.min())
    return (spent - spent.min()) / span if span > 0 else np.zeros(len(spent))
