"""Which two devices merge next, and which of the two sends: asked whenever a device becomes free. Knows no clock.

Merging two partials occupies both devices for d, and the result is ready at max(t_i, t_j) + d. If d is the same for
all, *always merge the two that became free first* ends as early as any order can, also one that knows the future
(Golumbic 1976, Parker 1980: Huffman's rule for F(x, y) = max(x, y) + d). It needs to know nothing of devices that are
still busy, so there is nothing to foretell, and it never exceeds the lower bound (``benchmarks.chain_bound``) by a
whole merge.

Which of the two receives does not change when it ends. So the energy they spent decides: *the device that spent more
sends and retires*, the other goes on. Where links differ, it matters: the partial should stay with the device from
which, and to which, the others have the shorter way. Spent energy then decides where that is much the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import Misuse
from shoal.flock.pairing.links import Links

#: Directions that differ by less than this share of the shorter are alike, and the energy spent decides.
ALIKE_SHARE = 0.05
#: So many others are looked at to tell which of two is better placed: a decision shall not grow with the cluster.
OTHERS_SEEN = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A device that holds a partial of the round."""

    name: str
    #: When it became free: had trained, or had merged. Of one that is not free yet: when it is expected; infinite if
    #: nobody can tell.
    ready_s: float
    #: So far, over all rounds.
    spent_joules: float = 0.0
    #: The examples in its partial: θ begins as the number of samples, and adds up at the receiver.
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise Misuse("a device without a name cannot be paired")
        if math.isnan(self.ready_s):
            raise Misuse(f"{self.name}: free at a time that is no number; say infinite if it is not known")
        if not 0 <= self.spent_joules < math.inf:
            raise Misuse(f"{self.name} has spent {self.spent_joules} J: 0 or more, finite")
        if not 0 < self.weight < math.inf:
            raise Misuse(f"{self.name}: a partial weighs more than nothing, not {self.weight}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The sender gives its partial and retires for the round; the receiver goes on with both."""

    sender: str
    receiver: str
    reason: str


class Pairing(Protocol):
    """A rule that chooses the next pair."""

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        """Two of the free, to begin now; None: wait for the next to become free.

        Asked whenever one becomes free or is lost, and again until the answer is None. ``coming`` are the others that
        still hold a partial: under way in a merge, or training; for a late one ``ready_s`` is infinite. Without
        ``links`` all merges count as equally long.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EarliestTwo:
    """The two that became free first; the one that spent more sends. Optimal where all merges take as long."""

    alike_share: float = ALIKE_SHARE

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        if len(free) < 2:
            return None
        first, second = earliest_two(free)
        others = _a_few(free, but=(first, second)) + _a_few(coming, but=())
        return directed(first, second, links=links, others=others, alike_share=self.alike_share)


def earliest_two(free: Sequence[Holder]) -> tuple[Holder, Holder]:
    """Those that became free first. Of several at once, the one that has spent least meets the one that has spent most.

    So devices that are always ready together share energy too: by name they would always pair the same way.
    """
    first_s = min(each.ready_s for each in free)
    at_first = [each for each in free if each.ready_s == first_s]
    if len(at_first) > 1:
        least, most = min(at_first, key=_riches), max(at_first, key=_riches)
        return least, most
    (first,) = at_first
    second_s = min(each.ready_s for each in free if each is not first)
    at_second = [each for each in free if each.ready_s == second_s]
    return first, max(at_second, key=lambda each: (abs(each.spent_joules - first.spent_joules), each.name))


def directed(
    one: Holder,
    other: Holder,
    *,
    links: Links | None,
    others: Sequence[Holder] = (),
    alike_share: float = ALIKE_SHARE,
) -> Pair:
    """Decide which of the two sends. ``others``: devices that the receiver will still merge with, or some of them."""
    if links is not None:
        there_s = _way_s(one, other, links=links, others=others)
        back_s = _way_s(other, one, links=links, others=others)
        if abs(there_s - back_s) > alike_share * min(there_s, back_s):
            sender, receiver = (one, other) if there_s < back_s else (other, one)
            shorter_s, longer_s = sorted((there_s, back_s))
            reason = f"{receiver.name} is better placed to go on: {shorter_s:.3g} s against {longer_s:.3g} s"
            return Pair(sender=sender.name, receiver=receiver.name, reason=reason)
    sender, receiver = (one, other) if _has_spent_more(one, other) else (other, one)
    spent = f"{sender.spent_joules:.4g} J against {receiver.spent_joules:.4g} J"
    alike = sender.spent_joules == receiver.spent_joules
    reason = f"{sender.name} sends by name, both spent the same" if alike else f"{sender.name} has spent more: {spent}"
    return Pair(sender=sender.name, receiver=receiver.name, reason=reason)


def _way_s(sender: Holder, receiver: Holder, *, links: Links, others: Sequence[Holder]) -> float:
    """The duration of this merge and, likely, of the receiver's next one, in its better direction."""
    merge_s = links.merge_s(sender.name, receiver.name)
    if not others:
        return merge_s
    stays = receiver.name
    onward_s = sum(min(links.merge_s(each.name, stays), links.merge_s(stays, each.name)) for each in others)
    return merge_s + onward_s / len(others)


def _a_few(holders: Sequence[Holder], *, but: tuple[Holder, ...]) -> list[Holder]:
    """Evenly out of them, at most OTHERS_SEEN."""
    step = max(1, math.ceil(len(holders) / OTHERS_SEEN))
    return [each for each in holders[::step] if all(each is not left_out for left_out in but)]


def _riches(holder: Holder) -> tuple[float, str]:
    return holder.spent_joules, holder.name


def _has_spent_more(one: Holder, other: Holder) -> bool:
    return (-one.spent_joules, one.name) < (-other.spent_joules, other.name)
