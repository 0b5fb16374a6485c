"""Shards come as leases need them, and go when there is no room: with a real store, and a link that counts."""

import asyncio
import hashlib

import pytest

from shoal.errors import Misuse
from shoal.runtime.shard_cache import ShardCache
from shoal.scheduling.batches import WindowShuffle
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Manifest, Shard

ROWS, SIZE = 10, 100
CONTENTS = [bytes([number]) * SIZE for number in range(12)]


class Trainer:
    def __init__(self):
        self.open = {}

    async def open_shard(self, number, path):
        self.open[number] = path.read_bytes()

    async def shut_shard(self, number):
        del self.open[number]


class Link:
    """A manager with everything, and a store that is measured at every arrival."""

    def __init__(self, blobs, contents=CONTENTS):
        self.blobs = blobs
        self.contents = {hashlib.sha256(data).hexdigest(): data for data in contents}
        self.fetched, self.peak = [], 0

    async def fetch(self, sha256):
        await asyncio.sleep(0)
        if not self.blobs.has(sha256):
            self.fetched.append(sha256)
            self.blobs.put(self.contents[sha256])
        self.peak = max(self.peak, SIZE * len(self.blobs.hashes()))
        return self.blobs.path(sha256)


def manifest(contents=CONTENTS):
    shards = [Shard(sha256=hashlib.sha256(data).hexdigest(), examples=ROWS, bytes=SIZE) for data in contents]
    return Manifest(examples=ROWS * len(shards), shards=tuple(shards))


@pytest.fixture
def made(tmp_path):
    def make(contents=CONTENTS, **options):
        blobs = BlobStore(tmp_path / "blobs")
        link = Link(blobs, contents)
        chosen = {"seed": 3, "batch_size": 4} | options
        return ShardCache(manifest(contents), blobs, link.fetch, **chosen), link, Trainer()

    return make


def needed(cache, epoch, batches):
    shuffle = WindowShuffle([ROWS] * 12, seed=3, window=cache.window)
    return set(shuffle.shards(epoch, batches, 4))


def test_an_epoch_through_a_disk_of_three_shards(made):
    cache, link, trainer = made(cache_bytes=3 * SIZE)
    assert cache.window == 1

    async def story():
        for batch in range(30):
            await cache.bring(trainer, 0, [batch])
            assert trainer.open == {number: CONTENTS[number] for number in needed(cache, 0, [batch])}
            await cache.fetch_ahead(0, batch)
            assert needed(cache, 0, [min(batch + 1, 29)]) <= {
                number for number, shard in enumerate(manifest().shards) if link.blobs.has(shard.sha256)
            }, "the next lease waits for nothing"

    asyncio.run(story())
    assert link.peak <= 3 * SIZE
    # Once each: nothing is dropped that the epoch comes back to. After the last batch, the next epoch's first shards.
    assert 12 <= len(link.fetched) <= 14
    assert len(set(link.fetched)) == 12
    assert (cache.fetched, cache.fetched_bytes) == (len(link.fetched), SIZE * len(link.fetched))
    assert cache.dropped == cache.fetched - len(link.blobs.hashes())
    assert cache.told().startswith(f"{cache.fetched} shards fetched ({cache.fetched_bytes:,} bytes)")


def test_a_lease_has_its_shards_also_where_they_are_too_many(made):
    cache, link, trainer = made(cache_bytes=2 * SIZE)
    asyncio.run(cache.bring(trainer, 0, list(range(30))))
    assert len(trainer.open) == 12
    asyncio.run(cache.bring(trainer, 0, [0]))
    asyncio.run(cache.bring(trainer, 0, [29]))
    assert link.peak == 12 * SIZE
    asyncio.run(cache.bring(trainer, 1, list(range(30))))
    assert len(link.fetched) == 12, "what was kept beyond the limit is of use until room is needed"


def test_without_a_limit_nothing_is_dropped(made):
    cache, link, trainer = made()

    async def story():
        for epoch in (0, 1):
            for batch in range(30):
                await cache.bring(trainer, epoch, [batch])
                await cache.fetch_ahead(epoch, batch)

    asyncio.run(story())
    assert (len(link.fetched), cache.dropped) == (12, 0)


def test_what_an_earlier_run_left_counts_and_is_used(made, tmp_path):
    cache, link, trainer = made(cache_bytes=3 * SIZE)
    asyncio.run(cache.bring(trainer, 0, [0, 1, 2, 3, 4]))
    again, link, trainer = made(cache_bytes=3 * SIZE)
    assert again.held_bytes == cache.held_bytes > 0
    asyncio.run(again.bring(trainer, 0, [0]))
    assert link.fetched == []


def test_a_trainer_that_ended_has_nothing_open(made):
    cache, _, trainer = made()
    asyncio.run(cache.bring(trainer, 0, [0]))
    cache.trainer_ended()
    fresh = Trainer()
    asyncio.run(cache.bring(fresh, 0, [0]))
    assert fresh.open == trainer.open


def test_a_shard_that_someone_removed_is_fetched_again(made):
    cache, link, trainer = made()
    asyncio.run(cache.bring(trainer, 0, [0]))
    for sha256 in link.blobs.hashes():
        link.blobs.remove(sha256)
    cache.trainer_ended()
    asyncio.run(cache.bring(Trainer(), 0, [0]))
    assert len(link.fetched) == 2 * len(trainer.open)


def test_a_store_that_is_shared_with_an_agent_that_removes_what_comes(made):
    cache, link, trainer = made()

    async def fetch_and_lose(sha256):
        path = await Link.fetch(link, sha256)
        if link.fetched.count(sha256) < 3:
            link.blobs.remove(sha256)
        return path

    cache._fetch = fetch_and_lose
    asyncio.run(cache.bring(trainer, 0, [0]))
    assert set(trainer.open) == needed(cache, 0, [0])

    async def fetch_in_vain(sha256):
        link.blobs.remove(sha256)

    other, *_ = made(seed=4)
    other._fetch = fetch_in_vain
    with pytest.raises(Misuse, match="raise cache_mb"):
        asyncio.run(other.bring(Trainer(), 0, list(range(30))))


def test_shards_that_are_the_same_file_and_those_that_others_read(made):
    twins = [CONTENTS[0]] * 6 + CONTENTS[:6]
    pinned = [hashlib.sha256(CONTENTS[0]).hexdigest()]
    cache, link, trainer = made(twins, cache_bytes=SIZE, pinned=pinned)

    async def story():
        for batch in range(30):
            await cache.bring(trainer, 0, [batch])
            await cache.fetch_ahead(0, batch)

    asyncio.run(story())
    assert link.fetched.count(pinned[0]) == 1
    assert link.blobs.has(pinned[0])
