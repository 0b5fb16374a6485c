"""Figures 4.1 to 4.6: how fast single operations are, by the size of what they work on. One device: this one.

A FLOP of a sum or a product is a result; a dot product has two for each pair. Under it all lies memory: an addition
that reads two values and writes one is as fast as the memory, a product of matrices uses each value many times. That is
why an analyst who "only adds" does half of the work and more than half of the waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from papers.dcl import paper
from papers.harness.rows import Row

#: Values in each array: 4 kB to 64 MB.
SIZES = tuple(1 << power for power in range(10, 25, 2))
QUICK_SIZES = (1 << 10, 1 << 16, 1 << 20)
#: A size is measured for no longer than this.
LONGEST_S = 3.0


def run(quick: bool) -> list[Row]:
    draw = np.random.default_rng(0)
    rows: list[Row] = []
    for size in QUICK_SIZES if quick else SIZES:
        left, right = (draw.uniform(1, 2, size).astype(np.float32) for _ in range(2))
        out = np.empty_like(left)
        kinds: dict[str, tuple[Callable[[], object], int]] = {
            "add": (lambda a=left, b=right, o=out: np.add(a, b, out=o), size),  # type: ignore[misc]
            "subtract": (lambda a=left, b=right, o=out: np.subtract(a, b, out=o), size),  # type: ignore[misc]
            "multiply": (lambda a=left, b=right, o=out: np.multiply(a, b, out=o), size),  # type: ignore[misc]
            "divide": (lambda a=left, b=right, o=out: np.divide(a, b, out=o), size),  # type: ignore[misc]
            "dot": (lambda a=left, b=right: np.dot(a, b), 2 * size),  # type: ignore[misc]
        }
        side = int(size**0.5)
        square, other = left[: side * side].reshape(side, side), right[: side * side].reshape(side, side)
        # Not in the thesis: what a layer is made of.
        kinds["product"] = (lambda a=square, b=other: a @ b, 2 * side**3)  # type: ignore[misc]
        for kind, (operate, flops) in kinds.items():
            rows.append({"kind": kind, "bytes": 4 * size, "gflops": flops / mean_s(operate, quick=quick) / 1e9})
    return rows


def mean_s(operate: Callable[[], object], *, quick: bool) -> float:
    """The mean of a hundred, as in the thesis, or of as many as there is time for; in processor seconds."""
    operate()
    done, began_s = 0, time.process_time()
    while done < (10 if quick else paper.REPEATS) and (not done or time.process_time() - began_s < LONGEST_S):
        operate()
        done += 1
    return (time.process_time() - began_s) / done
