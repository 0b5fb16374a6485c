"""The base of the worker and the parts it is made of: their job, its leader, and what the worker is doing."""

from __future__ import annotations

from shoal.roles.machine import Machine
from shoal.states import WorkerPhase


class WorkerMachine(Machine):
    """A part gets this machine: it sends to ``leader`` and sets the phase, but does not know the rest of the worker."""

    def __init__(self, *, job: str, leader: str, term: int) -> None:
        super().__init__()
        self.job = job
        self.leader = leader
        #: The leader's term; leases and formations of an older term are void.
        self.term = term
        #: There is a session with the leader.
        self.is_connected = False
        self.state = WorkerPhase.PREPARING
        self.reason = "fetching the task and its data"

    def become(self, state: WorkerPhase, reason: str) -> None:
        """Enter a phase; people read the reason."""
        self.state, self.reason = state, reason
