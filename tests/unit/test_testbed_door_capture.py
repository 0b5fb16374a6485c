"""The capture of what crosses the wire to a door: whole, unmasked, and by connection."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from testbed.door_capture import DoorCapture, may_capture

websockets = pytest.importorskip("websockets")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not may_capture(), reason="this process may not read packets (CAP_NET_RAW)"),
]


def test_what_each_connection_sent_is_found_without_its_masks() -> None:
    rng = np.random.default_rng(1)
    frames = [rng.bytes(count) for count in (10, 200, 70_000, 1_000_000)]

    async def story() -> list[bytes]:
        async def hear(socket: websockets.ServerConnection) -> None:
            async for frame in socket:
                await socket.send(frame[:1])

        async with websockets.serve(hear, "127.0.0.1", 0, max_size=None) as server:
            port = server.sockets[0].getsockname()[1]
            with DoorCapture(port) as capture:
                for some in (frames[:2], frames[2:]):
                    async with websockets.connect(f"ws://127.0.0.1:{port}/door", compression=None) as socket:
                        for frame in some:
                            await socket.send(frame)
                            await socket.recv()
                # A question by HTTP, to which this server has no answer.
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /about HTTP/1.1\r\nHost: door\r\nContent-Length: 10\r\n\r\na question")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                await asyncio.sleep(0.5)
            return list(capture.sent)

    sent = asyncio.run(story())
    assert [sum(frame in each for frame in frames) for each in sent] == [2, 2, 0]
    assert b"a question" in sent[2]
