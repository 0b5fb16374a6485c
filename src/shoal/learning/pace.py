"""When the model moves. Pure rules over counts; one class a pace.

Every worker may work in each of them: a pace says when a worker waits for others, and how many updates make a version.
The leader adds an update as it arrives and never starts over: EDDL's leader restarts its aggregation at each arrival,
and with enough workers never ends.

``sync`` is the default (EDDL §4.3). With ``async`` (EDDL §4.3, AdaComp, FLeet with K = 1) nobody waits for anybody,
and most updates were made against a version that is no longer the newest: their staleness τ is how many versions were
made between their lease and their merge, and they are scaled by a rule (``learning.staleness``). ``buffered`` is
FedBuff's: K updates a version, which moves the model less often and by steadier steps.

Learning rate and momentum are the plan's and mean the same in each pace: a worker's update is -η·g for its batch, and
the leader's momentum is applied once a version. Where the paper is silent, momentum 0.9 is Dlib's. An asynchronous
version is one worker's step where a synchronous one is the mean of everyone's, so that n workers move the model about
n times as often with steps as large; and asynchrony by itself acts like momentum of about 1 - 1/n (Mitliagkas et al.,
2016: asynchrony begets momentum). Both together diverge on many workers, so a plan that says ``async`` and no momentum
has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.errors import Misuse


class Pace(Protocol):
    def may_start(self, *, contributed_to: int, version: int) -> bool:
        """May a worker whose last update was made against ``contributed_to`` start on ``version`` now?"""
        ...

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        """Is it time to turn what was merged into the next version?"""
        ...

    def takes_the_rest(self, *, merged: int) -> bool:
        """The job is stopped here: is what was merged so far a version?"""
        ...


class Sync:
    """Every lease of a version returns, or is given up, before the next version (EDDL §4.3, the default)."""

    def may_start(self, *, contributed_to: int, version: int) -> bool:
        return contributed_to < version

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        return merged > 0 and outstanding == 0

    def takes_the_rest(self, *, merged: int) -> bool:
        """No: half a round is not what the plan's batch size and rate were chosen for."""
        return False


class Buffered:
    """A version of every K updates from any workers (FedBuff); nobody waits for anybody.

    Of fewer, when no other can come: all of the epoch is merged, or nothing may be lent. The leader sees to that, since
    it takes knowing who is here.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise Misuse(f"a version is made of at least one update, not {size}")
        self.size = size

    def may_start(self, *, contributed_to: int, version: int) -> bool:
        return True

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        return merged >= self.size

    def takes_the_rest(self, *, merged: int) -> bool:
        return merged > 0


#: By the name a plan gives them; each is made for a plan's buffer. Asynchronous is a buffer of one: each update makes
#: the next version at once.
PACES: dict[str, Callable[[int], Pace]] = {
    "sync": lambda buffer: Sync(),
    "buffered": Buffered,
    "async": lambda buffer: Buffered(1),
}
