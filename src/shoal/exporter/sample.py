"""One series of a family at one scrape."""

from __future__ import annotations

from typing import NamedTuple


class Sample(NamedTuple):
    family: str
    labels: dict[str, str]
    #: For a histogram the sum of what was observed.
    value: float
    #: For a histogram: upper bounds as text, and how many observations each holds, those of smaller bounds included.
    buckets: tuple[tuple[str, float], ...] = ()
