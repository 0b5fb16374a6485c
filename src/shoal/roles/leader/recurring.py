"""Whether leases fail on every device again and again, for one reason. A part of the leader, and pure.

A batch that fails everywhere fails its job (``suspicion.BatchFailures``). Here each trainer raises after a while,
whichever batch it has, and the next trainer does the batch. The job moves, and most of its time goes into starting
trainers. People are told so, and a job that spends nearly all of its time on it is ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

#: Every device failed alike this often before people are told, and before the job may end.
ROUNDS_TOLD = 2
ROUNDS_MAX = 10

#: The share of the devices' time that went into failures. Below the first nobody is told, above the second the job
#: ends.
LOST_TOLD = 0.1
LOST_MAX = 0.75

#: Seconds without such a failure after which all is forgotten.
QUIET_S = 600.0

#: Parts of a reason that differ from one failure to the next.
_OWN = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\d+")


class Recurring:
    def __init__(self) -> None:
        self._reason = ""
        self._last_s = -math.inf
        self._begin(None, 0.0)

    def _begin(self, kind: str | None, now_s: float) -> None:
        self._kind, self._began_s = kind, now_s
        #: How often every device has failed, and which have since.
        self._rounds = 0
        self._failed: set[str] = set()
        #: Device -> since when it has been starting another trainer; and the seconds that went into it in all.
        self._since_s: dict[str, float] = {}
        self._lost_s = 0.0
        #: The code of the task raised each time.
        self._is_task = True

    def on_failed(self, node: str, reason: str, *, by_task: bool, able: Collection[str], now_s: float) -> None:
        """A lease failed on this device. ``able``: the devices that may have leases."""
        kind = _OWN.sub("*", reason)
        if kind != self._kind or now_s - self._last_s > QUIET_S:
            self._begin(kind, now_s)
        self._reason, self._last_s = reason, now_s
        self._is_task = self._is_task and by_task
        self._failed.add(node)
        self._since_s.setdefault(node, now_s)
        if self._failed.issuperset(able):
            self._rounds += 1
            self._failed.clear()

    def on_back(self, node: str, *, now_s: float) -> None:
        """The device can train again, or is gone."""
        if (since_s := self._since_s.pop(node, None)) is not None:
            self._lost_s += now_s - since_s

    def told(self, able: Collection[str], *, now_s: float) -> str:
        """Return what people should know, or an empty text."""
        if self._rounds < ROUNDS_TOLD or now_s - self._last_s > QUIET_S:
            return ""
        lost = self._lost(able, now_s)
        return self._sentence(lost) if lost >= LOST_TOLD else ""

    def fatal(self, able: Collection[str], *, now_s: float) -> str | None:
        """Return why the job has to fail, or None if it goes on."""
        if self._rounds < ROUNDS_MAX or not self._is_task:
            return None
        lost = self._lost(able, now_s)
        return self._sentence(lost) if lost >= LOST_MAX else None

    def _sentence(self, lost: float) -> str:
        spent = f"{lost:.0%} of their time goes into starting again"
        return f"leases fail on every device again and again ({self._rounds} times each, {spent}): {self._reason}"

    def _lost(self, able: Collection[str], now_s: float) -> float:
        """The share of the devices' time since the first of these failures."""
        lost_s = self._lost_s + sum(now_s - since_s for since_s in self._since_s.values())
        return min(1.0, lost_s / max(1e-9, (now_s - self._began_s) * max(1, len(able))))
