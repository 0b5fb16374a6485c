"""A spell in which the store that managers share is away, slow or read-only, or after which it is an older one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    at_s: float
    for_s: float
    #: How many times slower the store is. 0 means that it cannot be reached.
    slow_factor: float = 0.0
    #: Only the manager with the most jobs is cut off from the store.
    is_cut: bool = False
    #: The store answers, and takes no write.
    is_read_only: bool = False
    #: Nothing happens to the store: the manager with the most jobs is drained, and undrained after this time.
    is_drain: bool = False
    #: The store is away, and then what it was this long before it went away. 0 means that it forgets nothing.
    back_s: float = 0.0
