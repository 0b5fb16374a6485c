"""Numbers of a few bits, packed into bytes and back. Pure; knows arrays, not what they mean.

The highest bit of a number comes first, the first number begins in the highest bit of the first byte, and what is left
of the last byte is zero. Work goes block by block: unpacked bits take a byte each, and a block of those is small.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse, PeerViolation

BITS_MAX = 32

#: Numbers at a time. A multiple of eight, so that each block begins on a byte.
_BLOCK = 1 << 13


def packed_bytes(count: int, bits: int) -> int:
    """How long ``count`` numbers of ``bits`` are."""
    return (count * bits + 7) // 8


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers from 0 up to 2^bits, as uint8."""
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
    """The numbers (int64) of exactly as many bytes as they take."""
    if not 0 <= bits <= BITS_MAX:
        raise Misuse(f"numbers of 0 to {BITS_MAX} bits are packed, not of {bits}")
    if data.size != packed_bytes(count, bits):
        raise PeerViolation(f"{count} numbers of {bits} bits in {data.size} bytes, not {packed_bytes(count, bits)}")
    spare = 8 * data.size - count * bits
    if spare and int(data[-1]) & ((1 << spare) - 1):
        raise PeerViolation("bits after the last number")
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
    """The least number type that holds them."""
    return 1 if bits <= 8 else 2 if bits <= 16 else 4
