"""Runs one role in the real world: events in one at a time, actions out in order. Knows no particular role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import NamedTuple

from shoal.roles.actions import Action, CancelTimer, Role, Send, SetTimer
from shoal.roles.events import Event, Received, Started, TimerFired
from shoal.runtime.malloc import return_freed_memory
from shoal.wire.limits import UPLOAD_SHARED_MAX_BYTES
from shoal.wire.messages import Message

log = logging.getLogger("shoal")

#: About 4 ms of checking and merging on a small core. Below it a hop to another thread costs more than it spares.
HEAVY_BYTES = 8 << 20

#: A timer whose handling failed fires again after this.
AFTER_BUG_S = 1.0

#: Whether handling an event could be felt elsewhere.
Weigh = Callable[[Event], bool]

#: Carries out the actions that a host does not know itself. What it returns, the role handles before any other event.
Perform = Callable[["RoleHost", Action], Awaitable[Event | None]]

#: Carries out an action at once; False: it has to be waited for, and is left to ``Perform``.
ActAtOnce = Callable[["RoleHost", Action], bool]

#: Sends a message of the role to a node.
Post = Callable[[str, Message], None]


class _Decided(NamedTuple):
    """Actions that are still to be carried out, and the timer that was handled, if it was one."""

    actions: tuple[Action, ...]
    timer: str | None = None


class RoleHost:
    """An inbox, a role, its timers. Events may be posted before the role is there: they wait."""

    def __init__(
        self,
        key: str,
        perform: Perform,
        *,
        send: Post,
        at_once: ActAtOnce | None = None,
        executor: Executor | None = None,
        is_heavy: Weigh | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = key
        self._perform = perform
        self._at_once = at_once
        self._send = send
        #: Where events that carry tensors are handled, so that a merge never holds up a heartbeat.
        self._executor = executor
        self._is_heavy = is_heavy or _is_large
        self._clock = clock
        self._inbox: asyncio.Queue[tuple[Event | _Decided, asyncio.Future[None] | None]] = asyncio.Queue()
        #: The role's task waits for the next event, and has none at hand.
        self._is_idle = False
        #: Timer of the role -> when it is due, by the event loop's clock and by ours.
        self._due: dict[str, tuple[float, float]] = {}
        #: Timer of the role -> what wakes the host for it, then or before: most are set again before they are due,
        #: and a timer of the event loop costs more than a look at the time.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        self.role: Role | None = None
        #: Set when the role is let go: no action is carried out after that.
        self.ended = False

    def start(self, role: Role) -> None:
        """Begin: the role hears that it was started before anything that waited for it."""
        self.role = role
        self._task = asyncio.create_task(self._run(role), name=f"role {self.key}")

    def post(self, event: Event) -> None:
        self._inbox.put_nowait((event, None))

    async def deliver(self, event: Event) -> None:
        """Wait until the role has handled an event: back-pressure for large messages."""
        if self._is_idle and self.role is not None and self._inbox.empty() and not self._goes_apart(event):
            # At once, which spares two changes of task for every message. What has to be waited for is left to the
            # role's own task: the caller may be cancelled, and a decision is carried out whole.
            if later := self._act_at_once(self._decided(self.role, event)):
                self._inbox.put_nowait((later, None))
            return
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, handled))
        await handled

    async def stop(self) -> None:
        self.ended = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while not self._inbox.empty():
            _settle(self._inbox.get_nowait()[1])

    async def _run(self, role: Role) -> None:
        await self._handle(role, Started())
        while self._task is not None:
            self._is_idle = True
            event, handled = await self._inbox.get()
            self._is_idle = False
            try:
                if isinstance(event, _Decided):
                    await self._carry_out(event)
                else:
                    await self._handle(role, event, handled)
            finally:
                _settle(handled)
            del event

    async def _handle(self, role: Role, event: Event, handled: asyncio.Future[None] | None = None) -> None:
        if self._goes_apart(event):
            loop = asyncio.get_running_loop()
            decided = await loop.run_in_executor(self._executor, self._decided, role, event)
            if isinstance(event, Received) and event.size_bytes > UPLOAD_SHARED_MAX_BYTES:
                # The chunks of a large message leave holes between others, and more with each message.
                loop.run_in_executor(self._executor, return_freed_memory)
        else:
            decided = self._decided(role, event)
        _settle(handled)
        await self._carry_out(decided)

    def _goes_apart(self, event: Event) -> bool:
        return self._executor is not None and self._is_heavy(event)

    def _decided(self, role: Role, event: Event) -> _Decided:
        """What the role does about an event. It never raises on purpose: an exception is a bug, and is survived."""
        timer = event.name if isinstance(event, TimerFired) else None
        try:
            return _Decided(tuple(role.handle(event, self._clock())), timer)
        except Exception:
            return self._after_bug(timer)

    def _after_bug(self, timer: str | None) -> _Decided:
        log.exception("%s failed to handle an event", self.key)
        # The actions that would have set the timer again are lost with the rest.
        return _Decided(() if timer is None else (SetTimer(name=timer, after_s=AFTER_BUG_S),))

    async def _carry_out(self, decided: _Decided) -> None:
        answers: list[Event] = []
        while later := self._act_at_once(decided):
            action, decided = later.actions[0], _Decided(later.actions[1:], later.timer)
            try:
                answer = await self._perform(self, action)
            except asyncio.CancelledError:
                raise
            except Exception:
                decided = self._after_bug(later.timer)
            else:
                answers += [answer] if answer is not None else []
        for answer in answers:
            if self.role is not None and not self.ended:
                await self._handle(self.role, answer)

    def _act_at_once(self, decided: _Decided) -> _Decided | None:
        """Carry out what needs no waiting; returns what is left from the first action that does, if any is."""
        actions = decided.actions
        try:
            for number, action in enumerate(actions):
                if self.ended:
                    # The role was let go by an action before this one.
                    return None
                if isinstance(action, Send):
                    self._send(action.to, action.message)
                elif isinstance(action, SetTimer):
                    self._set_timer(action)
                elif isinstance(action, CancelTimer):
                    self._due.pop(action.name, None)
                elif self._at_once is None or not self._at_once(self, action):
                    return _Decided(actions[number:], decided.timer)
        except Exception:
            return self._act_at_once(self._after_bug(decided.timer))
        return None

    def _set_timer(self, action: SetTimer) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + action.after_s
        self._due[action.name] = at_s, self._clock() + action.after_s
        waking = self._timers.get(action.name)
        if waking is None or waking.when() > at_s:
            if waking is not None:
                waking.cancel()
            self._timers[action.name] = loop.call_at(at_s, self._wake, action.name)

    def _wake(self, name: str) -> None:
        del self._timers[name]
        if name not in self._due:
            return
        at_s, due_s = self._due[name]
        loop = asyncio.get_running_loop()
        if loop.time() < at_s:
            self._timers[name] = loop.call_at(at_s, self._wake, name)
            return
        del self._due[name]
        self.post(TimerFired(name=name, late_s=max(0.0, self._clock() - due_s)))


def _is_large(event: Event) -> bool:
    """Whether handling an event could be felt elsewhere; a millisecond of work is cheaper done at once."""
    return isinstance(event, Received) and event.size_bytes > HEAVY_BYTES


def _settle(handled: asyncio.Future[None] | None) -> None:
    """Wake the task that waits for an event to be handled."""
    if handled is not None and not handled.done():
        handled.set_result(None)
