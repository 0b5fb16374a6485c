"""Sessions with peers that stall, flood, do not read or say what is not theirs to say; over queues alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.transport import session as session_module
from shoal.transport.base import Session
from shoal.transport.commons import Commons
from shoal.transport.conduct import Conduct, Rate
from shoal.transport.identity import Peer
from shoal.transport.session import COSTS, FrameSession
from shoal.wire.frames import envelope_frame, frames
from shoal.wire.lanes import Lane
from shoal.wire.limits import OFFENCES_MAX
from shoal.wire.messages import Heartbeat, HeartbeatSeen, Hello, Message, Refused, Update

PEER = Peer(node="liar", role="node", cluster="shoal")
REFUSED = Refused(job="a", term=1, lease=1, reason="a lie")


class Hearer:
    def __init__(self, on_message: Callable[[Session, Message], None] = lambda session, message: None) -> None:
        self._on_message = on_message
        self.heard: list[Message] = []
        self.closed_for = ""

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None:
        self.closed_for = reason

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        self.heard.append(message)
        self._on_message(session, message)

    def payload_limit(self, session: Session, message: Message) -> int:
        return 4 << 20

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


async def ignore(frame: bytes) -> None: ...


def session_of(
    sent: list[bytes],
    *,
    commons: Commons | None = None,
    write: Callable[[bytes], Awaitable[None]] = ignore,
    stays: bool = False,
    **options: Any,
) -> FrameSession:
    left = list(sent)

    async def read() -> bytes | None:
        if not left and stays:
            await asyncio.Event().wait()
        return left.pop(0) if left else None

    return FrameSession(
        **{"peer": PEER, "lane": Lane.CONTROL, "read": read, "write": write, "end": None} | options,
        commons=commons or Commons(),
    )


def run(story: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await story

    return asyncio.run(bounded())


def beat(seq: int) -> bytes:
    return envelope_frame(Heartbeat(seq=seq))


def test_what_is_not_theirs_to_say_ends_the_session() -> None:
    async def story() -> str:
        hearer = Hearer()
        reason = await session_of([beat(1), envelope_frame(HeartbeatSeen(seq=1))], hears={"Heartbeat"}).run(hearer)
        assert [type(message) for message in hearer.heard] == [Heartbeat]
        assert hearer.closed_for == reason
        return reason

    assert run(story()) == "broke the contract: HeartbeatSeen does not come this way"


def test_tensors_that_do_not_come_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "CHUNK_WAIT_MAX_S", 0.05)
    delta = np.zeros(1 << 19, np.float32)  # two chunks
    first, _ = frames(
        Update(job="a", term=1, lease=1, version=0, examples=1, tensors={"delta": delta[: (1 << 18) + 1]})
    )

    async def story() -> None:
        commons = Commons()
        reason = await session_of([first], stays=True, commons=commons, lane=Lane.WORK).run(Hearer())
        assert reason == "broke the contract: sent nothing for 0.05 s in the middle of a message"
        # The memory is free for the next.
        await asyncio.wait_for(commons.uploads.take(1 << 30), 1)

    run(story())


def test_a_flood_is_read_at_the_rate_that_is_allowed() -> None:
    async def story() -> float:
        rate = Rate(burst=10, per_s=100)
        commons = Commons(conduct=Conduct(messages=dict.fromkeys(Lane, rate)))
        hearer = Hearer()
        began_s = time.monotonic()
        await session_of([beat(seq) for seq in range(40)], commons=commons).run(hearer)
        assert len(hearer.heard) == 40
        return time.monotonic() - began_s

    assert run(story()) >= 0.29


def test_what_makes_us_work_costs_more() -> None:
    async def story() -> float:
        rate = Rate(burst=COSTS[Hello], per_s=5 * COSTS[Hello])
        commons = Commons(conduct=Conduct(messages=dict.fromkeys(Lane, rate)))
        began_s = time.monotonic()
        hello = envelope_frame(Hello(node="liar", incarnation="1"))
        await session_of([hello, hello], commons=commons).run(Hearer())
        return time.monotonic() - began_s

    assert run(story()) >= 0.19


def test_many_violations_and_the_peer_is_turned_away() -> None:
    async def story() -> list[str]:
        commons = Commons()
        return [await session_of([b"nonsense"], commons=commons).run(Hearer()) for _ in range(OFFENCES_MAX + 2)]

    *early, eleventh, _ = run(story())
    assert all(reason.startswith("broke the contract: a frame that holds") for reason in early)
    assert all("turned away" not in reason for reason in early)
    assert "; is turned away for 10 s: broke the contract more than 10 times" in eleventh


def test_one_who_is_turned_away_is_not_heard_on_its_other_stream_either() -> None:
    async def story() -> str:
        commons = Commons()
        for _ in range(OFFENCES_MAX + 1):
            commons.conduct.offend("liar", "lies", time.monotonic())
        hearer = Hearer()
        reason = await session_of([beat(1)], commons=commons).run(hearer)
        assert not hearer.heard
        return reason

    # It does not begin with "broke the contract": it is not counted and not written down again.
    assert run(story()).startswith("turned away for 10 s more")


def test_refusals_that_a_role_sends_are_counted() -> None:
    async def story() -> str:
        hearer = Hearer(lambda session, message: session.post(REFUSED))
        reason = await session_of([beat(seq) for seq in range(50)], stays=True).run(hearer)
        assert len(hearer.heard) <= OFFENCES_MAX + 2
        return reason

    assert run(story()) == (
        "broke the contract: is turned away for 10 s: "
        "broke the contract more than 10 times within a minute, last: a lie"
    )


def test_a_bug_of_ours_is_seen_and_not_blamed_on_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    def fail(session: Session, message: Message) -> None:
        raise KeyError("ours")

    with caplog.at_level(logging.ERROR, logger="shoal"):
        reason = run(_run(session_of_later([beat(1)], fail)))
    assert reason == "the connection broke ('ours')"
    assert "Heartbeat of liar could not be handled" in caplog.text
    assert "Traceback" in caplog.text


def test_a_violation_is_not_logged_as_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(session: Session, message: Message) -> None:
        raise PeerViolation("lies")

    assert run(_run(session_of_later([beat(1)], refuse))) == "broke the contract: lies"
    assert not caplog.records


def session_of_later(sent: list[bytes], on_message: Callable[[Session, Message], None]) -> Callable[[], Awaitable[str]]:
    return lambda: session_of(sent).run(Hearer(on_message))


async def _run(later: Callable[[], Awaitable[str]]) -> str:
    return await later()


def test_the_frame_on_its_way_out_is_finished_before_the_session_ends() -> None:
    """gRPC cannot end a stream in the middle of a frame: the peer would wait for the end of it forever."""
    finished: list[bytes] = []

    async def slow(frame: bytes) -> None:
        await asyncio.sleep(0.1)
        finished.append(frame)

    async def story() -> None:
        def answer_and_close(session: Session, message: Message) -> None:
            session.post(HeartbeatSeen(seq=1))
            session.post(HeartbeatSeen(seq=2))
            asyncio.get_running_loop().call_later(0.03, session.close, "enough")

        session = session_of([beat(1)], write=slow, stays=True)
        assert await session.run(Hearer(answer_and_close)) == "enough"
        # The first was on its way; the second had not begun.
        assert finished == [envelope_frame(HeartbeatSeen(seq=1))]
        assert not session.is_stuck

    run(story())


def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LAST_FRAME_S", 0.05)

    async def never(frame: bytes) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        def answer_and_close(session: Session, message: Message) -> None:
            session.post(HeartbeatSeen(seq=1))
            asyncio.get_running_loop().call_later(0.03, session.close, "enough")

        session = session_of([beat(1)], write=never, stays=True)
        assert await session.run(Hearer(answer_and_close)) == "enough"
        assert session.is_stuck

    run(story())


def test_a_session_that_is_cancelled_while_its_last_frame_is_stuck_still_ends() -> None:
    async def story() -> None:
        hearer = Hearer()

        async def never(frame: bytes) -> None:
            await asyncio.Event().wait()

        session = session_of([], stays=True, write=never)
        running = asyncio.create_task(session.run(hearer))
        session.post(HeartbeatSeen(seq=1))
        await asyncio.sleep(0.02)
        session.close("it is over")
        await asyncio.sleep(0.02)
        # It waits for the frame by now. The connection is gone: nobody waits any longer.
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert hearer.closed_for == "it is over"
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not [task for task in left if "_write_all" in str(task.get_coro())]

    run(story())
