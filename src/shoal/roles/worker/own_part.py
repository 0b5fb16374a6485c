"""The device's own part of a model: it goes on from a lease only if the update of that lease was taken. It decides.

The shared part and the own part are trained together. Where the leader refuses an update, or nobody can tell whether
it came, the shared part goes on without it, so the own part goes back to how it was before.
"""

from __future__ import annotations

from collections import deque

from shoal.roles.actions import SettleOwn, UndoOwn
from shoal.roles.worker.machine import WorkerMachine

#: The most leases that can be taken back when a leader is lost with versions that were not durable. Each keeps a copy
#: of the own part in memory.
UNDOABLE_MAX = 8


class OwnPart:
    def __init__(self, worker: WorkerMachine) -> None:
        self._worker = worker
        #: Whether the model has one.
        self.is_there = False
        #: (term, lease) of the update that the leader has not spoken about yet, and the version that it began from.
        self._open: tuple[int, int] | None = None
        self._version = 0
        #: The session ended after the update was sent.
        self._is_in_doubt = False
        #: Term, lease and version of the updates that were taken last. Nobody knows yet that they are durable.
        self._taken: deque[tuple[int, int, int]] = deque(maxlen=UNDOABLE_MAX)

    def trained(self, term: int, lease: int, version: int) -> None:
        """An update was made; the driver has the own part that belongs to it."""
        if self.is_there:
            self._open, self._version, self._is_in_doubt = (term, lease), version, False

    def taken(self, term: int) -> None:
        """The leader of this term spoke after the update was sent, and did not refuse it. Messages come in order."""
        if self._open is None or self._open[0] != term:
            # A new leader tells with its first lease which versions it knows.
            return
        if self._is_in_doubt:
            self.lost()
            return
        self._taken.append((*self._open, self._version))
        self._worker.act(SettleOwn(lease=self._open[1], taken=True, undoable=len(self._taken)))
        self._open = None

    def in_doubt(self) -> None:
        """Nobody knows whether the update came. The versions of a new leader will show it."""
        self._is_in_doubt = True

    def on_work(self, term: int, *, began: int, durable: int, in_step: bool) -> None:
        """The leader of this term began from version ``began``, and ``durable`` is the newest one that is durable.

        ``in_step``: a version is made of the updates of all leases on the one before, so an update is in the history
        if the version after its own is.
        """
        if self._open is not None and self._open[0] < term:
            if in_step and self._version < began:
                self._is_in_doubt = False
                self.taken(self._open[0])
            else:
                self.lost()
        lost = 0
        while self._taken and self._taken[-1][0] < term and self._taken[-1][2] >= began:
            self._taken.pop()
            lost += 1
        # The last may still be refused, after a word that was on its way before the update came.
        while len(self._taken) > 1 and self._taken[0][2] < durable:
            self._taken.popleft()
        if lost:
            told = f"the job goes on from version {began}, without {lost} of our updates: the own part goes back"
            self._worker.record("residual.dropped", told, job=self._worker.job)
            self._worker.act(UndoOwn(leases=lost))

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
        elif self._taken and self._taken[-1][:2] == (term, lease):
            self._worker.act(SettleOwn(lease=lease, taken=False))
            self._taken.pop()
