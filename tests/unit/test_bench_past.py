"""The pure parts of ``benchmarks.past``, and its proxies on real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.past import DUMP, RESTORE, lacks
from testbed.managers.past_bed import Forgotten, Outcome
from testbed.managers.past_faults import (
    OVERLOADED,
    PARTIAL,
    REFUSES,
    BucketProxy,
    SlowRelay,
    copied_rows,
    counted_wrong,
    known_rows,
    length_in,
)

pytestmark = pytest.mark.timeout(60)


def test_a_model_is_compared_with_the_ledger_in_its_file() -> None:
    # Two epochs are over, and batches 0, 1 and 4 of the third are applied.
    runs = [[0, 2], [4, 5]]
    assert counted_wrong([3, 3, 2, 2, 3], epoch=2, applied=runs) == (0, 0)
    assert counted_wrong([3.0, 4.0, 2.0, 2.0, 3.0], epoch=2, applied=runs) == (1, 0)
    assert counted_wrong([3, 3, 2, 0, 5], epoch=2, applied=runs) == (2, 2)


def test_an_event_is_missing_or_too_many() -> None:
    assert Outcome(name="restore", went_back=True).is_unnoticed
    assert not Outcome(name="restore", went_back=True, is_noticed=True).is_unnoticed
    assert Outcome(name="slow", went_back=False, is_noticed=True).is_unnoticed
    assert not Outcome(name="slow", went_back=False).is_unnoticed


#: As `pg_restore --data-only` writes it.
SCRIPT = r"""
SET row_security = off;

COPY public.jobs (job, name, state) FROM stdin;
tally-1	tally	finished
tally-2	tally	running
\.

COPY public.nodes (node, "state", reason) FROM stdin;
spare-1	enrolled	\N
spare-2	revoked	stolen
\.
"""


def test_a_dump_shows_what_it_lacks() -> None:
    tables = copied_rows(SCRIPT)
    assert tables["nodes"][1] == {"node": "spare-2", "state": "revoked", "reason": "stolen"}
    known = known_rows(tables)
    assert known.lost(revoked="spare-1", ended="tally-2", submitted="tally-3") == [
        "spare-1 is not revoked",
        "tally-2 is open",
        "tally-3 is unknown",
    ]
    assert known.lost(revoked="spare-2", ended="tally-1", submitted="tally-2") == []
    # A fault counts only if all of it is lost.
    assert lacks("the dump", known, Forgotten(revoked="spare-1", ended="tally-2", submitted="tally-3"))
    assert not lacks("the dump", known, Forgotten(revoked="spare-2", ended="tally-2", submitted="tally-3"))
    assert not lacks("the dump", known, Forgotten(revoked="spare-1", ended="unknown", submitted="tally-3"))


def test_the_page_on_restores_has_the_commands_that_are_measured() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations" / "restore.md").read_text()
    for command in (DUMP, RESTORE, ("shoal", "restore", "--store")):
        assert f"\n{' '.join(command)} " in page


def test_lengths_of_bodies_are_read_from_headers() -> None:
    assert length_in(b"GET / HTTP/1.1\r\nhost: a\r\nContent-Length: 17\r\n\r\n") == 17
    assert length_in(b"GET / HTTP/1.1\r\n\r\n") == 0


def test_a_bucket_fails_in_three_ways_and_a_relay_is_slow() -> None:
    body = b"x" * 1000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /bucket/object HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def story() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = int(server.sockets[0].getsockname()[1])
        bucket, slow = BucketProxy(port), SlowRelay(port)
        await bucket.start()
        await slow.start()
        assert (await ask(bucket.port)).endswith(body)
        for fault, said in ((REFUSES, b" 403 "), (OVERLOADED, b" 503 ")):
            bucket.fail(fault)
            assert said in await ask(bucket.port)
        bucket.fail(PARTIAL)
        assert (await ask(bucket.port)).count(b"x") == 500
        assert bucket.hurt == 3
        bucket.fail("")
        assert (await ask(bucket.port)).endswith(body)
        slow.delay_s, began_s = 0.3, asyncio.get_running_loop().time()
        assert (await ask(slow.port)).endswith(body)
        assert asyncio.get_running_loop().time() - began_s >= 0.3
        await bucket.stop()
        await slow.stop()
        server.close()

    asyncio.run(story())
