"""Two leaders of one job are in reach again after a cut: whose history the manager keeps. Knows no nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The batches that one side of a cut applied, and how many workers trained them."""

    batches: int = 0
    workers: int = 0
    #: The names of these workers, as far as they are known: a leader reports a part of many.
    names: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.batches} batches by {self.workers} worker{'' if self.workers == 1 else 's'}"


def together(sides: Iterable[Side]) -> Side:
    """The work of several leaders, one after the other. A worker of two of them counts once."""
    all_sides = tuple(sides)
    names = frozenset[str]().union(*(side.names for side in all_sides))
    # Among the names are workers whose updates are in no version yet: they do not count.
    counted = sum(side.workers for side in all_sides)
    return Side(
        batches=sum(side.batches for side in all_sides),
        workers=max((min(len(names), counted), *(side.workers for side in all_sides))),
        names=names,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryVerdict:
    """Whether the history of the older term is kept, and why."""

    keeps_older: bool
    reason: str


def judge(*, older: Side, newer: Side) -> HistoryVerdict:
    """The side with more workers is kept; if both have as many, the side that applied more; else the newer leader's.

    A side that made nothing has nothing to lose, however many workers it has.
    """
    if not older.batches:
        return HistoryVerdict(keeps_older=False, reason="it made nothing that is not durable")
    if not newer.batches:
        return HistoryVerdict(keeps_older=True, reason="nothing was made under a newer term")
    sides = f"{older} against {newer} under newer terms"
    if older.workers != newer.workers:
        return HistoryVerdict(keeps_older=older.workers > newer.workers, reason=f"more workers count: {sides}")
    return HistoryVerdict(
        keeps_older=older.batches > newer.batches, reason=f"as many workers, more batches count: {sides}"
    )
