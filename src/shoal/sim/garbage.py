"""Python's garbage collector during a large simulation. Knows nothing of what is simulated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New objects until the youngest are looked through, and how often that happens before older ones are too. A fleet's
#: records stay until the end and hold no circles: Python's own 700 looks through them again and again.
THRESHOLDS = (100_000, 20, 20)


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Have garbage in circles collected seldom, and what is there by now never."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
