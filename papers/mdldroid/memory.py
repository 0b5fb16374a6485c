"""Figures 1b and 11a: the most memory that a process needs against the number of devices, with the paper's 46 MB.

Real processes, real sockets. Chain: a merge holds a piece of the other's model at a time; or all of it, as the paper's
O(2). Master: it keeps every update until all are there, as the paper's; or adds each to one sum as it comes, which any
master may. And Shoal's own leader, the deployed process with agents that echo.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from papers.harness.rows import Row
from papers.mdldroid.crew import Crew, Seat
from papers.mdldroid.setting import LARGE_PARAMETERS
from shoal.errors import Misuse
from shoal.runtime.operator import Operator
from testbed.cluster import Cluster
from testbed.devices import boards
from testbed.echo_job import echo_job
from testbed.namespaces import why_no_namespaces
from testbed.processes import memory_mb
from testbed.results import say

SIZES = tuple(range(1, 10))
LEADER_SIZES = (1, 3, 6, 9)
ROUNDS = 3
WAYS = ("chain", "chain, whole", "master, holds", "master, sums")
QUICK_VALUES = 1_000_000
_LONGEST_S = 240.0


def run(quick: bool) -> list[Row]:
    return asyncio.run(_run(quick))


async def _run(quick: bool) -> list[Row]:
    values = QUICK_VALUES if quick else LARGE_PARAMETERS
    rows: list[Row] = []
    ways = ("chain", "master, holds") if quick else WAYS
    for size in (2, 5) if quick else SIZES:
        for how in ways:
            rows.append(await _of_members(size, how, values=values, rounds=1 if quick else ROUNDS))
        say(f"   {size}: " + ", ".join(f"{row['how']} {row['peak_mb']:.0f} MB" for row in rows[-len(ways) :]))
    if quick:
        return rows
    if why_not := why_no_namespaces():
        say(f"   Shoal's leader: not run: {why_not}")
        return rows
    for size in LEADER_SIZES:
        rows.append(await _of_leader(size, values=values))
        say(f"   {size}: Shoal's leader {rows[-1]['peak_mb']:.0f} MB")
    return rows


async def _of_members(size: int, how: str, *, values: int, rounds: int) -> Row:
    async with Crew(values=values, seats=[Seat()] * size) as crew:
        for _ in range(rounds):
            if how.startswith("chain"):
                await crew.chain_round(train_s=[0.0] * size, whole=how.endswith("whole"))
            else:
                await crew.master_round(train_s=[0.0] * size, hold=how.endswith("holds"))
            await crew.check()
        peaks = await crew.peaks_mb()
    return {
        "how": how,
        "devices": size,
        "model_mb": values * 4 / 2**20,
        #: Of the chain all are alike; of a star the master counts.
        "peak_mb": max(peaks) if how.startswith("chain") else peaks[0],
        "least_mb": min(peaks),
    }


async def _of_leader(size: int, *, values: int) -> Row:
    """The manager's process, which leads, after some rounds."""
    with tempfile.TemporaryDirectory(prefix="shoal-mdldroid-") as folder:
        home, job_folder = Path(folder) / "home", Path(folder) / "job"
        job_folder.mkdir()
        cluster = Cluster(home, boards(size), child_module="shoal.trainer.echo")
        async with cluster, Operator.open(home) as operator:
            await cluster.connected()
            assert cluster.manager is not None
            before_mb = memory_mb(cluster.manager.pid, "VmHWM")
            ready = echo_job(job_folder, values=values, batches=size * ROUNDS)
            plan = {"pace": "sync", "workers_min": size, "workers_max": size, "until": {"epochs": 1}, "momentum": 0.0}
            job = await operator.submit(ready, plan=plan)
            await _over(operator, job)
            peak_mb = memory_mb(cluster.manager.pid, "VmHWM")
    return {
        "how": "Shoal's leader",
        "devices": size,
        "model_mb": values * 4 / 2**20,
        "peak_mb": peak_mb,
        "least_mb": before_mb,
    }


async def _over(operator: Operator, job: str) -> None:
    for _ in range(int(_LONGEST_S / 0.1)):
        view = (await operator.status(job)).jobs[0]
        if view.state == "finished":
            return
        if view.state in ("stopped", "failed"):
            raise Misuse(f"{job} is {view.state}: {view.reason}")
        await asyncio.sleep(0.1)
    raise Misuse(f"{job} did not finish within {_LONGEST_S:g} s")
