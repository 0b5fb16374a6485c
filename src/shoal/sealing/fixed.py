"""Updates as whole numbers modulo 2^32 or 2^16, so that masks cancel to the bit and no sum wraps. Knows no masks.

A value becomes a number of steps. With 32 bits a step is a power of two, which makes the product exact in float32. With
16 bits there are too few steps to give half of them away for that: a product is off by 2^-24 of itself, and a step is
at least 2^-15 of the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: Values beyond 2^-BOUND_MAX and 2^BOUND_MAX say nothing of an update.
BOUND_MAX = 40

#: By the bits of a word: the largest value of an update as a power of two, before any sum was opened; and later by how
#: far it is above that of the last mean. Single updates are longer than their mean, and what is above the bound is cut;
#: but of 16 bits each that is given away makes the rounding twice as coarse.
BOUND_FIRST = {32: 3, 16: 0}
BOUND_ABOVE = {32: 6, 16: 4}

#: Values handled at a time, so that what is made of them stays in a core's cache.
_BLOCK = 1 << 15


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """The words of masks and sums."""
    return np.dtype({32: "<u4", 16: "<u2"}[bits])


def bound_after(mean: np.ndarray, *, bits: int, before: int) -> int:
    """The bound of the next sum, by the largest value of this one."""
    largest = float(np.abs(mean).max(initial=0.0))
    if largest == 0:
        return before
    return max(-BOUND_MAX, min(math.ceil(math.log2(largest)) + BOUND_ABOVE[bits], BOUND_MAX))


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Values from -2^bound to 2^bound, in a sum of so many devices."""

    bound: int
    devices: int
    #: Of a word: 32 or 16.
    bits: int = 32

    def __post_init__(self) -> None:
        if not -BOUND_MAX <= self.bound <= BOUND_MAX:
            raise Misuse(f"a bound of 2^{self.bound}: it is from 2^-{BOUND_MAX} to 2^{BOUND_MAX}")
        if self.bits not in BOUND_FIRST:
            raise Misuse(f"words of {self.bits} bits: there are words of 32 and of 16")
        if not 1 <= self.devices <= self._half:
            raise Misuse(f"a sum of {self.devices} devices")

    @property
    def _half(self) -> int:
        """The largest sum: half of the numbers of a word stand for those below zero."""
        return (1 << (self.bits - 1)) - 1

    @property
    def limit(self) -> int:
        """The largest number of one device: that of all devices together is no larger than a word holds."""
        most = self._half // self.devices
        return most if self.bits == 16 else int(1 << most.bit_length() - 1)

    @property
    def steps(self) -> float:
        """How many steps the value 1 has."""
        return float(self.limit) / 2.0**self.bound

    def encode(self, values: np.ndarray, *, factor: float, chance: bytes) -> np.ndarray:
        """``factor`` times these values, cut at the bound, in steps. Each is rounded up as likely as it is far from the
        step below, by the stream of ``chance`` (32 bytes): the mean of what is rounded is the value."""
        from shoal.sealing.stream import stream

        if not 0 < factor <= 1:
            raise Misuse(f"a weight of {factor} of the largest")
        times, limit = np.float32(factor) * np.float32(self.steps), np.float32(self.limit)
        made, source = np.empty(values.size, dtype=word_type(self.bits)), stream(chance)
        all_steps, all_below, all_drawn = (np.empty(_BLOCK, dtype=np.float32) for _ in range(3))
        # 16 bits of chance for each value. The cipher asks for a little more room than it fills.
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
        """A sum as float32, multiplied by ``times``."""
        signed = self.signed(total).astype(np.float64)
        signed *= times / self.steps
        return signed.astype(np.float32)

    def signed(self, words: np.ndarray) -> np.ndarray:
        """Words as numbers, half of which are below zero."""
        return words.view({32: "<i4", 16: "<i2"}[self.bits])
