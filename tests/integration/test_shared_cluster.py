"""The cluster that tests share: what one test leaves or breaks does not reach the next."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Site
from shared_cluster import SharedCluster, shared_cluster

cluster = shared_cluster(workers=1)


def test_jobs_and_devices_that_a_test_leaves_are_ended(cluster: SharedCluster) -> None:
    left: list[str] = []

    async def leaves(site: Site) -> None:
        site.pace(0.2)
        left.append(await site.submit_tally(batches=400, workers_min=2))
        await site.cluster.start_agent("guest")
        await site.works(left[0], "guest")

    async def comes_next(site: Site) -> None:
        (job,) = (await site.operator.status(left[0])).jobs
        assert job.state == "stopped"
        assert list(site.cluster.agents) == ["device-1"]
        own = await site.submit_tally(batches=10)
        await site.ended(own)
        await site.tallied_once(own, batches=10)

    cluster.run(leaves)
    cluster.run(comes_next)


def test_a_test_that_fails_or_kills_has_the_next_one_start_a_new_cluster(cluster: SharedCluster) -> None:
    homes: list[Path] = []

    async def works(site: Site) -> None:
        homes.append(site.cluster.home)
        await site.connected("device-1")

    async def fails(site: Site) -> None:
        await works(site)
        raise ValueError("as a test does")

    async def kills(site: Site) -> None:
        await works(site)
        await site.kill(site.cluster.agents["device-1"])

    async def writes(site: Site) -> None:
        await works(site)
        with (site.cluster.home / "device-1.log").open("a") as log:
            log.write("Traceback (most recent call last):\n")

    with pytest.raises(ValueError, match="as a test does"):
        cluster.run(fails)
    with pytest.raises(AssertionError, match="ended device-1: it needs a cluster of its own"):
        cluster.run(kills)
    with pytest.raises(AssertionError, match=r"(?s)device-1\.log: .*Traceback"):
        cluster.run(writes)
    cluster.run(works)
    cluster.run(works)
    assert len(set(homes)) == 4
    assert homes[-1] == homes[-2]
