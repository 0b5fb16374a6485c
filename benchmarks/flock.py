"""What a flock takes of its devices, however many they are: real mates on this machine, that do all but train.

Each is a process with its own address, found by multicast, over mutual TLS; models of 720,967 float32 values (2.88 MB).
Memory is a mate's own peak (VmHWM), without its trainer, which takes the same in every flock.

    python -m benchmarks.flock [--quick] --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import PERNET
from testbed.flocks import LOG_AS_READ, between_versions, command, give_orders
from testbed.processes import memory_mb
from testbed.results import finish, say

SIZES = (2, 4, 8)
QUICK_SIZES = (2, 4)
ROUNDS = 20
QUICK_ROUNDS = 8
LIMIT_S = 240.0
LOOK_EVERY_S = 0.2


async def fly(*, devices: int, rounds: int, values: int) -> dict[str, Any]:
    """One flock from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="shoal-flock-") as name:
        hosts = {f"mate-{number}": f"127.0.0.{number}" for number in range(1, devices + 1)}
        homes = list(give_orders(Path(name), hosts, rounds=rounds, values=values).values())
        mates = [
            await asyncio.create_subprocess_exec(
                *command(home),
                "--leash",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=(home / "log").open("wb"),
                env={**os.environ, **LOG_AS_READ},
            )
            for home in homes
        ]
        peaks = dict.fromkeys(range(devices), 0.0)
        watching = asyncio.create_task(_watch([mate.pid for mate in mates], peaks))
        try:
            async with asyncio.timeout(LIMIT_S):
                told = [json.loads((await mate.communicate())[0]) for mate in mates]
        finally:
            watching.cancel()
            for mate in mates:
                if mate.returncode is None:
                    mate.send_signal(signal.SIGKILL)
                    await mate.wait()
        log = "".join((home / "log").read_text() for home in homes)
    if len({each["digest"] for each in told}) != 1 or not all(each["is_over"] for each in told):
        raise SystemExit(f"the flock of {devices} did not end alike: {told}")
    return {"devices": devices, "peak_mb": max(peaks.values()), "round_s": _round_s(log, rounds), "rounds": rounds}


def _round_s(log: str, rounds: int) -> float:
    """From the second version on: the first waits for all to be there."""
    return sum(between_versions(log.splitlines(), rounds=rounds)) / max(1, rounds - 1)


async def _watch(pids: list[int], peaks: dict[int, float]) -> None:
    while True:
        for number, pid in enumerate(pids):
            with contextlib.suppress(OSError, ValueError):
                peaks[number] = max(peaks[number], memory_mb(pid, "VmHWM"))
        await asyncio.sleep(LOOK_EVERY_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help=f"flocks of {QUICK_SIZES}")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args()
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if given.quick else (SIZES, ROUNDS)
    flocks = []
    for devices in sizes:
        flocks.append(asyncio.run(fly(devices=devices, rounds=rounds, values=PERNET)))
        say(f"{devices} devices: a mate's peak {flocks[-1]['peak_mb']:.1f} MB, a round {flocks[-1]['round_s']:.2f} s")
    finish(
        {
            "flocks": flocks,
            "model_mb": PERNET * 4 / 1e6,
            "peak_ratio": flocks[-1]["peak_mb"] / flocks[0]["peak_mb"],
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
