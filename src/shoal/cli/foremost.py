"""Which events a view with little room shows: faults before other events, and routine ones only where room is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.runtime.event_kinds import ROUTINE, is_fault

if TYPE_CHECKING:
    from shoal.wire.messages import EventView


def foremost(events: Sequence[EventView], most: int) -> list[EventView]:
    """Return at most ``most`` events in their order, and the newest of all among them.

    The latest faults get half of the places, if there are as many; then come the latest other events, then older
    faults, then routine ones."""
    if len(events) <= most:
        return list(events)
    *before, newest = events
    room = most - 1
    faults = [event for event in before if is_fault(event.kind)]
    notes = [event for event in before if not is_fault(event.kind) and event.kind not in ROUTINE]
    routine = [event for event in before if event.kind in ROUTINE]
    older, latest = _parted(faults, (room + 1) // 2)
    chosen = latest
    for others in (notes, older, routine):
        chosen = chosen + _parted(others, room - len(chosen))[1]
    return [*sorted(chosen, key=lambda event: event.seq), newest] if most > 0 else []


def _parted(events: list[EventView], count: int) -> tuple[list[EventView], list[EventView]]:
    """Return the events before the last ``count``, and these."""
    at = max(0, len(events) - count)
    return events[:at], events[at:]
