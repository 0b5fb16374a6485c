"""Real devices that send little: in every shape and pace what arrives is what was sent, and what is learned is good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import HERE, TALLY, Site, cluster_in, run

CLOUDS = HERE / "clouds_task.py"

BATCHES = 60

#: An update of the tally trainer is a few ones among zeros: of these codecs nothing is lost, and the model can be held
#: against the history, value by value.
EXACT = {"codec": "top10%+ef+4bit", "codec_down": "top20%", "momentum": 0.0}


async def _tallied(site: Site, **plan: Any) -> None:
    job = await site.submit_tally(batches=BATCHES, epochs=2, workers_min=3, **(EXACT | plan))
    await site.ended(job)
    await site.tallied_once(job, batches=BATCHES, epochs=2, momentum=0.0)


@pytest.mark.gate("sparse updates in every shape")
def test_few_bytes_carry_every_batch_once_in_every_shape_and_pace(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            await _tallied(site)
            await _tallied(site, pace="async", staleness="none")
            await _tallied(site, topology="tree", aggregators=2)
            await _tallied(site, topology="shard")

    run(story())


def test_one_who_dies_and_one_who_comes_late_are_brought_to_the_newest_version(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3) as site:
            site.pace(0.05)
            job = await site.submit_tally(batches=BATCHES, epochs=3, workers_min=2, **EXACT)
            await site.mid_epoch(job, applied=10)
            await site.kill(site.cluster.agents["device-1"])
            await site.mid_epoch(job, applied=25)
            await site.cluster.start_agent("device-1", *TALLY)
            await site.cluster.start_agent("device-4", *TALLY)
            site.pace(0.01)
            await site.ended(job)
            await site.tallied_once(job, batches=BATCHES, epochs=3, momentum=0.0)

    run(story())


@pytest.mark.nightly
def test_few_bytes_learn_what_all_of_them_do(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=3, options=()) as site:
            right: dict[str, float] = {}
            sent: dict[str, int] = {}
            for codec in ("dense", "bf16", "top20%+ef+4bit"):
                plan = {"batch_size": 16, "learning_rate": 0.1, "seed": 3, "workers_min": 3, "until": {"epochs": 4}}
                job = await site.submit_task(CLOUDS, kwargs={"count": 1000}, **plan, codec=codec)
                await site.ended(job)
                site.exactly_once(job, batches=63, epochs=4)
                right[codec] = site.evaluations(job)[-1].accuracy
                view = await site.view(job)
                assert view is not None
                assert view.progress is not None
                sent[codec] = view.progress.bytes_up
            assert right["dense"] > 0.95
            assert all(abs(share - right["dense"]) <= 0.02 for share in right.values()), right
            assert sent["top20%+ef+4bit"] < sent["bf16"] < sent["dense"], sent

    run(story())
