"""Writes ``src/shoal/learning/blt_table.py``: decays and weights of buffered noise for a number of versions.

Run as ``python tools/blt_table.py``; it takes a minute. It needs scipy, which nothing else here does. It begins with
the exponentials that come nearest to the square root of the sum (Fichtenberger et al. 2023, arXiv 2202.11205), and then
moves all of them until the noise in the running sums is least for one participation (McMahan et al. 2024, arXiv
2408.08868, section 4).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from scipy.optimize import minimize, nnls
from scipy.signal import lfilter

BUFFERS = 4
TARGET = Path(__file__).parent.parent / "src/shoal/learning/blt_table.py"
HEAD = '''"""Decays and weights of buffered noise, by the versions they are made for. Written by ``tools/blt_table.py``.

``error``: the root mean square of the noise in the running sums, where one participation has a ratio of 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    decays: tuple[float, ...]
    weights: tuple[float, ...]
    error: float


TABLE: dict[int, Row] = {
'''
TAIL = """}

#: Versions of one chain for which there is a row.
VERSIONS_MAX = max(TABLE)
"""


def root_of_sum(versions: int) -> np.ndarray:
    """Coefficients of (1 - x)^(-1/2)."""
    steps = np.arange(1, versions)
    return np.concatenate(([1.0], np.cumprod((2 * steps - 1) / (2 * steps))))


def error_of(decays: np.ndarray, weights: np.ndarray, versions: int) -> float:
    """Root mean square of the noise in the running sums, times the length of the first column."""
    pulse = np.zeros(versions)
    pulse[0] = 1.0
    # c(x) = 1 + x * sum of w / (1 - d x), as a fraction of two polynomials.
    below = np.poly(decays)
    above = below.copy()
    for place, weight in enumerate(weights):
        above[1:] += weight * np.poly(np.delete(decays, place))
    column = lfilter(above, below, pulse)
    in_sums = np.cumsum(lfilter(below, above, pulse))
    return float(np.linalg.norm(column) * math.sqrt(np.cumsum(in_sums**2).mean()))


def first_guess(versions: int) -> tuple[np.ndarray, np.ndarray]:
    """The exponentials, of forty, that together come nearest to the root; chosen one after the other."""
    wanted = root_of_sum(versions)[1:]
    near = 1 / np.sqrt(wanted)
    grid = np.exp(-1 / np.exp(np.linspace(math.log(0.7), math.log(3 * versions), 40)))
    columns = grid[None] ** np.arange(versions - 1)[:, None] * near[:, None]
    chosen: list[int] = []
    for _ in range(BUFFERS):
        rest = [each for each in range(grid.size) if each not in chosen]
        chosen.append(min(rest, key=lambda each: nnls(columns[:, [*chosen, each]], wanted * near)[1]))
    weights = np.maximum(nnls(columns[:, chosen], wanted * near)[0], 1e-6)
    return grid[chosen], weights


def fitted(versions: int) -> tuple[np.ndarray, np.ndarray, float]:
    decays, weights = first_guess(versions)
    start = np.concatenate((np.log(decays / (1 - decays)), np.log(weights)))

    def loss(point: np.ndarray) -> float:
        weights = np.exp(point[BUFFERS:])
        if weights.sum() > 1:
            # Coefficients must not grow: the sensitivity is known only where they fall.
            return 1e3 * float(weights.sum())
        return error_of(1 / (1 + np.exp(-point[:BUFFERS])), weights, versions)

    for _ in range(3):
        start = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-5}).x
    order = np.argsort(start[:BUFFERS])
    # To twelve digits, and the error is that of what is written.
    decays = np.round(1 / (1 + np.exp(-start[:BUFFERS][order])), 12)
    weights = np.round(np.exp(start[BUFFERS:][order]), 12)
    return decays, weights, error_of(decays, weights, versions)


def main() -> None:
    rows = []
    for power in range(7, 15):
        decays, weights, error = fitted(2**power)
        print(f"{2**power}: {error:.5f}, of the root {_root_error(2**power):.5f}", flush=True)
        rows.append(
            f"    {2**power:_}: Row(\n        decays=({', '.join(f'{each:.12g}' for each in decays)}),\n"
            f"        weights=({', '.join(f'{each:.12g}' for each in weights)}),\n        error={error:.9f},\n    ),\n"
        )
    TARGET.write_text(HEAD + "".join(rows) + TAIL)


def _root_error(versions: int) -> float:
    column = root_of_sum(versions)
    return float(np.linalg.norm(column) * math.sqrt(np.cumsum(column**2).mean()))


if __name__ == "__main__":
    main()
