"""How many devices the simulator carries: a million that come within half an hour, on the deployed manager, leader and
hubs.

Phones come at a steady rate. Each is there for less than a minute: it says hello, is given the job if there is a place
(else it is told when to come again, and sleeps), fetches it, trains leases and returns them, and goes when its owner
needs it, with a lease half done or not. Some are struck by faults. Nothing is trained (system only).

From ``COHORT_FROM`` devices on they are rows of a cohort (``shoal.sim.cohort``), which become full devices where
something has to be decided; below, or with ``--full``, all of them are full devices. ``--against-full`` plays a smaller
fleet in both forms, under several seeds, and compares the counts.

Devices that work send their updates to hubs. Hubs are full devices throughout, and devices are full while they work:
``WORKERS_A_HUB`` at a time for each hub. ``--hubs 0`` plays a star, in which a fifth of the devices that are there
work, as rows. The two forms are compared in a star unless ``--hubs`` is given.

``seconds`` is by the clock on the wall and ``cpu_seconds`` is of the processor: they differ where the machine has other
work.

    python -m benchmarks.simulator --devices 1000000 --json
    python -m benchmarks.simulator --devices 1000000 --hubs 0 --json
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from functools import lru_cache, partial
from typing import Any

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.roles.events import Received
from shoal.roles.node.failure_detector import Patience
from shoal.sim.devices import Build, Presence
from shoal.sim.fault_text import parse
from shoal.sim.garbage import collected_seldom
from shoal.sim.inflict import Inflicter
from shoal.sim.jobs import SimulatedJob, system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import Fleet, home_line
from shoal.sim.rates import Steady, mbit
from shoal.sim.rng import Rng
from shoal.sim.world import Settings, World
from shoal.wire.messages import Hello, Update, UpdateRefused, Welcome, Work
from testbed.results import finish, say

DEVICES = 100_000
QUICK_DEVICES = 2_000
#: A fleet that is played in both forms.
COMPARED = 5_000
QUICK_COMPARED = 500
COHORT_FROM = 20_000
#: It is played under so many seeds, and no count may differ by more than this.
SEEDS = 3
DIFFERENCE_MAX = 0.02

#: A linear model of MNIST: 31 kB.
LAYOUT = Layout.of([("weight", (10, 784), "parameter"), ("bias", (10,), "parameter")])
BATCH_SIZE = 1024
#: A median phone trains such a batch within about 20 s.
GMACS_PER_EXAMPLE = 5e-3
FETCH_BYTES = 200_000

#: Devices come at this rate, and each is there for so long. Few of them come within a minute all the same.
COME_PER_S = 556.0
COME_WITHIN_S = 60.0
STAY_S = 45

#: Of those that are there, so many work at a time. Most of a large fleet comes in vain, and is told when to come again.
WORKING = 0.2
CHECK_IN_S = 6 * 3600.0

#: Updates in a version; in a small fleet this share of its devices. That makes some two hundred versions: of forty, one
#: version more would be over the 2 % that the two forms may differ.
UPDATES_A_VERSION = 500
UPDATES_OF_SMALL = 1 / 250

#: What the link of a hub carries, where there are hubs, and how many devices work at a time for each of them. They are
#: full devices while they work, and so cost far more than rows.
HUB_MBPS = 1000.0
HUBS = 16
WORKERS_A_HUB = 20

#: A fleet this large is not asked every second how it is.
PATIENCE = Patience(heartbeat_s=30.0, suspect_after_s=90.0, lost_after_s=180.0, reconnect_s=15.0)

#: Of the first devices that come: some break off, some lose power, some lose their connection, some are slow.
FAULTS = """
leave(w{a}..w{b}, at=12, back_s=30)
crash(w{c}..w{d}, at=14, restart_s=20)
cut(w{e}..w{f}, at=16)
slow(w{g}..w{h}, 4x, at=0)
"""

#: What is compared, and what of it is so rare that it is compared as a share of the leases.
COUNTS = ("hellos", "sent_away", "leases", "updates", "versions", "lost", "bytes_up", "bytes_down")
RARE = ("expired", "refused")


class Count:
    """What the manager and the leader heard and decided: the same in both forms."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def step(self, step: Step) -> None:
        count, event = self.of, step.event
        count["role_events"] += 1
        if step.role == "worker":
            return
        if type(event) is Received:
            count["updates"] += type(event.message) is Update
            count["hellos"] += type(event.message) is Hello
        for action in step.actions:
            if type(action) is Send:
                message = action.message
                count["leases"] += type(message) is Work
                count["refused"] += type(message) is UpdateRefused
                count["sent_away"] += type(message) is Welcome and message.come_s > 0
            elif type(action) is Record and action.kind in ("lease.expired", "worker.lost"):
                count[action.kind.partition(".")[2]] += 1

    def mark(self, mark: Mark) -> None:
        pass


def come_per_s(devices: int) -> float:
    return min(COME_PER_S, devices / COME_WITHIN_S)


def span_s(devices: int) -> float:
    return devices / come_per_s(devices)


def _there(per_s: float, number: int) -> Presence:
    """Each comes after those before it, and never again."""
    return _from_second(1 + int(number / per_s))


@lru_cache(maxsize=4096)
def _from_second(second: int) -> Presence:
    """Hundreds of devices come within one second."""
    return Presence(spans=((False, second), (True, STAY_S), (False, 365 * 86400)))


def hub() -> Build:
    """A small server beside the devices, on a wide link."""
    wide = Steady(mbit(HUB_MBPS))
    line = AccessLink(up=wide, down=wide, latency_s=0.002)
    return Build(
        kind="hub",
        seconds_per_gmac=0.0,
        seconds_per_batch=1.0,
        memory_mb=4096,
        line=line,
        is_hub=True,
        told_bytes_per_s=wide.bytes_per_s,
    )


def job(devices: int, *, hubs: int = 0) -> SimulatedJob:
    there = come_per_s(devices) * STAY_S
    workers = int(WORKING * there)
    if hubs:
        workers = min(workers, hubs * WORKERS_A_HUB)
    buffer = UPDATES_A_VERSION if devices > 10 * UPDATES_A_VERSION else int(UPDATES_OF_SMALL * devices)
    plan = Plan(
        topology="tree" if hubs else "star",
        aggregators=hubs,
        batch_size=BATCH_SIZE,
        pace="buffered",
        # A device returns one or two leases before it goes: where few work, a version must not wait for more updates.
        buffer=max(1, min(buffer, workers // 2)),
        workers_max=workers,
        until=Until(seconds=span_s(devices) + STAY_S),
    )
    # More than they can train.
    examples = 10 * devices * BATCH_SIZE
    return system_job(
        plan, LAYOUT, examples=examples, job="fleet", gmacs_per_example=GMACS_PER_EXAMPLE, fetch_bytes=FETCH_BYTES
    )


def faults(devices: int) -> str:
    """One device of a hundred, of those that are there when it strikes; never more than a hundred of each."""
    each = min(100, max(1, devices // 400))
    # They are there: the faults strike from the 12th second on.
    first = int(2 * come_per_s(devices))
    edges = [first + place * each + offset for place in range(4) for offset in (0, each - 1)]
    return FAULTS.format(**dict(zip("abcdefgh", edges, strict=True)))


def peak_rss_mb() -> float:
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def run(devices: int, *, seed: int, profile: str, is_cohort: bool, hubs: int = 0) -> dict[str, Any]:
    with collected_seldom():
        return _run(devices, seed=seed, profile=profile, is_cohort=is_cohort, hubs=hubs)


def _run(devices: int, *, seed: int, profile: str, is_cohort: bool, hubs: int) -> dict[str, Any]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    settings = Settings(
        seed=seed,
        builds=Fleet(profile, devices, Rng(seed), presence=partial(_there, come_per_s(devices)), beside=[hub()] * hubs),
        home_line=home_line("even"),
        jobs=[job(devices, hubs=hubs)],
        patience=PATIENCE,
        upload_budget_bytes=1 << 30,
        check_in_s=CHECK_IN_S,
        is_cohort=is_cohort,
        # A hub is a full device.
        watched=[f"w{devices + 1 + number}" for number in range(hubs)] if is_cohort else (),
    )
    count = Count()
    world = World(settings, observers=[count])
    inflicter = Inflicter(world, parse(faults(devices)))
    world.observers.append(inflicter)
    inflicter.begin()
    world.begin()
    form = "rows" if is_cohort else "full"
    say(f"{devices:,} devices ({form}) are there after {time.perf_counter() - began_s:.1f} s")
    limit_s, told_s, over = span_s(devices) + 10 * STAY_S, time.perf_counter(), False
    while not over and world.kernel.next_s <= limit_s:
        over = world.run(limit_s=limit_s, events_max=20_000)
        if time.perf_counter() - told_s > 10.0:
            told_s = time.perf_counter()
            of = f"{world.kernel.now_s:,.0f} of {span_s(devices) + STAY_S:,.0f} s simulated"
            say(f"{of}, {count.of['hellos']:,} hellos, {count.of['updates']:,} updates, {told_s - began_s:.0f} s")
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    record, cohort = world.disk.jobs["fleet"], world.cohort
    newest = world.disk.newest("fleet")
    up_bytes, down_bytes = world.home_bytes
    return {
        "devices": devices,
        "hubs": hubs,
        "profile": profile,
        "form": form,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_s, 1),
        "cpu_us_per_device": round(1e6 * cpu_s / devices),
        "peak_rss_mb": round(peak_rss_mb()),
        "simulated_s": round(world.kernel.now_s, 1),
        "events": world.kernel.handled,
        "role_events": count.of["role_events"],
        "made_full": cohort.made_full if cohort is not None else devices,
        "made_rows": cohort.made_rows if cohort is not None else 0,
        **{name: count.of[name] for name in ("hellos", "sent_away", "leases", "updates", "lost", *RARE)},
        "versions": newest.version if newest is not None else 0,
        "bytes_up": up_bytes,
        "bytes_down": down_bytes,
        "state": record.state.value,
        "reason": record.reason or "",
        "load_1m": os.getloadavg()[0],
    }


def differences(rows: dict[str, Any], full: dict[str, Any]) -> dict[str, float]:
    """Of each count: by what share the two forms differ; of rare ones, by what share of the leases."""
    shares = {name: abs(rows[name] - full[name]) / max(rows[name], full[name], 1) for name in COUNTS}
    return shares | {name: abs(rows[name] - full[name]) / max(full["leases"], 1) for name in RARE}


def compare(devices: int, *, seed: int, profile: str, hubs: int = 0) -> dict[str, Any]:
    full = run(devices, seed=seed, profile=profile, is_cohort=False, hubs=hubs)
    rows = run(devices, seed=seed, profile=profile, is_cohort=True, hubs=hubs)
    shares = differences(rows, full)
    for name in (*COUNTS, *RARE):
        say(f"{name:12} full {full[name]:12,}   rows {rows[name]:12,}   {100 * shares[name]:.2f} %")
    say(f"processor: full {full['cpu_seconds']} s, rows {rows['cpu_seconds']} s")
    return {
        "seed": seed,
        "worst_difference": round(max(shares.values()), 4),
        "worst_count": max(shares, key=lambda name: shares[name]),
        "full_cpu_seconds": full["cpu_seconds"],
        "rows_cpu_seconds": rows["cpu_seconds"],
    }


def compare_seeds(devices: int, *, first: int, count: int, profile: str, hubs: int = 0) -> dict[str, Any]:
    """Both forms under several seeds: the worst of them counts."""
    compared = [compare(devices, seed=seed, profile=profile, hubs=hubs) for seed in range(first, first + count)]
    worst = max(compared, key=lambda each: each["worst_difference"])
    for each in compared:
        say(f"seed {each['seed']}: at most {100 * each['worst_difference']:.2f} % apart, in {each['worst_count']}")
    say(f"worst of {count} seeds: {100 * worst['worst_difference']:.2f} %, in {worst['worst_count']}")
    return {
        "compared_devices": devices,
        "compared_seeds": count,
        "worst_difference": worst["worst_difference"],
        "worst_count": worst["worst_count"],
        "within_2_percent": worst["worst_difference"] <= DIFFERENCE_MAX,
        "compared": compared,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=0, help=f"how many; {DEVICES:,} unless --quick")
    parser.add_argument("--profile", default="wifi-phones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="full devices, however many")
    parser.add_argument("--against-full", type=int, default=-1, metavar="N", help="compare N devices; 0: none")
    parser.add_argument("--hubs", type=int, help=f"they sum up for devices that work; {HUBS} unless given; 0: a star")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"compare under so many seeds; {SEEDS} unless given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DEVICES:,} devices, {QUICK_COMPARED} compared")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    devices = given.devices or (QUICK_DEVICES if given.quick else DEVICES)
    is_cohort = not given.full and (given.quick or devices >= COHORT_FROM)
    hubs = HUBS if given.hubs is None else given.hubs
    result = run(devices, seed=given.seed, profile=given.profile, is_cohort=is_cohort, hubs=hubs)
    compared = given.against_full if given.against_full >= 0 else QUICK_COMPARED if given.quick else COMPARED
    if compared:
        result |= compare_seeds(
            compared, first=given.seed, count=given.seeds, profile=given.profile, hubs=given.hubs or 0
        )
    finish(result)


if __name__ == "__main__":
    main()
