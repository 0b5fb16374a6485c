"""A viewer's stream of server-sent events, and the end of one that does not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.console.feed import Feed, Viewer

#: The interval of comments, which show proxies and browsers that the stream is alive.
COMMENT_S = 10.0
#: How soon a browser comes back after the stream broke.
RETRY_MS = 1000


class EventStream(StreamingResponse):
    def __init__(self, feed: Feed, viewer: Viewer) -> None:
        headers = {"x-accel-buffering": "no"}
        super().__init__(_events(viewer), media_type="text/event-stream", headers=headers)
        self._feed = feed
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the viewer leaves or is disconnected. A send to a viewer that does not read never returns."""
        sending = asyncio.ensure_future(super().__call__(scope, receive, send))
        cut = asyncio.ensure_future(self._viewer.cut.wait())
        try:
            await asyncio.wait((sending, cut), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.leave(self._viewer)
            for task in (sending, cut):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending


async def _events(viewer: Viewer) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % RETRY_MS
    while True:
        try:
            yield await asyncio.wait_for(viewer.queue.get(), COMMENT_S)
        except TimeoutError:
            yield b": still here\n\n"
