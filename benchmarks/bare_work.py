"""The work of a round that nobody can skip, by Shoal's own functions: for bare gRPC to do as well.

A client copies each model out of its chunks, and its update into chunks. The server copies every update out of its
chunks, takes its norm, adds it up in float64, and takes the step that makes the next model.
"""

from __future__ import annotations

import numpy as np

from shoal.learning.outer import OuterState, outer_step
from shoal.learning.outer_rule import OuterRule
from shoal.learning.partial import Partial
from shoal.trainer.echo import UPDATE_VALUE
from shoal.wire.checks import norm_of
from shoal.wire.frames import chunk_frames, read_chunk_frame

#: As the plan has it unless told.
RULE = OuterRule(momentum=0.9)


class Copy:
    """Values that arrive in chunks, in memory that is used again."""

    def __init__(self, values: int) -> None:
        self.array = np.zeros(values, dtype=np.float32)
        self._view = self.array.data.cast("B")
        self._filled = 0

    def feed(self, frame: bytes) -> None:
        chunk = read_chunk_frame(frame)
        self._view[self._filled : self._filled + len(chunk)] = chunk
        self._filled = (self._filled + len(chunk)) % len(self._view)


def frames_of(values: np.ndarray) -> list[bytes]:
    return list(chunk_frames({"flat": values}))


class Merging:
    """The server's part: from updates to the next model."""

    def __init__(self, values: int) -> None:
        self.model = np.zeros(values, dtype=np.float32)
        self._partial = Partial(values)
        self._state = OuterState.zeros(RULE, values)

    def add(self, update: np.ndarray) -> None:
        if not np.isfinite(norm_of(update)):
            raise ValueError("an update that is not finite")
        self._partial.add(update, weight=1.0)

    def step(self) -> list[bytes]:
        """The next model, in frames."""
        change, self._state = outer_step(RULE, self._state, self._partial.mean())
        model = self.model.copy()
        model += change
        self.model = model
        self._partial.clear()
        return frames_of(model)


def an_update(values: int) -> np.ndarray:
    return np.full(values, UPDATE_VALUE, dtype=np.float32)
