"""The Universal Scalability Law, fitted to rounds: how throughput grows with workers, and up to which number.

Gunther's law has three parts: the rate of a single worker (λ), the share of serial work (σ), and the cost of each pair
of workers (κ):

    X(n) = λ n / (1 + σ(n - 1) + κ n(n - 1)),       the peak at n* = √((1 - σ)/κ).

In rounds n/X is the time of a batch, and that is linear: t(n) = a + b(n - 1) + c n(n - 1), with a = 1/λ, b = σ/λ and
c = κ/λ. EDDL's star l + 2nS/B is the law with σ = (2S/B)/(l + 2S/B) and κ = 0. It has no peak, only a knee, where one
more worker is no longer worth it (``saturation.gain_wanted`` of Shoal). The fit uses all measured sizes, so it answers
sooner than a comparison of two sizes, and also for sizes that were not tried. It assumes that the law holds. If
throughput bends at a corner, the law does not hold: the fit detects that and widens its intervals. It then finds
saturation one or two workers later than the comparison.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.topology.saturation import (
    FORGET_ROUNDS,
    ROUNDS_KEPT,
    SATURATED,
    UNSURE,
    Gain,
    Round,
    SaturationVerdict,
    crew,
    judge,
    student,
    variance_of_mean,
)

#: The law has this many parts, so the fit needs as many sizes.
SIZES_MIN = 3
#: Rounds of a size before it counts: with fewer the noise is not known.
ROUNDS_MIN = 8
#: Beyond this many times the largest measured number of workers, the law is a guess.
EXTRAPOLATE = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTimes:
    """Batches of one size: their mean time, the variance of that mean, and the number of rounds."""

    workers: int
    batch_s: float
    variance: float
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A fitted law and how well it is known."""

    #: Leases per second of a single worker.
    rate: float
    #: σ in [0, 1]: the share of serial work.
    serial: float
    #: κ >= 0: the cost of each pair of workers.
    pairwise: float
    #: Covariance of a, b and c as if they had no bounds: a bound makes an estimate look more certain than it is.
    covariance: tuple[tuple[float, float, float], ...]
    sizes: tuple[int, ...]
    rounds: int
    #: Distance of the sizes from the law, in units of their own noise; about 1 if the law holds.
    misfit: float

    def batch_s(self, workers: float) -> float:
        return float(_terms(workers) @ self._parts)

    def throughput(self, workers: float) -> float:
        return workers / self.batch_s(workers)

    @property
    def peak(self) -> float:
        """n* = √((1 - σ)/κ); infinite if pairs cost nothing."""
        return math.sqrt((1 - self.serial) / self.pairwise) if self.pairwise > 0 else math.inf

    @property
    def peak_between(self) -> tuple[float, float]:
        """The confidence interval of n*: of n*² = (a - b)/c, a ratio of two estimates, by Fieller's theorem."""
        a, b, c = (float(part) for part in self._parts)
        covariance = np.array(self.covariance)
        top = np.array([1.0, -1.0, 0.0])
        z2 = self._quantile**2
        top_var, both, low_var = float(top @ covariance @ top), float(top @ covariance[:, 2]), float(covariance[2, 2])
        square, linear, constant = c * c - z2 * low_var, (a - b) * c - z2 * both, (a - b) ** 2 - z2 * top_var
        inside = linear * linear - square * constant
        if inside < 0:
            return 0.0, math.inf
        if square <= 0:
            # c may be zero, so the peak may be anywhere from the lower end on.
            ends = [] if square == 0 else [(linear + sign * math.sqrt(inside)) / square for sign in (-1.0, 1.0)]
            above = [end for end in ends if end > 0]
            return (math.sqrt(min(above)) if above else 0.0), math.inf
        low, high = (linear - math.sqrt(inside)) / square, (linear + math.sqrt(inside)) / square
        return math.sqrt(max(0.0, low)), math.sqrt(max(0.0, high))

    def gain(self, workers: int) -> Gain:
        """Return the gain from one more worker, with the interval that the noise of the rounds leaves."""
        now, then = self.batch_s(workers), self.batch_s(workers + 1)
        gain = (workers + 1) / workers * now / then - 1
        # ln(1 + gain) = ln t(n) - ln t(n+1) + const: its slope over (a, b, c).
        slope = _terms(workers) / now - _terms(workers + 1) / then
        error = math.sqrt(max(0.0, float(slope @ np.array(self.covariance) @ slope)))
        return judge(workers, gain, (1 + gain) * self._quantile * error)

    @property
    def knee(self) -> int | None:
        """The smallest number of workers to which one more is not worth adding, or None if it is too far beyond the
        measured sizes."""
        for workers in range(1, int(EXTRAPOLATE * self.sizes[-1]) + 1):
            gain = self.gain(workers)
            if gain.gain < gain.wanted:
                return workers
        return None

    @property
    def confidence(self) -> str:
        """The confidence in the law, as text."""
        told = f"{len(self.sizes)} sizes from {self.sizes[0]} to {self.sizes[-1]}, {self.rounds} rounds"
        if len(self.sizes) == SIZES_MIN:
            return f"{told}: too few sizes to check whether the law holds"
        if self.misfit > 2:
            return f"{told}: the law fits badly ({self.misfit:.1f} times the noise), so the intervals are wider"
        return f"{told}: the law fits"

    @property
    def reason(self) -> str:
        low, high = self.peak_between
        peak = "no peak in sight" if math.isinf(self.peak) else f"peak at {self.peak:.0f} workers"
        between = f"from {low:.0f} on" if math.isinf(high) else f"{low:.0f} to {high:.0f}"
        return (
            f"one worker {self.rate:.3g} leases/s, σ {self.serial:.3f}, κ {self.pairwise:.2g}:"
            f" {peak} ({between}); {self.confidence}"
        )

    @property
    def _parts(self) -> np.ndarray:
        return np.array([1.0, self.serial, self.pairwise]) / self.rate

    @property
    def _quantile(self) -> float:
        return student(max(8.0, self.rounds - 3.0))


def fit(measured: list[BatchTimes]) -> Law:
    """Least squares on t(n) = a + b(n - 1) + c n(n - 1), each size weighted by its error; 0 <= b <= a, c >= 0."""
    ordered = sorted(measured, key=lambda size: size.workers)
    sizes = tuple(size.workers for size in ordered)
    if len(set(sizes)) < SIZES_MIN or len(set(sizes)) < len(sizes):
        raise Misuse(
            f"the sizes are {list(sizes)}; fitting a law takes {SIZES_MIN} or more different sizes: measure more"
        )
    times = np.array([size.batch_s for size in ordered])
    # A size whose times never varied still has an error: use a millionth of its time, for the clock.
    errors = np.sqrt(np.array([size.variance for size in ordered]) + (1e-6 * times) ** 2)
    rows = np.array([_terms(size.workers) for size in ordered]) / errors[:, None]
    parts = _bounded(rows, times / errors)
    rest = times / errors - rows @ parts
    spare = len(sizes) - SIZES_MIN
    misfit = math.sqrt(float(rest @ rest) / spare) if spare else 1.0
    covariance = np.linalg.inv(rows.T @ rows) * max(1.0, misfit) ** 2
    return Law(
        rate=1 / float(parts[0]),
        serial=float(parts[1] / parts[0]),
        pairwise=float(parts[2] / parts[0]),
        covariance=tuple((float(row[0]), float(row[1]), float(row[2])) for row in covariance),
        sizes=sizes,
        rounds=sum(size.rounds for size in ordered),
        misfit=misfit,
    )


def _terms(workers: float) -> np.ndarray:
    return np.array([1.0, workers - 1, workers * (workers - 1)])


#: How (a, b, c) depends on its free parts at each bound: all free; c = 0; b = 0; both 0; b = a; b = a and c = 0.
_FACES = tuple(
    np.array(face, dtype=np.float64)
    for face in (
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 1, 0]],
        [[1, 0, 0], [0, 0, 1]],
        [[1, 0, 0]],
        [[1, 1, 0], [0, 0, 1]],
        [[1, 1, 0]],
    )
)


def _bounded(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the best (a, b, c) within bounds. With three parts, all combinations of bounds can be tried."""
    best, least = np.array([float(values @ rows[:, 0]) / float(rows[:, 0] @ rows[:, 0]), 0.0, 0.0]), math.inf
    for face in _FACES:
        found, *_ = np.linalg.lstsq(rows @ face.T, values, rcond=None)
        parts = found @ face
        if parts[0] > 0 and 0 <= parts[1] <= parts[0] and parts[2] >= 0:
            rest = float(np.sum((values - rows @ parts) ** 2))
            if rest < least:
                best, least = parts, rest
    return best


class Scaling:
    """Collects rounds and fits the law to the recent rounds of each size."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._last_round: dict[int, int] = {}
        self._rounds = 0
        self._present = 0

    def add(self, record: Round) -> None:
        self._rounds += 1
        self._present = record.workers
        self._times.setdefault(record.workers, deque(maxlen=ROUNDS_KEPT)).append(record.batch_s - record.wait_s)
        self._last_round[record.workers] = self._rounds
        for size in [size for size, seen in self._last_round.items() if self._rounds - seen > FORGET_ROUNDS]:
            del self._times[size], self._last_round[size]

    def law(self) -> Law | None:
        """Return the fitted law, or None while fewer sizes were measured than the law has parts."""
        known = [
            BatchTimes(
                workers=size,
                batch_s=float(np.mean(times)),
                variance=variance_of_mean(np.array(times)),
                rounds=len(times),
            )
            for size, times in sorted(self._times.items())
            if len(times) >= ROUNDS_MIN
        ]
        return fit(known) if len(known) >= SIZES_MIN else None

    def decide(self) -> SaturationVerdict:
        """Decide whether one more worker is worth it and, if not, from which number on."""
        law = self.law()
        if law is None:
            needed = f"{SIZES_MIN} sizes with {ROUNDS_MIN} rounds each are needed to fit a law"
            return SaturationVerdict(verdict=UNSURE, size=None, reason=f"{crew(self._present)}: {needed}")
        gain = law.gain(self._present)
        size = law.knee if gain.verdict == SATURATED else None
        return SaturationVerdict(
            verdict=gain.verdict, size=size, reason=f"{gain.reason} ({law.confidence})", gains=(gain,)
        )
