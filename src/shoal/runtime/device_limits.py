"""When a device that does other work rests: outside its hours, or too warm. Pure; the agent asks it, and leaves.

A device that rests says goodbye like one that is switched off: its leases return at once, and the manager's list says
why. It comes back by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import Misuse

#: A device that was too warm works again once it is cooler than its limit by this much: else it would come and go.
COOLER_C = 5.0

_MINUTES = 24 * 60
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?")
_LEAST_C, _MOST_C = 30.0, 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLimits:
    #: Spans of the day in which it works, in minutes after midnight by the device's own clock; none: always.
    hours: tuple[tuple[int, int], ...] = ()
    #: 0 sets no limit.
    temperature_most_c: float = 0.0

    @classmethod
    def of(cls, *, hours: str = "", max_temperature_c: float = 0.0) -> DeviceLimits:
        """Read the limits as a person types them: hours such as ``22-6`` or ``20:30-6,12-13``."""
        if max_temperature_c and not _LEAST_C <= max_temperature_c <= _MOST_C:
            raise Misuse(f"--max-temperature is {_LEAST_C:g} to {_MOST_C:g} degrees Celsius, not {max_temperature_c:g}")
        spans = tuple(_span(part.strip()) for part in hours.split(",")) if hours.strip() else ()
        return cls(hours=spans, temperature_most_c=max_temperature_c)

    def why_rest(self, *, minute: int, temperature_c: float | None, rests: bool) -> str | None:
        """Return why the device rests now, or None. ``minute`` is of the day; ``rests``: it rested until now."""
        if self.hours and not any(_is_within(minute, span) for span in self.hours):
            begin = min((start for start, _ in self.hours), key=lambda start: (start - minute) % _MINUTES)
            return f"it works from {begin // 60}:{begin % 60:02} on"
        most_c = self.temperature_most_c - (COOLER_C if rests else 0.0)
        if self.temperature_most_c and temperature_c is not None and temperature_c > most_c:
            return f"it is too warm: {temperature_c:.0f} degrees, it works up to {most_c:.0f}"
        return None


def _span(text: str) -> tuple[int, int]:
    begin, dash, end = text.partition("-")
    if not dash:
        raise Misuse(f"--hours {text!r}: write a span such as 22-6 or 20:30-6:15")
    start, stop = _minute(begin.strip(), text), _minute(end.strip(), text)
    if start == stop:
        raise Misuse(f"--hours {text!r} is not a span: leave --hours out for a device that always works")
    return start, stop


def _minute(text: str, span: str) -> int:
    found = _TIME.fullmatch(text)
    hour, minute = (int(found[1]), int(found[2] or 0)) if found else (99, 0)
    if hour > 24 or minute > 59 or hour * 60 + minute > _MINUTES:
        raise Misuse(f"--hours {span!r}: {text!r} is no time of the day")
    return (hour * 60 + minute) % _MINUTES


def _is_within(minute: int, span: tuple[int, int]) -> bool:
    start, stop = span
    return start <= minute < stop if start < stop else minute >= start or minute < stop
