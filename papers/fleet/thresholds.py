"""Figure 15: what refusing costs: the smallest batches, or the users most like those before.

Users come with batches of N(100, 33) examples; the threshold is the n-th percentile of all that asked so far. As many
users ask in each run, so that whoever is refused is lost. AdaSGD at the paper's rate, D1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

import numpy as np

from papers.fleet.asynchrony import Visit, Visitor, play
from papers.fleet.images import batch_of, digits, label_counts, two_shards
from papers.fleet.rules import RULES
from papers.fleet.setting import CLASSES, D1, EVALUATE_EVERY, RATE_OF_MEANS
from papers.harness import parts
from papers.harness.parts import Parts
from papers.harness.rows import Row
from shoal.learning.similarity import LabelMemory
from testbed.results import say

BATCH_MEAN, BATCH_DEVIATION = 100.0, 33.0
SHARES_SMALL = (0.0, 0.2, 0.4, 0.6)
SHARES_SIMILAR = (0.1, 0.2, 0.4)
#: The last looks are flat by then: a model that still learns loses with every gradient that it does not get.
STEPS = 2_000
#: Where the model is also looked at, while it still learns.
EARLY_STEPS = 800
LOOKS_AT_END = 20
SEEDS = (1, 2, 3)


def run(quick: bool) -> list[Row]:
    if quick:
        return [row_of("size", 0.4, steps=100, seeds=(1,))]
    done = parts.of("fleet", "thresholds", about=len(SEEDS) * (len(SHARES_SMALL) + len(SHARES_SIMILAR)))
    rows = [row_of("size", share, steps=STEPS, seeds=SEEDS, done=done) for share in SHARES_SMALL]
    return rows + [row_of("similarity", share, steps=STEPS, seeds=SEEDS, done=done) for share in SHARES_SIMILAR]


def row_of(what: str, share: float, *, steps: int, seeds: tuple[int, ...], done: Parts | None = None) -> Row:
    found = []
    for seed in seeds:

        def make(seed: int = seed) -> Row:
            return one_run(what, share, steps=steps, seed=seed)

        found.append(done.part({"threshold": what, "share": share, "seed": seed}, make) if done else make())
    row: Row = {
        "threshold": what,
        "share": share,
        "dropped": float(np.mean([each["dropped"] for each in found])),
        "final": float(np.mean([each["final"] for each in found])),
        "finals": [each["final"] for each in found],
        "early": float(np.mean([each["early"] for each in found])),
        "steps_to_80": [each["steps_to_80"] for each in found],
    }
    say(f"   {what} {share:g}: dropped {row['dropped']:.3f}, accuracy {row['final']:.3f}")
    return row


def one_run(what: str, share: float, *, steps: int, seed: int) -> Row:
    pictures = digits()
    own = two_shards(pictures.labels, seed=seed)
    refused: list[bool] = []
    admits = small(share, refused) if what == "size" else similar(share, own, pictures.labels, refused)
    curve = play(
        RULES["adasgd"],
        rate=RATE_OF_MEANS,
        threshold=D1.threshold,
        pictures=pictures,
        own=own,
        visitor=uneven(own),
        steps=steps,
        seed=seed,
        admits=admits,
    )
    looks = EARLY_STEPS // EVALUATE_EVERY
    return {
        "dropped": float(np.mean(refused)),
        # Of many looks: with two labels a user the last few jump.
        "final": curve.final(LOOKS_AT_END),
        "early": float(np.mean(curve.accuracy[max(0, looks - LOOKS_AT_END) : looks])),
        "steps_to_80": curve.steps_to(),
    }


def uneven(own: list[np.ndarray]) -> Visitor:
    def visit(step: int, generator: np.random.Generator) -> Visit:
        user = int(generator.integers(len(own)))
        late = max(0, round(float(generator.normal(D1.mean, D1.deviation))))
        size = max(1, round(float(generator.normal(BATCH_MEAN, BATCH_DEVIATION))))
        return Visit(user=user, batch=batch_of(own[user], generator, size=size), staleness=late)

    return visit


def small(share: float, refused: list[bool]) -> Callable[[Visit], bool]:
    """The smallest are refused."""
    past: list[float] = []

    def admits(visit: Visit) -> bool:
        refused.append(len(visit.batch) < percentile(past, share))
        insort(past, float(len(visit.batch)))
        return not refused[-1]

    return admits


def similar(share: float, own: list[np.ndarray], labels: np.ndarray, refused: list[bool]) -> Callable[[Visit], bool]:
    """Those most like what was merged are refused."""
    memory = LabelMemory(classes=CLASSES)
    counts = [label_counts(labels[part], classes=CLASSES) for part in own]
    #: Below 0, so that the most similar are the smallest.
    past: list[float] = []

    def admits(visit: Visit) -> bool:
        similarity = memory.similarity(counts[visit.user])
        refused.append(-similarity < percentile(past, share))
        insort(past, -similarity)
        if not refused[-1]:
            memory.seen(counts[visit.user])
        return not refused[-1]

    return admits


def percentile(past: list[float], share: float) -> float:
    """Of sorted values; nothing is below it while there are none."""
    return past[min(len(past) - 1, int(share * len(past)))] if past and share > 0 else float("-inf")
