"""Figure 11: late updates that are private. Every example's gradient is clipped, and each sum has noise.

As in the paper: IID MNIST, D2, δ = 1/60,000². Not as in the paper: batches are dealt out epoch by epoch, so that no
example is in more than ⌈steps / 600⌉ updates, and ε is what that bound and the noise give (``accountant``). The
paper counts by Poisson samples, which users do not draw; what that would claim stands beside it.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.privacy_ratios import gaussian_ratio
from papers.fleet.asynchrony import Curve, Visit, Visitor, play
from papers.fleet.clipping import clipped_rows
from papers.fleet.images import digits
from papers.fleet.moments import epsilon as poisson_epsilon
from papers.fleet.network import gradients_by_example
from papers.fleet.noise import noised
from papers.fleet.rules import RULES
from papers.fleet.setting import BATCH, D2, RATE_OF_MEANS
from papers.harness.rows import Row
from shoal.learning.accountant import epsilon_of
from testbed.results import say

BOUND = 1.0
MULTIPLIERS = (1.0, 2.0)
#: Four times the paper's: a clipped gradient is short, and one epoch at the paper's rate is too short as well.
RATES = {"dynsgd": 4 * RATE_OF_MEANS, "adasgd": 4 * RATE_OF_MEANS, "adaptive": 0.0015}
STEPS = 600
SEED = 1


def run(quick: bool) -> list[Row]:
    if quick:
        return [row_of("adasgd", 1.0, steps=25)]
    rows = [row_of(name, multiplier, steps=STEPS) for multiplier in MULTIPLIERS for name in ("dynsgd", "adasgd")]
    return [*rows, row_of("adaptive", 1.0, steps=STEPS)]


def row_of(name: str, multiplier: float, *, steps: int) -> Row:
    curve = one_run(name, multiplier, steps=steps)
    examples = len(digits().labels)
    most = participations(steps, examples=examples)
    delta = 1 / examples**2
    told: Row = {
        "rule": name,
        "multiplier": multiplier,
        "bound": BOUND,
        "steps": steps,
        "participations": most,
        "delta": delta,
        "epsilon": None,
        "epsilon_if_poisson": None,
        "final": curve.final(),
        "steps_to_80": curve.steps_to(),
        "curve": [round(value, 3) for value in curve.accuracy],
    }
    if multiplier > 0:
        told["epsilon"] = epsilon_of(gaussian_ratio(multiplier=multiplier, participations=most), delta=delta)
        told["epsilon_if_poisson"] = poisson_epsilon(
            sampled=BATCH / examples, multiplier=multiplier, steps=steps, delta=delta
        )
    say(f"   {name}, noise {multiplier:g}: {told['final']:.3f}, epsilon {told['epsilon']}")
    return told


def participations(steps: int, *, examples: int) -> int:
    """In how many updates one example is at most, when each epoch deals out every example once."""
    return math.ceil(steps / (examples // BATCH))


def one_run(name: str, multiplier: float, *, steps: int) -> Curve:
    pictures = digits()
    noise = np.random.default_rng([SEED, 5])

    def private(model: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        rows = clipped_rows(gradients_by_example(model, images, labels), bound=BOUND)
        return noised(rows.sum(axis=0), bound=BOUND, multiplier=multiplier, generator=noise) / np.float32(len(rows))

    return play(
        RULES[name],
        rate=RATES[name],
        threshold=D2.threshold,
        pictures=pictures,
        own=[np.arange(len(pictures.labels))],
        visitor=dealt(len(pictures.labels)),
        steps=steps,
        seed=SEED,
        gradient_of=private,
    )


def dealt(examples: int) -> Visitor:
    """Every example once an epoch, in another order each time; as late as D2 says."""

    def visit(step: int, generator: np.random.Generator) -> Visit:
        a_round = examples // BATCH
        epoch, place = divmod(step - 1, a_round)
        order = np.random.default_rng([SEED, 4, epoch]).permutation(examples)
        late = max(0, round(float(generator.normal(D2.mean, D2.deviation))))
        return Visit(user=0, batch=order[place * BATCH : (place + 1) * BATCH], staleness=late)

    return visit
