"""A set that is larger than a device's disk: real agents fetch the shards their leases name, and drop them again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import HERE, Site, cluster_in, run
from torch import nn
from wide_task import Wide

from shoal.runtime.paths import Paths
from shoal.scheduling.batches import WindowShuffle
from shoal.trainer.package import ReadyTask, make_ready
from shoal.trainer.shards import write_shards
from shoal.trainer.trained import trained_model

SHARDS, ROWS, BATCH, SEED, RATE = 12, 325, 130, 3, 0.1
#: A row is 1,008 bytes.
SHARD_BYTES = ROWS * 1008
CACHE_BYTES = 1_000_000
PLAN = {
    "batch_size": BATCH,
    "learning_rate": RATE,
    "momentum": 0.0,
    "seed": SEED,
    "shuffle": "window",
    "cache_mb": CACHE_BYTES // 1_000_000,
    "workers_min": 2,
    "until": {"epochs": 1},
}
TOLD = re.compile(r"shards: (\d+) shards fetched \(([\d,]+) bytes\), (\d+) dropped, \d+ held, at most ([\d,]+) bytes")


async def in_small_shards(out: Path) -> ReadyTask:
    """The task, prepared as always, with its examples in shards that a test can have a dozen of."""
    ready = await make_ready(HERE / "wide_task.py", "wide_task:Wide", out=out)
    x, y = Wide().examples("train")
    train = write_shards(x, y, Path(ready.prepared.shards), shard_bytes=SHARD_BYTES)
    assert [shard.examples for shard in train.shards] == [ROWS] * SHARDS
    return dataclasses.replace(ready, prepared=dataclasses.replace(ready.prepared, train=train))


def held_by(site: Site, device: str, shards: frozenset[str]) -> int:
    """Bytes of these shards on a device's disk."""
    total = 0
    for path in (Paths(site.cluster.agent_home(device)).cache / "blobs").glob("??/*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.name in shards else 0
    return total


@pytest.mark.slow
def test_two_devices_train_an_epoch_of_twelve_shards_with_room_for_three(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=2, options=(), share_cache=False) as site:
            ready = await in_small_shards(site.cluster.home / "prepared")
            manifest = ready.prepared.train
            shards = frozenset(shard.sha256 for shard in manifest.shards)
            assert 3 * max(shard.bytes for shard in manifest.shards) <= CACHE_BYTES
            peaks: list[int] = []

            async def watch() -> None:
                while True:
                    peaks.extend(held_by(site, device, shards) for device in site.cluster.agents)
                    await asyncio.sleep(0.02)

            watching = asyncio.create_task(watch())
            job = await site.operator.submit(ready, plan=PLAN)
            await site.ended(job)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            rows = site.exactly_once(job, batches=SHARDS * ROWS // BATCH, epochs=1)
            assert {row.node for row in rows} == set(site.cluster.agents)
            assert 0 < max(peaks) <= CACHE_BYTES

            # One process trains the same batches; it finds each of them by its number alone.
            shuffle = WindowShuffle([ROWS] * SHARDS, seed=SEED, window=1)
            x, y = map(torch.from_numpy, Wide().examples("train"))
            reference = trained_model(Wide(), Path(ready.prepared.model)).train()
            optimiser = torch.optim.SGD(reference.parameters(), lr=RATE)
            for version in sorted({row.version for row in rows}):
                taken = [shuffle.batch(row.epoch, row.batch, BATCH) for row in rows if row.version == version]
                chosen = torch.from_numpy(np.concatenate(taken))
                optimiser.zero_grad()
                nn.functional.cross_entropy(reference(x[chosen].float() / 1000), y[chosen]).backward()
                optimiser.step()
            model = await site.model(job)
            assert np.abs(model["weight"] - reference.state_dict()["weight"].numpy()).max() < 1e-5

            for device in site.cluster.agents:
                log = (site.cluster.home / f"{device}.log").read_text()
                found = TOLD.search(log)
                assert found is not None, log[-3000:]
                fetched, size_bytes, dropped, at_most = (int(text.replace(",", "")) for text in found.groups())
                # At most each shard once, and those of the next epoch that were fetched ahead.
                assert 3 < fetched <= SHARDS + 3
                assert fetched * SHARD_BYTES < size_bytes < fetched * (SHARD_BYTES + 1000)
                assert dropped >= fetched - 3
                assert at_most <= CACHE_BYTES

    run(story())
