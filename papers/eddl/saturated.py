"""Figure 11: from which size on is a cluster saturated, and which rule finds that size among noise? Simulated.

The paper's rule is bare: BUC = n / t_sync did not rise, so it is saturated. It is set beside Shoal's, the gain of
the last worker with a confidence interval, and beside a scaling law fitted to all sizes. A run begins with one worker;
after enough rounds a rule is asked, and unless it says *saturated* one more worker joins. What is right is known from a
long run of each size: the knee, where one more worker gains less than is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from papers.eddl.batch_time import star_of
from papers.eddl.many import spread
from papers.eddl.paper import SATURATION
from papers.eddl.scaling import Scaling
from papers.eddl.setting import BATCH_S, RATES_MBIT, SIZES
from papers.eddl.star import Noise, Star, batch_s, rounds
from papers.harness.rows import Row
from shoal.topology.saturation import ROUNDS_MIN, SATURATED, UNSURE, Round, Saturation, gain_wanted
from testbed.results import say

#: What a lease and a second of the leader's link vary by.
NOISE = Noise(training=0.05, link=0.10)
#: A rule that is not sure after the first rounds of a size gets as many again, so often.
LOOKS = 2

RUNS = {100.0: 100, 1000.0: 5}
#: Rounds of the run by which the knee is known.
LONG = {"sync": 8, "async": 100}
#: How far a run grows.
SIZES_MAX = {100.0: 12, 1000.0: 16}

LEADER = "paper"
RULES = ("bare", "confidence", "law")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run ended: at which size its rule said so, and where that rule puts the limit."""

    #: How many workers there were; None if the rule never spoke.
    at: int | None
    size: int | None
    #: The step that was judged too small: from so many workers to one more.
    judged: int | None


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for rate_mbit in RATES_MBIT[:1] if quick else RATES_MBIT:
        for pace in ("sync",) if quick else ("sync", "async"):
            sizes = SIZES[:8] if quick else SIZES
            curve = throughputs(pace, rate_mbit, sizes, rounds_long=8 if quick else LONG[pace])
            rows += [_curve_row(pace, rate_mbit, workers, curve) for workers in sizes]
            seeds = list(range(2 if quick else RUNS[rate_mbit]))
            grown = spread(partial(_grown, pace=pace, rate_mbit=rate_mbit), seeds)
            for rule in RULES:
                endings = [endings_of[rule] for endings_of in grown]
                rows.append(_rule_row(pace, rate_mbit, rule, endings, curve))
            say(f"saturated: {pace} at {rate_mbit:g} Mb/s, {len(seeds)} runs done")
    return rows


# What is right -----------------------------------------------------------------------------------------------


def throughputs(pace: str, rate_mbit: float, sizes: Sequence[int], *, rounds_long: int) -> dict[int, float]:
    """Batches a second at each size."""
    return {
        workers: workers / batch_s(star_of(LEADER, workers=workers, rate_mbit=rate_mbit, pace=pace), rounds=rounds_long)
        for workers in sizes
    }


def knee(curve: dict[int, float]) -> int | None:
    """The smallest size to which one more worker is not worth adding; None if there is none that was looked at."""
    return next((size for size in sorted(curve) if not is_worth(curve, size)), None)


def is_worth(curve: dict[int, float], workers: int) -> bool:
    """One more than so many workers brings what is wanted. True beyond what was looked at."""
    if workers + 1 not in curve:
        return True
    return curve[workers + 1] / curve[workers] - 1 >= gain_wanted(workers)


def buc(workers: int, throughput: float) -> float:
    """BUC = n / t_sync (equation 2), with t_sync what is not training."""
    return workers / (workers / throughput - BATCH_S)


# What a rule says --------------------------------------------------------------------------------------------


Measure = Callable[[int, int], list[Round]]


def _grown(seed: int, *, pace: str, rate_mbit: float) -> dict[str, Ending]:
    """Every rule on the same noisy cluster."""
    known: dict[tuple[int, int], list[Round]] = {}

    def measure(workers: int, look: int) -> list[Round]:
        if (workers, look) not in known:
            calm = star_of(LEADER, workers=workers, rate_mbit=rate_mbit, pace=pace)
            # Each look is another time, with another fate.
            noisy: Star = replace(calm, noise=NOISE, seed=1 + (seed * 100 + workers) * LOOKS + look)
            known[workers, look] = rounds(noisy, count=ROUNDS_MIN)
        return known[workers, look]

    largest = SIZES_MAX[rate_mbit]
    return {
        "bare": bare(measure, largest),
        "confidence": with_confidence(measure, largest),
        "law": by_law(measure, largest),
    }


def bare(measure: Measure, largest: int) -> Ending:
    """The paper's rule: as soon as BUC does not rise (§4.3). It knows nothing of waiting."""
    before = 0.0
    for workers in range(1, largest + 1):
        now = fmean(workers / max(record.sync_s, 1e-9) for record in measure(workers, 0))
        if now <= before:
            return Ending(at=workers, size=workers - 1, judged=workers - 1)
        before = now
    return Ending(at=None, size=None, judged=None)


def with_confidence(measure: Measure, largest: int) -> Ending:
    rule = Saturation()
    for workers in range(1, largest + 1):
        for look in range(LOOKS):
            for record in measure(workers, look):
                rule.add(record)
            decision = rule.decide()
            if decision.verdict == SATURATED:
                return Ending(at=workers, size=decision.size, judged=decision.gains[0].workers)
            if decision.verdict != UNSURE or workers == 1:
                break
    return Ending(at=None, size=None, judged=None)


def by_law(measure: Measure, largest: int) -> Ending:
    rule = Scaling()
    for workers in range(1, largest + 1):
        for look in range(LOOKS):
            for record in measure(workers, look):
                rule.add(record)
            decision = rule.decide()
            if decision.verdict == SATURATED:
                return Ending(at=workers, size=decision.size, judged=workers)
            if decision.verdict != UNSURE or rule.law() is None:
                break
    return Ending(at=None, size=None, judged=None)


# What comes of it --------------------------------------------------------------------------------------------


def _curve_row(pace: str, rate_mbit: float, workers: int, curve: dict[int, float]) -> Row:
    return {
        "what": "curve",
        "pace": pace,
        "mbit": rate_mbit,
        "workers": workers,
        "throughput": curve[workers],
        "buc": buc(workers, curve[workers]),
    }


def _rule_row(pace: str, rate_mbit: float, rule: str, endings: Sequence[Ending], curve: dict[int, float]) -> Row:
    right = knee(curve)
    found = sorted(ending.size for ending in endings if ending.size is not None)
    return {
        "what": "rule",
        "pace": pace,
        "mbit": rate_mbit,
        "rule": rule,
        "runs": len(endings),
        "knee": right,
        "reported": SATURATION[rate_mbit, pace],
        "said_so": len(found),
        "size_median": median(found) if found else None,
        "size_least": found[0] if found else None,
        "size_most": found[-1] if found else None,
        "false_alarms": false_alarms(endings, curve),
        "within_1": within_one(endings, right),
    }


def false_alarms(endings: Sequence[Ending], curve: dict[int, float]) -> float:
    """The share of runs that called saturated what was not: the worker they judged brings what is wanted."""
    wrong = [ending for ending in endings if ending.judged is not None and is_worth(curve, ending.judged)]
    return len(wrong) / len(endings)


def within_one(endings: Sequence[Ending], right: int | None) -> float:
    """The share of runs that put the limit within one worker of the knee; where there is none, that there is none."""
    good = [
        ending
        for ending in endings
        if (ending.size is None and right is None)
        or (ending.size is not None and right is not None and abs(ending.size - right) <= 1)
    ]
    return len(good) / len(endings)
