"""Updates as integers modulo 2^32 or 2^16, so that masks cancel exactly and no sum wraps around.

A value becomes a number of steps. With 32 bits a step is a power of two, so the product is exact in float32. With 16
bits that rounding could halve the few steps that there are, so a step may have any size. Then a product is off by
2^-24 of its value, which is small compared with a step: at least 2^-15 of the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: Bounds below 2^-BOUND_MAX or above 2^BOUND_MAX are never useful for an update.
BOUND_MAX = 40

#: Both are powers of two, by the bits per word. BOUND_FIRST is the largest value of an update before the first sum is
#: opened. BOUND_ABOVE is how far the bound then is above the largest value of the last mean. Single updates have
#: larger values than their mean, and values above the bound are clipped. But each bit of room makes the rounding twice
#: as coarse, which matters with 16 bits.
BOUND_FIRST = {32: 3, 16: 0}
BOUND_ABOVE = {32: 6, 16: 4}

#: Values handled at a time, so that the intermediate arrays stay in a core's cache.
_BLOCK = 1 << 15


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of the words of masks and sums."""
    return np.dtype({32: "<u4", 16: "<u2"}[bits])


def bound_after(mean: np.ndarray, *, bits: int, before: int) -> int:
    """Return the bound of the next sum, from the largest value of this mean."""
    largest = float(np.abs(mean).max(initial=0.0))
    if largest == 0:
        return before
    return max(-BOUND_MAX, min(math.ceil(math.log2(largest)) + BOUND_ABOVE[bits], BOUND_MAX))


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Values from -2^bound to 2^bound as integers, for a sum over ``devices`` devices."""

    bound: int
    devices: int
    #: Bits per word: 32 or 16.
    bits: int = 32

    def __post_init__(self) -> None:
        if not -BOUND_MAX <= self.bound <= BOUND_MAX:
            raise Misuse(f"the bound is 2^{self.bound}; it must be from 2^-{BOUND_MAX} to 2^{BOUND_MAX}")
        if self.bits not in BOUND_FIRST:
            raise Misuse(f"a word has {self.bits} bits; it must have 32 or 16")
        if not 1 <= self.devices <= self._half:
            raise Misuse(f"a sum is over {self.devices} devices; it must be over 1 to {self._half}")

    @property
    def _half(self) -> int:
        """The largest sum. Half of the values of a word stand for negative numbers."""
        return (1 << (self.bits - 1)) - 1

    @property
    def limit(self) -> int:
        """The largest integer that one device may send, so that the sum over all devices fits a word."""
        most = self._half // self.devices
        return most if self.bits == 16 else int(1 << most.bit_length() - 1)

    @property
    def steps(self) -> float:
        """Steps per 1.0."""
        return float(self.limit) / 2.0**self.bound

    def encode(self, values: np.ndarray, *, factor: float, chance: bytes) -> np.ndarray:
        """Return ``factor`` times these values in steps, clipped at the bound. Rounding is random, from the stream of
        ``chance`` (32 bytes): the probability of rounding up is the distance to the step below, so that the expected
        result is the value."""
        from shoal.sealing.stream import stream

        if not 0 < factor <= 1:
            raise Misuse(f"the weight factor is {factor}; it must be above 0 and at most 1")
        times, limit = np.float32(factor) * np.float32(self.steps), np.float32(self.limit)
        made, source = np.empty(values.size, dtype=word_type(self.bits)), stream(chance)
        all_steps, all_below, all_drawn = (np.empty(_BLOCK, dtype=np.float32) for _ in range(3))
        # 16 random bits per value. The cipher asks for a little more room than it fills.
        room, zeros, is_up = bytearray(2 * _BLOCK + 64), memoryview(bytes(2 * _BLOCK)), np.empty(_BLOCK, dtype=np.bool_)
        chances = np.frombuffer(room, dtype="<u2")
        for first in range(0, values.size, _BLOCK):
            part = values[first : first + _BLOCK]
            size = part.size
            steps, below, drawn, up = (each[:size] for each in (all_steps, all_below, all_drawn, is_up))
            np.multiply(part, times, out=steps)
            np.clip(steps, -limit, limit, out=steps)
            np.floor(steps, out=below)
            np.subtract(steps, below, out=steps)
            np.multiply(steps, np.float32(1 << 16), out=steps)
            source.update_into(zeros[: 2 * size], room)
            np.copyto(drawn, chances[:size])
            np.greater(steps, drawn, out=up)
            words = made[first : first + size]
            np.copyto(self.signed(words), below, casting="unsafe")
            np.add(words, up, out=words)
        return made

    def decode(self, total: np.ndarray, *, times: float) -> np.ndarray:
        """Return a sum as float32, multiplied by ``times``."""
        signed = self.signed(total).astype(np.float64)
        signed *= times / self.steps
        return signed.astype(np.float32)

    def signed(self, words: np.ndarray) -> np.ndarray:
        """View words as signed integers."""
        return words.view({32: "<i4", 16: "<i2"}[self.bits])
