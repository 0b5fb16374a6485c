"""Updates as whole numbers modulo 2^32, so that masks cancel to the bit and no sum wraps. Knows no masks.

A value becomes a number of steps, each a power of two. Powers of two make the product exact in float32, so that only
the rounding itself depends on chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: Values beyond 2^-BOUND_MAX and 2^BOUND_MAX say nothing of an update.
BOUND_MAX = 40

#: Half of the numbers modulo 2^32 stand for those below zero.
_HALF_BITS = 31

#: Values handled at a time, so that what is made of them stays in a core's cache.
_BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Values from -2^bound to 2^bound, in a sum of so many devices."""

    bound: int
    devices: int

    def __post_init__(self) -> None:
        if not -BOUND_MAX <= self.bound <= BOUND_MAX:
            raise Misuse(f"a bound of 2^{self.bound}: it is from 2^-{BOUND_MAX} to 2^{BOUND_MAX}")
        if not 1 <= self.devices < 1 << _HALF_BITS:
            raise Misuse(f"a sum of {self.devices} devices")

    @property
    def limit(self) -> int:
        """The largest number of one device: of all devices together it stays below 2^31."""
        return int(1 << (((1 << _HALF_BITS) - 1) // self.devices).bit_length() - 1)

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
        # A product with a power of two is exact.
        times, limit = np.float32(factor) * np.float32(self.steps), np.float32(self.limit)
        made, source = np.empty(values.size, dtype="<u4"), stream(chance)
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
            np.copyto(words.view("<i4"), below, casting="unsafe")
            np.add(words, up, out=words)
        return made

    def decode(self, total: np.ndarray, *, times: float) -> np.ndarray:
        """A sum as float32, multiplied by ``times``."""
        signed = total.view("<i4").astype(np.float64)
        signed *= times / self.steps
        return signed.astype(np.float32)
