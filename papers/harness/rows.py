"""Rows: the result of an experiment, and what a README makes of them. Knows no file and no format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

#: A line of a table: plain values, as JSON says them.
Row: TypeAlias = dict[str, Any]
#: By experiment.
Rows: TypeAlias = dict[str, list[Row]]

_Drawn = TypeVar("_Drawn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    name: str
    #: What of the paper it repeats.
    figure: str
    #: Takes whether to be quick.
    run: Callable[[bool], list[Row]]
    #: A quick run of everything has it.
    in_quick: bool = True


@dataclass(frozen=True, slots=True)
class Drawing(Generic[_Drawn]):
    """A table or a figure: the experiments it needs at least one of, and the function that draws it from all rows."""

    needs: tuple[str, ...]
    draw: Callable[[Rows], _Drawn]

    def of(self, rows: Rows) -> _Drawn | None:
        """None where no experiment was measured that it needs."""
        return self.draw(rows) if any(rows.get(name) for name in self.needs) else None


def of_one(experiment: str, draw: Callable[[list[Row]], _Drawn]) -> Drawing[_Drawn]:
    """A drawing of the rows of a single experiment."""
    return Drawing((experiment,), lambda rows: draw(rows[experiment]))


def chosen(rows: list[Row], **wanted: object) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def one(rows: list[Row], **wanted: object) -> Row | None:
    """The first row that has these values; None where it was not measured."""
    found = chosen(rows, **wanted)
    return found[0] if found else None
