"""What 200 workers that finish at once do to their leader: its peak memory, and whether heartbeats stay on time.

One real manager process leads a job for 200 connected workers of 720,967 float32 values (2.88 MB). In each round every
worker is sent the model and waits until all hold a lease; then all push at once: 576 MB down and 576 MB up. The workers
are light clients in a few processes that speak the real protocol with certificates of their own. The control lanes,
whose heartbeats are sent every second on time, live in processes apart from the bulk. Memory is the manager's own peak
(VmHWM) from its start on; a heartbeat is late if its answer took longer than the time between two.

    python -m benchmarks.fan_in --json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.common import PERNET
from shoal.identity.enrolment import enrol
from shoal.identity.join_code import JoinCode
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.wire.messages import Lane
from testbed.echo_job import echo_job
from testbed.processes import memory_mb
from testbed.results import finish, say

HEARTBEAT_MS = 1000.0

#: Every wait ends: longer than the slowest round on a small machine.
WAIT_S = 60.0

PROCESSES = {Lane.CONTROL: 1, Lane.WORK: 4}


class Clients:
    """A process of light workers, led over its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, lane: Lane, homes: Path, *, first: int, count: int, port: int, values: int) -> Self:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "testbed.light_workers", "--lane", lane, "--homes", str(homes)),
                *("--first", str(first), "--count", str(count), "--port", str(port), "--params", str(values)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=64 << 20,
            )
        )

    def order(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n".encode())

    async def heard(self, what: str) -> Any:
        """The next line, which must be about this."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), WAIT_S)
        said = json.loads(line) if line else {}
        assert what in said, f"a client process said {str(said)[:200]} instead of {what}"
        return said[what]

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Fleet:
    """All client processes: the bulk in some, the heartbeats in others."""

    def __init__(self, groups: dict[Lane, list[Clients]]) -> None:
        self._groups = groups

    @classmethod
    async def start(cls, homes: Path, *, workers: int, port: int, values: int) -> Self:
        groups: dict[Lane, list[Clients]] = {}
        for lane, number in PROCESSES.items():
            edges = [workers * i // number for i in range(number + 1)]
            groups[lane] = [
                await Clients.start(lane, homes, first=a, count=b - a, port=port, values=values)
                for a, b in itertools.pairwise(edges)
            ]
        return cls(groups)

    def order(self, lane: Lane, words: str) -> None:
        for clients in self._groups[lane]:
            clients.order(words)

    async def heard(self, lane: Lane, what: str) -> list[Any]:
        return await asyncio.gather(*(clients.heard(what) for clients in self._groups[lane]))

    async def stop(self) -> None:
        await asyncio.gather(*(clients.stop() for group in self._groups.values() for clients in group))


async def enrol_all(cluster: LocalCluster, homes: Path, workers: int) -> None:
    """Each joins as a device does, a few at a time: that is not what is measured."""
    code, turns = JoinCode.parse(cluster.join_line), asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with turns:
            enrolled = await enrol(code, wanted=f"light-{number:04}")
        enrolled.identity.save(homes / f"{number:04}")

    await asyncio.gather(*(one(number) for number in range(workers)))


async def measure(*, workers: int, values: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        ready = echo_job(Path(folder), values=values, batches=workers * (rounds + 2))
        async with LocalCluster(workers=0) as cluster, Operator.open(cluster.home) as operator:
            assert cluster.manager is not None
            homes = Path(folder) / "homes"
            await enrol_all(cluster, homes, workers)
            idle_mb = memory_mb(cluster.manager.pid)
            port = int(cluster.endpoint.rpartition(":")[2])
            fleet = await Fleet.start(homes, workers=workers, port=port, values=values)
            try:
                await asyncio.gather(fleet.heard(Lane.CONTROL, "welcomed"), fleet.heard(Lane.WORK, "connected"))
                connected_mb = memory_mb(cluster.manager.pid)
                say(f"{workers} workers are connected; the manager holds {connected_mb:.0f} MB")
                job = await operator.submit(ready, plan={"workers_min": workers, "until": {"epochs": 1}})
                await fleet.heard(Lane.CONTROL, "assigned")
                fleet.order(Lane.WORK, f"begin {job}")
                took_s = await push_rounds(fleet, rounds, cluster.manager.pid)
                fleet.order(Lane.CONTROL, "tell")
                took_ms = sorted(itertools.chain(*await fleet.heard(Lane.CONTROL, "took_ms")))
                await check_merged(operator, job, rounds=rounds, round_bytes=workers * values * 4)
                peak_mb = memory_mb(cluster.manager.pid, "VmHWM")
            finally:
                await fleet.stop()
    return {
        "leader_peak_rss_mb": peak_mb,
        "heartbeats_late": sum(ms > HEARTBEAT_MS for ms in took_ms),
        "heartbeats": len(took_ms),
        "heartbeat_p50_ms": took_ms[len(took_ms) // 2],
        "heartbeat_p99_ms": took_ms[int(len(took_ms) * 0.99)],
        "heartbeat_max_ms": took_ms[-1],
        "updates_per_s": workers * rounds / took_s,
        "leader_idle_rss_mb": idle_mb,
        "leader_connected_rss_mb": connected_mb,
        "workers": workers,
        "params": values,
        "rounds": rounds,
        "load_1m": os.getloadavg()[0],
    }


async def push_rounds(fleet: Fleet, rounds: int, leader: int) -> float:
    """Seconds from the first push until all hold the last round's model: whole rounds, up and down."""
    await fleet.heard(Lane.WORK, "held")
    began_s = time.monotonic()
    for number in range(rounds):
        since_s = time.monotonic()
        fleet.order(Lane.WORK, "push")
        versions = await fleet.heard(Lane.WORK, "held")
        assert versions == [number + 1] * len(versions), f"leases of versions {versions} after round {number + 1}"
        peak_mb = memory_mb(leader, "VmHWM")
        say(f"round {number + 1}: {time.monotonic() - since_s:.1f} s, the leader's peak is {peak_mb:.0f} MB")
    return time.monotonic() - began_s


async def check_merged(operator: Operator, job: str, *, rounds: int, round_bytes: int) -> None:
    """Each round made a version of every update, and nothing was refused. Leaders report twice a second."""
    async with asyncio.timeout(WAIT_S):
        while True:
            progress = (await operator.status(job)).jobs[0].progress
            assert progress is not None
            if progress.version >= rounds:
                break
            await asyncio.sleep(0.1)
    assert progress.version == rounds, f"{progress.version} versions after {rounds} rounds"
    assert progress.refused == 0, f"{progress.refused} updates were refused"
    assert progress.bytes_up >= rounds * round_bytes, "not every update arrived whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--params", type=int, default=PERNET)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    finish(asyncio.run(measure(workers=given.workers, values=given.params, rounds=8 if given.quick else 20)))


if __name__ == "__main__":
    main()
