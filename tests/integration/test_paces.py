"""Real clusters that do not wait: a slow device among quick ones, and what is learned all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import HERE, Site, cluster_in, run

CLOUDS = HERE / "clouds_task.py"

BATCHES = 60
#: Seconds a batch: one device is four times slower than the others.
PACES_S = {"device-1": 0.05, "device-2": 0.05, "device-3": 0.2}


async def _epoch_s(site: Site, **plan: object) -> tuple[str, float]:
    """A job of one epoch on everyone, and how long its epoch took once everyone had come."""
    job = await site.submit_tally(batches=BATCHES, workers_min=3, **plan)
    await site.ended(job)
    over = await site.event(job, "epoch.done", "epoch 1")
    joined_s = max(event.at_s for event in site.events(job) if event.kind == "device.joined")
    return job, over.at_s - joined_s


def test_a_slow_device_holds_up_nobody_and_every_batch_is_taken_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site:
            for name, pace_s in PACES_S.items():
                await site.cluster.start_agent(name, "--pace-s", str(pace_s))
                await site.connected(name)
            waiting, sync_s = await _epoch_s(site)
            await site.tallied_once(waiting, batches=BATCHES)
            # Undamped, so that what the model must be follows from the history alone.
            hurrying, async_s = await _epoch_s(site, pace="async", staleness="none")
            rows = await site.tallied_once(hurrying, batches=BATCHES)
            assert sorted(row.version for row in rows) == list(range(1, BATCHES + 1)), "each update is a version"
            assert {row.node for row in rows} == set(PACES_S)
            # Three a round of 0.2 s against 20 + 20 + 5 a second: three times as fast, on a machine that has the time.
            assert sync_s / async_s > 1.3, (sync_s, async_s)
            filling, _ = await _epoch_s(site, pace="buffered", buffer=4, staleness="none")
            rows = await site.tallied_once(filling, batches=BATCHES)
            assert max(row.version for row in rows) == BATCHES // 4

    run(story())


@pytest.mark.nightly
def test_asynchronous_training_learns_what_synchronous_training_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3, options=()) as site:
            right: dict[str, float] = {}
            for pace in ("sync", "async"):
                plan = {"batch_size": 16, "learning_rate": 0.1, "seed": 3, "workers_min": 3, "until": {"epochs": 3}}
                job = await site.submit_task(CLOUDS, kwargs={"count": 1000}, **plan, pace=pace)
                await site.ended(job)
                site.exactly_once(job, batches=63, epochs=3)
                right[pace] = site.evaluations(job)[-1].accuracy
            assert right["sync"] > 0.95
            assert abs(right["sync"] - right["async"]) <= 0.01, right

    run(story())
