"""The second connection of a device: there with work, and not without. Real processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
from kit import Site, cluster_in, run

#: Of patience: the machine may be busy.
LIMIT_S = 90.0


def connections(pid: int, port: int) -> int:
    """How many this process holds to its manager."""
    held = psutil.Process(pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr[1] == port for each in held)


async def until(site: Site, wanted: int) -> None:
    pid, port = site.cluster.agents["device-1"].pid, int(site.cluster.endpoint.rpartition(":")[2])
    began_s = time.monotonic()
    while connections(pid, port) != wanted:
        assert time.monotonic() - began_s < LIMIT_S, f"{connections(pid, port)} connections, not {wanted}"
        await asyncio.sleep(0.05)


@pytest.mark.timeout(400)
def test_a_device_opens_its_work_lane_with_its_first_lease_and_closes_it_when_it_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await until(site, 1)
            site.pace(0.2)
            job = await site.submit_tally(batches=12)
            await until(site, 2)
            site.pace(0.0)
            await site.ended(job)
            await until(site, 1)
            # What it closed it opens again.
            await site.ended(await site.submit_tally(batches=4))

    run(story())
