"""Error feedback: what was not sent is kept, and added to the next update. Numpy only; knows no codec and no wire.

A sender's own state, one float32 vector. Nothing is lost between ``add`` and ``sent``: what is sent and what is kept
make the total, to the bit. Subtraction is exact where the value sent is within half and twice the total (Sterbenz), and
a level that was rounded to the nearest always is; where nothing is sent, all is kept as it is. Levels drawn by chance
may be far from their value, and then the last bit of a value may go.
"""

from __future__ import annotations

import numpy as np

from shoal.compress.sparse import Sparse, add_to, take_from
from shoal.errors import Misuse


class Feedback:
    """What a sender holds back.

    ``total = feedback.add(update)`` is what there is to send; after it was coded, ``feedback.sent(...)`` takes off what
    arrives elsewhere, as its decoder has it. An update that never left needs no word: without one, all of it is kept.
    """

    __slots__ = ("_decay", "_kept")

    def __init__(self, size: int, *, decay: float = 1.0) -> None:
        """Start with nothing kept. Every update multiplies kept values by ``decay``: below 1, old values fade."""
        if size < 1:
            raise Misuse(f"size is {size}; feedback needs at least one value")
        if not 0 <= decay <= 1:
            raise Misuse(f"decay is {decay}; it must be 0 to 1")
        self._kept = np.zeros(size, dtype=np.float32)
        self._decay = np.float32(decay)

    @property
    def size(self) -> int:
        return self._kept.size

    @property
    def kept(self) -> np.ndarray:
        """The kept values: a read-only view that is valid until the next call."""
        view = self._kept.view()
        view.flags.writeable = False
        return view

    def add(self, update: np.ndarray) -> np.ndarray:
        """The update and what was kept before: all there is to send. Read-only, true until the next call."""
        self._check("an update", update)
        if self._decay != 1:
            self._kept *= self._decay
        self._kept += update
        return self.kept

    def sent(self, sent: Sparse | np.ndarray) -> None:
        """Take off what was sent, as it arrives."""
        self._check_change("sent", sent)
        take_from(self._kept, sent)

    def returned(self, sent: Sparse | np.ndarray) -> None:
        """Keep again what was sent and not merged, such as an update whose lease had ended."""
        self._check_change("returned", sent)
        add_to(self._kept, sent)

    def reset(self) -> None:
        """Forget all that was held back."""
        self._kept[:] = 0

    def snapshot(self) -> np.ndarray:
        """A copy to survive a restart."""
        return self._kept.copy()

    def restore(self, snapshot: np.ndarray) -> None:
        """Hold back what a snapshot has."""
        self._check("a snapshot", snapshot)
        if not np.isfinite(snapshot).all():
            raise Misuse("a snapshot with values that are not finite: reset instead")
        self._kept[:] = snapshot

    def _check_change(self, what: str, change: np.ndarray | Sparse) -> None:
        if isinstance(change, Sparse):
            self._check_size(what, change.size)
        else:
            self._check(what, change)

    def _check(self, what: str, array: np.ndarray) -> None:
        if array.dtype != np.float32 or array.ndim != 1:
            raise Misuse(f"{what}: a flat float32 vector, not {array.dtype} {array.shape}")
        self._check_size(what, array.size)

    def _check_size(self, what: str, size: int) -> None:
        if size != self.size:
            raise Misuse(f"{what}: {size} values, feedback is on {self.size}")
