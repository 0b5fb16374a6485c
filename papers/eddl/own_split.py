"""Figure 7 on the paper's own split, and Figure 12 (a): accuracy with a split leader. Real training, simulated.

The paper holds out apps, so that most permission vectors of the test are in the training set as well. *async, tree* is
its 1-2-4 and 1-4-16: rounds below each aggregator, and no waiting above.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from papers.eddl.lessons import Learned, Lesson, learn_all
from papers.eddl.paper import ASYNC_20_ACCURACY, TREES
from papers.eddl.setting import EPOCHS
from papers.harness import parts
from papers.harness.rows import Row

NETWORK = "pernet, by app"
SIZES = (4, 16)
SEEDS = (0, 1, 2)
KINDS: dict[str, Lesson] = {
    "async": Lesson(network=NETWORK, workers=1, pace="async", momentum=0.0, epochs=EPOCHS[-1]),
    "async, tree": Lesson(network=NETWORK, workers=1, pace="async", momentum=0.0, epochs=EPOCHS[-1]),
}


def run(quick: bool) -> list[Row]:
    if quick:
        lesson = replace(lesson_of("async, tree", 4, 0), epochs=2)
        return [row_of("async, tree", lesson, learn_all([lesson])[lesson])]
    done = parts.of("eddl", "own_split", about=len(KINDS) * len(SIZES) * len(SEEDS))
    keys: list[Row] = [
        {"kind": kind, "workers": workers, "seed": seed} for kind in KINDS for workers in SIZES for seed in SEEDS
    ]
    return [done.part(key, partial(one_run, **key)) for key in keys]


def one_run(kind: str, workers: int, seed: int) -> Row:
    lesson = lesson_of(kind, workers, seed)
    return row_of(kind, lesson, learn_all([lesson])[lesson])


def lesson_of(kind: str, workers: int, seed: int) -> Lesson:
    aggregators = TREES[workers] if "tree" in kind else 0
    return replace(KINDS[kind], workers=workers, seed=seed, aggregators=aggregators)


def row_of(kind: str, lesson: Lesson, learned: Learned) -> Row:
    row: Row = {"kind": kind, "workers": lesson.workers, "seed": lesson.seed}
    row |= {f"after_{epoch}": learned.after(epoch) for epoch in EPOCHS if epoch <= lesson.epochs}
    row["trouble"] = learned.trouble
    if kind == "async" and lesson.workers in ASYNC_20_ACCURACY:
        row["reported_after_20"] = ASYNC_20_ACCURACY[lesson.workers]
    return row
