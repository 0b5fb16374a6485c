"""Paces: rules that decide when updates become a version, one class per pace.

A pace decides when a worker waits for others, and how many updates make a version. The leader adds an update when it
arrives and never starts over. EDDL's leader restarts its aggregation at each arrival, and with enough workers never
ends.

``sync`` is the default (EDDL §4.3). With ``async`` (EDDL §4.3, AdaComp, FLeet with K = 1) no worker waits for another,
and most updates were made from a version that is no longer the newest. Their staleness τ is how many versions were
made between their lease and their merge, and a rule scales them by it (``learning.staleness``). ``buffered`` is
FedBuff's: K updates per version, which moves the model less often and by steadier steps.

Learning rate and momentum are the plan's and mean the same in each pace: a worker's update is -η·g for its batch, and
the leader's momentum is applied once per version. Momentum 0.9 is Dlib's, because the paper does not state one. An
asynchronous version is one worker's step, and a synchronous one is the mean of all. So n asynchronous workers move the
model about n times as often by steps of the same size. Asynchrony also acts like momentum of about 1 - 1/n (Mitliagkas
et al., 2016: asynchrony begets momentum). Both together diverge with many workers, so a plan with ``async`` has no
momentum unless it sets one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.errors import Misuse


class Pace(Protocol):
    def may_start(self, *, contributed_to: int, version: int) -> bool:
        """Whether a worker whose last update was made from ``contributed_to`` may start on ``version`` now."""
        ...

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        """Whether the merged updates should become the next version now."""
        ...

    def takes_the_rest(self, *, merged: int) -> bool:
        """Whether the updates merged so far become a version if the job stops now."""
        ...


class Sync:
    """Every lease of a version returns, or is given up, before the next version (EDDL §4.3, the default)."""

    def may_start(self, *, contributed_to: int, version: int) -> bool:
        return contributed_to < version

    def should_step(self, *, merged: int, outstanding: int) -> bool:
        return merged > 0 and outstanding == 0

    def takes_the_rest(self, *, merged: int) -> bool:
        """Return False: the plan's batch size and rate were not chosen for half a round."""
        return False


class Buffered:
    """A version from every K updates of any workers (FedBuff). No worker waits for another.

    The leader makes a version from fewer if no other update can come: the epoch is merged, or it may lease nothing.
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
