"""Sessions with peers that stall, flood, do not read or say what is not theirs to say; over queues alone."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.identity.names import RemoteIdentity
from shoal.net import session as session_module
from shoal.net.base import Session
from shoal.net.conduct import Conduct, Rate
from shoal.net.session import FrameSession
from shoal.net.shared_budget import SharedBudget, Uploads
from shoal.wire.frames import envelope_frame, frames
from shoal.wire.limits import CHUNK_BYTES, OFFENCES_MAX, UPLOAD_BUDGET_BYTES
from shoal.wire.messages import Checkpoint, Heartbeat, HeartbeatSeen, Hello, Lane, Message, Update, UpdateRefused

PEER = RemoteIdentity(node="liar", role="node", cluster="shoal")
REFUSED = UpdateRefused(job="a", term=1, lease=1, reason="a lie")


class Hearer:
    def __init__(
        self,
        on_message: Callable[[Session, Message], None] = lambda session, message: None,
        *,
        awaits: Callable[[], bool] = lambda: True,
    ) -> None:
        self._on_message = on_message
        self._awaits = awaits
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

    def awaits(self, session: Session, message: Message) -> bool:
        return self._awaits()

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


async def ignore(frame: bytes) -> None: ...


def session_of(
    sent: list[bytes],
    *,
    commons: SharedBudget | None = None,
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
        commons=commons or SharedBudget(),
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

    assert run(story()) == "broke the contract: HeartbeatSeen may not be sent here"


CHUNKS = 4


def update_frames(*, lease: int = 1) -> list[bytes]:
    """An update of so many whole chunks: one a frame."""
    delta = np.zeros(CHUNKS * CHUNK_BYTES // 4, np.float32)
    return list(frames(Update(job="a", term=1, lease=lease, version=0, examples=1, tensors={"delta": delta})))


async def has_room(uploads: Uploads) -> bool:
    """Whether all of it is free: for a large message, and for ordinary ones beside."""
    try:
        async with asyncio.timeout(0.2):
            await uploads.take(1 << 30, peer="next")
            for peer in ("next", "other"):
                await uploads.take(UPLOAD_BUDGET_BYTES // 2, peer=peer)
    except TimeoutError:
        return False
    return True


def test_tensors_that_do_not_come_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PAYLOAD_GRACE_S", 0.05)

    async def story() -> None:
        commons = SharedBudget(least_bytes_per_s=1e12)
        reason = await session_of(update_frames()[:1], stays=True, commons=commons, lane=Lane.WORK).run(Hearer())
        assert re.match(r"broke the contract: sent 1048576 of 4194304 bytes in 0\.\d s: at least 1e\+12 bytes", reason)
        assert await has_room(commons.uploads)

    run(story())


def test_a_whole_message_has_an_end_however_steadily_it_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PAYLOAD_GRACE_S", 0.5)
    left = update_frames()

    async def trickle() -> bytes:
        await asyncio.sleep(0.3)
        return left.pop(0)

    async def story() -> str:
        # Each chunk comes within the grace. All of them together do not.
        session = session_of([], commons=SharedBudget(least_bytes_per_s=1e9), lane=Lane.WORK, read=trickle)
        return await session.run(Hearer())

    assert run(story()).startswith("broke the contract: sent 2097152 of 4194304 bytes")


def test_a_slow_peer_that_keeps_the_least_rate_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PAYLOAD_GRACE_S", 0.5)
    left = [*update_frames(), None]

    async def trickle() -> bytes | None:
        await asyncio.sleep(0.2)
        return left.pop(0)

    async def story() -> None:
        hearer = Hearer()
        # A chunk a second is expected, and one comes every 0.2 s.
        await session_of([], commons=SharedBudget(least_bytes_per_s=CHUNK_BYTES), lane=Lane.WORK, read=trickle).run(
            hearer
        )
        assert len(hearer.heard) == 1

    run(story())


def test_tensors_that_nobody_awaits_are_read_past_without_memory() -> None:
    async def story() -> None:
        commons = SharedBudget()
        await commons.uploads.take(1 << 30, peer="other")
        hearer = Hearer(awaits=lambda: False)
        # Were memory taken for it, it would wait for what the other holds.
        reason = await session_of([*update_frames(), beat(2)], commons=commons, lane=Lane.WORK).run(hearer)
        assert reason == "connection closed"
        update, after = hearer.heard
        assert isinstance(update, Update)
        assert not update.tensors
        assert isinstance(after, Heartbeat)

    run(story())


def test_more_bytes_than_were_announced_are_noticed_where_they_are_dropped_too() -> None:
    odd = Update(
        job="a", term=1, lease=1, version=0, examples=1, tensors={"delta": np.zeros(CHUNK_BYTES // 4 + 1, "f4")}
    )
    _, whole_chunk = frames(odd)

    async def story() -> str:
        # The odd chunk should come first.
        sent = [envelope_frame(odd), whole_chunk, whole_chunk]
        return await session_of(sent, lane=Lane.WORK).run(Hearer(awaits=lambda: False))

    assert run(story()) == "broke the contract: 2097152 bytes of tensors were sent, but 1048580 were announced"


def test_memory_is_given_back_as_soon_as_nobody_awaits_what_arrives() -> None:
    """The lease ran out in the middle of its update: what it holds is free while the rest still comes."""
    left = update_frames()
    is_open = True
    freed: list[bool] = []

    async def story() -> None:
        commons = SharedBudget()

        async def read() -> bytes | None:
            nonlocal is_open
            if len(left) == 2:
                is_open = False
            if len(left) == 1:
                freed.append(await has_room(commons.uploads))
            return left.pop(0) if left else None

        hearer = Hearer(awaits=lambda: is_open)
        await session_of([], commons=commons, lane=Lane.WORK, read=read).run(hearer)
        (update,) = hearer.heard
        assert isinstance(update, Update)
        assert not update.tensors

    run(story())
    assert freed == [True]


def test_a_checkpoint_that_stalls_does_not_hold_up_an_update() -> None:
    content = np.zeros(2 * UPLOAD_BUDGET_BYTES, np.uint8)
    checkpoint = Checkpoint(job="a", term=1, version=1, tensors={"file": content})

    class Large(Hearer):
        def payload_limit(self, session: Session, message: Message) -> int:
            return content.nbytes

    async def story() -> None:
        commons = SharedBudget()
        stalled = session_of([next(frames(checkpoint))], stays=True, commons=commons, lane=Lane.WORK)
        stalling = asyncio.create_task(stalled.run(Large()))
        await asyncio.sleep(0.05)
        assert await has_room(commons.uploads)
        stalling.cancel()
        await asyncio.gather(stalling, return_exceptions=True)

    run(story())


def test_a_refusal_after_we_held_an_update_up_is_no_offence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HELD_UP_S", 0.01)

    async def story(*, held_up: bool) -> str:
        commons = SharedBudget()
        for peer in ("one", "two") if held_up else ():
            await commons.uploads.take(UPLOAD_BUDGET_BYTES // 2, peer=peer)

        def refuse(session: Session, message: Message) -> None:
            for _ in range(OFFENCES_MAX + 1):
                session.post(REFUSED)

        running = asyncio.create_task(session_of(update_frames(), commons=commons, lane=Lane.WORK).run(Hearer(refuse)))
        await asyncio.sleep(0.1)
        if held_up:
            commons.uploads.give(UPLOAD_BUDGET_BYTES // 2, peer="one")
        return await running

    assert run(story(held_up=True)) == "connection closed"
    assert "is turned away" in run(story(held_up=False))


def test_a_flood_is_read_at_the_rate_that_is_allowed() -> None:
    async def story() -> float:
        rate = Rate(burst=10, per_s=100)
        commons = SharedBudget(conduct=Conduct(messages=dict.fromkeys(Lane, rate)))
        hearer = Hearer()
        began_s = time.monotonic()
        await session_of([beat(seq) for seq in range(40)], commons=commons).run(hearer)
        assert len(hearer.heard) == 40
        return time.monotonic() - began_s

    assert run(story()) >= 0.29


def test_what_makes_us_work_costs_more() -> None:
    async def story() -> float:
        rate = Rate(burst=Hello.rule.cost, per_s=5 * Hello.rule.cost)
        commons = SharedBudget(conduct=Conduct(messages=dict.fromkeys(Lane, rate)))
        began_s = time.monotonic()
        hello = envelope_frame(Hello(node="liar", incarnation="1"))
        await session_of([hello, hello], commons=commons).run(Hearer())
        return time.monotonic() - began_s

    assert run(story()) >= 0.19


def test_many_violations_and_the_peer_is_turned_away() -> None:
    async def story() -> list[str]:
        commons = SharedBudget()
        return [await session_of([b"nonsense"], commons=commons).run(Hearer()) for _ in range(OFFENCES_MAX + 2)]

    *early, eleventh, _ = run(story())
    assert all(reason.startswith("broke the contract: a frame must have") for reason in early)
    assert all("turned away" not in reason for reason in early)
    assert "; is turned away for 10 s: broke the contract more than 10 times" in eleventh


def test_one_who_is_turned_away_is_not_heard_on_its_other_stream_either() -> None:
    async def story() -> str:
        commons = SharedBudget()
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
