"""Messages and their tensors to and from frames.

A frame is the protobuf ``Frame { Envelope envelope = 1; bytes chunk = 2; }``. It is written and read by hand,
because protobuf would copy every chunk twice more. Any generated client still understands it (a test compares both).
The first frame of a message carries its envelope and its odd chunk, so a small model is one frame.

Numpy is imported only where tensors are cut or assembled: a device without a job sends and reads frames without it.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Misuse, PeerViolation
from shoal.wire.encoding import TensorInfo, decode_envelope, encode_envelope, varint
from shoal.wire.limits import CHUNK_BYTES, ENVELOPE_MAX_BYTES, PAYLOAD_MAX_BYTES, SMALL_BYTES
from shoal.wire.messages import NO_TENSORS, Heartbeat, HeartbeatSeen, Message, Tensors, completed, with_tensors

if TYPE_CHECKING:
    import numpy as np

_ENVELOPE_TAG = 0x0A  # field 1, length-delimited
_CHUNK_TAG = 0x12  # field 2, length-delimited
_ENVELOPE_PREFIX = bytes([_ENVELOPE_TAG])
_CHUNK_PREFIX = bytes([_CHUNK_TAG])

#: Heartbeats without news, and their answers, are the same bytes from every device because each counts from one. The
#: cache has room for this many frames of at most this size.
_ALIKE_MAX = 4096
_ALIKE_MAX_BYTES = 24


def _field(view: memoryview, at: int, end: int, max_bytes: int) -> tuple[memoryview, int]:
    """Return the contents of the length-delimited field whose tag is at ``at``, and where the next field begins."""
    length, shift, at = 0, 0, at + 1
    while True:
        if at >= end or shift > 28:
            raise PeerViolation("a frame is truncated")
        byte = view[at]
        length |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            break
    if length > max_bytes:
        raise PeerViolation(f"a field of a frame has {length} bytes; the maximum is {max_bytes}")
    if length > end - at:
        raise PeerViolation("a frame is truncated")
    return view[at : at + length], at + length


def _parts(frame: bytes, *, max_envelope_bytes: int) -> tuple[memoryview | None, memoryview | None]:
    """Return the envelope and the chunk of a frame without copying. Each may occur once, in the order we write them."""
    view, end = memoryview(frame), len(frame)
    envelope = chunk = None
    at = 0
    if end and view[0] == _ENVELOPE_TAG:
        envelope, at = _field(view, 0, end, max_envelope_bytes)
    if at < end and view[at] == _CHUNK_TAG:
        chunk, at = _field(view, at, end, CHUNK_BYTES)
    if at != end:
        raise PeerViolation("a frame must have an envelope, a chunk or both, and nothing else")
    return envelope, chunk


def envelope_frame(message: Message, *, max_bytes: int = ENVELOPE_MAX_BYTES) -> bytes:
    """Return the frame of a message without tensors, or the start of the first frame of one with tensors."""
    if type(message) is HeartbeatSeen:
        return _answer_frame(message)
    return _envelope_frame(message, max_bytes=max_bytes)


def _envelope_frame(message: Message, *, max_bytes: int = ENVELOPE_MAX_BYTES) -> bytes:
    data = encode_envelope(message, max_bytes=max_bytes)
    return b"".join((_ENVELOPE_PREFIX, varint(len(data)), data))


_answer_frame = functools.lru_cache(_ALIKE_MAX)(_envelope_frame)


def chunk_frame(*parts: bytes | memoryview, head: bytes = b"") -> bytes:
    """Return the frame of one chunk, in one copy. ``head`` is the envelope's frame if they share one."""
    return b"".join((head, _CHUNK_PREFIX, varint(sum(map(len, parts))), *parts))


def chunk_frames(tensors: Tensors, *, head: bytes = b"") -> Iterator[bytes]:
    """Yield the tensors, cut into chunks, after ``head``. The only copy is from the array into the frame."""
    for parts in cut_tensors(tensors):
        yield chunk_frame(*parts, head=head)
        head = b""
    if head:
        yield head


def cut_tensors(tensors: Tensors) -> Iterator[list[memoryview]]:
    """Yield the views that make up each chunk of the tensors, back to back: the odd chunk first. Copies nothing."""
    if not tensors:
        return
    import numpy as np

    views = [np.ascontiguousarray(array).reshape(-1).data.cast("B") for array in tensors.values() if array.size]
    left = sum(len(view) for view in views)
    room = left % CHUNK_BYTES or CHUNK_BYTES
    parts: list[memoryview] = []
    for view in views:
        while len(view):
            parts.append(view[:room])
            taken = len(parts[-1])
            view = view[taken:]
            room -= taken
            if not room:
                yield parts
                parts, room = [], CHUNK_BYTES


def frames(message: Message) -> Iterator[bytes]:
    """Yield all frames of a message."""
    yield from chunk_frames(getattr(message, "tensors", NO_TENSORS), head=envelope_frame(message))


def joined(head: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the frames of a message whose chunks are ready. The first chunk shares the envelope's frame: fields of
    protobuf simply follow each other."""
    following = iter(chunks)
    first = next(following, b"")
    yield head + first if first else head
    yield from following


def small_frame(message: Message) -> bytes | None:
    """Return the only frame of a message that is small enough to be sent without waiting, or None if it is larger."""
    tensors = getattr(message, "tensors", NO_TENSORS)
    if not tensors:
        return envelope_frame(message)
    size_bytes = 0
    for array in tensors.values():
        size_bytes += array.nbytes
    if size_bytes > SMALL_BYTES:
        return None
    head = envelope_frame(message)
    if not size_bytes:
        return head
    # Values must be contiguous and in order: a tensor may be a slice of a larger one.
    kept = (array if array.flags.c_contiguous else array.copy(order="C") for array in tensors.values() if array.size)
    return b"".join((head, _CHUNK_PREFIX, varint(size_bytes), *(array.data for array in kept)))


def payload_bytes(infos: tuple[TensorInfo, ...]) -> int:
    # Nearly every message has only one tensor.
    return infos[0].size_bytes if len(infos) == 1 else sum(info.size_bytes for info in infos)


@dataclass(frozen=True, slots=True)
class Opening:
    """The first frame of a message: the message, the tensors that it announces, and the chunk in the frame."""

    message: Message
    infos: tuple[TensorInfo, ...]
    chunk: memoryview | None

    def whole(self) -> Message:
        """Return the message with its tensors copied out of the frame, which must contain all of them."""
        chunk, total = self.chunk, payload_bytes(self.infos)
        if chunk is None:
            raise Misuse("the tensors of this message have not arrived")
        if len(chunk) != total:
            raise PeerViolation(f"a chunk has {len(chunk)} bytes where {total} were announced")
        import numpy as np

        tensors: dict[str, np.ndarray] = {}
        at = 0
        for info in self.infos:
            end = at + info.size_bytes
            values = np.frombuffer(chunk[at:end], info.dtype).copy() if end > at else np.empty(0, info.dtype)
            tensors[info.name] = values if len(info.shape) == 1 else values.reshape(info.shape)
            at = end
        complete: Message = completed(self.message, tensors)
        return complete


#: Cached frames and their messages. A peer's message rate limits how fast it can fill the cache.
_ALIKE: dict[bytes, Opening] = {}


def read_opening(frame: bytes, *, max_bytes: int = ENVELOPE_MAX_BYTES, hears: Container[str] | None = None) -> Opening:
    """Read a frame that must begin a message. If ``hears`` is given, other kinds of messages are refused."""
    alike = _ALIKE.get(frame) if len(frame) <= _ALIKE_MAX_BYTES else None
    if alike is not None and (hears is None or type(alike.message).__name__ in hears):
        return alike
    envelope, chunk = _parts(frame, max_envelope_bytes=max_bytes)
    if envelope is None:
        raise PeerViolation("a chunk was sent where a message was expected")
    message, infos = decode_envelope(envelope, max_bytes=max_bytes, hears=hears)
    if chunk is not None and not infos:
        raise PeerViolation(f"a chunk was sent with {type(message).__name__}, which announced no tensors")
    opening = Opening(message, infos, chunk)
    if isinstance(message, Heartbeat | HeartbeatSeen) and len(frame) <= _ALIKE_MAX_BYTES:
        if len(_ALIKE) >= _ALIKE_MAX:
            _ALIKE.clear()
        _ALIKE[frame] = opening
    return opening


def read_chunk_frame(frame: bytes) -> memoryview:
    """Read a frame that must be a chunk, without copying it."""
    envelope, chunk = _parts(frame, max_envelope_bytes=0)
    if envelope is not None or chunk is None:
        raise PeerViolation("a message was sent where a chunk was expected")
    return chunk


class Assembly:
    """A message whose tensors are still arriving. It allocates memory once, after the sizes were checked."""

    def __init__(
        self,
        message: Message,
        infos: tuple[TensorInfo, ...],
        *,
        max_bytes: int = PAYLOAD_MAX_BYTES,
        buffer: np.ndarray | None = None,
    ) -> None:
        """Prepare to receive the tensors. ``buffer`` is memory to reuse: uint8, of the announced size."""
        import numpy as np

        self._message = message
        self._infos = infos
        self._total = payload_bytes(infos)
        if self._total > max_bytes:
            raise PeerViolation(
                f"{type(message).__name__} has {self._total} bytes of tensors; the maximum is {max_bytes}"
            )
        self.buffer = buffer if buffer is not None else np.empty(self._total, dtype=np.uint8)
        if self.buffer.size != self._total:
            raise Misuse(f"the buffer has {self.buffer.size} bytes; it must have {self._total}")
        self._view = self.buffer.data
        self._filled = 0

    @property
    def complete(self) -> bool:
        return self._filled == self._total

    def feed(self, chunk: memoryview) -> None:
        """Add the next chunk: the odd one first, then full ones."""
        left = self._total - self._filled
        expected = left % CHUNK_BYTES or CHUNK_BYTES
        if not left or len(chunk) != expected:
            raise PeerViolation(f"a chunk has {len(chunk)} bytes where {expected if left else 0} were announced")
        self._view[self._filled : self._filled + len(chunk)] = chunk
        self._filled += len(chunk)

    def message(self) -> Message:
        """Return the message with its tensors as views of the buffer."""
        import numpy as np

        tensors: dict[str, np.ndarray] = {}
        at = 0
        for info in self._infos:
            end = at + info.size_bytes
            flat = self.buffer[at:end]
            # A tensor after one of odd length may be unaligned: numpy then needs a copy.
            dtype = np.dtype(info.dtype)
            aligned = flat if at % dtype.itemsize == 0 else flat.copy()
            tensors[info.name] = aligned.view(dtype).reshape(info.shape)
            at = end
        result: Message = with_tensors(self._message, tensors)
        return result


def read_message(incoming: Iterator[bytes], *, max_bytes: int = PAYLOAD_MAX_BYTES) -> Message:
    """Read a complete message from frames that are all available. A session reads them one by one instead."""
    opening = read_opening(next(incoming, b""))
    if not opening.infos:
        return opening.message
    assembly = Assembly(opening.message, opening.infos, max_bytes=max_bytes)
    if opening.chunk is not None:
        assembly.feed(opening.chunk)
    while not assembly.complete:
        assembly.feed(read_chunk_frame(next(incoming, b"")))
    return assembly.message()
