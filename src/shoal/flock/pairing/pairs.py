"""Which two devices merge next, and which of the two sends. Called whenever a device becomes free.

Merging two partials occupies both devices for d, and the result is ready at max(t_i, t_j) + d. If d is the same for
all, *always merge the two that became free first* ends as early as any order can, even one that knows the future
(Golumbic 1976, Parker 1980: Huffman's rule for F(x, y) = max(x, y) + d). It needs no knowledge of devices that are
still busy, so nothing has to be predicted, and it exceeds the lower bound (``benchmarks.chain_bound``) by less than one
merge.

Which of the two receives does not change the end time. So the energy they spent decides: *the device that spent more
sends and is done*, the other continues. If links differ, the direction matters: the partial should stay with the device
that has the faster links to and from the others. Energy then decides only between directions of about equal time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import Misuse
from shoal.flock.pairing.links import Links

#: Directions that differ by less than this share of the shorter count as equal, and energy decides.
ALIKE_SHARE = 0.05
#: Number of other devices to consider when comparing two: the cost of a decision must not grow with the cluster.
OTHERS_SEEN = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A device that holds a partial of the round."""

    name: str
    #: When it became free: had trained or had merged. For a device that is not free yet: when it is expected, or
    #: infinite if that is unknown.
    ready_s: float
    #: Energy spent so far, over all rounds.
    spent_joules: float = 0.0
    #: The examples in its partial: θ starts as the number of samples, and the receiver adds the sender's.
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise Misuse("give the name of the device to be paired")
        if math.isnan(self.ready_s):
            raise Misuse(f"{self.name}: ready_s is not a number; use infinite if it is unknown")
        if not 0 <= self.spent_joules < math.inf:
            raise Misuse(f"{self.name}: spent_joules is {self.spent_joules}; it must be 0 or more and finite")
        if not 0 < self.weight < math.inf:
            raise Misuse(f"{self.name}: the weight of the partial is {self.weight}; it must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The sender gives its partial and is done for the round; the receiver continues with both."""

    sender: str
    receiver: str
    reason: str


class Pairing(Protocol):
    """A rule that chooses the next pair."""

    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        """Return two of the free devices that merge now, or None to wait until another becomes free.

        Called whenever a device becomes free or is lost, and again until it returns None. ``coming`` are the other
        devices that still hold a partial: they are merging or training; for a late one ``ready_s`` is infinite. Without
        ``links`` all merges count as equally long.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EarliestTwo:
    """The two that became free first; the one that spent more sends. Optimal if all merges take equally long."""

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
    """Return the two that became free first. Among several at the same time, the one that spent least energy merges
    with the one that spent most.

    So devices that are always ready at the same time share the energy cost too. By name, the same pairs would form
    always.
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
    """Decide which of the two sends. ``others``: all or some of the devices that the receiver may still merge with."""
    if links is not None:
        there_s = _way_s(one, other, links=links, others=others)
        back_s = _way_s(other, one, links=links, others=others)
        if abs(there_s - back_s) > alike_share * min(there_s, back_s):
            sender, receiver = (one, other) if there_s < back_s else (other, one)
            shorter_s, longer_s = sorted((there_s, back_s))
            reason = (
                f"{receiver.name} has the faster links for its next merge: {shorter_s:.3g} s against {longer_s:.3g} s"
            )
            return Pair(sender=sender.name, receiver=receiver.name, reason=reason)
    sender, receiver = (one, other) if _has_spent_more(one, other) else (other, one)
    spent = f"{sender.spent_joules:.4g} J against {receiver.spent_joules:.4g} J"
    alike = sender.spent_joules == receiver.spent_joules
    reason = f"{sender.name} sends by name, both spent the same" if alike else f"{sender.name} has spent more: {spent}"
    return Pair(sender=sender.name, receiver=receiver.name, reason=reason)


def _way_s(sender: Holder, receiver: Holder, *, links: Links, others: Sequence[Holder]) -> float:
    """Return the duration of this merge plus the probable one of the receiver's next merge, in its better direction."""
    merge_s = links.merge_s(sender.name, receiver.name)
    if not others:
        return merge_s
    stays = receiver.name
    onward_s = sum(min(links.merge_s(each.name, stays), links.merge_s(stays, each.name)) for each in others)
    return merge_s + onward_s / len(others)


def _a_few(holders: Sequence[Holder], *, but: tuple[Holder, ...]) -> list[Holder]:
    """Return at most OTHERS_SEEN of them, evenly spaced."""
    step = max(1, math.ceil(len(holders) / OTHERS_SEEN))
    return [each for each in holders[::step] if all(each is not left_out for left_out in but)]


def _riches(holder: Holder) -> tuple[float, str]:
    return holder.spent_joules, holder.name


def _has_spent_more(one: Holder, other: Holder) -> bool:
    return (-one.spent_joules, one.name) < (-other.spent_joules, other.name)
