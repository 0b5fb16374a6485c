"""The last hour of a cluster's states: a keyframe per minute and the patches since, within a limit of bytes.

Reads no clock: the moment of each state comes with it.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.console.patch import Document, apply, diff

#: How far back a replay reaches at most, and how much memory it may take.
SPAN_S = 3600.0
BYTES_MAX = 48 << 20

#: A replay applies at most the patches of one such span.
KEYFRAME_S = 60.0
#: The most bytes of one segment: a busy minute of a large cluster has several keyframes.
SEGMENT_BYTES = 2 << 20

#: The memory of a list's entry in addition to its bytes.
_ROW_BYTES = 120
_LEVEL = 6


@dataclass(slots=True)
class Segment:
    """A state and the patches after it. Once closed it never changes."""

    from_s: float
    to_s: float
    keyframe: bytes
    rows: list[tuple[float, bytes]] = field(default_factory=list)
    #: All rows, once it is closed.
    packed: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.keyframe) + len(self.packed) + sum(len(row) + _ROW_BYTES for _, row in self.rows)

    def close(self) -> None:
        """Compress the rows together, as they are much alike."""
        lines = b"\n".join(b"%r %s" % (at_s, row) for at_s, row in self.rows)
        self.packed, self.rows = zlib.compress(lines, _LEVEL), []

    def patches(self) -> Iterator[tuple[float, Document]]:
        if self.packed:
            for line in zlib.decompress(self.packed).splitlines():
                moment, _, row = line.partition(b" ")
                yield float(moment), json.loads(row)
        for at_s, row in self.rows:
            yield at_s, json.loads(row)

    def state_at(self, at_s: float) -> Document:
        state: Document = json.loads(zlib.decompress(self.keyframe))
        for moment, patch in self.patches():
            if moment > at_s:
                break
            state = apply(state, patch)
        return state


class Recording:
    def __init__(self, *, span_s: float = SPAN_S, bytes_max: int = BYTES_MAX) -> None:
        self._span_s = span_s
        self._bytes_max = bytes_max
        self._segments: deque[Segment] = deque()
        self._closed_bytes = 0
        self._open_bytes = 0
        self._last: Document = {}

    @property
    def from_s(self) -> float | None:
        """The oldest moment that can be replayed, or None if nothing was recorded."""
        return self._segments[0].from_s if self._segments else None

    @property
    def to_s(self) -> float | None:
        return self._segments[-1].to_s if self._segments else None

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self._open_bytes

    def add(self, state: Document, at_s: float, patch: Document | None = None) -> None:
        """Record a state; ``patch`` is what changed since the last one, if that is known. Moments never go back: one
        that does counts as the latest."""
        if self._segments:
            at_s = max(at_s, self._segments[-1].to_s)
        patch = diff(self._last, state) if patch is None else patch
        now = self._segments[-1] if self._segments else None
        if now is None or at_s - now.from_s >= KEYFRAME_S or self._open_bytes >= SEGMENT_BYTES:
            self._begin(state, at_s)
        else:
            row = json.dumps(patch, separators=(",", ":")).encode()
            now.rows.append((at_s, row))
            now.to_s = at_s
            self._open_bytes += len(row) + _ROW_BYTES
        self._last = state
        self._forget(at_s)

    def segment_at(self, at_s: float) -> Segment | None:
        """Return the segment that holds a moment, or None if the moment is before all of them."""
        for segment in reversed(self._segments):
            if segment.from_s <= at_s:
                # The open segment keeps changing: the reader, in another thread, gets a copy of it.
                return Segment(segment.from_s, segment.to_s, segment.keyframe, list(segment.rows), segment.packed)
        return None

    def _begin(self, state: Document, at_s: float) -> None:
        if self._segments:
            self._segments[-1].close()
            self._closed_bytes += self._segments[-1].size_bytes
        keyframe = zlib.compress(json.dumps(state, separators=(",", ":")).encode(), _LEVEL)
        self._segments.append(Segment(at_s, at_s, keyframe))
        self._open_bytes = len(keyframe)

    def _forget(self, at_s: float) -> None:
        # The open segment always stays: it holds the present.
        while len(self._segments) > 1 and (
            self._segments[0].to_s < at_s - self._span_s or self.size_bytes > self._bytes_max
        ):
            self._closed_bytes -= self._segments.popleft().size_bytes
