"""Which files of ended jobs go when a disk quota is reached. A pure function: oldest first, open jobs never."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Eviction:
    """Files of one ended job that go."""

    job: str
    #: Its checkpoints; otherwise the code and data that it alone is made of.
    checkpoints: bool
    size_bytes: int


def evictions(
    over_bytes: int, *, checkpoints: Mapping[str, int], contents: Mapping[str, int]
) -> tuple[list[Eviction], int]:
    """What goes to free so many bytes, and how many are still too many then.

    Checkpoints go before code and data: a job that has neither can still be looked at, but one without its code cannot
    be exported. Jobs come in the order in which they ended.
    """
    chosen: list[Eviction] = []
    for sizes, is_checkpoints in ((checkpoints, True), (contents, False)):
        for job, size_bytes in sizes.items():
            if over_bytes <= 0:
                return chosen, 0
            if size_bytes > 0:
                chosen.append(Eviction(job=job, checkpoints=is_checkpoints, size_bytes=size_bytes))
                over_bytes -= size_bytes
    return chosen, max(0, over_bytes)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
