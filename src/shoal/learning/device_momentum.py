"""Momentum on the device: a device keeps a decaying sum of its updates and sends a multiple of it.

Updates of few examples are so noisy that a malicious device can hide among them; their running sum is not (Karimireddy
et al. 2021, arXiv 2012.10333). If every device takes part in every version, the mean of these sums is what the leader's
own momentum would make of the mean update.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse


class DeviceMomentum:
    """m ← β·m + u, and g·m is sent. A device's own state, one float32 vector; it is lost with its process."""

    __slots__ = ("_before", "_gain", "_kept", "_momentum", "_parameters")

    def __init__(self, parameters: int, *, momentum: float, gain: float) -> None:
        """Start without momentum. ``parameters`` values have it; they come first, and buffers follow unchanged."""
        if not 0 < momentum < 1 or not gain > 0:
            raise Misuse(f"device momentum is {momentum}; it must be above 0 and below 1, and its gain {gain} above 0")
        self._parameters = parameters
        self._momentum, self._gain = np.float32(momentum), np.float32(gain)
        self._kept: np.ndarray | None = None
        #: The kept sum before the last update.
        self._before: np.ndarray | None = None

    def add(self, update: np.ndarray) -> np.ndarray:
        """Add an update. Return the values to send in its place."""
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
        """Remove the last update, because it is in no version. Its batches are trained again, here or elsewhere."""
        self._kept = self._before
