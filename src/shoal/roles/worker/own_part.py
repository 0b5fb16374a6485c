"""The device's own part of a model: it goes on from a lease only if the update of that lease was taken. It decides.

The shared part and the own part are trained together. Where the leader refuses an update, or nobody can tell whether
it came, the shared part goes on without it, so the own part goes back to how it was before.
"""

from __future__ import annotations

from shoal.roles.actions import SettleOwn
from shoal.roles.worker.machine import WorkerMachine


class OwnPart:
    def __init__(self, worker: WorkerMachine) -> None:
        self._worker = worker
        #: Whether the model has one.
        self.is_there = False
        #: (term, lease) of the update that the leader has not spoken about yet, and of the last that was taken.
        self._open: tuple[int, int] | None = None
        self._taken: tuple[int, int] | None = None

    def trained(self, term: int, lease: int) -> None:
        """An update was made; the driver has the own part that belongs to it."""
        if self.is_there:
            self._open = (term, lease)

    def taken(self, term: int) -> None:
        """The leader of this term spoke after the update was sent, and did not refuse it. Messages come in order."""
        if self._open is None:
            return
        if self._open[0] != term:
            self.lost()
            return
        self._worker.act(SettleOwn(lease=self._open[1], taken=True))
        self._open, self._taken = None, self._open

    def lost(self) -> None:
        """The update will not be sent, or nobody knows whether it came."""
        if self._open is not None:
            self._worker.act(SettleOwn(lease=self._open[1], taken=False))
            self._open = None

    def merged(self, term: int, lease: int) -> None:
        """The leader says that it merged this update before."""
        if self._open == (term, lease):
            self.taken(term)

    def refused(self, term: int, lease: int) -> None:
        """Also after a word of the leader that was on its way before the update came."""
        if self._open == (term, lease):
            self.lost()
        elif self._taken == (term, lease):
            self._worker.act(SettleOwn(lease=lease, taken=False))
            self._taken = None
