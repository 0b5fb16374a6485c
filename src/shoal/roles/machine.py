"""The base of every role: an event comes in, the role decides, and what it decided goes out in order."""

from __future__ import annotations

from shoal.roles.actions import Action, CancelTimer, Record, Send, SetTimer
from shoal.roles.events import Event
from shoal.wire.messages import Message


class Machine:
    """A role as a state machine without side effects.

    ``handle`` is its only entry. While it lasts, ``now_s`` is the time of the event, and everything the role wants done
    is appended to one list: the driver carries it out in that order. Objects that a role is made of (its *parts*) get
    the machine, and append to the same list.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._actions: list[Action] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Decide what follows from an event."""
        self.now_s = now_s
        try:
            self.on_event(event)
        except BaseException:
            # A bug: half a decision must not be carried out with the next event.
            self._actions = []
            raise
        return self.take_actions()

    def on_event(self, event: Event) -> None:
        """Overridden by each role."""
        raise NotImplementedError

    def take_actions(self) -> list[Action]:
        """Everything decided since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def act(self, *actions: Action) -> None:
        self._actions += actions

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
