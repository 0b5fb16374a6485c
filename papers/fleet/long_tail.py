"""Figure 9: class 0 comes only from stragglers, 48 gradients late. Is it learned, and by which rule?

The users are those of two shards; whoever has a picture of class 0 is late. The threshold of staleness is the
paper's, 12, where the tail begins. By eq. 3 and 4 as written a label counts as known once it came, and a user with a
zero and a five is like everybody with a five: nothing is raised. Read in the stragglers' favour (*as heard*) only
what was merged counts as known.
"""

from __future__ import annotations

import numpy as np

from benchmarks.common import say
from papers.fleet.asynchrony import Curve, Visit, Visitor, play, strangers
from papers.fleet.images import digits, two_shards
from papers.fleet.rules import RULES
from papers.fleet.setting import D1, RATE_OF_MEANS
from papers.harness.rows import Row

LATE = 48
RARE = 0

#: At the paper's rate; at its own where the step is not the paper's.
RATES = {
    "dynsgd": RATE_OF_MEANS,
    "adasgd": RATE_OF_MEANS,
    "adasgd, as heard": RATE_OF_MEANS,
    "adasgd, learned T": RATE_OF_MEANS,
    "adaptive": 0.0015,
}
STEPS = 1_200
SEED = 1


def run(quick: bool) -> list[Row]:
    names = ["adasgd"] if quick else list(RATES)
    return [row_of(name, one_run(name, steps=100 if quick else STEPS)) for name in names]


def one_run(name: str, *, steps: int) -> Curve:
    pictures = digits()
    own = two_shards(pictures.labels, seed=SEED)
    return play(
        RULES[name],
        rate=RATES[name],
        threshold=D1.threshold,
        pictures=pictures,
        own=own,
        visitor=with_stragglers(own, pictures.labels),
        steps=steps,
        seed=SEED,
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


def row_of(name: str, curve: Curve) -> Row:
    weights = np.array(curve.weights)
    rare = [row[RARE] for row in curve.of_classes]
    row = {
        "rule": name,
        "rate": RATES[name],
        "steps_to_80": curve.steps_to(),
        "class_0_steps_to_80": curve.steps_to(of_class=RARE),
        "class_0_final": float(np.mean(rare[-10:])),
        "final": curve.final(),
        "weight_deciles": [float(value) for value in np.quantile(weights, np.linspace(0, 1, 11))],
        "class_0": [round(value, 3) for value in rare],
    }
    say(f"   {name}: class 0 at {row['class_0_final']:.3f}, all at {row['final']:.3f}")
    return row
