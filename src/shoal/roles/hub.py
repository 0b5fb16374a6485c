"""The hub of one job: a node that sums up for workers near it, and trains nothing. It decides; a driver acts.

What it sums up is an aggregator's business (``roles.aggregator.aggregator``), which the leader sets up on this node as
on any other. A hub has no trainer, fetches nothing of the task, and holds no lease: it says that it is there.
"""

from __future__ import annotations

from shoal.roles.actions import End
from shoal.roles.events import Connected, Disconnected, Event, LinkMeasured, Reassigned, Received, StopRequested
from shoal.roles.machine import Machine
from shoal.wire.messages import Finished, Ready


class Hub(Machine):
    def __init__(self, *, job: str, leader: str, term: int) -> None:
        super().__init__()
        self.job = job
        self.leader = leader
        self.term = term
        self._is_connected = False
        self._link = LinkMeasured()

    def on_event(self, event: Event) -> None:
        match event:
            case Connected(node=self.leader):
                self._is_connected = True
                self._announce()
            case Disconnected(node=self.leader):
                self._is_connected = False
            case Reassigned():
                self._on_reassigned(event)
            case LinkMeasured():
                self._link = event
            case Received(message=Finished() as finished):
                self.act(End(reason=finished.reason))
            case StopRequested():
                self.act(End(reason=event.reason))
            case _:
                pass

    def _on_reassigned(self, event: Reassigned) -> None:
        """The manager repeats the leader of a job where another leads it now, or where this one may have missed us."""
        if event.term >= self.term:
            self.term, self.leader = event.term, event.leader
            self._announce()

    def _announce(self) -> None:
        if self._is_connected:
            link = self._link
            ready = Ready(
                job=self.job,
                up_bytes_per_s=link.up_bytes_per_s,
                down_bytes_per_s=link.down_bytes_per_s,
                medium=link.medium,
                is_hub=True,
            )
            self.send(self.leader, ready)
