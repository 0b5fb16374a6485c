"""States of a cluster, one after the other: recorded, and sent to viewers as patches. Reads no clock.

A viewer that does not read is disconnected once its queue is full, so that it delays nobody. It resumes by the number
of the last patch that it saw.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from shoal.console.lanes import Lanes
from shoal.console.marks import MARKS_MAX, marks_between
from shoal.console.patch import Document, diff
from shoal.console.recording import SPAN_S, Recording
from shoal.console.series import Series

#: Patches that wait for one viewer.
QUEUE_MAX = 64
#: Viewers at one time: each holds a connection.
VIEWERS_MAX = 64

#: How many patches, and how many bytes of them, are kept for viewers that come back.
RESUME_MAX = 512
RESUME_BYTES = 4 << 20


def encoded(value: Any) -> bytes:
    """Return JSON that is harmless even if a browser takes it for a page."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode()


def event_bytes(seq: int, kind: str, value: Any) -> bytes:
    """Return one server-sent event."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), encoded(value))


@dataclass(eq=False, slots=True)
class Viewer:
    """One stream: the events still to send, and whether it was disconnected."""

    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(QUEUE_MAX))
    cut: asyncio.Event = field(default_factory=asyncio.Event)


class Feed:
    """The states and their viewers. ``first_seq`` must be above the numbers of earlier runs, or a viewer could resume
    with the patches of another run."""

    def __init__(self, *, first_seq: int = 1) -> None:
        self.state: Document = {}
        self.seq = first_seq - 1
        self.recording = Recording()
        self.lanes = Lanes()
        self.series = Series()
        self._marks: deque[dict[str, Any]] = deque(maxlen=MARKS_MAX)
        self._viewers: set[Viewer] = set()
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_bytes = 0

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def take(self, state: Document, at_s: float) -> None:
        """Take the next state. One that equals the last is recorded, but not sent."""
        # Rounded here, so that viewers replay a state by exactly the moment that they were sent.
        at_s = round(at_s, 2)
        before, self.seq = self.state, self.seq + 1
        now = {"seq": self.seq, "at_s": at_s, **state}
        patch = diff(before, now)
        self._marks.extend(marks_between(before, now, at_s))
        while self._marks and self._marks[0]["at_s"] < at_s - SPAN_S:
            self._marks.popleft()
        self.state = now
        self.recording.add(now, at_s, patch)
        self.lanes.add({name: node["does"] for name, node in now["nodes"].items()}, at_s)
        for name, job in now["jobs"].items():
            if job["open"] and "progress" in job:
                self.series.add(name, job["progress"], at_s)
        self._tell(event_bytes(self.seq, "patch", patch))

    def marks(self) -> list[dict[str, Any]]:
        return list(self._marks)

    # Viewers --------------------------------------------------------------------------------------------

    def join(self, last_seen: int | None) -> Viewer | None:
        """Return a new viewer with the patches that it missed or the complete state in its queue, or None if there are
        too many viewers."""
        if len(self._viewers) >= VIEWERS_MAX:
            return None
        viewer = Viewer()
        for event in self._missed(last_seen):
            viewer.queue.put_nowait(event)
        self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def _missed(self, last_seen: int | None) -> list[bytes]:
        if not self.state:
            return []
        if last_seen is not None and self._sent and self._sent[0][0] - 1 <= last_seen <= self.seq:
            missed = [event for seq, event in self._sent if seq > last_seen]
            # A viewer that missed more than its queue holds would be disconnected at once.
            if len(missed) < QUEUE_MAX // 2:
                return missed
        return [event_bytes(self.seq, "state", self.state)]

    def _tell(self, event: bytes) -> None:
        self._sent.append((self.seq, event))
        self._sent_bytes += len(event)
        while len(self._sent) > RESUME_MAX or (self._sent_bytes > RESUME_BYTES and len(self._sent) > 1):
            self._sent_bytes -= len(self._sent.popleft()[1])
        for viewer in list(self._viewers):
            try:
                viewer.queue.put_nowait(event)
            except asyncio.QueueFull:
                self._viewers.discard(viewer)
                viewer.cut.set()
