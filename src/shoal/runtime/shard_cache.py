"""Shards of a set that is larger than a device: fetched as leases need them, dropped as room is. No decisions.

Which shards a lease needs is a pure function of its batches (``scheduling.batches``). A lease's own shards are always
kept, even where they alone are more than the plan allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from shoal.errors import Misuse
from shoal.scheduling.batches import WindowShuffle, window_shards
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Manifest

#: Another agent's store is never so busy that a file goes this often between its arrival and its opening.
_ATTEMPTS = 5


class Reader(Protocol):
    """A trainer, as far as shards concern it."""

    async def open_shard(self, number: int, path: Path) -> None: ...
    async def shut_shard(self, number: int) -> None: ...


def window_of(manifest: Manifest, *, cache_bytes: int) -> int:
    """Shards that are shuffled together: the same on every device, for it follows from the plan and the manifest."""
    largest = max((shard.bytes for shard in manifest.shards), default=1)
    return window_shards(cache_bytes=cache_bytes, shard_bytes=largest)


class ShardCache:
    def __init__(
        self,
        manifest: Manifest,
        blobs: BlobStore,
        fetch: Callable[[str], Awaitable[Path]],
        *,
        seed: int,
        batch_size: int,
        cache_bytes: int = 0,
        pinned: Collection[str] = (),
    ) -> None:
        """``pinned``: shards that others read, which are neither dropped nor counted."""
        self._manifest = manifest
        self._blobs = blobs
        self._fetch = fetch
        self._batch_size = batch_size
        self._cache_bytes = cache_bytes
        self._pinned = frozenset(pinned)
        self.window = window_of(manifest, cache_bytes=cache_bytes)
        self._shuffle = WindowShuffle(self.rows, seed=seed, window=self.window)
        #: By hash, least recently used first: shards on this disk, and their sizes. An earlier run may have left some.
        self._here = {
            shard.sha256: shard.bytes
            for shard in manifest.shards
            if shard.sha256 not in self._pinned and blobs.has(shard.sha256)
        }
        self._open: set[int] = set()
        #: Hashes that the lease in hand needs.
        self._needed: frozenset[str] = frozenset()
        self._busy = asyncio.Lock()
        self._leases = 0
        self.fetched = self.fetched_bytes = self.dropped = 0
        self.peak_bytes = self.held_bytes

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(shard.examples for shard in self._manifest.shards)

    @property
    def held_bytes(self) -> int:
        return sum(self._here.values())

    def told(self) -> str:
        """What came and went so far, in words."""
        return (
            f"{self.fetched} shards fetched ({self.fetched_bytes:,} bytes), {self.dropped} dropped, "
            f"{len(self._here)} held, at most {self.peak_bytes:,} bytes at once"
        )

    def trainer_ended(self) -> None:
        """Nothing is open any more."""
        self._open.clear()

    async def bring(self, reader: Reader, epoch: int, batches: Sequence[int]) -> None:
        """Have the shards of a lease here, and open in the trainer; it then has no others open."""
        needed = self._shuffle.shards(epoch, batches, self._batch_size)
        self._leases += 1
        async with self._busy:
            self._needed = frozenset(self._sha256(number) for number in needed)
            for number in sorted(self._open.difference(needed)):
                await reader.shut_shard(number)
                self._open.discard(number)
            for number in needed:
                if number not in self._open:
                    await self._open_in(reader, number)
                    self._open.add(number)

    async def _open_in(self, reader: Reader, number: int) -> None:
        """Open a shard at once when it is here. Agents of one machine may share a store: another may remove it."""
        for _ in range(_ATTEMPTS):
            await self._have(number, keep=self._needed)
            with contextlib.suppress(FileNotFoundError, Misuse):
                await reader.open_shard(number, self._blobs.path(self._sha256(number)))
                return
        raise Misuse(f"shard {number} of the examples is removed as often as it is fetched: raise cache_mb")

    async def fetch_ahead(self, epoch: int, batch: int) -> None:
        """Fetch what the batches after this one lie in, as far as there is room beside the lease in hand."""
        coming = itertools.islice(self._shuffle.ahead(epoch, batch, self._batch_size), 2 * self.window)
        lease, keep = self._leases, set(self._needed)
        for number in coming:
            async with self._busy:
                keep.add(self._sha256(number))
                # The next lease looks ahead by itself.
                if lease != self._leases or not await self._have(number, keep=keep, is_ahead=True):
                    return

    async def _have(self, number: int, *, keep: Collection[str], is_ahead: bool = False) -> bool:
        """Fetch a shard unless it is here. False: it is not needed yet, and only what must be kept could make room."""
        shard = self._manifest.shards[number]
        if shard.sha256 in self._pinned:
            await self._fetch(shard.sha256)
            return True
        if shard.sha256 in self._here and self._blobs.has(shard.sha256):
            self._here[shard.sha256] = self._here.pop(shard.sha256)
            return True
        self._here.pop(shard.sha256, None)
        if not self._make_room(shard.bytes, keep) and is_ahead:
            return False
        await self._fetch(shard.sha256)
        self._here[shard.sha256] = shard.bytes
        self.fetched += 1
        self.fetched_bytes += shard.bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return True

    def _make_room(self, size_bytes: int, keep: Collection[str]) -> bool:
        """Drop the shards that were used longest ago, none of those to keep; whether there is room then."""
        if not self._cache_bytes:
            return True
        for sha256 in [sha256 for sha256 in self._here if sha256 not in keep]:
            if self.held_bytes + size_bytes <= self._cache_bytes:
                break
            self._blobs.remove(sha256)
            del self._here[sha256]
            self.dropped += 1
        return self.held_bytes + size_bytes <= self._cache_bytes

    def _sha256(self, number: int) -> str:
        return self._manifest.shards[number].sha256
