"""Metrics of one device, served by its agent if asked: what it trains and moves, how warm it is, what it spends."""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.exporter.catalogue import DEVICE
from shoal.exporter.families import build
from shoal.exporter.sample import Sample
from shoal.exporter.serve import MetricsServer
from shoal.runtime import sensors
from shoal.runtime.agent_usage import AgentReading
from shoal.runtime.energy import MEASURED, EnergyMeter, Reading
from shoal.runtime.metrics_door import MetricsDoor

log = logging.getLogger("shoal")

#: Jobs of one device that are named.
JOBS_MAX = 20


class DeviceSamples:
    """Reads the agent and the sensors at each scrape; keeps the energy between scrapes."""

    def __init__(self, read: Callable[[], AgentReading], *, root: Path = Path("/")) -> None:
        self._read = read
        self._root = root
        self._meter = EnergyMeter(root=root, machine=platform.machine())
        self._joules: dict[bool, float] = {}
        self._before: Reading | None = None
        # Scrapes come in threads.
        self._lock = threading.Lock()

    def __call__(self) -> list[Sample]:
        with self._lock:
            return [build(), *self._of(self._read(), now_s=time.monotonic())]

    def _of(self, agent: AgentReading, *, now_s: float) -> Iterator[Sample]:
        own = {"node": agent.node}
        yield Sample("shoal_agent_connected", own, int(agent.connected))
        for job in sorted(agent.jobs)[:JOBS_MAX]:
            yield Sample("shoal_agent_job", {**own, "shoal_job": job}, 1)
        yield Sample("shoal_agent_training_seconds", own, agent.trained_s)
        yield Sample("shoal_agent_leases", own, agent.leases)
        yield Sample("shoal_agent_bytes", {**own, "direction": "up"}, agent.bytes_up)
        yield Sample("shoal_agent_bytes", {**own, "direction": "down"}, agent.bytes_down)
        if agent.link_bytes_per_s > 0:
            yield Sample("shoal_node_link_bytes_per_second", own, agent.link_bytes_per_s)
        if (warmth := sensors.temperature_c(root=self._root)) is not None:
            yield Sample("shoal_node_temperature_celsius", own, warmth)
        for measured, joules in sorted(self._energy(now_s, agent.cpu_s).items()):
            yield Sample("shoal_node_energy_joules", {**own, "measured": str(measured).lower()}, joules)

    def _energy(self, now_s: float, cpu_s: float) -> dict[bool, float]:
        reading = self._meter.read(now_s=now_s, cpu_s=cpu_s)
        if self._before is not None:
            spent = self._meter.spent(self._before, reading)
            is_measured = spent.kind == MEASURED
            self._joules[is_measured] = self._joules.get(is_measured, 0.0) + max(0.0, spent.joules)
        self._before = reading
        return self._joules


def serve_device(door: MetricsDoor, read: Callable[[], AgentReading]) -> MetricsServer:
    server = MetricsServer(door, DeviceSamples(read), DEVICE)
    log.info("metrics of this device are at %s", server.door)
    return server
