"""Brings blobs into a device's cache: carried files first, then a bucket or a CDN, then the manager itself."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import PeerViolation
from shoal.runtime.agent_usage import AgentUsage
from shoal.store.blobs import BlobStore
from shoal.wire.messages import Blob

if TYPE_CHECKING:
    from shoal.net.grpc import GrpcLink

log = logging.getLogger("shoal")

#: A blob large enough that the time it took tells the rate of the link.
MEASURED_BYTES = 1 << 20

#: A blob large enough that a person who waits for it wants to hear of it.
LARGE_BYTES = 32 << 20

#: After a URL gave nothing the manager sends blobs for so long.
NO_URLS_S = 600.0


class BlobFetcher:
    def __init__(
        self,
        cache: BlobStore,
        *,
        link: Callable[[], GrpcLink],
        on_received: Callable[[int, float], None],
        usage: AgentUsage,
        files: Path | None = None,
        loopback_http: bool = False,
    ) -> None:
        """``link``: the line to the manager, or it raises. ``on_received`` hears the size of a large blob that came by
        it, and the seconds. ``files``: a folder with blobs that were carried here, named by their hashes.
        ``loopback_http`` is for tests: see ``direct_download.download``."""
        self._cache = cache
        self._link = link
        self._on_received = on_received
        self._usage = usage
        self._files = files
        self._loopback_http = loopback_http
        self._locks: dict[str, asyncio.Lock] = {}
        self._no_urls_until_s = 0.0

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache: once, verified by its hash."""
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            if not self._cache.has(sha256) and not await self._carried(sha256):
                await self._download(sha256)
            return self._cache.path(sha256)

    async def _carried(self, sha256: str) -> bool:
        """Whether the blob was carried here, as a file named by its hash."""
        carried = self._files / sha256 if self._files is not None else None
        if carried is None or not carried.is_file():
            return False
        if not await asyncio.to_thread(self._cache.adopt, carried, sha256):
            log.warning("%s is not what its name says: it is fetched instead", carried)
            return False
        log.info("read %s… from %s", sha256[:12], self._files)
        return True

    async def _download(self, sha256: str) -> None:
        began_s = time.monotonic()
        answer = await self._receive(sha256, takes_url=began_s >= self._no_urls_until_s)
        if answer.url and not await self._download_from(answer):
            answer = await self._receive(sha256, takes_url=False)
        size_bytes, took_s = answer.size_bytes, time.monotonic() - began_s
        self._usage.bytes_down += size_bytes
        if size_bytes >= LARGE_BYTES:
            log.info("fetched %s…, %d MB in %.0f s", sha256[:12], size_bytes // 10**6, took_s)
        if size_bytes >= MEASURED_BYTES and not answer.url:
            self._on_received(size_bytes, took_s)

    async def _receive(self, sha256: str, *, takes_url: bool) -> Blob:
        """The manager's answer. The blob is in the cache then, unless the answer names a URL."""
        answers: list[Blob] = []
        writer = None
        try:
            async for chunk in self._link().fetch(sha256, on_answer=answers.append, takes_url=takes_url):
                writer = writer or self._cache.writer(sha256, answers[0].size_bytes)
                await asyncio.to_thread(writer.feed, chunk)
            if not answers[0].url:
                writer = writer or self._cache.writer(sha256, answers[0].size_bytes)
                await asyncio.to_thread(writer.commit)
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        return answers[0]

    async def _download_from(self, answer: Blob) -> bool:
        """Download a blob from the URL that the manager gave. False: it did not come from there."""
        # Where it is needed: an idle agent is small.
        from urllib.parse import urlsplit

        from shoal.runtime.direct_download import NotDownloaded, download

        stop = threading.Event()
        writer = self._cache.writer(answer.sha256, answer.size_bytes)
        try:
            await asyncio.to_thread(
                download,
                answer.url,
                writer,
                size_bytes=answer.size_bytes,
                stop=stop,
                loopback_http=self._loopback_http,
            )
            await asyncio.to_thread(writer.commit)
        except (NotDownloaded, PeerViolation) as error:
            self._no_urls_until_s = time.monotonic() + NO_URLS_S
            log.warning("%s…: %s; the manager sends it instead", answer.sha256[:12], error)
            return False
        finally:
            # A thread cannot be cancelled: it looks at this with each chunk.
            stop.set()
            writer.abort()
        log.info("downloaded %s… from %s", answer.sha256[:12], urlsplit(answer.url).hostname)
        return True
