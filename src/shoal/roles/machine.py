"""The base of every role: an event comes in, the role decides, and what it decided goes out in order."""

from __future__ import annotations

from typing import Generic, TypeVar

from shoal.roles.actions import Action, CancelTimer, Record, Send, SetTimer
from shoal.roles.events import Event
from shoal.wire.messages import Message

A = TypeVar("A")


class Decider(Generic[A]):
    """Decides without side effects: what it wants done is appended to one list, and its entry returns that."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._actions: list[A] = []

    def act(self, *actions: A) -> None:
        self._actions += actions

    def take_actions(self) -> list[A]:
        """Everything decided since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions


class Machine(Decider[Action]):
    """A role as a state machine without side effects.

    ``handle`` is its only entry. While it lasts, ``now_s`` is the time of the event, and everything the role wants done
    is appended to one list: the driver carries it out in that order. Objects that a role is made of (its *parts*) get
    the machine, and append to the same list.
    """

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Decide what follows from an event."""
        self.now_s = now_s
        try:
            self.on_event(event)
        finally:
            # An event that raised has no actions: none of them may come with the next event.
            actions = self.take_actions()
        return actions

    def on_event(self, event: Event) -> None:
        """Overridden by each role."""
        raise NotImplementedError

    def send(self, to: str, message: Message) -> None:
        self._actions.append(Send(to=to, message=message))

    def record(self, kind: str, reason: str, *, job: str = "", traceback: str = "") -> None:
        """Write down a decision and its reason."""
        self._actions.append(Record(kind=kind, reason=reason, job=job, traceback=traceback))

    def timer(self, name: str, after_s: float) -> None:
        """Have ``name`` fire once; a second timer of the same name replaces the first."""
        self._actions.append(SetTimer(name=name, after_s=after_s))

    def cancel(self, name: str) -> None:
        self._actions.append(CancelTimer(name=name))
