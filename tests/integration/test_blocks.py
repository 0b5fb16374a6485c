"""Blocks with real processes: hubs sublet to four agents, and a hub and an agent are killed while blocks are out."""

from __future__ import annotations

from pathlib import Path

from kit import Site, cluster_in, run

from shoal.wire.messages import Progress

WORKERS = 4
SLOW_S = 0.1
BATCHES = 240
EPOCHS = 3
HUBS = ("hub-1", "hub-2")


async def _in_blocks(site: Site, job: str, *, workers: int, hubs: tuple[str, ...] = HUBS) -> str:
    """Wait until versions are made of the blocks of one of these hubs. Returns which."""

    def holds(progress: Progress) -> bool:
        is_lent = progress.topology == f"tree 1-1-{workers} with 1 hub in blocks"
        return is_lent and len(progress.workers) == workers and progress.topology_reason.endswith(hubs)

    begun = await site.progress(job, "a tree in blocks", holds)
    told = await site.progress(job, "versions of it", lambda p: holds(p) and p.version >= begun.version + 5)
    return next(name for name in hubs if told.topology_reason.endswith(name))


def test_a_killed_hub_and_a_killed_worker_lose_no_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=WORKERS) as site:
            for name in HUBS:
                await site.start_hub(name)
            site.pace(SLOW_S)
            job = await site.submit_tally(
                batches=BATCHES,
                epochs=EPOCHS,
                workers_min=WORKERS - 1,
                workers_max=WORKERS,
                topology="tree",
                aggregators=1,
                work="blocks",
            )
            first = await _in_blocks(site, job, workers=WORKERS)
            last = max(event.seq for event in site.events(job))
            await site.kill(site.cluster.agents.pop(first))
            # A block was out, as nearly always: all of it is lent again.
            await site.event(job, "lease-returned", f"was taken back: {first}", after=last)
            others = tuple(name for name in HUBS if name != first)
            await _in_blocks(site, job, workers=WORKERS, hubs=others)
            await site.kill(site.cluster.agents.pop("device-2"))
            await site.event(job, "lost", "device-2", after=last)
            await _in_blocks(site, job, workers=WORKERS - 1, hubs=others)
            site.pace(0.0)
            await site.ended(job)
            # The registry has each batch of each epoch once, and the model is what that makes: no update is in a sum
            # that does not name it.
            rows = await site.tallied_once(job, batches=BATCHES, epochs=EPOCHS)
            assert {row.node for row in rows} == {f"device-{n}" for n in range(1, WORKERS + 1)}

    run(story())
