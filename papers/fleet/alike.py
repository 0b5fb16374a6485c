"""Figure 10: the same when everyone's data are alike. Fashion-MNIST for E-MNIST and CIFAR-100."""

from __future__ import annotations

from papers.fleet import images
from papers.fleet.asynchrony import Curve, play, strangers
from papers.fleet.images import Pictures
from papers.fleet.late import SEEDS, curves_of, middle, row_of
from papers.fleet.rules import RULES
from papers.fleet.setting import D2, FRESH, RATE_OF_MEANS
from papers.harness import parts
from papers.harness.parts import Parts
from papers.harness.rows import Row
from testbed.results import say

NAMES = ("ssgd", "dynsgd", "adasgd", "adasgd, released", "adaptive")
#: The paper gives no rate for this network.
TRIED = (0.2, 0.4)
#: Clothes are harder than digits.
FASHION_TARGET = 0.7
#: So many that every damped rule gets there at some rate.
STEPS = 2_000


def run(quick: bool) -> list[Row]:
    pictures = images.fashion()
    if pictures is None:
        say(f"   skipped: {images.HOW_TO_GET_FASHION}")
        return []
    if quick:
        curve = one_run(pictures, "adaptive", rate=0.0015, steps=100, seed=SEEDS[0])
        return [of_curves("adaptive", 0.0015, "tuned", [curve], {})]
    done = parts.of("fleet", "alike", about=len(SEEDS) * len(NAMES) * (1 + len(TRIED)))
    rows = []
    for name in NAMES:
        if name != "adaptive":
            curves = seeds(done, pictures, name, rate=RATE_OF_MEANS, steps=STEPS)
            rows.append(of_curves(name, RATE_OF_MEANS, "paper", curves, {}))
        rows += tuned(done, pictures, name)
    return rows


def tuned(done: Parts, pictures: Pictures, name: str) -> list[Row]:
    """The rate whose median over the seeds is the soonest; none if no rate gets there."""
    tried: dict[float, list[Curve]] = {}
    limit = STEPS
    for rate in RULES[name].rates if name == "adaptive" else TRIED:
        tried[rate] = seeds(done, pictures, name, rate=rate, steps=limit)
        # Nobody waits for a rate that is beaten.
        limit = int(soonest(tried[rate]) or limit)
    reached = {rate: found for rate, curves in tried.items() if (found := soonest(curves)) is not None}
    if not reached:
        return []
    best = min(reached, key=lambda rate: reached[rate])
    return [of_curves(name, best, "tuned", tried[best], {rate: reached.get(rate) for rate in tried})]


def soonest(curves: list[Curve]) -> float | None:
    return middle([curve.steps_to(FASHION_TARGET) for curve in curves])


def seeds(done: Parts, pictures: Pictures, name: str, *, rate: float, steps: int) -> list[Curve]:
    key = {"rule": name, "rate": rate, "steps": steps}
    return curves_of(done, key, lambda seed: one_run(pictures, name, rate=rate, steps=steps, seed=seed))


def one_run(pictures: Pictures, name: str, *, rate: float, steps: int, seed: int) -> Curve:
    staleness = FRESH if name == "ssgd" else D2
    own = images.alike(len(pictures.labels), seed=seed)
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
        target=FASHION_TARGET,
    )


def of_curves(name: str, rate: float, how: str, curves: list[Curve], tried: dict[float, float | None]) -> Row:
    staleness = FRESH if name == "ssgd" else D2
    say(f"   fashion {name} at {rate:g} ({how}): {[curve.steps_to(FASHION_TARGET) for curve in curves]}")
    return row_of(name, staleness, rate=rate, how=how, split="alike", curves=curves, tried=tried, target=FASHION_TARGET)
