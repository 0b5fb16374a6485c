"""Figure 13: batches lent to whoever is ready, against a fixed share for each, with slow devices. Simulated.

At 100 Mb/s and at 1000: the paper does not say which it had. Lent is what Shoal does. A fixed share is worked out here
from the same simulator: each worker has an eighth of the examples, and trains at the pace it has while all are at work,
then at that of those who are left.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from papers.eddl.batch_time import LEADERS
from papers.eddl.setting import BATCH_S, EPOCH_BATCHES
from papers.eddl.star import Noise, Star, batch_s, epoch_s, play
from papers.harness.rows import Row
from testbed.results import say

WORKERS = 8
STRAGGLERS = (0, 2, 4)
#: How many times longer a Raspberry Pi 3 trains than an ODROID-XU4. The paper says only "significantly".
SLOWER = 4.0

#: Rounds of a worker by which its pace is known.
_ROUNDS = 12


def run(quick: bool) -> list[Row]:
    rows = []
    cases = [("shoal", 1000.0)] if quick else [("paper", 100.0), ("shoal", 100.0), ("shoal", 1000.0)]
    for leader, rate_mbit in cases:
        for stragglers in (2,) if quick else STRAGGLERS:
            for pace in ("sync", "buffered", "async"):
                star = star_with(leader, pace, stragglers, rate_mbit)
                lent_s = epoch_s(star, batches=EPOCH_BATCHES)
                # A buffer makes no difference to who has which batch: the fixed share is the asynchronous one.
                fixed_s = fixed_rounds_s(star) if pace == "sync" else fixed_epoch_s(replace(star, pace="async"))
                rows.append(
                    {
                        "leader": leader,
                        "mbit": rate_mbit,
                        "pace": pace,
                        "stragglers": stragglers,
                        "lent_s": lent_s,
                        "fixed_s": fixed_s,
                        "ratio": lent_s / fixed_s,
                    }
                )
        say(f"stragglers: leader {leader} at {rate_mbit:g} Mb/s done")
    return rows


def star_with(leader: str, pace: str, stragglers: int, rate_mbit: float) -> Star:
    half_duplex, hold_s = LEADERS[leader]
    return Star(
        workers=WORKERS,
        rate_mbit=rate_mbit,
        pace=pace,
        # The slow ones are not waited for: a version of as many as are quick.
        buffer=max(1, WORKERS - stragglers),
        batch_s=(BATCH_S,) * (WORKERS - stragglers) + (SLOWER * BATCH_S,) * stragglers,
        half_duplex=half_duplex,
        turn_hold_s=hold_s,
        noise=Noise() if pace == "sync" else Noise(training=0.05),
    )


def fixed_rounds_s(star: Star) -> float:
    """A fixed share in rounds: every round is as long as the slowest makes it; the last is of half a batch each."""
    share = EPOCH_BATCHES / star.workers
    full_s = batch_s(star)
    last_s = full_s - (1 - share % 1) * max(star.batch_s) if share % 1 else 0.0
    return int(share) * full_s + last_s


def fixed_epoch_s(star: Star) -> float:
    """A fixed share without rounds: over when the last worker is done with its own."""
    share = EPOCH_BATCHES / star.workers
    cycles = {batch: cycle_s(star, batch) for batch in dict.fromkeys(star.batch_s)}
    done = {batch: share * cycle for batch, cycle in cycles.items()}
    quick_s, slow_s = min(done.values()), max(done.values())
    slow = max(star.batch_s)
    count = star.batch_s.count(slow)
    if count == star.workers:
        return slow_s
    left = share - quick_s / cycles[slow]
    alone = replace(star, workers=count, batch_s=(slow,) * count)
    return quick_s + left * cycle_s(alone, slow)


def cycle_s(star: Star, batch: float) -> float:
    """From one update to the next of a worker that trains so long, while all are at work."""
    seen = play(star, batches=star.workers * _ROUNDS)
    mine = {f"w{number}" for number, took in enumerate(star.batch_s, start=1) if took == batch}
    gaps = []
    # Towards the end some have nothing left to do.
    until_s = seen.updates[-star.workers][0]
    for name in sorted(mine):
        moments = [at_s for at_s, sender, _ in seen.updates if sender == name and at_s <= until_s]
        gaps += [later - sooner for sooner, later in pairwise(moments)]
    return sum(gaps) / len(gaps)
