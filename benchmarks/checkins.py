"""What a million devices cost that check in four times a day and do not stay: cores and bytes, beside the arithmetic.

**Measured**, with real processes on this machine: the processor time and the bytes that one check-in costs a manager.
A real manager (``shoal up --check-in``) is called by devices that are real lines without a trainer (mutual TLS, hello,
welcome, goodbye), each again and again, a few at a time.

**Simulated**: when a million devices come. The deployed ``CheckIns`` appoints each of them over some days; on the first
day all of them come within an hour, as after an outage. Counted are the check-ins of each second. What a peak costs is
its check-ins times what one costs: no million connections are made here.

    python -m benchmarks.checkins --json
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.sessions import AT_A_TIME, Device
from shoal.identity.enrolment import enrol
from shoal.identity.identity import Identity
from shoal.identity.join_code import JoinCode
from shoal.runtime.dialer import Dialer
from shoal.runtime.local import LocalCluster
from shoal.scheduling.check_in import CheckIns
from shoal.wire.limits import COME_MOST_S
from testbed.processes import cpu_s
from testbed.results import finish, say

DEVICES = 1_000_000
A_DAY = 4
DAY_S = 86_400.0
DAYS = 2

#: On the first day all of them come within this time.
CROWD_S = 3600.0

#: Places of a second: so many times what a fleet needs that comes evenly.
ROOM = 1.25

CALLERS = 40
CHECK_INS = 400
QUICK_CHECK_INS = 120


class Caller(Device):
    """A device that checks in once, as an agent does, and does not wait for the next time."""

    async def line_ended(self, dialer: Dialer, reason: str) -> bool:
        self.ended += self.welcomed.is_set()
        self.welcomed.clear()
        return False

    async def check_in(self) -> bool:
        before = self.ended
        await asyncio.wait_for(self.line.hold(), 60.0)
        return self.ended > before


def sent_bytes() -> int:
    """What crossed loopback so far, each byte once."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "lo":
            return int(figures.split()[0])
    raise ValueError("this machine has no loopback")


async def enrol_all(join_line: str, homes: Path, devices: int) -> None:
    code, turns = JoinCode.parse(join_line), asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with turns:
            (await enrol(code, wanted=f"light-{number:06}")).identity.save(homes / f"{number:06}")

    await asyncio.gather(*(one(number) for number in range(devices)))


async def one_check_in(count: int) -> tuple[float, float]:
    """Seconds of the manager's processor and bytes, both ways, of a check-in."""
    options = ("--check-in-s", "3600", "--devices", str(CALLERS + 1))
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(workers=0, manager_options=options) as cluster:
            assert cluster.manager is not None
            homes, pid = Path(folder), cluster.manager.pid
            await enrol_all(cluster.join_line, homes, CALLERS)
            callers = [Caller(Identity.load(homes / f"{number:06}"), cluster.endpoint) for number in range(CALLERS)]
            turns = asyncio.Semaphore(AT_A_TIME)

            async def one(caller: Caller) -> bool:
                async with turns:
                    return await caller.check_in()

            async def all_of_them() -> int:
                """Bytes that crossed loopback while each came once."""
                before_bytes = sent_bytes()
                assert all(await asyncio.gather(*(one(caller) for caller in callers))), "some were not sent away"
                return sent_bytes() - before_bytes

            # The first time its certificate is written down as used.
            await all_of_them()
            before_s, began_s, rounds = cpu_s(pid), time.monotonic(), math.ceil(count / CALLERS)
            each_bytes = [await all_of_them() for _ in range(rounds)]
            used_s = cpu_s(pid) - before_s
            say(f"{rounds * CALLERS} check-ins in {time.monotonic() - began_s:.0f} s")
    # Others use loopback too: the least of the rounds has the least of theirs.
    return used_s / (rounds * CALLERS), min(each_bytes) / CALLERS


def simulate(devices: int) -> tuple[float, int, int]:
    """Check-ins a day once the crowd is spread, the most in a second of the first day, and of the last."""
    every_s, chance = DAY_S / A_DAY, np.random.default_rng(0)
    check_ins = CheckIns(every_s=every_s, most_s=COME_MOST_S, per_s=math.ceil(ROOM * devices / every_s))
    coming_s = np.sort(chance.uniform(0.0, CROWD_S, devices))
    seconds = np.zeros(int((DAYS + 2) * DAY_S), np.int64)
    while coming_s[0] < DAYS * DAY_S:
        np.add.at(seconds, coming_s.astype(np.int64), 1)
        draws = chance.random(devices)
        next_s = (now + check_ins.appoint(now_s=now, draw=draw) for now, draw in zip(coming_s, draws, strict=True))
        coming_s = np.sort(np.fromiter(next_s, np.float64, devices))
    day = seconds[: int(DAYS * DAY_S)].reshape(DAYS, -1)
    return float(day[-1].sum()), int(day[0].max()), int(day[-1].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=DEVICES)
    parser.add_argument("--quick", action="store_true", help="fewer real check-ins and 100,000 devices")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    devices = min(given.devices, 100_000) if given.quick else given.devices
    core_s, each_bytes = asyncio.run(one_check_in(QUICK_CHECK_INS if given.quick else CHECK_INS))
    say(f"measured: {1e3 * core_s:.1f} ms of the manager's processor and {each_bytes / 1e3:.1f} kB a check-in")
    a_day, crowd_peak, peak = simulate(devices)
    finish(
        {
            "devices": devices,
            "checkin_cpu_ms": 1e3 * core_s,
            "checkin_kb": each_bytes / 1e3,
            "checkins_a_day": a_day,
            "peak_per_s": peak,
            "crowd_peak_per_s": crowd_peak,
            "cores": a_day * core_s / DAY_S,
            "peak_cores": peak * core_s,
            "gb_a_day": a_day * each_bytes / 1e9,
            "cores_by_arithmetic": devices * A_DAY * core_s / DAY_S,
            "peak_over_even": peak / (devices * A_DAY / DAY_S),
            "load_1m": os.getloadavg()[0],
        }
    )


if __name__ == "__main__":
    main()
