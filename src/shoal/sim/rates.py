"""How fast a link is over time."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from shoal.errors import Misuse

_BYTES_PER_MBIT = 125_000.0


def mbit(mbit_per_s: float) -> float:
    """Convert megabits per second, as links are sold, to bytes per second."""
    return mbit_per_s * _BYTES_PER_MBIT


class TransferRate(Protocol):
    """Computes when a transfer ends."""

    def finish_s(self, size_bytes: float, start_s: float) -> float:
        """Return when ``size_bytes`` have passed, if they start at ``start_s`` and nothing else is on the link."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant rate."""

    bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < math.inf:
            raise Misuse(f"a link of {self.bytes_per_s} bytes a second carries nothing: give it a rate above 0")

    def finish_s(self, size_bytes: float, start_s: float) -> float:
        return start_s + size_bytes / self.bytes_per_s


# Many links replay one trace, each from another position: the sums are computed once and shared.
@lru_cache(maxsize=1024)
def _sums_bytes(step_s: float, bytes_per_s: tuple[float, ...]) -> tuple[float, ...]:
    """Return the bytes that have passed by the end of 0, 1, 2, ... steps."""
    return tuple(accumulate((rate * step_s for rate in bytes_per_s), initial=0.0))


@dataclass(frozen=True, slots=True)
class Varying:
    """A trace of equal steps, repeated forever. ``offset_s`` is the position of second 0 in the trace."""

    step_s: float
    bytes_per_s: tuple[float, ...]
    offset_s: float = 0.0
    _sums_bytes: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _round_s: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.step_s < math.inf:
            raise Misuse(f"a step of a trace lasts {self.step_s} s: give it a length above 0")
        if not math.isfinite(self.offset_s):
            raise Misuse(f"a trace cannot begin {self.offset_s} s in: give a finite offset")
        if not all(0 <= rate < math.inf for rate in self.bytes_per_s):
            raise Misuse("a trace holds a rate below 0 or without bound: every step must be a finite rate")
        object.__setattr__(self, "_sums_bytes", _sums_bytes(self.step_s, self.bytes_per_s))
        object.__setattr__(self, "_round_s", self.step_s * len(self.bytes_per_s))
        if not self._sums_bytes[-1] > 0:
            raise Misuse("a trace with no step above 0 carries nothing, ever: give one step a rate")

    def finish_s(self, size_bytes: float, start_s: float) -> float:
        if size_bytes <= 0:
            return start_s
        step_s, rates, sums = self.step_s, self.bytes_per_s, self._sums_bytes
        phase_s = (start_s + self.offset_s) % self._round_s
        step = int(phase_s / step_s)
        if step >= len(rates):
            # Rounding may put the phase slightly past the last step.
            step = len(rates) - 1
        # Counted from the beginning of the trace: the transfer ends when this many bytes have passed.
        target_bytes = sums[step] + rates[step] * (phase_s - step * step_s) + size_bytes
        if sums[step] < target_bytes <= sums[step + 1] < sums[-1]:
            # Nearly every message ends within the step in which it begins.
            end_s = step * step_s + (target_bytes - sums[step]) / rates[step]
        else:
            rounds, rest_bytes = divmod(target_bytes, sums[-1])
            if rest_bytes == 0:
                # It ends with the last byte of a round, not at the start of the next: there may be a pause between.
                rounds, rest_bytes = rounds - 1, sums[-1]
            step = bisect_left(sums, rest_bytes) - 1
            end_s = (rounds * len(rates) + step) * step_s + (rest_bytes - sums[step]) / rates[step]
        end_s = start_s + (end_s - phase_s)
        return end_s if end_s > start_s else start_s
