"""Members that lie, by the thousand: a manager refuses, names them, stays small, and serves the honest meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from kit import Site, cluster_in, run

from benchmarks.hostile_frames import attack_sockets, inside_in_a_process
from shoal.transport.enrol import enrol
from shoal.transport.grpc import SERVICE
from shoal.transport.identity import Identity, channel_credentials, channel_options
from shoal.transport.join_code import JoinCode
from shoal.wire.frames import chunk_frame, envelope_frame
from shoal.wire.lanes import Lane
from shoal.wire.limits import OFFENCES_MAX, OPENINGS_BURST
from shoal.wire.messages import AskStatus, Facts, Heartbeat, Hello, Ready

#: What the benchmark promises is in milliseconds; a loaded machine may take its time.
SLOWEST_MS = 1000.0
GROWTH_MB = 64.0


def test_twenty_thousand_frames_in_memory() -> None:
    told = asyncio.run(asyncio.wait_for(inside_in_a_process(20_000, seed=1), 100))
    assert told["frames"] >= 20_000
    assert told["crashes"] == 0
    assert told["refused"] > 5_000
    assert told["senders_named"] == 1.0
    assert told["rss_growth_mb"] <= GROWTH_MB
    assert told["slowest_ms"] <= SLOWEST_MS
    assert told["honest_alive"]


def test_five_hundred_frames_over_sockets() -> None:
    told = asyncio.run(asyncio.wait_for(attack_sockets(500, seed=2), 100))
    assert told["frames"] >= 400
    assert told["crashes"] == 0
    assert told["refused"] > 30
    assert told["senders_named"] == 1.0
    assert told["rss_growth_mb"] <= GROWTH_MB
    assert told["slowest_ms"] <= SLOWEST_MS
    assert told["honest_alive"]
    assert told["honest_updates"] > 0
    assert "a node may not call Operate" in told["turned_away"]


# What one member can do again and again --------------------------------------------------------------------


async def member(site: Site, name: str) -> tuple[Identity, grpc.aio.Channel]:
    identity = (await enrol(JoinCode.parse(site.cluster.join_line), wanted=name)).identity
    options = [*channel_options("manager"), ("grpc.use_local_subchannel_pool", 1)]
    return identity, grpc.aio.secure_channel(site.cluster.endpoint, channel_credentials(identity), options=options)


async def said(channel: grpc.aio.Channel, lane: Lane, *frames: bytes) -> tuple[grpc.StatusCode, str]:
    """Say this on a new stream; how the stream ended."""
    call = channel.stream_stream(f"/{SERVICE}/{lane}")(timeout=30.0)
    try:
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return await call.code(), str(await call.details())


def test_one_who_lies_again_and_again_is_turned_away_for_a_while(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            _, channel = await member(site, "liar")
            async with channel:
                for _ in range(OFFENCES_MAX + 1):
                    code, told = await said(channel, Lane.WORK, chunk_frame(b"no opening"))
                    assert code is grpc.StatusCode.INVALID_ARGUMENT
                    assert "broke the contract: a chunk where a message was expected" in told
                assert "is turned away for 10 s" in told
                since_s = time.monotonic()
                # Whatever it says now, on whichever stream, sound or not.
                for lane in Lane:
                    code, told = await said(channel, lane, envelope_frame(Heartbeat(seq=1)))
                    assert code is grpc.StatusCode.PERMISSION_DENIED
                    assert "turned away for" in told
                    assert "last for: a chunk where a message was expected" in told
                await site.event(
                    "cluster", "refused", "liar broke the contract: a chunk where a message was expected; is"
                )
                # The honest one notices nothing.
                job = await site.submit_tally(batches=10)
                await site.ended(job)
                assert {row.node for row in await site.tallied_once(job, batches=10)} == {"device-1"}

                async def is_let_in() -> bool:
                    hello = envelope_frame(Hello(node="liar", incarnation="1", facts=Facts()))
                    return (await said(channel, Lane.CONTROL, hello))[0] is grpc.StatusCode.OK

                await site.until("liar may come again", is_let_in)
                assert time.monotonic() - since_s > 8
                # Each knock was not written down: ten lies, the verdict, and no more.
                lines = [event for event in site.events("cluster") if event.kind == "refused" and "liar" in event.text]
                assert len(lines) == OFFENCES_MAX + 1

    run(story())


def test_commands_of_a_node_are_refused_named_and_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=0) as site:
            _, channel = await member(site, "liar")
            async with channel:
                answers = []
                for _ in range(OFFENCES_MAX + 2):
                    call = channel.unary_unary(f"/{SERVICE}/Operate")(envelope_frame(AskStatus()), timeout=30.0)
                    answers.append((await call.code(), str(await call.details())))
                assert {code for code, _ in answers} == {grpc.StatusCode.PERMISSION_DENIED}
                assert "turned away" in answers[-1][1]
            await site.event(
                "cluster", "refused", "liar broke the contract: a node may not call Operate; is turned away"
            )

    run(story())


def test_a_storm_of_streams_is_put_off_and_then_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            _, channel = await member(site, "liar")
            async with channel:
                beat = envelope_frame(Heartbeat(seq=1))
                began_s = time.monotonic()
                storm = [said(channel, Lane.CONTROL, beat) for _ in range(4 * OPENINGS_BURST)]
                ends = await asyncio.gather(*storm)
                took_s = time.monotonic() - began_s
                let_in = sum(code is grpc.StatusCode.OK for code, _ in ends)
                assert let_in < OPENINGS_BURST + 16 * (took_s + 3)
                assert let_in < len(ends)
            nodes = {view.node: view.state for view in (await site.operator.status()).nodes}
            assert nodes["device-1"] == "alive"

    run(story())


def test_a_flood_costs_the_flooder_its_own_time(tmp_path: Path) -> None:
    """Heartbeats and requests for work far beyond any need; the honest worker's job goes on at its pace."""

    async def story() -> None:
        async with cluster_in(tmp_path, workers=1) as site:
            await site.connected("device-1")
            identity, channel = await member(site, "liar")
            async with channel:
                flood = asyncio.gather(
                    _pour(channel, Lane.CONTROL, envelope_frame(Hello(node=identity.node, incarnation="1"))),
                    _pour(channel, Lane.WORK, envelope_frame(Ready(job="no-such-job"))),
                )
                job = await site.submit_tally(batches=50)
                await site.ended(job)
                assert {row.node for row in await site.tallied_once(job, batches=50)} == {"device-1"}
                flood.cancel()
                await asyncio.gather(flood, return_exceptions=True)
            greetings = [event for event in site.events("cluster") if "liar connected" in event.text]
            assert 1 <= len(greetings) < 100
            nodes = {view.node: view.state for view in (await site.operator.status()).nodes}
            assert nodes["device-1"] == "alive"

    run(story())


async def _pour(channel: grpc.aio.Channel, lane: Lane, frame: bytes) -> None:
    call: Any = channel.stream_stream(f"/{SERVICE}/{lane}")(timeout=60.0)

    async def drain() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    hearing = asyncio.create_task(drain())
    try:
        for _ in itertools.count():
            await call.write(frame)
    finally:
        hearing.cancel()
        call.cancel()
