"""Figures of several turns of a contender: the median, the least and the greatest. Does not depend on any peer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.repeats import QUIET_LOAD, Turn, is_done

#: The last turn's are told: turns differ only in addresses.
_LAST_ONLY = ("commands",)


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """None is what did not happen in time: it counts as longer than all that did."""
    known = sorted(math.inf if value is None else value for value in values)
    found = {"median": statistics.median(known), "least": known[0], "greatest": known[-1]}
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in found.items()}


def over(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return every figure that a turn has. Words that differ are all told."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for turn in turns for name in turn):
        values = [turn[name] for turn in turns if name in turn]
        if all(value is None or isinstance(value, int | float) for value in values):
            found[name] = spread(values)
        elif all(isinstance(value, dict) for value in values):
            found[name] = over(values)
        elif name in _LAST_ONLY or all(value == values[0] for value in values):
            found[name] = values[-1]
        else:
            found[name] = values
    return found


def of_contender(turns: Sequence[Turn]) -> dict[str, Any]:
    """``turns``: all that were taken, those that failed among them."""
    done = [turn for turn in turns if is_done(turn)]
    found = over([turn["figures"] for turn in done or turns])
    found |= {"turns": len(done), "loads": [turn["load"] for turn in turns]}
    if errors := [turn["figures"]["error"] for turn in turns if not is_done(turn)]:
        found["errors"] = errors
    return found


def is_quiet(loads: Sequence[float]) -> bool:
    return bool(loads) and max(loads) < QUIET_LOAD
