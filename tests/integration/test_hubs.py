"""Hubs with real processes: they sum up for four agents, have no trainer and no task, and one is killed in a round."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Site, cluster_in, run

from shoal.wire.messages import Progress

WORKERS = 4
SLOW_S = 0.1
BATCHES = 240
EPOCHS = 3
HUBS = ("hub-1", "hub-2")


async def _over(site: Site, job: str, hubs: int) -> Progress:
    """Wait until versions are made by everyone in a tree over so many hubs."""

    def holds(progress: Progress) -> bool:
        return f"with {hubs} hub" in progress.topology and len(progress.workers) == WORKERS

    begun = await site.progress(job, f"a tree with {hubs} hubs", holds)
    return await site.progress(job, "versions of it", lambda p: holds(p) and p.version >= begun.version + 5)


@pytest.mark.gate("hub")
def test_a_killed_hub_loses_no_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=WORKERS) as site:
            for name in HUBS:
                await site.start_hub(name)
            site.pace(SLOW_S)
            # As many as there are devices that train: a hub that counted would leave no place for the last.
            job = await site.submit_tally(
                batches=BATCHES,
                epochs=EPOCHS,
                workers_min=WORKERS,
                workers_max=WORKERS,
                topology="tree",
                aggregators=2,
            )
            await _over(site, job, 2)
            view = await site.view(job)
            assert view is not None
            assert view.progress is not None
            assert {worker.node for worker in view.progress.workers} == {f"device-{n}" for n in range(1, WORKERS + 1)}
            for name in HUBS:
                assert not site.trainers(name), "a hub has no trainer"
            last = max(event.seq for event in site.events(job))
            await site.kill(site.cluster.agents.pop("hub-1"))
            await site.event(job, "topology.changed", "hub-1, an aggregator, is ", after=last)
            await _over(site, job, 1)
            await site.cluster.start_agent("hub-1", "--hub", "--hub-mbps", "1000")
            await _over(site, job, 2)
            site.pace(0.0)
            await site.ended(job)
            rows = await site.tallied_once(job, batches=BATCHES, epochs=EPOCHS)
            assert {row.node for row in rows} == {f"device-{n}" for n in range(1, WORKERS + 1)}
            log = (site.cluster.home / "hub-2.log").read_text()
            assert "trainer" not in log
            assert "ready:" not in log, "it prepared nothing"

    run(story())
