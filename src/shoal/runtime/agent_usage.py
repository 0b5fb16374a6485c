"""What an agent did and moved since it began, for an exporter on the device. Numbers only; served by a feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal import features
from shoal.runtime.energy import EnergyPerCpuSecond
from shoal.runtime.metrics_door import listen_at


@dataclass(slots=True)
class AgentUsage:
    """Counted by the agent and the drivers of its workers as they go."""

    trained_s: float = 0.0
    leases: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    #: Of the leases of every job: the next job's first lease is sized by it.
    energy: EnergyPerCpuSecond = field(default_factory=EnergyPerCpuSecond)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReading:
    """An agent at one moment."""

    node: str
    connected: bool
    jobs: tuple[str, ...]
    trained_s: float
    leases: int
    bytes_up: int
    bytes_down: int
    #: 0: nothing large was fetched yet.
    link_bytes_per_s: float
    #: Of the agent and its trainers, so far.
    cpu_s: float


class DeviceExporter(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


def device_exporter(listen: str, token_file: Path | None, read: Callable[[], AgentReading]) -> DeviceExporter:
    """Serve an agent's readings at ``HOST:PORT``. Imports what it needs for that now, and not before."""
    door = listen_at(listen, token_file=token_file)
    make: Callable[..., DeviceExporter] = features.provided("agent_metrics")
    return make(door, read)
