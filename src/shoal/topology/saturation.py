"""Whether a leader is saturated: does one more worker still make training faster? Pure state; does not depend on links.

EDDL (§4.3) watches BUC = n / t_sync (eq. 2) while workers join. If it rises, the leader's link has room; if not, the
cluster is saturated. That test has three weaknesses, which this file corrects.

- Noise decides whether BUC rises at all. Here the gain has a confidence interval over enough rounds, and there is a
  third answer: not known yet.
- In a synchronous round t_sync contains the wait for the slowest worker, which the link does not cause. That wait is
  subtracted.
- If the link is the only limit, t_sync = 2nS/B, so BUC is B/2S from the first worker on: flat, although training, which
  happens at the same time, still gains. So the test uses the throughput n / (t_batch - wait) in the same way.

Saturated at n means: one worker more than n gains less than ``gain_wanted(n)``, with confidence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shoal.errors import Misuse

#: A worker is worth having if it makes training faster by this share ...
GAIN_WANTED = 0.05
#: ... or, with many workers, where even a perfect one gains only 1/n, by this part of 1/n.
PART_OF_FAIR = 0.5

#: Two-sided. Each comparison may be wrong; all together should be wrong in only a few of a hundred jobs.
CONFIDENCE = 0.99

#: Rounds at each of two sizes before they are compared. They are compared again each time both together have twice as
#: many rounds: a comparison after every round would sooner or later find a difference by chance.
ROUNDS_MIN = 20
#: Rounds to remember per size.
ROUNDS_KEPT = 320
#: Links change: a size that did not occur for this many rounds is forgotten.
FORGET_ROUNDS = 2000

GAINS, SATURATED, UNSURE = "gains", "saturated", "unsure"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The leader's measurements of one round, in which ``workers`` each trained one lease."""

    workers: int
    #: Seconds from one version to the next.
    batch_s: float
    #: The part of it that was not training: transfers of models and updates, and waiting.
    sync_s: float
    #: The part of ``sync_s`` in which the link was idle because the slowest worker was still training.
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise Misuse(f"a round has {self.workers} workers; it must have at least one")
        if not 0 <= self.wait_s <= self.sync_s <= self.batch_s < math.inf or self.wait_s >= self.batch_s:
            raise Misuse(
                f"a round took {self.batch_s} s, with {self.sync_s} s of synchronisation and {self.wait_s} s of"
                " waiting: each must be part of the one before"
            )

    @property
    def throughput(self) -> float:
        """Leases per second, without the wait for a straggler."""
        return self.workers / (self.batch_s - self.wait_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain from one more worker than ``workers``."""

    workers: int
    #: As a share: 0.05 is 5 % more.
    gain: float
    #: Half of the confidence interval.
    margin: float
    wanted: float
    verdict: str

    @property
    def reason(self) -> str:
        ends = {
            SATURATED: "saturated",
            GAINS: "worth it",
            UNSURE: f"not known yet whether that is the {percent(self.wanted)} wanted",
        }
        return (
            f"{crew(self.workers)}: one more gains {percent(self.gain)} ± {percent(self.margin)}: {ends[self.verdict]}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SaturationVerdict:
    verdict: str
    #: The number of workers from which on more gain too little, or None if there is no such number yet.
    size: int | None
    reason: str
    #: The evidence, from the present size downward.
    gains: tuple[Gain, ...] = ()


def gain_wanted(workers: int) -> float:
    """Return the smallest gain that makes one more worker worth it: 5 %, or half of a fair share if that is less."""
    return min(GAIN_WANTED, PART_OF_FAIR / workers)


def judge(workers: int, gain: float, margin: float) -> Gain:
    """Classify a gain with its interval. It is saturated or worth it only if the entire interval is."""
    wanted = gain_wanted(workers)
    verdict = UNSURE
    if gain + margin < wanted:
        verdict = SATURATED
    elif gain - margin >= wanted:
        verdict = GAINS
    return Gain(workers=workers, gain=gain, margin=margin, wanted=wanted, verdict=verdict)


class Saturation:
    """Collects rounds while workers join and leave, and decides whether the last workers to join were worth it."""

    def __init__(self) -> None:
        self._logs: dict[int, deque[float]] = {}
        #: Rounds of each size, including those no longer kept.
        self._counts: dict[int, int] = {}
        self._last_round: dict[int, int] = {}
        self._rounds = 0
        self._present = 0
        self._judged: dict[tuple[int, int], tuple[int, Gain]] = {}

    def add(self, record: Round) -> None:
        self._rounds += 1
        self._present = record.workers
        self._logs.setdefault(record.workers, deque(maxlen=ROUNDS_KEPT)).append(math.log(record.throughput))
        self._counts[record.workers] = self._counts.get(record.workers, 0) + 1
        self._last_round[record.workers] = self._rounds
        for size in [size for size, seen in self._last_round.items() if self._rounds - seen > FORGET_ROUNDS]:
            del self._logs[size], self._counts[size], self._last_round[size]
            self._judged = {pair: judged for pair, judged in self._judged.items() if size not in pair}

    def decide(self) -> SaturationVerdict:
        """Return saturated if the last workers to join gained too little, and then also from which size on.

        That they gained too little takes confidence. The size is then an estimate: it goes down step by step to the
        first worker that was worth it by its mean.
        """
        sizes = sorted(size for size, logs in self._logs.items() if len(logs) >= ROUNDS_MIN and size <= self._present)
        if not sizes or sizes[-1] != self._present:
            return _undecided(
                f"{crew(self._present)}: measuring whether the last one helped ({ROUNDS_MIN} rounds needed)"
            )
        if len(sizes) == 1:
            return _undecided(f"{crew(self._present)}: no smaller number of workers was measured to compare with")
        gains: list[Gain] = []
        for more, fewer in zip(sizes[:0:-1], sizes[-2::-1], strict=True):
            gain = self._compare(fewer, more)
            if gains and gain.gain >= gain.wanted:
                break
            gains.append(gain)
            if gains[0].verdict != SATURATED:
                break
        last = gains[0]
        if last.verdict != SATURATED:
            return SaturationVerdict(verdict=last.verdict, size=None, reason=last.reason, gains=(last,))
        size = gains[-1].workers
        since = "" if size == last.workers else f", and has been from about {size} on"
        return SaturationVerdict(verdict=SATURATED, size=size, reason=last.reason + since, gains=tuple(gains))

    def _compare(self, fewer: int, more: int) -> Gain:
        """Return the gain per worker between the two sizes. It is computed again when there are twice as many
        rounds."""
        look = int(math.log2((self._counts[fewer] + self._counts[more]) / (2 * ROUNDS_MIN)))
        known = self._judged.get((fewer, more))
        if known is not None and known[0] == look:
            return known[1]
        log_gain, margin = log_ratio(self._logs[fewer], self._logs[more])
        added = more - fewer
        gain = math.expm1(log_gain / added)
        judged = judge(fewer, gain, (1 + gain) * margin / added)
        self._judged[fewer, more] = (look, judged)
        return judged


def log_ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the difference of two means of logarithms, and half its confidence interval (Welch).

    Logarithms, because noise on a link is a factor, and so that one slow round in twenty does not dominate the mean.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    errors = [variance_of_mean(first), variance_of_mean(second)]
    total = sum(errors)
    if total <= 0:
        return float(second.mean() - first.mean()), 0.0
    freedom = total**2 / sum(e**2 / (len(v) - 1) for e, v in zip(errors, (first, second), strict=True))
    return float(second.mean() - first.mean()), student(freedom) * math.sqrt(total)


def variance_of_mean(values: np.ndarray) -> float:
    """σ²/m · (1 + ρ)/(1 - ρ): consecutive rounds are correlated (ρ), so m of them are worth less than m."""
    apart = values - values.mean()
    spread = float(apart @ apart)
    if spread <= 0:
        return 0.0
    alike = min(0.9, max(0.0, float(apart[1:] @ apart[:-1]) / spread))
    return spread / (len(values) - 1) / len(values) * (1 + alike) / (1 - alike)


def student(freedom: float, *, confidence: float = CONFIDENCE) -> float:
    """Return Student's two-sided quantile by its expansion around the normal one: to 1 % from 8 degrees of freedom
    on."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def crew(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _undecided(reason: str) -> SaturationVerdict:
    return SaturationVerdict(verdict=UNSURE, size=None, reason=reason)
