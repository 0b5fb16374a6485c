"""Where a leader's large arrays are: its driver decides, the leader only says what it needs no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.roles.leader.weighing import Room, in_memory

#: Returns arrays that were put away. They are read-only.
GetBack = Callable[[], list[np.ndarray]]

#: Puts arrays away that nothing will write to.
PutAway = Callable[[Sequence[np.ndarray]], GetBack]


def keep(arrays: Sequence[np.ndarray]) -> GetBack:
    """Keep the arrays in memory, as they are."""
    kept = list(arrays)
    return lambda: kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    #: Memory for the updates that a robust leader compares.
    room: Room = in_memory
    #: Where the version to go back to is while training moves on.
    put_away: PutAway = keep
    #: A dense update of this many bytes or more has memory of its own, which the leader may write to once it has
    #: merged the update. None if updates belong to their senders, as in the simulator.
    owned_from_bytes: int | None = None


#: All of it in memory, and updates that belong to their senders.
IN_MEMORY = Memory()
