"""The workers and hubs of a device: which of them an event is for, which are set up and released.

Both drivers use this table. The driver has the sockets, the tasks and the clock, and the table calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from shoal.roles.events import Received
from shoal.roles.hub import Hub
from shoal.roles.node.device_router import (
    Beat,
    DeviceRouter,
    Dial,
    DropSession,
    Duty,
    Employ,
    Redial,
    Say,
    ToHosted,
    ToWorker,
)
from shoal.roles.node.role_runner import RoleRunner
from shoal.wire.messages import Assign, Message


class WorkerEntry(Protocol):
    """A worker's host, and its trainer in the driver."""

    @property
    def host(self) -> RoleRunner: ...


W = TypeVar("W", bound=WorkerEntry)
_W = TypeVar("_W", bound=WorkerEntry, covariant=True)


class DeviceDriver(Protocol[_W]):
    """The sessions and the hosts of a device."""

    def employ(self, assign: Assign) -> _W:
        """Make a host and a trainer for the worker of a job."""
        ...

    def send(self, to: str, message: Message) -> None:
        """Send over the session to a node, if there is one."""
        ...

    def dial(self, node: str, endpoint: str) -> None:
        """Hold a session to this node until ``part``."""
        ...

    def part(self, node: str, reason: str) -> None: ...

    def hang_up(self, node: str, reason: str) -> None:
        """End the session to a node, and dial again after a while."""
        ...

    def beat_now(self, node: str) -> None:
        """Send a heartbeat to a node, and count its interval from now on."""
        ...

    def tell_hosted(self, duty: ToHosted) -> None:
        """Hand a message to the leaders and aggregators that this device hosts, or will host."""
        ...


class WorkerTable(Generic[W]):
    def __init__(self, station: DeviceRouter, driver: DeviceDriver[W]) -> None:
        self._station = station
        self._driver = driver
        self._workers: dict[str, W] = {}

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._workers)

    @property
    def workers(self) -> tuple[W, ...]:
        return tuple(self._workers.values())

    def get(self, job: str) -> W | None:
        return self._workers.get(job)

    def reading(self, duty: Duty) -> tuple[W, Received] | None:
        """Return the worker that reads a message, and the message, or None for every other duty.

        A driver with real memory waits until the role has read a message, because it then reuses the memory.
        """
        match duty:
            case ToWorker(event=Received() as event):
                return self._workers[duty.job], event
            case _:
                return None

    def carry(self, duties: Iterable[Duty]) -> None:
        """Carry out the device router's duties, in order."""
        for duty in duties:
            match duty:
                case ToWorker():
                    self._workers[duty.job].host.post(duty.event)
                case Employ():
                    self._employ(duty.assign)
                case Say():
                    self._driver.send(duty.to, duty.message)
                case Dial():
                    self._driver.dial(duty.node, duty.endpoint)
                case DropSession():
                    self._driver.part(duty.node, duty.reason)
                case Redial():
                    self._driver.hang_up(duty.node, duty.reason)
                case Beat():
                    self._driver.beat_now(duty.node)
                case ToHosted():
                    self._driver.tell_hosted(duty)

    def _employ(self, assign: Assign) -> None:
        worker = self._workers[assign.job] = self._driver.employ(assign)
        if assign.role == "hub":
            worker.host.start(Hub(job=assign.job, leader=assign.leader, term=assign.term))
            return
        # Imported here, so that a device without a job does not load a worker's modules and numpy.
        from shoal.roles.helper import Helper
        from shoal.roles.worker.worker import Worker

        spec, node = assign.spec, self._station.node
        if spec.plan.believes.helper == node:
            worker.host.start(Helper(spec=spec, node=node, leader=assign.leader, term=assign.term))
        else:
            worker.host.start(Worker(spec=spec, leader=assign.leader, term=assign.term))

    def end(self, job: str) -> W | None:
        """Release the worker of a job. Return it, or None if it had ended already."""
        worker = self._workers.pop(job, None)
        if worker is not None:
            self.carry(self._station.on_worker_ended(job))
        return worker
