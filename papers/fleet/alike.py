"""Figure 10: the same when everyone's data are alike. Fashion-MNIST for E-MNIST and CIFAR-100."""

from __future__ import annotations

from benchmarks.common import say
from papers.eddl.rows import Row
from papers.fleet import images
from papers.fleet.asynchrony import play, strangers
from papers.fleet.images import Pictures
from papers.fleet.late import TUNING_SEED, row_of
from papers.fleet.rules import RULES
from papers.fleet.setting import D2, FRESH, RATE_OF_MEANS, TARGET

NAMES = ("ssgd", "dynsgd", "adasgd", "adaptive")
#: The paper has a rate for each network and none for this one; those tried are as for MNIST.
TRIED = (0.05, 0.1, 0.2)
STEPS = 1_200
SEED = 1


def run(quick: bool) -> list[Row]:
    pictures = images.fashion()
    if pictures is None:
        say(f"   skipped: {images.HOW_TO_GET_FASHION}")
        return []
    if quick:
        return [one(pictures, "adaptive", rate=0.0015, how="tuned", steps=100)]
    rows = []
    for name in NAMES:
        if name != "adaptive":
            rows.append(one(pictures, name, rate=RATE_OF_MEANS, how="paper", steps=STEPS))
        rates = RULES[name].rates if name == "adaptive" else TRIED
        tried: dict[float, int | None] = {}
        for rate in rates:
            limit = min((found for found in tried.values() if found is not None), default=STEPS)
            tried[rate] = one(pictures, name, rate=rate, how="tried", steps=limit, seed=TUNING_SEED)["steps_to_80"][0]
        reached = {rate: found for rate, found in tried.items() if found is not None}
        if reached:
            best = min(reached, key=lambda rate: (reached[rate], rate))
            rows.append(one(pictures, name, rate=best, how="tuned", steps=STEPS, tried=tried))
    return rows


def one(
    pictures: Pictures,
    name: str,
    *,
    rate: float,
    how: str,
    steps: int,
    seed: int = SEED,
    tried: dict[float, int | None] | None = None,
) -> Row:
    staleness = FRESH if name == "ssgd" else D2
    own = images.alike(len(pictures.labels), seed=seed)
    curve = play(
        RULES[name],
        rate=rate,
        threshold=staleness.threshold,
        pictures=pictures,
        own=own,
        visitor=strangers(own, staleness),
        steps=steps,
        seed=seed,
        until_target=how != "paper",
    )
    say(f"   fashion {name} at {rate:g} ({how}): {curve.steps_to(TARGET)}, {curve.final():.3f}")
    return row_of(name, staleness, rate=rate, how=how, split="alike", curves=[curve], tried=tried or {})
