"""The coded changes of recent versions: they bring a worker with an older model to the newest. Pure state."""

from __future__ import annotations

from collections import deque

import numpy as np

from shoal.wire.limits import MESSAGE_TENSORS_MAX
from shoal.wire.messages import Tensors


class Changes:
    """One array a version. Arrays that together are longer than the model are of no use, and are not kept."""

    def __init__(self, *, whole_bytes: int) -> None:
        self._whole_bytes = whole_bytes
        self._arrays: deque[np.ndarray] = deque()
        self._bytes = 0
        #: The version that the last of them makes.
        self._newest = 0

    def add(self, version: int, array: np.ndarray) -> None:
        """This makes that version of the one before."""
        if version != self._newest + 1:
            self.clear()
        self._newest = version
        self._arrays.append(array)
        self._bytes += array.nbytes
        while self._arrays and (self._bytes >= self._whole_bytes or len(self._arrays) > MESSAGE_TENSORS_MAX):
            self._bytes -= self._arrays.popleft().nbytes

    def clear(self) -> None:
        self._arrays.clear()
        self._bytes = 0

    def since(self, base: int, version: int) -> Tensors | None:
        """The changes from ``base`` to ``version``, by number of version; None: the whole model must be sent."""
        lacks = version - base
        if version != self._newest or not 0 < lacks <= len(self._arrays):
            return None
        arrays = list(self._arrays)[-lacks:]
        return {str(base + 1 + place): array for place, array in enumerate(arrays)}
