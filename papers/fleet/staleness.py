"""Figure 7: how stale gradients are if everyone who posts sends one. From the moments of real posts; learns nothing.

As in the paper a gradient is back 7.1 s after its post at the earliest and 8.45 s on average (§3.1), and its staleness
is the number of gradients that came meanwhile. The paper's tweets are not public. Members of the US Congress post much
more rarely, so their clock also runs faster here, until there are as many posts a second as in the paper.
"""

from __future__ import annotations

import gzip
import json

import numpy as np

from papers.fleet.paper import POSTS_A_SECOND, TAIL_FROM, TRIP_LEAST_S, TRIP_MEAN_S
from papers.fleet.stream import FILE, present
from papers.harness.rows import Row
from shoal.data.files import data_dir
from testbed.results import say

#: Of the round trips, which are drawn.
SEEDS = (1, 2, 3)
#: The last bar of the histogram has all that is beyond.
BARS, BAR_WIDTH = 40, 4


def run(quick: bool) -> list[Row]:
    if not present():
        say("   skipped: the stream of posts is not in SHOAL_DATA")
        return []
    moments_s = moments()
    faster = POSTS_A_SECOND / rate_of(moments_s)
    rows = []
    for name, speed in (("as it is", 1.0), ("as many posts a second", faster)):
        found = [staleness(moments_s / speed, seed=seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        rows.append(row_of(name, speed, found))
        say(f"   {name}: mean {rows[-1]['mean']:.2f}, beyond {TAIL_FROM}: {rows[-1]['beyond']:.4f}")
    return rows


def moments() -> np.ndarray:
    """Seconds of all posts, ascending."""
    with gzip.open(data_dir().joinpath(*FILE), "rt") as lines:
        return np.sort(np.array([json.loads(line)["ts"] for line in lines], dtype=np.float64))


def rate_of(moments_s: np.ndarray) -> float:
    return float(len(moments_s) / (moments_s[-1] - moments_s[0]))


def staleness(moments_s: np.ndarray, *, seed: int) -> np.ndarray:
    """Return for each post how many gradients came between its model's way out and its gradient's way back."""
    generator = np.random.default_rng([seed, 7])
    back_s = moments_s + TRIP_LEAST_S + generator.exponential(TRIP_MEAN_S - TRIP_LEAST_S, len(moments_s))
    arrivals_s = np.sort(back_s)
    return np.searchsorted(arrivals_s, back_s) - np.searchsorted(arrivals_s, moments_s, side="right")


def row_of(name: str, speed: float, by_seed: list[np.ndarray]) -> Row:
    every = np.concatenate(by_seed)
    mean, deviation = float(every.mean()), float(every.std())
    return {
        "clock": name,
        "speed": speed,
        "mean": mean,
        "deviation": deviation,
        "skewness": float((((every - mean) / deviation) ** 3).mean()),
        "median": float(np.median(every)),
        # s % of the paper: who is later is a straggler.
        "p99_7": float(np.percentile(every, 99.7)),
        "beyond": float((every > TAIL_FROM).mean()),
        "beyond_3_deviations": float((every > mean + 3 * deviation).mean()),
        "most": int(every.max()),
        "by_seed": [float(one.mean()) for one in by_seed],
        "histogram": np.bincount(np.minimum(every // BAR_WIDTH, BARS - 1), minlength=BARS).tolist(),
    }
