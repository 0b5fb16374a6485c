"""Blobs that peers fetch from the manager's node and store there: who may have which, and which fit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from shoal.errors import Misuse, Refused
from shoal.identity.names import RemoteIdentity
from shoal.runtime.contents import Contents
from shoal.runtime.disk_quota import DiskQuota
from shoal.store.blobs import BlobStore
from shoal.wire.messages import Blob, JobSpec

#: A blob of this size is worth another connection.
BY_URL_BYTES = 1 << 20


class BlobExchange:
    def __init__(
        self,
        blobs: BlobStore,
        models: BlobStore,
        *,
        contents: Contents,
        quota: DiskQuota,
        specs_of: Callable[[str], Iterable[JobSpec]],
    ) -> None:
        """``models``: published models. ``specs_of``: the jobs that a node works for or leads now."""
        self._blobs = blobs
        self._models = models
        self._contents = contents
        self._quota = quota
        self._specs_of = specs_of

    async def find(self, peer: RemoteIdentity, blob: Blob) -> Path | Blob:
        """Return the file of a blob, or where to download it. An operator may have any blob, also models; a device what
        the jobs that it has now are made of."""
        is_operator, specs = peer.role == "operator", tuple(self._specs_of(peer.node))

        def look() -> Path | Blob | None:
            if is_operator or any(self._contents.include(spec, blob.sha256) for spec in specs):
                for store in (self._blobs, self._models) if is_operator else (self._blobs,):
                    if blob.takes_url and (answer := _by_url(store, blob.sha256)) is not None:
                        return answer
                    with contextlib.suppress(Misuse):
                        return store.path(blob.sha256)
            return None

        # In a thread: the blob may have to come from elsewhere first.
        found = await asyncio.to_thread(look)
        if found is not None:
            return found
        # The same text if the blob is absent and if the caller may not have it: asking for a hash reveals nothing.
        raise Refused(
            f"no blob {blob.sha256[:12]}… for {peer.node}: a device fetches what the job it works for is made of;"
            " if it was given that job a moment ago, it tries again"
        )

    async def store(self, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        await self._quota.admit(blob.size_bytes)
        writer = self._blobs.writer(blob.sha256, blob.size_bytes)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(writer.feed, chunk)
            await asyncio.to_thread(writer.commit)
        except BaseException:
            writer.abort()
            raise


def _by_url(store: BlobStore, sha256: str) -> Blob | None:
    """Return where a device is to download a blob, or None if it comes from here, as a small one does."""
    url = store.url(sha256)
    facts = store.facts(sha256) if url else None
    if facts is None or facts.size_bytes < BY_URL_BYTES:
        return None
    return Blob(sha256=sha256, size_bytes=facts.size_bytes, url=url)
