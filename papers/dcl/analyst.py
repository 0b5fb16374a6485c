"""§4.5: the analyst's part of the work. The thesis says 0.02 %; summing outer products is half of all operations.

And more than half of the time: an addition reads and writes memory for each operation, a product of matrices does not.
So the analyst who only sums waits longer than one who does the whole layer.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import offload_outer as outer
from benchmarks.offload_modes import MODES, Counting, Paper, drawn, made
from papers.dcl import paper
from papers.harness.rows import Row

SAMPLES, QUICK_SAMPLES = 10_000, 500
EXECUTORS = 100
TURNS = 3


def run(quick: bool) -> list[Row]:
    samples = QUICK_SAMPLES if quick else SAMPLES
    left, right = drawn(samples, paper.FEATURES, paper.NEURONS)
    home_s = min(_timed(left, right) for _ in range(TURNS))
    rows: list[Row] = [
        {
            "mode": "thesis",
            "share_thesis": paper.ANALYST_SHARE,
            "share": outer.analyst_share(paper.SAMPLES, paper.FEATURES, paper.NEURONS),
        },
        {"mode": "at home", "samples": samples, "analyst_s": home_s},
    ]
    # Without the shuffles, what is left is the sum alone.
    every: dict[str, Counting] = {
        "unshuffled": Paper(EXECUTORS, shuffled=False),
        **{mode: made(mode, EXECUTORS) for mode in MODES},
    }
    for mode, products in every.items():
        products.multiply(left, right, secret="left", name=mode)
        spent = products.spent
        rows.append(
            {
                "mode": mode,
                "samples": samples,
                "share": spent.analyst_ops_share,
                "analyst_s": spent.analyst_s,
                "executors_s": spent.executors_s,
                "over_home": spent.analyst_s / home_s,
            }
        )
    return rows


def _timed(left: np.ndarray, right: np.ndarray) -> float:
    began_s = time.process_time()
    left @ right
    return time.process_time() - began_s
