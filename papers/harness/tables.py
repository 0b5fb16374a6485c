"""Tables in Markdown, and the cells that papers share. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from papers.harness.results import Kept

#: A cell that was not measured.
NOTHING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def decimal(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    return decimal(value, 0)


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"


def percent(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def times(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}x"


def measured_on(kept: Kept) -> str:
    """The machine of a paper's rows, their dates and the time they took."""
    facts = next(iter(kept.values())).machine
    dates = " and ".join(sorted({told.date for told in kept.values()}))
    minutes = sum(told.seconds or 0 for told in kept.values()) / 60
    return f"{machine(facts)}; {dates}; {minutes:.0f} minutes in all."


def machine(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cores']} cores ({facts['processor']}), {facts['system']}, Python {facts['python']}, torch"
        f" {facts['torch']}, numpy {facts['numpy']}"
    )
