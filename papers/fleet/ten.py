"""Figure 8 with the ten clients of the authors' released code, and with its decay of the rate.

One client has all of class 0 and nothing else, the others have two shards of the rest each. *decayed*: update i is
applied at rate / (1 + i)^0.3 (``CppNNModel``); the code's first rate is of another network, so each rule has the best
of a few.
"""

from __future__ import annotations

from papers.fleet.asynchrony import Curve, play, strangers
from papers.fleet.images import digits, one_owner
from papers.fleet.late import SEEDS, curves_of, middle, row_of
from papers.fleet.rules import RULES
from papers.fleet.setting import D1, D2, RATE_OF_MEANS, Staleness
from papers.harness import parts
from papers.harness.parts import Parts
from papers.harness.rows import Row
from testbed.results import say

NAMES = ("dynsgd", "adasgd", "adasgd, released")
DECAY = 0.3
#: First rates that are tried with the decay.
TRIED = (0.4, 0.2)
STEPS = 1_600


def run(quick: bool) -> list[Row]:
    if quick:
        curve = one_run("adasgd, released", D1, rate=RATE_OF_MEANS, decay=0.0, steps=100, seed=SEEDS[0])
        return [of_curves("adasgd, released", D1, RATE_OF_MEANS, "paper", [curve], {})]
    done = parts.of("fleet", "ten", about=2 * len(NAMES) * len(SEEDS) * (1 + len(TRIED)))
    rows = []
    for staleness in (D2, D1):
        for name in NAMES:
            curves = seeds(done, name, staleness, rate=RATE_OF_MEANS, decay=0.0, steps=STEPS)
            rows.append(of_curves(name, staleness, RATE_OF_MEANS, "paper", curves, {}))
            rows.append(decayed(done, name, staleness))
    return rows


def decayed(done: Parts, name: str, staleness: Staleness) -> Row:
    """The first rate whose median over the seeds is the soonest, in hindsight and for every rule alike."""
    tried: dict[float, list[Curve]] = {}
    limit = STEPS
    for rate in TRIED:
        tried[rate] = seeds(done, name, staleness, rate=rate, decay=DECAY, steps=limit)
        limit = int(middle([curve.steps_to() for curve in tried[rate]]) or limit)
    medians = {rate: middle([curve.steps_to() for curve in curves]) for rate, curves in tried.items()}
    best = min(medians, key=lambda rate: medians[rate] or float("inf"))
    return of_curves(name, staleness, best, "decayed", tried[best], medians)


def seeds(done: Parts, name: str, staleness: Staleness, *, rate: float, decay: float, steps: int) -> list[Curve]:
    key = {"rule": name, "staleness": staleness.name, "rate": rate, "decay": decay, "steps": steps}
    return curves_of(done, key, lambda seed: one_run(name, staleness, rate=rate, decay=decay, steps=steps, seed=seed))


def one_run(name: str, staleness: Staleness, *, rate: float, decay: float, steps: int, seed: int) -> Curve:
    pictures = digits()
    own = one_owner(pictures.labels, seed=seed)
    return play(
        RULES[name],
        rate=rate,
        threshold=staleness.threshold,
        pictures=pictures,
        own=own,
        visitor=strangers(own, staleness),
        steps=steps,
        seed=seed,
        until_target=True,
        decay=decay,
    )


def of_curves(
    name: str, staleness: Staleness, rate: float, how: str, curves: list[Curve], tried: dict[float, float | None]
) -> Row:
    row = row_of(name, staleness, rate=rate, how=how, split="ten", curves=curves, tried=tried)
    say(f"   {name} {staleness.name}, ten clients, {how} at {rate:g}: {row['steps_to_80']}")
    return row
