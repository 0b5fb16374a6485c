"""A machine, and a process on it that can be stopped or die. Its state dies with it unless it is on a disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.sim.devices import Device
from shoal.sim.kernel import Do, Kernel
from shoal.sim.observe import Mark, Observer, announce


class SimMachine:
    """The parts that outlive a process: the device, its clock, its power, and its files."""

    __slots__ = (
        "cached",
        "copies",
        "device",
        "is_on",
        "jumped_s",
        "name",
        "own",
        "participations",
        "seen",
        "skew_s",
        "troubles",
    )

    def __init__(self, name: str, device: Device | None = None) -> None:
        self.name = name
        self.device = device
        self.is_on = True
        #: How far its clock is ahead.
        self.skew_s = 0.0
        #: How far its clock has jumped ahead in total.
        self.jumped_s = 0.0
        #: The jobs whose code and data it has fetched.
        self.cached: set[str] = set()
        #: Job -> the term and the version of each of the device's participations in it, if it is private.
        self.participations: dict[str, tuple[tuple[int, int], ...]] = {}
        #: Job -> how many of its own examples the device was done with, and its own part of the model.
        self.seen: dict[str, int] = {}
        self.own: dict[str, np.ndarray] = {}
        #: The share of its messages to its leader that arrive a second time, later.
        self.copies = 0.0
        #: The failures of its next leases: ``fail`` or ``hang``.
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
        #: Its name for observers, as several processes may act under one node's name.
        self.label = machine.name
        #: Its identity, which differs from that of earlier processes. Empty if it is not needed.
        self.incarnation = ""
        self.kernel = kernel
        self.observers = observers
        self.alive = True
        #: When it last continued after it was stopped.
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
        """Schedule a call by this process: not while it is stopped, and never once it is dead."""
        self.kernel.after(delay_s, self.now, do, *args)

    def now(self, do: Do, *args: object) -> None:
        """Make a call at once or, if the process is stopped, once it continues."""
        if not self.alive:
            return
        if self._stops:
            self._backlog.append((do, args))
        else:
            do(*args)

    def stop(self) -> None:
        """Stop the process, like SIGSTOP. Messages that arrive meanwhile wait."""
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
