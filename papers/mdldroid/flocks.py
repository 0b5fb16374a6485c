"""Figures 11 (b) and (c) by ``shoal flock``: rounds of deployed peers over limited links, beside a master.

Each peer is `shoal.flock.driver` in a network of its own, as `shoal flock train` starts it; its trainer waits as long
as a phone would take for its share. An epoch of one device is a minute and a link carries 2 Mb/s, so that what this
machine computes hardly counts. The master is `crew.py`'s, which is bare: a flock has none. What a device moved is read
from its network interface: radios cost by the byte, and no battery is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from papers.harness import parts
from papers.harness.rows import Row
from papers.mdldroid.crew import Crew, Seat
from papers.mdldroid.setting import PARAMETERS
from shoal.errors import Misuse
from testbed.devices import Device, Testbed, boards
from testbed.flocks import LOG_AS_READ, between_versions, command, give_orders
from testbed.namespaces import why_no_namespaces
from testbed.results import say

SIZES = (2, 3, 4, 6, 8, 9)
EPOCH_S = 60.0
RATE_MBIT = 2.0
#: Rounds that are timed, behind the first: that one waits for everybody to be there.
ROUNDS = 3
#: A tenth of it all, for a quick run.
QUICK_SPEEDUP = 10.0
_LIMIT_S = 900.0


def run(quick: bool) -> list[Row]:
    if why_not := why_no_namespaces():
        say(f"   testbed: not run: {why_not}")
        return []
    if quick:
        return [asyncio.run(one_size(3, rounds=1, faster=QUICK_SPEEDUP))]
    done = parts.of("mdldroid", "flocks", about=len(SIZES))
    return [
        done.part({"devices": size}, lambda size=size: asyncio.run(one_size(size, rounds=ROUNDS)))  # type: ignore[misc]
        for size in SIZES
    ]


async def one_size(size: int, *, rounds: int, faster: float = 1.0) -> Row:
    rate, train_s = RATE_MBIT * faster, EPOCH_S / faster / size
    with Testbed(boards(size, up_mbps=rate, down_mbps=rate)) as bed:
        devices = list(bed)
        async with Crew(
            values=PARAMETERS, seats=[Seat(before=device.exec(), host=device.address) for device in devices]
        ) as crew:
            before = [moved_bytes(device) for device in devices]
            master_s = await crew.master_round(train_s=[train_s] * size)
            master = moved_since(before, devices)
        before = [moved_bytes(device) for device in devices]
        took_s = await flock_rounds(devices, rounds=rounds, train_s=train_s)
        flock = [moved / (rounds + 1) for moved in moved_since(before, devices)]
    row: Row = {
        "devices": size,
        "one_s": EPOCH_S / faster,
        "flock_s": sum(took_s) / len(took_s),
        "rounds_s": took_s,
        "master_s": master_s,
        # The master is the first. Of a flock, all that it moved from its start to its end counts.
        "master_mb": master[0] / 1e6,
        "flock_mb": sum(flock) / len(flock) / 1e6,
        "flock_most_mb": max(flock) / 1e6,
    }
    say(f"   {size}: one {row['one_s']:.1f} s, flock {row['flock_s']:.1f} s, master {master_s:.1f} s")
    return row


def moved_bytes(device: Device) -> int:
    """Return what a device has sent and received, over all of its interfaces but the one to itself."""
    told = subprocess.run(device.exec("cat", "/proc/net/dev"), capture_output=True, text=True, timeout=30, check=True)
    total = 0
    for line in told.stdout.splitlines()[2:]:
        name, _, figures = line.partition(":")
        columns = figures.split()
        total += int(columns[0]) + int(columns[8]) if name.strip() != "lo" else 0
    return total


def moved_since(before: Sequence[int], devices: Sequence[Device]) -> list[int]:
    return [moved_bytes(device) - already for already, device in zip(before, devices, strict=True)]


async def flock_rounds(devices: Sequence[Device], *, rounds: int, train_s: float) -> list[float]:
    """Return the seconds of each timed round, from one version to the next. Raises if the peers do not end alike."""
    with tempfile.TemporaryDirectory(prefix="shoal-flock-") as folder:
        hosts = {device.name: device.address for device in devices}
        homes = give_orders(Path(folder), hosts, rounds=rounds + 1, values=PARAMETERS)
        peers = [
            await asyncio.create_subprocess_exec(
                *device.exec(*command(homes[device.name]), "--pace-s", str(train_s), "--leash"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=(homes[device.name] / "log").open("wb"),
                env={**os.environ, **LOG_AS_READ},
            )
            for device in devices
        ]
        try:
            async with asyncio.timeout(_LIMIT_S):
                ended = [json.loads((await peer.communicate())[0]) for peer in peers]
        finally:
            for peer in peers:
                if peer.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        peer.send_signal(signal.SIGKILL)
                    await peer.wait()
        lines = [line for home in homes.values() for line in (home / "log").read_text().splitlines()]
    if len({each["digest"] for each in ended}) != 1 or not all(each["is_over"] for each in ended):
        raise Misuse(f"the flock of {len(devices)} did not end alike: {ended}")
    return between_versions(lines, rounds=rounds + 1)
