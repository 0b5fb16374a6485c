"""Runs one role in the real world: events in one at a time, actions out in order. Knows no particular role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from shoal.roles.actions import Action, CancelTimer, Role, Send, SetTimer
from shoal.roles.events import Event, Received, Started, TimerFired
from shoal.wire.messages import Message

log = logging.getLogger("shoal")

#: About 4 ms of checking and merging on a small core. Below it a hop to another thread costs more than it spares.
HEAVY_BYTES = 8 << 20

#: A timer whose handling failed fires again after this.
AFTER_BUG_S = 1.0

#: Whether handling an event could be felt elsewhere.
Weigh = Callable[[Event], bool]

#: Carries out the actions that a host does not know itself.
Perform = Callable[["RoleHost", Action], Awaitable[None]]

#: Sends a message of the role to a node.
Post = Callable[[str, Message], None]


class RoleHost:
    """An inbox, a role, its timers. Events may be posted before the role is there: they wait."""

    def __init__(
        self,
        key: str,
        perform: Perform,
        *,
        send: Post,
        executor: Executor | None = None,
        is_heavy: Weigh | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = key
        self._perform = perform
        self._send = send
        #: Where events that carry tensors are handled, so that a merge never holds up a heartbeat.
        self._executor = executor
        self._is_heavy = is_heavy or _is_large
        self._clock = clock
        self._inbox: asyncio.Queue[tuple[Event, asyncio.Future[None] | None]] = asyncio.Queue()
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
        """Post an event and wait until the role has handled it: back-pressure for large messages."""
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((event, handled))
        await handled

    async def stop(self) -> None:
        self.ended = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while not self._inbox.empty():
            _settle(self._inbox.get_nowait()[1])

    async def _run(self, role: Role) -> None:
        await self._handle(role, Started())
        while self._task is not None:
            event, handled = await self._inbox.get()
            try:
                await self._handle(role, event, handled)
            finally:
                _settle(handled)
            del event

    async def _handle(self, role: Role, event: Event, handled: asyncio.Future[None] | None = None) -> None:
        timer = event if isinstance(event, TimerFired) else None
        try:
            now_s = self._clock()
            if self._executor is not None and self._is_heavy(event):
                loop = asyncio.get_running_loop()
                actions = await loop.run_in_executor(self._executor, role.handle, event, now_s)
            else:
                actions = role.handle(event, now_s)
            _settle(handled)
            for action in actions:
                if self.ended:
                    # The role was let go by an action before this one.
                    break
                await self._act(action)
        except asyncio.CancelledError:
            raise
        except Exception:
            # A role never raises on purpose: an exception is a bug, reported and survived.
            log.exception("%s failed to handle an event", self.key)
            if timer is not None:
                # The actions that would have set it again are lost with the rest.
                await self._act(SetTimer(name=timer.name, after_s=AFTER_BUG_S))

    async def _act(self, action: Action) -> None:
        if isinstance(action, SetTimer):
            self._cancel(action.name)
            loop = asyncio.get_running_loop()
            due_s = self._clock() + action.after_s
            self._timers[action.name] = loop.call_later(action.after_s, self._fire, action.name, due_s)
        elif isinstance(action, CancelTimer):
            self._cancel(action.name)
        elif isinstance(action, Send):
            self._send(action.to, action.message)
        else:
            await self._perform(self, action)

    def _fire(self, name: str, due_s: float) -> None:
        self.post(TimerFired(name=name, late_s=max(0.0, self._clock() - due_s)))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def _is_large(event: Event) -> bool:
    """Whether handling an event could be felt elsewhere; a millisecond of work is cheaper done at once."""
    return isinstance(event, Received) and event.size_bytes > HEAVY_BYTES


def _settle(handled: asyncio.Future[None] | None) -> None:
    """Wake the task that waits for an event to be handled."""
    if handled is not None and not handled.done():
        handled.set_result(None)
