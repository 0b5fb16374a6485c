"""Figure 14: larger batches take less time and learn less. Asynchronous, 100 Mb/s, 30 epochs.

Times are simulated, with training that takes as long as it has examples; accuracy is real training at one learning
rate, as the paper had it: a larger batch then makes fewer steps of the same length.
"""

from __future__ import annotations

from dataclasses import replace

from papers.eddl.accuracy import KINDS
from papers.eddl.batch_time import star_of
from papers.eddl.lessons import Lesson, learn_all
from papers.eddl.setting import BATCH, BATCH_S, EPOCHS, EXAMPLES, RATES_MBIT
from papers.eddl.star import epoch_s
from papers.harness.rows import Row
from testbed.results import say

BATCH_SIZES = (64, 128, 256, 512)
QUICK_BATCH_SIZES = (64, 128, 256)
SIZES = (1, 4, 8, 16)
LEARNED_AT = (4, 16)


def run(quick: bool) -> list[Row]:
    lessons = {} if quick else learn_all([lesson_of(w, b) for w in LEARNED_AT for b in BATCH_SIZES])
    rows = []
    for workers in (4,) if quick else SIZES:
        for size in QUICK_BATCH_SIZES if quick else BATCH_SIZES:
            learned = lessons.get(lesson_of(workers, size))
            rows.append(
                {
                    "workers": workers,
                    "batch_size": size,
                    "training_s": EPOCHS[-1] * epoch_of(workers, size),
                    "accuracy": learned.after(EPOCHS[-1]) if learned else None,
                }
            )
        say(f"batch_size: {workers} workers done")
    return rows


def epoch_of(workers: int, batch_size: int) -> float:
    star = star_of("shoal", workers=workers, rate_mbit=RATES_MBIT[0], pace="async")
    return epoch_s(replace(star, batch_s=(BATCH_S * batch_size / BATCH,)), batches=EXAMPLES // batch_size)


def lesson_of(workers: int, batch_size: int) -> Lesson:
    return replace(KINDS["async, momentum 0"], workers=workers, batch_size=batch_size)
