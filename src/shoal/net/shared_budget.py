"""What all sessions of a node share: frames of models they send, memory for what arrives, turns, how peers behave."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.net.conduct import Conduct
from shoal.wire.frames import chunk_frame, chunk_frames, cut_tensors
from shoal.wire.limits import (
    CHECKPOINT_BUDGET_BYTES,
    FRAMES_KEPT_MAX_BYTES,
    PAYLOAD_LEAST_BYTES_PER_S,
    RESULT_BUDGET_BYTES,
    UPLOAD_BUDGET_BYTES,
    UPLOAD_PEER_SHARE,
)
from shoal.wire.messages import NO_TENSORS, Checkpoint, Message

if TYPE_CHECKING:
    import numpy as np


class ChunkCache:
    """The frames of models that go to many. A new version is cut into frames once, and they go when it goes. Those of
    a large model are made as they are sent, and nothing is kept."""

    def __init__(self) -> None:
        #: All frames of a model but the first, which has the envelope of its own message.
        self._frames: dict[tuple[int, ...], list[bytes]] = {}

    def frames(self, message: Message, head: bytes) -> Iterable[bytes]:
        """A whole message, whose envelope is the frame ``head``."""
        tensors = getattr(message, "tensors", NO_TENSORS)
        if not tensors:
            return (head,)
        arrays = list(tensors.values())
        if any(array.flags.writeable for array in arrays) or bytes_of(arrays) > FRAMES_KEPT_MAX_BYTES:
            return chunk_frames(tensors, head=head)
        key = tuple(map(id, arrays))
        chunks = cut_tensors(tensors)
        first = next(chunks, None)
        if first is None:
            return (head,)
        rest = self._frames.get(key)
        if rest is None:
            rest = self._frames[key] = [chunk_frame(*parts) for parts in chunks]
            # An id may be used again once its array is gone, and so must its frames be.
            weakref.finalize(arrays[0], self._frames.pop, key, None)
        return (chunk_frame(*first, head=head), *rest)


def bytes_of(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)


class Uploads:
    """The memory for tensors that are arriving: bounded over all sessions of a node, and used again.

    It belongs to all of them together. A buffer kept by each would be a model for every worker that ever sent one.
    One peer never has more than its share of it: a larger message comes beside the budget, one such at a time.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._share_bytes = int(budget_bytes * UPLOAD_PEER_SHARE)
        self._used_bytes = 0
        self._by_peer: Counter[str] = Counter()
        #: A message larger than a share is arriving.
        self._has_large = False
        self._waiters: list[asyncio.Future[None]] = []
        #: Free buffers of one size. There are at most as many as were in use at once, so they are within the budget.
        self._spares: list[np.ndarray] = []

    async def take(self, size_bytes: int, *, peer: str) -> None:
        """Wait for room; it is given back with ``give``."""
        while not self._has_room(size_bytes, peer):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if size_bytes > self._share_bytes:
            self._has_large = True
        else:
            self._used_bytes += size_bytes
            self._by_peer[peer] += size_bytes

    def _has_room(self, size_bytes: int, peer: str) -> bool:
        if size_bytes > self._share_bytes:
            return not self._has_large
        fits = self._used_bytes + size_bytes <= self._budget_bytes
        return fits and self._by_peer[peer] + size_bytes <= self._share_bytes

    def buffer(self, size_bytes: int) -> np.ndarray:
        """Memory for tensors that have room: what another message left, if it fits."""
        if self._spares and self._spares[-1].size != size_bytes:
            self._spares.clear()
        if self._spares:
            return self._spares.pop()
        # Here: a device that has no job holds sessions without numpy.
        import numpy as np

        return np.empty(size_bytes, dtype=np.uint8)

    def keep(self, buffer: np.ndarray) -> None:
        """Nobody reads this buffer any more, or its message owns it: a large one is never used again."""
        if buffer.size > self._share_bytes:
            return
        if self._spares and self._spares[-1].size != buffer.size:
            self._spares.clear()
        self._spares.append(buffer)

    def give(self, size_bytes: int, *, peer: str) -> None:
        if size_bytes > self._share_bytes:
            self._has_large = False
        else:
            self._used_bytes -= size_bytes
            self._by_peer[peer] -= size_bytes
            if not self._by_peer[peer]:
                del self._by_peer[peer]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


#: The longest a turn lasts while its message is not out.
TURN_HOLD_S = 0.02


class ModelSlots:
    """Models leave one after the other rather than all at once, so that the first worker to have one begins early.

    Sent side by side, N models all arrive at the end of the stretch in which the first could have been trained on
    and answered. A turn ends when the message is out or after a moment: a slow peer never holds up a fast one.
    """

    def __init__(self, *, at_once: int = 1, hold_s: float = TURN_HOLD_S) -> None:
        self._free = at_once
        self._hold_s = hold_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Open turns and the latest time at which each ends, in the order in which they began.
        self._held: dict[int, float] = {}
        self._taken = 0
        #: Looks when the oldest turn is over, while some message waits for it.
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> int:
        """Wait for a turn; its number is given back with ``give``."""
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            self._watch(loop)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on()
                raise
        self._taken += 1
        self._held[self._taken] = loop.time() + self._hold_s
        if self._waiting:
            self._watch(loop)
        return self._taken

    def give(self, turn: int) -> None:
        """The message is out. A turn that was over before has been passed on already."""
        if self._held.pop(turn, None) is not None:
            self._pass_on()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._held:
            self._timer = loop.call_at(next(iter(self._held.values())), self._look)

    def _look(self) -> None:
        """Pass on the turns that lasted long enough, as far as some message waits for one."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for turn in [turn for turn, over_s in self._held.items() if over_s <= now_s]:
            if not self._waiting:
                return
            del self._held[turn]
            self._pass_on()
        if self._waiting:
            self._watch(loop)

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


@dataclass(slots=True)
class SharedBudget:
    chunks: ChunkCache = field(default_factory=ChunkCache)
    uploads: Uploads = field(default_factory=lambda: Uploads(UPLOAD_BUDGET_BYTES))
    #: Checkpoints and products have memory of their own: what is merged does not wait for a slow one of either.
    checkpoints: Uploads = field(default_factory=lambda: Uploads(CHECKPOINT_BUDGET_BYTES))
    results: Uploads = field(default_factory=lambda: Uploads(RESULT_BUDGET_BYTES))
    turns: ModelSlots = field(default_factory=ModelSlots)
    conduct: Conduct = field(default_factory=Conduct)
    #: The slowest that tensors may arrive here.
    least_bytes_per_s: float = PAYLOAD_LEAST_BYTES_PER_S

    def room_for(self, message: Message) -> Uploads:
        """The memory that the tensors of this message are received in."""
        if isinstance(message, Checkpoint):
            return self.checkpoints
        return self.results if message.rule.to == "pool" else self.uploads
