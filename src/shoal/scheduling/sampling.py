"""Which of the devices that wait train for a version: a draw that depends on the seed, the version and their names.

The devices that wait longest go first by default. That is fair to devices, and it takes them in turn; papers and their
proofs draw each cohort by chance.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from heapq import nsmallest

from shoal.scheduling.batches import MASK, mix, splitmix64

#: How a cohort is chosen: who waited longest, by chance, or by chance in proportion to the examples that devices have.
SAMPLING = ("waited", "uniform", "by_examples")

_DRAW = 0x73616D706C65


def drawn(nodes: Iterable[str], count: int, *, seed: int, version: int, share_of: Callable[[str], float]) -> list[str]:
    """Draw ``count`` of these nodes without replacement, each time in proportion to the shares of those that are left.

    Each node gets an exponentially distributed time at the rate of its share, and the first ones win (Efraimidis and
    Spirakis 2006). A node's time does not depend on who else is here, so a node that comes or goes changes no other's.
    """

    # As mix(_DRAW, seed, version, name) folds them, with the part that all nodes share folded once.
    shared = mix(_DRAW, seed, version)

    def time_of(node: str) -> tuple[float, str]:
        chance = (splitmix64(shared ^ zlib.crc32(node.encode())) + 1) / (MASK + 2)
        share = share_of(node)
        return (-math.log(chance) / share if share > 0 else math.inf), node

    return nsmallest(count, nodes, key=time_of)
