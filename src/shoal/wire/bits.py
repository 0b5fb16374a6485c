"""Numbers of a few bits, packed into bytes and unpacked again.

The highest bit of a number comes first, the first number begins in the highest bit of the first byte, and the unused
bits of the last byte are zero. Unpacked bits take a byte each, so blocks bound the memory.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse, PeerViolation

BITS_MAX = 32

#: Numbers per block. A multiple of eight, so that each block begins on a byte.
_BLOCK = 1 << 13


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` numbers of ``bits`` bits take."""
    return (count * bits + 7) // 8


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack integers from 0 to below 2^bits into uint8."""
    if not 0 <= bits <= BITS_MAX:
        raise Misuse(f"numbers of 0 to {BITS_MAX} bits are packed, not of {bits}")
    out = np.empty(packed_bytes(numbers.size, bits), dtype=np.uint8)
    if not bits:
        return out
    width = _width_bytes(bits)
    for start in range(0, numbers.size, _BLOCK):
        block = numbers[start : start + _BLOCK].astype(f">u{width}")
        each = np.unpackbits(block.view(np.uint8).reshape(-1, width), axis=1)[:, 8 * width - bits :]
        flat = np.packbits(each.reshape(-1))
        at = start * bits // 8
        out[at : at + flat.size] = flat
    return out


def unpack(data: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the numbers (int64). ``data`` must have exactly the bytes that they take."""
    if not 0 <= bits <= BITS_MAX:
        raise Misuse(f"numbers of 0 to {BITS_MAX} bits are packed, not of {bits}")
    if (wanted := packed_bytes(count, bits)) != data.size:
        raise PeerViolation(f"{count} numbers of {bits} bits take {wanted} bytes, but {data.size} were sent")
    spare = 8 * data.size - count * bits
    if spare and int(data[-1]) & ((1 << spare) - 1):
        raise PeerViolation("the last byte has bits after the last number")
    out = np.zeros(count, dtype=np.int64)
    if not bits:
        return out
    width = _width_bytes(bits)
    room = np.zeros((min(count, _BLOCK), 8 * width), dtype=np.uint8)
    for start in range(0, count, _BLOCK):
        stop = min(count, start + _BLOCK)
        each = room[: stop - start]
        flat = np.unpackbits(data[start * bits // 8 : packed_bytes(stop, bits)], count=(stop - start) * bits)
        each[:, 8 * width - bits :] = flat.reshape(-1, bits)
        out[start:stop] = np.packbits(each.reshape(-1)).view(f">u{width}")
    return out


def _width_bytes(bits: int) -> int:
    """Return the bytes of the smallest integer type with at least this many bits."""
    return 1 if bits <= 8 else 2 if bits <= 16 else 4
