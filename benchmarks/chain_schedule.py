"""Plays a rule, a plan or a fixed shape against ready times and links: its end, and the energy of each device. Offline.

The model. A device is ready once it has trained, or has come back from being busy. A merge occupies both devices for
d(sender, receiver); merges of other devices go on beside it. The sender pays its radio for that long and is done. The
receiver pays its own, and the sum. The broadcast that follows is not in it (``broadcast``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from shoal.errors import Misuse
from shoal.flock.pairing.links import Links
from shoal.flock.pairing.pairs import Holder, Pair, Pairing


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """What a merge costs. By default a second of sending is as dear as one of receiving, and adding costs nothing."""

    send_watts: float = 1.0
    receive_watts: float = 1.0
    #: Adding up, at the receiver.
    add_joules: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Merge:
    sender: str
    receiver: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Merges as they begin, until one device holds everything."""

    merges: tuple[Merge, ...]
    root: str
    #: When the root holds everything.
    makespan_s: float
    #: Of each device, with the energy it had spent before.
    spent_joules: Mapping[str, float]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(sender, receiver), in order."""
        return tuple((merge.sender, merge.receiver) for merge in self.merges)


def play(
    rule: Pairing, devices: Sequence[Holder], *, links: Links, energy: Energy | None = None, foretold: bool = False
) -> Schedule:
    """Ask the rule whenever a device becomes free.

    It always knows the links, and when a merge under way will end. When those that train or are busy will be ready it
    is told only if ``foretold``.
    """
    return _Play(rule, devices, links=links, energy=energy or Energy(), foretold=foretold).run()


class _Play:
    def __init__(
        self, rule: Pairing, devices: Sequence[Holder], *, links: Links, energy: Energy, foretold: bool
    ) -> None:
        _check(devices)
        self._rule = rule
        self._links = links
        self._energy = energy
        self._free: dict[str, Holder] = {}
        #: By name: those of ``_then`` as the rule sees them, which may not know when they are ready.
        self._coming = {each.name: each if foretold else replace(each, ready_s=math.inf) for each in devices}
        self._then = {each.name: each for each in devices}
        self._events = [(each.ready_s, each.name) for each in devices]
        heapify(self._events)
        self._spent = {each.name: each.spent_joules for each in devices}
        self._merges: list[Merge] = []

    def run(self) -> Schedule:
        now_s = -math.inf
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                _, name = heappop(self._events)
                del self._coming[name]
                self._free[name] = self._then.pop(name)
            while pair := self._rule.next_pair(
                list(self._free.values()), links=self._links, coming=list(self._coming.values())
            ):
                self._begin(pair, now_s)
        if len(self._free) > 1:
            raise Misuse(f"the rule left {len(self._free)} devices waiting for nobody: it must pair the last two")
        (root,) = self._free
        return Schedule(merges=tuple(self._merges), root=root, makespan_s=now_s, spent_joules=self._spent)

    def _begin(self, pair: Pair, now_s: float) -> None:
        if pair.sender == pair.receiver or pair.sender not in self._free or pair.receiver not in self._free:
            raise Misuse(f"the rule pairs {pair.sender} with {pair.receiver}: two that are free, and not the same")
        sender, receiver = self._free.pop(pair.sender), self._free.pop(pair.receiver)
        merge = _merge(pair.sender, pair.receiver, now_s, links=self._links)
        _pay(self._spent, merge, energy=self._energy)
        self._merges.append(merge)
        after = replace(
            receiver,
            ready_s=merge.end_s,
            spent_joules=self._spent[receiver.name],
            weight=sender.weight + receiver.weight,
        )
        self._coming[receiver.name] = self._then[receiver.name] = after
        heappush(self._events, (merge.end_s, receiver.name))


def follow(
    pairs: Iterable[tuple[str, str]], devices: Sequence[Holder], *, links: Links, energy: Energy | None = None
) -> Schedule:
    """Carry out (sender, receiver) in this order, each as soon as both are free."""
    return follow_levels([pairs], devices, links=links, energy=energy)


def follow_levels(
    levels: Iterable[Iterable[tuple[str, str]]],
    devices: Sequence[Holder],
    *,
    links: Links,
    energy: Energy | None = None,
) -> Schedule:
    """The same, in steps: no pair of a level begins before all of the level before are done."""
    _check(devices)
    free_s = {each.name: each.ready_s for each in devices}
    spent = {each.name: each.spent_joules for each in devices}
    merges: list[Merge] = []
    root, over_s = devices[0].name, -math.inf
    retired: dict[str, None] = {}
    for level in levels:
        begun = len(merges)
        for sender, receiver in level:
            if sender in retired or root in retired:
                raise Misuse(f"{sender if sender in retired else root} has sent before: it has nothing left to merge")
            merge = _merge(sender, receiver, max(free_s[sender], free_s[receiver], over_s), links=links)
            free_s[sender] = free_s[receiver] = merge.end_s
            _pay(spent, merge, energy=energy or Energy())
            merges.append(merge)
            retired[sender] = None
            root = receiver
        over_s = max((merge.end_s for merge in merges[begun:]), default=over_s)
    if missing := [name for name in free_s if name not in retired and name != root]:
        raise Misuse(f"a plan that leaves out {', '.join(missing)}: all but the root must send")
    merges.sort(key=lambda merge: merge.begin_s)
    return Schedule(merges=tuple(merges), root=root, makespan_s=free_s[root], spent_joules=spent)


# What MDLdroid is compared with -------------------------------------------------------------------------


def tree_levels(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A binomial tree, fixed in advance: of each two neighbours that are left the second sends."""
    left, levels = list(names), []
    while len(left) > 1:
        levels.append(list(zip(left[1::2], left[::2], strict=False)))
        left = left[::2]
    return levels


def ring_pairs(names: Sequence[str], *, returns: bool = False) -> list[tuple[str, str]]:
    """Each to the next: N - 1 hops; or N, if the first shall have the sum."""
    hops = list(pairwise(names))
    return [*hops, (names[-1], names[0])] if returns and len(names) > 1 else hops


def tree(devices: Sequence[Holder], *, links: Links, energy: Energy | None = None, in_step: bool = False) -> Schedule:
    """MDLdroid's Tree-scheduler: the same pairs in each round, busy or not. ``in_step``: level by level."""
    levels = tree_levels([each.name for each in devices])
    if not in_step:
        levels = [[pair for level in levels for pair in level]]
    return follow_levels(levels, devices, links=links, energy=energy)


def ring(devices: Sequence[Holder], *, links: Links, energy: Energy | None = None, returns: bool = False) -> Schedule:
    """MDLdroid's Ring-scheduler: one hop after the other, in a fixed order."""
    return follow(ring_pairs([each.name for each in devices], returns=returns), devices, links=links, energy=energy)


def spent_variance(schedule: Schedule) -> float:
    """E = 1/N Σ (E_i - μ)²   (MDLdroid eq. 6)."""
    spent = list(schedule.spent_joules.values())
    mean = sum(spent) / len(spent)
    return sum((each - mean) ** 2 for each in spent) / len(spent)


def _merge(sender: str, receiver: str, begin_s: float, *, links: Links) -> Merge:
    return Merge(sender=sender, receiver=receiver, begin_s=begin_s, end_s=begin_s + links.merge_s(sender, receiver))


def _pay(spent: dict[str, float], merge: Merge, *, energy: Energy) -> None:
    lasts_s = merge.end_s - merge.begin_s
    spent[merge.sender] += energy.send_watts * lasts_s
    spent[merge.receiver] += energy.receive_watts * lasts_s + energy.add_joules


def _check(devices: Sequence[Holder]) -> None:
    if not devices:
        raise Misuse("a round without devices: give at least one")
    if len({each.name for each in devices}) < len(devices):
        raise Misuse("two devices of a round have the same name")
    if not all(math.isfinite(each.ready_s) for each in devices):
        raise Misuse("a device that never becomes ready is not in the round: leave it out")
