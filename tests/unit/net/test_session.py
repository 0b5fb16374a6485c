"""Sessions over queues instead of a network: whose memory tensors arrive in, and how much of it."""

import asyncio
import gc
from collections.abc import Callable

import numpy as np
import pytest

from shoal.identity.names import RemoteIdentity
from shoal.net.base import Session
from shoal.net.session import FrameSession
from shoal.net.shared_budget import ChunkCache, ModelSlots, SharedBudget, Uploads
from shoal.wire.frames import chunk_frame, envelope_frame, frames
from shoal.wire.limits import CHUNK_BYTES, SMALL_BYTES
from shoal.wire.messages import Lane, Message, Update, Work

#: The least that takes room of the budget.
SIZE_BYTES = SMALL_BYTES + 4
END = object()


def update(lease: int, *, size_bytes: int = SIZE_BYTES) -> Update:
    delta = np.full(size_bytes // 4, lease, dtype=np.float32)
    return Update(job="job", term=1, lease=lease, version=0, examples=1, tensors={"delta": delta})


class Hearer:
    """Remembers where each update lay, and what it said."""

    def __init__(
        self,
        *,
        place: np.ndarray | None = None,
        on_update: Callable[[np.ndarray], None] = lambda _: None,
        awaits: bool = True,
    ) -> None:
        self._place = place
        self._awaits = awaits
        self._on_update = on_update
        self.addresses: list[int] = []
        self.values: list[float] = []

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        assert isinstance(message, Update)
        if not self._awaits:
            assert not message.tensors
            self.values.append(0.0)
            return
        delta = message.tensors["delta"]
        self.addresses.append(delta.ctypes.data)
        self.values.append(float(delta[-1]))
        self._on_update(delta)

    def payload_limit(self, session: Session, message: Message) -> int:
        return SIZE_BYTES

    def awaits(self, session: Session, message: Message) -> bool:
        return self._awaits

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None if self._place is None else self._place.data


async def hear(hearer: Hearer, uploads: Uploads, *messages: Message) -> None:
    """One session that brings these messages and ends."""
    sent = [frame for message in messages for frame in frames(message)]
    assert await end_of(sent, hearer, uploads) == "connection closed"


async def end_of(sent: list[bytes], hearer: Hearer, uploads: Uploads) -> str:
    """Why a session ends that brings these frames."""
    incoming = [*sent, END]

    async def read() -> object:
        return incoming.pop(0)

    async def write(frame: bytes) -> None: ...

    peer = RemoteIdentity(node="device-1", role="node", cluster="shoal")
    session = FrameSession(
        peer=peer,
        lane=Lane.WORK,
        read=read,
        write=write,
        end=END,
        commons=SharedBudget(uploads=uploads),
    )
    return await session.run(hearer)


def test_small_tensors_take_no_room_and_lie_in_memory_of_their_own():
    held: list[np.ndarray] = []

    async def run() -> None:
        # Nothing is left of the budget: a message that waited for room would wait for ever.
        uploads = Uploads(8)
        await uploads.take(2, peer="other")
        uploads._used_bytes = 8
        hearer = Hearer(on_update=held.append)
        sent = [update(lease, size_bytes=SMALL_BYTES) for lease in (1, 2)]
        await asyncio.wait_for(hear(hearer, uploads, *sent), 10)

    asyncio.run(run())
    assert [delta.tolist() for delta in held] == [[1.0] * (SMALL_BYTES // 4), [2.0] * (SMALL_BYTES // 4)]
    assert all(delta.flags.aligned and delta.flags.owndata for delta in held)


def test_small_tensors_that_nobody_awaits_are_dropped():
    hearer = Hearer(awaits=False)
    asyncio.run(hear(hearer, Uploads(SIZE_BYTES), update(1, size_bytes=400), update(2, size_bytes=400)))
    assert hearer.values == [0.0, 0.0]


@pytest.mark.parametrize("come", [396, 404])
def test_a_small_chunk_has_the_bytes_that_were_announced(come: int):
    hearer, announced = Hearer(), update(1, size_bytes=400)
    sent = chunk_frame(bytes(come), head=envelope_frame(announced))
    reason = asyncio.run(end_of([sent], hearer, Uploads(SIZE_BYTES)))
    assert reason == f"broke the contract: a chunk has {come} bytes where 400 were announced"
    assert not hearer.values


def test_sessions_share_one_buffer_where_one_is_enough():
    # A buffer larger than one peer's share of the budget would belong to its message.
    uploads, hearer = Uploads(4 * SIZE_BYTES), Hearer()

    async def three_workers() -> None:
        for lease in (1, 2, 3):
            await hear(hearer, uploads, update(lease))

    asyncio.run(three_workers())
    assert hearer.values == [1.0, 2.0, 3.0]
    assert len(set(hearer.addresses)) == 1


def test_the_listeners_own_memory_is_never_lent_to_others():
    place = np.zeros(SIZE_BYTES, dtype=np.uint8)
    uploads = Uploads(SIZE_BYTES)
    asyncio.run(hear(Hearer(place=place), uploads, update(7)))
    assert place.view(np.float32).tolist() == [7.0] * (SIZE_BYTES // 4)
    assert not np.shares_memory(uploads.buffer(SIZE_BYTES), place)


def test_memory_is_not_used_again_while_a_message_in_it_may_still_be_read():
    """A session that is cut while its update is merged leaves it to whoever merges."""
    read_elsewhere: list[np.ndarray] = []

    def cut(delta: np.ndarray) -> None:
        read_elsewhere.append(delta)
        raise asyncio.CancelledError

    uploads = Uploads(SIZE_BYTES)
    asyncio.run(hear(Hearer(on_update=cut), uploads, update(1)))
    assert not np.shares_memory(uploads.buffer(SIZE_BYTES), read_elsewhere[0])


def test_a_buffer_of_another_size_is_let_go():
    uploads = Uploads(1000)
    old = np.empty(100, dtype=np.uint8)
    uploads.keep(old)
    assert uploads.buffer(200).size == 200
    assert uploads.buffer(100) is not old


def test_uploads_wait_for_room():
    async def run() -> None:
        uploads = Uploads(100)
        for peer in ("one", "two"):
            await uploads.take(50, peer=peer)
        third = asyncio.create_task(uploads.take(10, peer="three"))
        await asyncio.sleep(0)
        assert not third.done()
        uploads.give(50, peer="one")
        await asyncio.wait_for(third, 1)

    asyncio.run(run())


def test_one_peer_holds_its_share_and_the_rest_is_for_others():
    async def run() -> None:
        uploads = Uploads(100)
        await uploads.take(40, peer="greedy")
        more = asyncio.create_task(uploads.take(20, peer="greedy"))
        await asyncio.sleep(0)
        assert not more.done()
        await asyncio.wait_for(uploads.take(50, peer="another"), 1)
        uploads.give(40, peer="greedy")
        await asyncio.wait_for(more, 1)

    asyncio.run(run())


def test_what_is_larger_than_a_share_comes_one_at_a_time_and_holds_up_nobody_else():
    async def run() -> None:
        uploads = Uploads(100)
        await uploads.take(500, peer="slow")
        for peer in ("one", "two"):
            await asyncio.wait_for(uploads.take(50, peer=peer), 1)
        another = asyncio.create_task(uploads.take(60, peer="three"))
        await asyncio.sleep(0)
        assert not another.done()
        uploads.give(500, peer="slow")
        await asyncio.wait_for(another, 1)

    asyncio.run(run())


def test_a_model_is_cut_once_and_its_frames_go_with_it():
    cache = ChunkCache()
    model = np.zeros(CHUNK_BYTES, np.float32)
    model.flags.writeable = False
    other = np.ones(CHUNK_BYTES, np.float32)
    other.flags.writeable = False

    def cut(job: str, lease: int, array: np.ndarray) -> list[bytes]:
        work = Work(job=job, term=1, lease=lease, kind="train", version=1, deadline_s=1, tensors={"model": array})
        made = list(cache.frames(work, envelope_frame(work)))
        assert made == list(frames(work))
        return made

    first = cut("a", 1, model)
    cut("b", 1, other)
    again = cut("a", 2, model)
    assert len(first) == len(again) == 4
    # All but the first, which has the envelope; and another job in between does not matter.
    assert all(one is other for one, other in zip(first[1:], again[1:], strict=True))
    assert len(cache._frames) == 2
    del model, again, first
    gc.collect()
    assert len(cache._frames) == 1


def test_models_leave_in_turn_and_a_slow_one_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = []
    call_at = asyncio.BaseEventLoop.call_at

    def counted(loop, when, callback, *rest, **named):
        if getattr(callback, "__name__", "") == "_look":
            timers.append(when)
        return call_at(loop, when, callback, *rest, **named)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", counted)

    async def story() -> None:
        slots = ModelSlots(hold_s=0.05)
        for _ in range(100):
            slots.give(await slots.take())
        assert not timers, "nobody waits"
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        slow = await slots.take()
        second, third = (asyncio.create_task(slots.take()) for _ in range(2))
        turn = await second
        assert loop.time() - began_s >= 0.05
        assert not third.done()
        slots.give(slow)  # over long ago: it gives nothing away twice
        await asyncio.sleep(0)
        assert not third.done()
        slots.give(turn)
        slots.give(await third)
        fourth = await slots.take()
        fifth = asyncio.create_task(slots.take())
        await asyncio.sleep(0)
        fifth.cancel()
        await asyncio.gather(fifth, return_exceptions=True)
        slots.give(fourth)
        slots.give(await slots.take())

    asyncio.run(asyncio.wait_for(story(), 60))
