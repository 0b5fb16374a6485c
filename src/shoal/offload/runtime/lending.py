"""A device's side of offloading: its executor, and the process that multiplies for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.errors import Misuse
from shoal.offload.roles.executor import Executor, Means
from shoal.offload.runtime.multiplier import Multiplier, threads_told
from shoal.roles.actions import Action, Multiply, Record
from shoal.roles.events import Connected, Disconnected, Received
from shoal.runtime import probe
from shoal.runtime.pool import AgentPool
from shoal.runtime.role_host import RoleHost
from shoal.wire.limits import RIGHTS_KEPT_MAX_BYTES, TASK_MAX_BYTES
from shoal.wire.messages import Message, RightOperand, TileTask

log = logging.getLogger("shoal")

#: Shares of the memory that is free at the start: this process and the child each hold a copy.
RIGHTS_SHARE = 1 / 8
TASK_SHARE = 1 / 32

#: A device's own work comes first.
NICE = 10


def means_here() -> Means:
    """The memory that this device can spare."""
    free_bytes = probe.memory_free_mb() << 20 or 1 << 30
    return Means(
        task_max_bytes=min(TASK_MAX_BYTES, int(free_bytes * TASK_SHARE)),
        rights_max_bytes=min(RIGHTS_KEPT_MAX_BYTES, int(free_bytes * RIGHTS_SHARE)),
    )


class LendingDriver(AgentPool):
    def __init__(self, *, broker: str, send: Callable[[str, Message], None]) -> None:
        self._broker = broker
        self._means = means_here()
        # One core, unless the user allows more: the device may have its own work.
        self._multiplier = Multiplier(threads=threads_told(otherwise=1), nice=NICE)
        self._host = RoleHost("executor", self._perform, send=send)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._host.start(Executor(broker=self._broker, means=self._means))
        megabytes = self._means.rights_max_bytes >> 20
        log.info("this device multiplies for others, and keeps up to %d MB of right sides", megabytes)

    async def stop(self) -> None:
        await self._host.stop()
        for task in self._tasks:
            task.cancel()
        # It waits for a child that was killed: not for long, but not in the loop.
        await asyncio.to_thread(self._multiplier.stop)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connected(self) -> None:
        self._host.post(Connected(node=self._broker))

    def disconnected(self, reason: str) -> None:
        self._host.post(Disconnected(node=self._broker, reason=reason))

    def payload_limit(self, message: Message) -> int:
        match message:
            case TileTask():
                return self._means.task_max_bytes
            case RightOperand():
                return self._means.rights_max_bytes
            case _:
                return 0

    async def received(self, message: Message, size_bytes: int) -> None:
        """Returns once the role is done with its tensors."""
        await self._host.deliver(Received(sender=self._broker, message=message, size_bytes=size_bytes))

    async def _perform(self, host: RoleHost, action: Action) -> None:
        match action:
            case Multiply():
                task = asyncio.create_task(self._multiply(action), name="multiply")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Record():
                log.info("%s: %s", action.kind, action.reason)
            case _:
                raise Misuse(f"an executor does not ask for {type(action).__name__}")

    async def _multiply(self, ask: Multiply) -> None:
        self._host.post(await self._multiplier.multiply(ask))
