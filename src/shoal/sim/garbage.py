"""Python's garbage collector during a large simulation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Collector thresholds. A fleet's records stay until the end and have no reference cycles, and Python's default of 700
#: would scan them again and again.
THRESHOLDS = (100_000, 20, 20)


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Collect reference cycles rarely within this block, and never among the objects that exist already."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
