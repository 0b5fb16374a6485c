"""The interface between a world and its managers, and the one manager of ``shoal simulate``, which has a disk of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shoal.sim.disk import Disk
from shoal.sim.driver.manager_node import SimManagerNode
from shoal.sim.process import Process, SimMachine


class WorldManagers(Protocol):
    """The managers of a world, behind the name of the manager's node."""

    #: Where devices dial.
    endpoint: str
    #: How long a person waits for an answer before submitting a job again.
    submit_again_s: float
    #: Their names for observers.
    labels: tuple[str, ...]

    def start(self) -> None:
        """Start every manager that does not run."""

    def power_off(self, *, disk: str) -> None:
        """Switch a manager's machine off. ``disk`` is what happens to its unfinished writes."""

    def kill(self) -> None:
        """End a manager's process at once."""

    def current(self) -> SimManagerNode | None:
        """Return the running manager with the most jobs, frozen or not."""

    def of_job(self, job: str) -> SimManagerNode | None:
        """Return the manager that has this job, or None if no manager has it."""

    def serving(self, endpoint: str) -> SimManagerNode | None:
        """Return the manager that answers at an address."""

    def connected(self, node: str) -> SimManagerNode | None:
        """Return the manager that a late copy of a message from this node reaches."""

    def labelled(self, label: str) -> SimManagerNode | None:
        """Return the running manager with this label."""


class ManagersApi(Protocol):
    """The parts of a world that one manager uses."""

    disk: Disk
    home_node: str

    @property
    def machines(self) -> Mapping[str, SimMachine]: ...

    def manager_process(self) -> Process: ...

    def manager_node(self, process: Process, disk: Disk) -> SimManagerNode: ...

    def mark(self, node: str, kind: str, **facts: object) -> None: ...


class OneManager:
    """A manager on the manager's node. Whatever is asked for is this one, while it runs."""

    endpoint = ""
    submit_again_s = 5.0

    def __init__(self, around: ManagersApi) -> None:
        self._around = around
        self._node: SimManagerNode | None = None
        self.labels: tuple[str, ...] = (around.home_node,)

    def start(self) -> None:
        around = self._around
        if self._node is None:
            around.mark(around.home_node, "started", jobs=tuple(around.disk.jobs))
            self._node = around.manager_node(around.manager_process(), around.disk)

    def power_off(self, *, disk: str) -> None:
        around = self._around
        around.machines[around.home_node].is_on = False
        around.mark(around.home_node, "power off")
        self._end(disk)

    def kill(self) -> None:
        self._around.mark(self._around.home_node, "killed")
        node = self._node
        self._end("lost")
        for connection in list(node.role_server.connections.values()) if node is not None else ():
            connection.cut("the process on the other side ended")

    def _end(self, fate: str) -> None:
        if self._node is not None:
            self._node.process.alive = False
            self._node = None
            self._around.disk.crash(fate)

    def current(self) -> SimManagerNode | None:
        return self._node

    def of_job(self, job: str) -> SimManagerNode | None:
        return self._node

    def serving(self, endpoint: str) -> SimManagerNode | None:
        return self._node

    def connected(self, node: str) -> SimManagerNode | None:
        return self._node

    def labelled(self, label: str) -> SimManagerNode | None:
        return self._node
