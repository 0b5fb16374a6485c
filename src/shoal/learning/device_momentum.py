"""What a device keeps of its updates and adds to the next: momentum on the device. Numpy only; knows no lease.

Updates of few examples are so noisy that a liar hides among them; their running sum is not (Karimireddy et al. 2021,
arXiv 2012.10333). Where every device takes part in every version, the mean of these sums is what the leader's own
momentum would make of the mean update.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse


class DeviceMomentum:
    """m ← β·m + u, and g·m is sent. A device's own state, one float32 vector; it is lost with its process."""

    __slots__ = ("_before", "_gain", "_kept", "_momentum", "_parameters")

    def __init__(self, parameters: int, *, momentum: float, gain: float) -> None:
        """``parameters``: values that have momentum. They come first; buffers follow, and are sent as they are."""
        if not 0 < momentum < 1 or not gain > 0:
            raise Misuse(f"momentum on a device is above 0 and below 1, not {momentum}, and {gain} of it is sent")
        self._parameters = parameters
        self._momentum, self._gain = np.float32(momentum), np.float32(gain)
        self._kept: np.ndarray | None = None
        #: What was kept before the last update.
        self._before: np.ndarray | None = None

    def add(self, update: np.ndarray) -> np.ndarray:
        """Take an update in; what is sent in its place."""
        parameters = min(self._parameters, update.size) if self._parameters else update.size
        self._before = self._kept
        kept = update[:parameters].copy()
        if self._before is not None:
            kept += self._momentum * self._before
        self._kept = kept
        sent = np.concatenate((kept * self._gain, update[parameters:]))
        sent.flags.writeable = False
        return sent

    def take_back(self) -> None:
        """The last update is in no version: its batches are trained again, by this device or by another."""
        self._kept = self._before
