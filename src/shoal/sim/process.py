"""A machine, and a process on it that can be stopped or die. What is not on a disk dies with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shoal.sim.devices import Device
from shoal.sim.kernel import Do, Kernel
from shoal.sim.observe import Mark, Observer, announce


class SimMachine:
    """What outlives a process: the device, its clock, its power, and what it has stored."""

    __slots__ = ("cached", "copies", "device", "is_on", "jumped_s", "name", "participations", "skew_s", "troubles")

    def __init__(self, name: str, device: Device | None = None) -> None:
        self.name = name
        self.device = device
        self.is_on = True
        #: How far its clock is ahead.
        self.skew_s = 0.0
        #: How far its clock has jumped ahead, wherever it stood before.
        self.jumped_s = 0.0
        #: The jobs whose code and data it has fetched.
        self.cached: set[str] = set()
        #: Job -> the term and the version of each of the device's participations in it, where it is private.
        self.participations: dict[str, tuple[tuple[int, int], ...]] = {}
        #: The share of what it says to its leader that arrives once more, later.
        self.copies = 0.0
        #: What will befall its next leases: ``fail`` or ``hang``.
        self.troubles: list[str] = []


class Process:
    __slots__ = (
        "_backlog",
        "_stops",
        "alive",
        "incarnation",
        "kernel",
        "label",
        "machine",
        "node",
        "observers",
        "resumed_s",
    )

    def __init__(self, machine: SimMachine, kernel: Kernel, observers: Sequence[Observer]) -> None:
        self.machine = machine
        self.node = machine.name
        #: How observers know it, where several processes act under one node's name.
        self.label = machine.name
        #: As others know it from the processes before it; empty: nobody asks.
        self.incarnation = ""
        self.kernel = kernel
        self.observers = observers
        self.alive = True
        #: When it last went on after it was stopped.
        self.resumed_s = -math.inf
        self._stops = 0
        self._backlog: list[tuple[Do, tuple[Any, ...]]] = []

    @property
    def is_stopped(self) -> bool:
        return self._stops > 0

    @property
    def clock_s(self) -> float:
        return self.kernel.now_s + self.machine.skew_s

    def later(self, delay_s: float, do: Do, *args: object) -> None:
        """Have it done by this process: not while it is stopped, never once it is dead."""
        self.kernel.after(delay_s, self.now, do, *args)

    def now(self, do: Do, *args: object) -> None:
        """Have it done at once; when the process is stopped, once it goes on."""
        if not self.alive:
            return
        if self._stops:
            self._backlog.append((do, args))
        else:
            do(*args)

    def stop(self) -> None:
        """As SIGSTOP does. What arrives meanwhile waits."""
        self._stops += 1

    def go_on(self) -> None:
        self._stops -= 1
        if self._stops:
            return
        self.resumed_s = self.kernel.now_s
        backlog, self._backlog = self._backlog, []
        for do, args in backlog:
            self.now(do, *args)

    def mark(self, kind: str, **facts: object) -> None:
        announce(self.observers, Mark(self.kernel.now_s, self.label, kind, facts))
