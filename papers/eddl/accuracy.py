"""Figure 7: accuracy after 10, 20 and 30 epochs, over the size of the cluster. Real training in simulated clusters.

Dlib's rate, momentum and decay, since the paper names none; asynchronous with and without momentum, and with Shoal's
damping of late updates. The second network is LeNet on MNIST, of which the paper shows no figures.
"""

from __future__ import annotations

from dataclasses import replace

from papers.eddl.lessons import Learned, Lesson, learn_all
from papers.eddl.paper import ASYNC_20_ACCURACY
from papers.eddl.setting import EPOCHS
from papers.harness.rows import Row
from testbed.results import say

SIZES = (1, 2, 4, 8, 16)
QUICK_EPOCHS = 4

#: What the example of the package trains with, where a rate was looked for.
TUNED_RATE = 0.1

LENET_SIZES = (1, 4, 16)
LENET_EPOCHS = (1, 2, 3)

#: The kinds of training that are compared, by the name they have in tables.
KINDS: dict[str, Lesson] = {
    "sync": Lesson(workers=1, pace="sync", epochs=EPOCHS[-1]),
    "async, momentum 0": Lesson(workers=1, pace="async", momentum=0.0, epochs=EPOCHS[-1]),
    "async, momentum 0.9": Lesson(workers=1, pace="async", momentum=0.9, epochs=EPOCHS[-1]),
    "async, momentum 0, root": Lesson(workers=1, pace="async", momentum=0.0, staleness="root", epochs=EPOCHS[-1]),
    "sync, rate 0.1": Lesson(workers=1, pace="sync", learning_rate=TUNED_RATE, epochs=EPOCHS[-1]),
    "async, rate 0.1, root": Lesson(
        workers=1, pace="async", momentum=0.0, staleness="root", learning_rate=TUNED_RATE, epochs=EPOCHS[-1]
    ),
}
#: Those that the paper has: at each size, and at two of them once more with another seed.
OF_THE_PAPER = ("sync", "async, momentum 0")
FEW_SIZES = (4, 16)
SEEDS = (0, 1)


def run(quick: bool) -> list[Row]:
    wanted = quick_lessons() if quick else all_lessons()
    say(f"accuracy: {len(wanted)} lessons")
    learned = learn_all([lesson for _, lesson in wanted])
    return [row_of(kind, lesson, learned[lesson]) for kind, lesson in wanted]


def all_lessons() -> list[tuple[str, Lesson]]:
    wanted = [
        (kind, replace(KINDS[kind], workers=workers, seed=seed))
        for kind in OF_THE_PAPER
        for workers in SIZES
        for seed in (SEEDS if workers in FEW_SIZES else SEEDS[:1])
    ]
    wanted += [("async, momentum 0.9", replace(KINDS["async, momentum 0.9"], workers=workers)) for workers in SIZES]
    few = [kind for kind in KINDS if kind not in OF_THE_PAPER and kind != "async, momentum 0.9"]
    wanted += [(kind, replace(KINDS[kind], workers=workers)) for kind in few for workers in FEW_SIZES]
    for pace, momentum in (("sync", 0.9), ("async", 0.0)):
        for workers in LENET_SIZES:
            lesson = Lesson(network="lenet", workers=workers, pace=pace, momentum=momentum, epochs=LENET_EPOCHS[-1])
            wanted.append((f"lenet, {pace}", lesson))
    return wanted


def quick_lessons() -> list[tuple[str, Lesson]]:
    """One: most of a minute would be for loading torch into the processes of more."""
    return [("sync", replace(KINDS["sync"], workers=4, epochs=QUICK_EPOCHS))]


def row_of(kind: str, lesson: Lesson, learned: Learned) -> Row:
    epochs = LENET_EPOCHS if lesson.network == "lenet" else EPOCHS
    row: Row = {"kind": kind, "network": lesson.network, "workers": lesson.workers, "seed": lesson.seed}
    row |= {f"after_{epoch}": learned.after(epoch) for epoch in epochs if epoch <= lesson.epochs}
    row["last"] = learned.accuracies[-1] if learned.accuracies else None
    row["trouble"] = learned.trouble
    if kind == "async, momentum 0" and lesson.workers in ASYNC_20_ACCURACY:
        row["reported_after_20"] = ASYNC_20_ACCURACY[lesson.workers]
    return row
