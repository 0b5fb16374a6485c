"""Is a leader saturated: does one more worker still bring anything? Pure state; knows no links and no leader.

EDDL (§4.3) watches BUC = n / t_sync while workers join: did it rise, the leader's link has room; did it not, the
cluster is saturated. Three things are amiss, and mended here.

- Any noise decides a bare "did it rise". Here the gain has a confidence interval over enough rounds, and there is a
  third answer: not known yet.
- In a synchronous round t_sync holds the wait for the slowest worker, which is no fault of the link. It is taken out.
- If the link is all that limits, t_sync = 2nS/B, so that BUC is B/2S from the first worker on: flat, although training,
  which goes on beside it, still gains. What is judged is therefore the throughput n / (t_batch - wait), in the same
  way. BUC and its gain can be judged instead, as in the paper's Figure 11.

Saturated at n: one worker more than n gains less than ``gain_wanted(n)``, with confidence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shoal.errors import Misuse

#: A worker is worth having if it makes training so much faster ...
GAIN_WANTED = 0.05
#: ... or in a large crew, where even a perfect one brings only 1/n, by this part of that.
PART_OF_FAIR = 0.5

#: Two-sided. Each size and each look is a chance to be wrong, and all together should be so in few of a hundred jobs.
CONFIDENCE = 0.99

#: Rounds at each of two sizes before they are compared; then again each time both together have twice as many, since
#: a comparison after every round would find a difference by chance some time.
ROUNDS_MIN = 20
#: What is remembered of a size.
ROUNDS_KEPT = 320
#: Links change: a size that was not seen for so many rounds is forgotten.
FORGET_ROUNDS = 2000

GAINS, SATURATED, UNSURE = "gains", "saturated", "unsure"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What the leader saw of one round, in which ``workers`` each trained one lease."""

    workers: int
    #: From one version to the next.
    batch_s: float
    #: Of it, what was not training: models and updates under way, and waiting.
    sync_s: float
    #: Of that, when the link was idle because the slowest was still training.
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise Misuse(f"a round of {self.workers} workers")
        if not 0 <= self.wait_s <= self.sync_s <= self.batch_s < math.inf or self.wait_s >= self.batch_s:
            raise Misuse(
                f"a round of {self.batch_s} s, {self.sync_s} s of it synchronisation, {self.wait_s} s of that waiting:"
                " each is part of the one before"
            )

    @property
    def throughput(self) -> float:
        """Leases a second, had nobody waited for a straggler."""
        return self.workers / (self.batch_s - self.wait_s)

    @property
    def buc(self) -> float:
        """BUC = n / t_sync (EDDL eq. 2), the wait for stragglers taken out."""
        return self.workers / max(self.sync_s - self.wait_s, 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What one more than so many workers brings."""

    workers: int
    #: A share: 0.05 is 5 % more.
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
    #: The size from which on more workers bring too little; None if there is none, or none yet.
    size: int | None
    reason: str
    #: The evidence, from the present size downward.
    gains: tuple[Gain, ...] = ()


def gain_wanted(workers: int) -> float:
    """The least gain that makes one more worker worth it: 5 %, or half of a fair share where that is less."""
    return min(GAIN_WANTED, PART_OF_FAIR / workers)


def judge(workers: int, gain: float, margin: float) -> Gain:
    """Name a gain and its interval: saturated and worth it are said only if the whole interval says so."""
    wanted = gain_wanted(workers)
    verdict = UNSURE
    if gain + margin < wanted:
        verdict = SATURATED
    elif gain - margin >= wanted:
        verdict = GAINS
    return Gain(workers=workers, gain=gain, margin=margin, wanted=wanted, verdict=verdict)


class Saturation:
    """Takes rounds as they are, with workers joining and leaving in between, and says what the last to join brought."""

    def __init__(self, *, measure: str = "throughput") -> None:
        if measure not in ("throughput", "buc"):
            raise Misuse(f"saturation is judged by throughput or by buc, not by {measure!r}")
        self._measure = measure
        self._logs: dict[int, deque[float]] = {}
        #: Rounds of each size, also those no longer kept.
        self._counts: dict[int, int] = {}
        self._last_round: dict[int, int] = {}
        self._rounds = 0
        self._present = 0
        self._judged: dict[tuple[int, int], tuple[int, Gain]] = {}

    def add(self, record: Round) -> None:
        self._rounds += 1
        self._present = record.workers
        value = record.throughput if self._measure == "throughput" else record.buc
        self._logs.setdefault(record.workers, deque(maxlen=ROUNDS_KEPT)).append(math.log(value))
        self._counts[record.workers] = self._counts.get(record.workers, 0) + 1
        self._last_round[record.workers] = self._rounds
        for size in [size for size, seen in self._last_round.items() if self._rounds - seen > FORGET_ROUNDS]:
            del self._logs[size], self._counts[size], self._last_round[size]
            self._judged = {pair: judged for pair, judged in self._judged.items() if size not in pair}

    def decide(self) -> SaturationVerdict:
        """Saturated if the last workers to join brought too little; then also from which size on.

        That they did takes confidence. From where on is then an estimate: the steps before it, down to the first that
        was worth it by its mean.
        """
        sizes = sorted(size for size, logs in self._logs.items() if len(logs) >= ROUNDS_MIN and size <= self._present)
        if not sizes or sizes[-1] != self._present:
            return _undecided(f"{crew(self._present)}: it takes {ROUNDS_MIN} rounds to tell what the last one brought")
        if len(sizes) == 1:
            return _undecided(f"{crew(self._present)}: no smaller crew was measured to compare with")
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
        """What each worker between the two sizes brought. Compared again when there are twice as many rounds."""
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
    """Difference of two means of logarithms, and half its confidence interval (Welch).

    Logarithms, because noise on a link is a factor; then one slow round in twenty does not carry the mean away.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    errors = [variance_of_mean(first), variance_of_mean(second)]
    total = sum(errors)
    if total <= 0:
        return float(second.mean() - first.mean()), 0.0
    freedom = total**2 / sum(e**2 / (len(v) - 1) for e, v in zip(errors, (first, second), strict=True))
    return float(second.mean() - first.mean()), student(freedom) * math.sqrt(total)


def variance_of_mean(values: np.ndarray) -> float:
    """σ²/m · (1 + ρ)/(1 - ρ): rounds that follow each other are alike (ρ), so m of them tell less than m."""
    apart = values - values.mean()
    spread = float(apart @ apart)
    if spread <= 0:
        return 0.0
    alike = min(0.9, max(0.0, float(apart[1:] @ apart[:-1]) / spread))
    return spread / (len(values) - 1) / len(values) * (1 + alike) / (1 - alike)


def student(freedom: float, *, confidence: float = CONFIDENCE) -> float:
    """Student's two-sided quantile by its expansion around the normal one: to 1 % from 8 degrees of freedom on."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def crew(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _undecided(reason: str) -> SaturationVerdict:
    return SaturationVerdict(verdict=UNSURE, size=None, reason=reason)
