"""What each device did over the last hour, as spans of one activity. Nine bytes per change. Reads no clock."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.console.devices import ACTIVITIES

SPAN_S = 3600.0
#: The most changes of one device, more than one per second for an hour, and of all devices together (18 MB).
CHANGES_MAX = 4096
ALL_CHANGES_MAX = 2_000_000
#: The most devices that are kept, the first by name.
LANES_MAX = 5000

_CODE = {name: number for number, name in enumerate(ACTIVITIES)}
_IDLE = _CODE["idle"]


@dataclass(slots=True)
class _Lane:
    """Moments at which a device changed to an activity."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    codes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.codes)

    def drop(self, count: int) -> None:
        del self.at_s[:count], self.codes[:count]


class Lanes:
    def __init__(self, *, span_s: float = SPAN_S, changes_max: int = ALL_CHANGES_MAX) -> None:
        self._span_s = span_s
        self._changes_max = changes_max
        self._lanes: dict[str, _Lane] = {}
        self._changes = 0
        self._now_s = 0.0

    @property
    def changes(self) -> int:
        return self._changes

    def add(self, doing: Mapping[str, str], at_s: float) -> None:
        """Record what every device does now. A device that is gone counts as idle from then on."""
        at_s = max(at_s, self._now_s)
        for node in sorted(doing)[:LANES_MAX]:
            self._change(node, _CODE.get(doing[node], _IDLE), at_s)
        for node in self._lanes.keys() - doing.keys():
            self._change(node, _IDLE, at_s)
        self._now_s = at_s
        self._forget()

    def spans(self, from_s: float, to_s: float) -> dict[str, list[list[float | str]]]:
        """Return node -> [begin_s, end_s, activity] of every span that overlaps this window, trimmed to it."""
        end_s = min(to_s, self._now_s)
        return {node: told for node in sorted(self._lanes) if (told := _cut(self._lanes[node], from_s, end_s))}

    def _change(self, node: str, code: int, at_s: float) -> None:
        lane = self._lanes.get(node)
        if lane is None:
            lane = self._lanes[node] = _Lane()
        if lane.codes and lane.codes[-1] == code:
            return
        lane.at_s.append(at_s)
        lane.codes.append(code)
        self._changes += 1

    def _forget(self) -> None:
        horizon_s = self._now_s - self._span_s
        for node, lane in list(self._lanes.items()):
            # The change before the horizon holds what the device did at the horizon.
            old = bisect_right(lane.at_s, horizon_s) - 1
            self._drop(lane, max(old, len(lane) - CHANGES_MAX, 0))
            if len(lane) == 1 and lane.codes[0] == _IDLE and lane.at_s[0] < horizon_s:
                self._drop(lane, 1)
                del self._lanes[node]
        while self._changes > self._changes_max:
            before = self._changes
            for lane in self._lanes.values():
                self._drop(lane, len(lane) // 4)
            if self._changes == before:
                return

    def _drop(self, lane: _Lane, count: int) -> None:
        if count:
            lane.drop(count)
            self._changes -= count


def _cut(lane: _Lane, from_s: float, to_s: float) -> list[list[float | str]]:
    told: list[list[float | str]] = []
    first = max(bisect_right(lane.at_s, from_s) - 1, 0)
    for number in range(first, len(lane)):
        begin_s = max(lane.at_s[number], from_s)
        end_s = min(lane.at_s[number + 1] if number + 1 < len(lane) else to_s, to_s)
        if begin_s >= to_s:
            break
        if end_s > begin_s:
            told.append([round(begin_s, 2), round(end_s, 2), ACTIVITIES[lane.codes[number]]])
    return told
