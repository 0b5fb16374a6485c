"""Figure 9: class 0 comes only from stragglers, 48 gradients late. Is it learned, and by which rule?

Two splits. *hundred*: users with two shards each, of whom whoever has a picture of class 0 is late. *ten*: the clients
of the authors' released code, where one client has all of class 0 and nothing else. The threshold of staleness is the
paper's, 12, where the tail begins, except for *deployed*, which learns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from papers.fleet.asynchrony import Curve, Visit, Visitor, play, strangers
from papers.fleet.images import digits, one_owner, two_shards
from papers.fleet.late import middle
from papers.fleet.rules import RULES
from papers.fleet.setting import D1, RATE_OF_MEANS
from papers.harness.rows import Row
from testbed.results import say

LATE = 48
RARE = 0

#: At the paper's rate; at its own where the step is not the paper's.
RATES = {
    "dynsgd": RATE_OF_MEANS,
    "adasgd": RATE_OF_MEANS,
    "adasgd, released": RATE_OF_MEANS,
    "adasgd, deployed": RATE_OF_MEANS,
    "adaptive": 0.0015,
}
#: Split -> rules that are run on it.
RUNS = {"hundred": tuple(RATES), "ten": ("dynsgd", "adasgd", "adasgd, released", "adasgd, deployed")}
SPLITS = {"hundred": two_shards, "ten": one_owner}
STEPS = 1_200
SEEDS = (1, 2, 3)


def run(quick: bool) -> list[Row]:
    if quick:
        return [row_of("adasgd, released", "hundred", [one_run("adasgd, released", "hundred", steps=100, seed=1)])]
    return [row_of(name, split, runs_of(name, split)) for split, names in RUNS.items() for name in names]


def runs_of(name: str, split: str) -> list[Curve]:
    curves = []
    for seed in SEEDS:
        curves.append(one_run(name, split, steps=STEPS, seed=seed))
        say(f"   {name}, {split} users, seed {seed}: class 0 at {of_rare(curves[-1]):.3f}")
    return curves


def one_run(name: str, split: str, *, steps: int, seed: int) -> Curve:
    pictures = digits()
    own = SPLITS[split](pictures.labels, seed=seed)
    return play(
        RULES[name],
        rate=RATES[name],
        threshold=D1.threshold,
        pictures=pictures,
        own=own,
        visitor=with_stragglers(own, pictures.labels),
        steps=steps,
        seed=seed,
    )


def with_stragglers(own: list[np.ndarray], labels: np.ndarray) -> Visitor:
    late = [bool((labels[part] == RARE).any()) for part in own]
    usual = strangers(own, D1)

    def visit(step: int, generator: np.random.Generator) -> Visit:
        found = usual(step, generator)
        if not late[found.user]:
            return found
        return Visit(user=found.user, batch=found.batch, staleness=LATE)

    return visit


def of_rare(curve: Curve, looks: int = 10) -> float:
    """Return the accuracy of class 0 at the end: the mean of the last looks."""
    return float(np.mean([row[RARE] for row in curve.of_classes[-looks:]]))


def row_of(name: str, split: str, curves: Sequence[Curve]) -> Row:
    """Medians over the seeds; curves and weights are those of the first."""
    finals = [of_rare(curve) for curve in curves]
    row = {
        "rule": name,
        "split": split,
        "rate": RATES[name],
        "steps_to_80": middle([curve.steps_to() for curve in curves]),
        "class_0_steps_to_80": middle([curve.steps_to(of_class=RARE) for curve in curves]),
        "class_0_finals": finals,
        "class_0_final": median(finals),
        "final": median([curve.final() for curve in curves]),
        "weight_deciles": [float(value) for value in np.quantile(curves[0].weights, np.linspace(0, 1, 11))],
        "class_0": [round(of_class[RARE], 3) for of_class in curves[0].of_classes],
    }
    say(f"   {name}, {split} users: class 0 at {row['class_0_final']:.3f}, all at {row['final']:.3f}")
    return row
