"""Secret words from a 32-byte key: a ChaCha20 stream that can start at any word.

A mask is as secret as its source is unpredictable. Numpy's generators (PCG, Philox) are made for statistics: their next
numbers can be computed from their last ones. We use ChaCha20 and not AES because many boards have no AES instructions
(Raspberry Pi 3 and 4), and ChaCha20 is fast on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

#: ChaCha20 makes this many bytes per block (RFC 8439, §2.3) and can start at any block.
_BLOCK_BYTES = 64

#: Bytes made at a time: they stay in a core's second-level cache until they are added.
_AT_ONCE_BYTES = 1 << 17

_ZEROS = bytes(_AT_ONCE_BYTES)


def stream(key: bytes, *, block: int = 0) -> CipherContext:
    """Return the stream of this key from a block on. A key serves one purpose, once, so the nonce may be anything."""
    return Cipher(algorithms.ChaCha20(key, block.to_bytes(4, "little") + bytes(12)), mode=None).encryptor()


def words(key: bytes, count: int) -> np.ndarray:
    """Return the first ``count`` words of this key."""
    return np.frombuffer(stream(key).update(bytes(4 * count)), dtype="<u4")


def add_all(to: np.ndarray, keys: Sequence[tuple[bytes, bool]], *, start: int = 0) -> None:
    """Add the words of each key, or subtract them if its flag is True, modulo 2^32 or 2^16 by the vector's type. A
    block of the vector stays in the cache until every key is added."""
    width = to.itemsize
    per_block = _BLOCK_BYTES // width
    sources = []
    for key, take_off in keys:
        source = stream(key, block=start // per_block)
        source.update(bytes(width * (start % per_block)))
        sources.append((source, np.subtract if take_off else np.add))
    # The cipher asks for a little more room than it fills.
    room = bytearray(_AT_ONCE_BYTES + _BLOCK_BYTES)
    made = np.frombuffer(room, dtype=to.dtype)
    step = _AT_ONCE_BYTES // width
    zeros = memoryview(_ZEROS)
    for first in range(0, to.size, step):
        part = to[first : first + step]
        for source, change in sources:
            source.update_into(zeros[: width * part.size], room)
            change(part, made[: part.size], out=part)
