"""A device's own part of a model from lease to lease: it goes on from a lease whose update was taken. Numpy only.

``roles/worker/own_part.py`` decides when a lease is settled. Where the values outlive their process, a subclass keeps
them.
"""

from __future__ import annotations

import numpy as np


class OwnValues:
    def __init__(self, values: np.ndarray | None) -> None:
        #: The values that the next lease begins with, or None if the device has none yet.
        self.values = values
        #: The result of a lease, until the leader has answered.
        self._made: tuple[int, np.ndarray] | None = None
        #: The leases that were taken last, each with what it began with.
        self._taken: list[tuple[int, np.ndarray]] = []

    def begin_with(self, first: np.ndarray) -> None:
        """A device that has no values yet takes those of the first model."""
        if self.values is None:
            self.values = first.copy()

    def made(self, lease: int, values: np.ndarray) -> None:
        self._made = (lease, values.copy())

    def settle(self, lease: int, *, taken: bool, undoable: int = 1) -> None:
        """Go on from what this lease made, durably; or from what was there before it. ``undoable``: how many of the
        leases that were taken last may be taken back."""
        if self._made is not None and self._made[0] == lease:
            made, self._made = self._made[1], None
            if taken and self.values is not None:
                self._taken = [*self._taken, (lease, self.values)][-undoable:]
                self.values = made
                self._keep(made)
        elif not taken and self._taken and self._taken[-1][0] == lease:
            # Refused after all.
            self.undo(1)

    def undo(self, leases: int) -> None:
        """Go back, durably, to what was there before the leases that were taken last."""
        back = self._taken[-leases:]
        if back:
            self.values, self._taken = back[0][1], self._taken[: -len(back)]
            self._keep(self.values)

    def _keep(self, values: np.ndarray) -> None:
        """Make these values outlive the process, where there is a place for them."""
