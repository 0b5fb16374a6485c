"""How fast the simulator is: 100,000 devices that come, work and go, on the roles that devices run.

One job, leases, churn; nothing is trained (system only). Run as ``python -m benchmarks.simulator [--quick] --json``.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.node.failure_detector import Patience
from shoal.sim.fault_text import parse
from shoal.sim.inflict import Inflicter
from shoal.sim.jobs import SimulatedJob, system_job
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import builds, home_line
from shoal.sim.rng import Rng
from shoal.sim.world import Settings, World

DEVICES = 100_000
QUICK_DEVICES = 5_000

#: A linear model of MNIST: 31 kB.
LAYOUT = Layout.of([("weight", (10, 784), "parameter"), ("bias", (10,), "parameter")])
BATCH_SIZE = 64

#: A fleet this large is not asked every second how it is.
PATIENCE = Patience(heartbeat_s=10.0, suspect_after_s=30.0, lost_after_s=60.0, reconnect_s=15.0)

#: Besides phones that come and go: some leave and come back, some lose power, some connections break.
FAULTS = """
leave(2%, at=20, back_s=30)
crash(1%, at=40, restart_s=20)
cut(3%, at=60)
slow(5%, 4x, at=0)
"""


class Count:
    """What roles were asked to handle."""

    def __init__(self) -> None:
        self.role_events = 0

    def step(self, step: Step) -> None:
        self.role_events += 1

    def mark(self, mark: Mark) -> None:
        pass


def job(devices: int) -> SimulatedJob:
    plan = Plan(
        batch_size=BATCH_SIZE,
        workers_max=devices,
        until=Until(epochs=1),
        # A round ends when its last lease does: stragglers are given up after a minute.
        lease_s=60.0,
    )
    # Two and a half leases a device.
    examples = int(2.5 * devices) * BATCH_SIZE
    return system_job(plan, LAYOUT, examples=examples, job="fleet", gmacs_per_example=7840e-9, fetch_bytes=200_000)


def peak_rss_mb() -> float:
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def run(devices: int, *, seed: int, profile: str) -> dict[str, object]:
    began_s = time.perf_counter()
    rng = Rng(seed)
    settings = Settings(
        seed=seed,
        builds=builds(profile, devices, rng),
        home_line=home_line("even"),
        jobs=[job(devices)],
        patience=PATIENCE,
        arrive_within_s=30.0,
    )
    count = Count()
    world = World(settings, observers=[count])
    inflicter = Inflicter(world, parse(FAULTS))
    world.observers.append(inflicter)
    inflicter.begin()
    world.begin()
    built_s = time.perf_counter() - began_s
    print(f"{devices:,} devices built in {built_s:.1f} s", file=sys.stderr)
    began_s = time.perf_counter()
    step_s, over = 0.0, False
    while not over and step_s < 3600.0:
        step_s += 10.0
        over = world.run(limit_s=step_s)
        spent_s = time.perf_counter() - began_s
        told = f"{world.kernel.now_s:6.0f} s simulated, {world.kernel.handled:,} events, {spent_s:.0f} s"
        print(told, file=sys.stderr)
    seconds = time.perf_counter() - began_s
    record = world.disk.jobs["fleet"]
    return {
        "devices": devices,
        "profile": profile,
        "events": world.kernel.handled,
        "role_events": count.role_events,
        "events_per_s": round(world.kernel.handled / seconds),
        "role_events_per_s": round(count.role_events / seconds),
        "seconds": round(seconds, 1),
        "build_s": round(built_s, 1),
        "simulated_s": round(world.kernel.now_s, 1),
        "peak_rss_mb": round(peak_rss_mb()),
        "state": record.state,
        "reason": record.reason or "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=0, help=f"how many; {DEVICES:,} unless --quick")
    parser.add_argument("--profile", default="wifi-phones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DEVICES:,} devices")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    devices = given.devices or (QUICK_DEVICES if given.quick else DEVICES)
    print(json.dumps(run(devices, seed=given.seed, profile=given.profile)))


if __name__ == "__main__":
    main()
