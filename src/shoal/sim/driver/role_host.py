"""Runs one role under the virtual clock: events in one at a time, actions out in order.

The twin of the runtime's host: there the clock, the inbox and the timers are asyncio's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shoal.roles.actions import Action, CancelTimer, Role, Send, SetTimer
from shoal.roles.events import Event, Started, TimerFired
from shoal.sim.kernel import Do, Kernel
from shoal.sim.observe import Observer, Step
from shoal.wire.messages import Message

#: The shortest timer. On a clock that is behind, two times may differ by less than the virtual clock can represent, and
#: a role that waits for the second would wait forever at one instant.
TIMER_MIN_S = 1e-9

#: Carries out the actions that a host does not handle itself. Returns how long the next actions must wait, infinity if
#: they wait for ``Host.resume``.
Perform = Callable[["Host", Action], float]

#: Sends a message of the role to a node.
Post = Callable[[str, Message], None]


class HostProcess(Protocol):
    """The process in which a host runs."""

    node: str
    #: Its name for observers: two processes may act under one node's name.
    label: str
    kernel: Kernel
    observers: Sequence[Observer]

    @property
    def clock_s(self) -> float:
        """The time on this machine's clock."""
        ...

    def later(self, delay_s: float, do: Do, *args: object) -> None:
        """Have it done by this process: not while it is stopped, never once it is dead."""
        ...


class Host:
    """Runs one role. Events that are posted before the role is set up wait."""

    __slots__ = (
        "_cost_s",
        "_inbox",
        "_paused",
        "_perform",
        "_process",
        "_running",
        "_send",
        "_timers",
        "ended",
        "job",
        "kind",
        "role",
    )

    def __init__(
        self,
        process: HostProcess,
        kind: str,
        job: str,
        perform: Perform,
        *,
        send: Post,
        cost_s: Callable[[Event], float] | None = None,
    ) -> None:
        self.kind = kind
        self.job = job
        self.role: Role | None = None
        #: Set when the role is released: no action is carried out after that.
        self.ended = False
        self._process = process
        self._perform = perform
        self._send = send
        #: How long handling an event takes; the next one waits.
        self._cost_s = cost_s
        self._inbox: deque[Event] = deque()
        self._running = True
        #: The remaining actions of a decision, until the host is resumed.
        self._paused: Iterator[Action] = iter(())
        #: Name -> the number of its valid setting. Setting a timer again makes the older setting void.
        self._timers: dict[str, int] = {}

    def start(self, role: Role) -> None:
        """Start the role. It gets ``Started`` before the events that waited for it."""
        self.role = role
        self._inbox.appendleft(Started())
        self._run(iter(()))

    def post(self, event: Event) -> None:
        """Hand the role an event, which waits while the role handles an earlier one."""
        self._inbox.append(event)
        if not self._running:
            self._run(iter(()))

    def answer(self, event: Event) -> None:
        """Hand the role the answer to an action before any event that waits. Only while an action is carried out."""
        self._inbox.appendleft(event)

    def resume(self) -> None:
        """Continue with the actions that waited."""
        self._run(self._paused)

    def _run(self, actions: Iterator[Action]) -> None:
        """Carry out the decided actions, then take the next event; pause where an action must be waited for."""
        self._running = True
        process, role = self._process, self.role
        assert role is not None
        while not self.ended:
            for action in actions:
                wait_s = self._act(action)
                if wait_s == 0.0:
                    continue
                if math.isinf(wait_s):
                    self._paused = actions
                else:
                    process.later(wait_s, self._run, actions)
                return
            if not self._inbox:
                break
            event = self._inbox.popleft()
            decided = role.handle(event, process.clock_s)
            if process.observers:
                step = Step(process.kernel.now_s, process.label, self.kind, self.job, event, decided)
                for observer in process.observers:
                    observer.step(step)
            actions = iter(decided)
            cost_s = self._cost_s(event) if self._cost_s is not None else 0.0
            if cost_s > 0.0:
                process.later(cost_s, self._run, actions)
                return
        self._running = False

    def _act(self, action: Action) -> float:
        if self.ended:
            # An action before this one released the role.
            return 0.0
        if isinstance(action, SetTimer):
            number = self._timers[action.name] = self._timers.get(action.name, 0) + 1
            after_s = max(action.after_s, TIMER_MIN_S)
            self._process.later(after_s, self._fire, action.name, number, self._process.kernel.now_s + after_s)
            return 0.0
        if isinstance(action, CancelTimer):
            if action.name in self._timers:
                self._timers[action.name] += 1
            return 0.0
        if isinstance(action, Send):
            self._send(action.to, action.message)
            return 0.0
        return self._perform(self, action)

    def _fire(self, name: str, number: int, due_s: float) -> None:
        if self._timers.get(name) == number and not self.ended:
            self.post(TimerFired(name=name, late_s=max(0.0, self._process.kernel.now_s - due_s)))
