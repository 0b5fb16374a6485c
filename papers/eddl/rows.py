"""What an experiment gives back: its rows, and nothing of how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

#: A line of a table: plain values, as JSON says them.
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    name: str
    #: What of the paper it repeats.
    figure: str
    #: Takes whether to be quick.
    run: Callable[[bool], list[Row]]
    #: A quick run of everything has it.
    in_quick: bool = True


def chosen(rows: list[Row], **wanted: object) -> list[Row]:
    """Those rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def one(rows: list[Row], **wanted: object) -> Row | None:
    """The row that has these values; None where it was not measured."""
    found = chosen(rows, **wanted)
    return found[0] if found else None
