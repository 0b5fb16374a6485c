"""Members that announce tensors and do not send them: whose memory that is, and who waits. Real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from kit import WAIT_S, Site
from shared_cluster import SharedCluster, shared_cluster

from shoal.identity.enrolment import enrol
from shoal.identity.identity import channel_credentials, channel_options
from shoal.identity.join_code import JoinCode
from shoal.net.grpc import SERVICE
from shoal.wire.frames import envelope_frame, frames, read_opening
from shoal.wire.messages import Assign, Checkpoint, Facts, Hello, Lane, Message, Update, UpdateRefused

#: More than the whole budget for what arrives.
PROMISED_BYTES = 48 << 20

cluster = shared_cluster(workers=1)


async def member(site: Site, name: str) -> grpc.aio.Channel:
    identity = (await enrol(JoinCode.parse(site.cluster.join_line), wanted=name)).identity
    return grpc.aio.secure_channel(
        site.cluster.endpoint, channel_credentials(identity), options=channel_options("manager")
    )


async def promise(channel: grpc.aio.Channel, message: Message) -> Any:
    """Announce all of it, and send a first chunk. The call stays open."""
    call = channel.stream_stream(f"/{SERVICE}/{Lane.WORK}")(timeout=300.0)
    await call.write(next(frames(message)))
    return call


def test_one_that_leads_nothing_holds_up_no_job_by_a_checkpoint_it_promises(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_tally(batches=30, workers_min=2)
        channel = await member(site, "liar")
        content = np.zeros(PROMISED_BYTES, np.uint8)
        call = await promise(channel, Checkpoint(job=job, term=1, version=7, tensors={"file": content}))
        # The job begins only now, with all that the liar could take in its hands.
        await asyncio.sleep(0.5)
        await site.cluster.start_agent("device-2")
        await site.ended(job)
        assert {row.node for row in await site.tallied_once(job, batches=30)} == {"device-1", "device-2"}
        assert not call.done()
        await channel.close()

    cluster.run(story)


@pytest.mark.gate("tensors that nobody awaits")
def test_an_update_without_a_lease_is_refused_in_words_and_nobody_waits_for_it(cluster: SharedCluster) -> None:
    async def story(site: Site) -> None:
        job = await site.submit_tally(batches=20, workers_min=2)
        channel = await member(site, "late")
        control = channel.stream_stream(f"/{SERVICE}/{Lane.CONTROL}")(timeout=300.0)
        await control.write(envelope_frame(Hello(node="late", incarnation="1", facts=Facts(torch="none"))))
        await heard(control, Assign)
        delta = np.ones(20, np.float32)
        late = Update(job=job, term=1, lease=10**6, version=0, examples=1, tensors={"delta": delta})
        call = await promise(channel, late)
        assert (await heard(call, UpdateRefused)).reason == "lease 1000000 is not known to this leader"
        assert not call.done()
        await channel.close()
        await site.cluster.start_agent("device-2")
        await site.ended(job)

    cluster.run(story)


async def heard(call: Any, kind: type[Message]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while not isinstance(message := read_opening(await call.read()).message, kind):
            pass
    return message
