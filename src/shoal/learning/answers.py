"""The tensors in which devices answer a question, and counts in parts for sealed sums. Numpy only.

The words of a first sealed sum hold values up to 8 (``sealing.fixed``), and a larger one would be cut. So a count is
sent as three parts that are each small enough. The first two are multiples of a step of such words, so that rounding by
chance leaves them as they are.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse

#: The tensor, or the module that has one tensor per figure.
ANSWERS = "shoal_answers"
#: The module of figures in parts.
PARTS = "shoal_answer_parts"

#: What each part is multiplied by.
_UNITS = np.array([2.0**37, 2.0**18, 1.0])
#: The resolution of the first two parts: multiples of a step of a sum over up to 4,096 devices.
_LEAST = (2.0**22, 2.0**3)
#: How many parts a figure has.
PARTS_OF_A_FIGURE = len(_UNITS)
COUNT_MAX = 2.0**40


def in_parts(value: np.ndarray) -> np.ndarray:
    """Return three parts along a new first axis, none beyond 8."""
    left = np.asarray(value, dtype=np.float64)
    if not np.all(np.abs(left) <= COUNT_MAX):
        raise Misuse(f"a figure of a sealed tally is finite and at most 2^40; here one is {np.abs(left).max():g}")
    parts = []
    for least in _LEAST:
        whole = np.round(left / least) * least
        parts.append(whole)
        left = left - whole
    return np.stack([part / unit for part, unit in zip((*parts, left), _UNITS, strict=True)])


def from_parts(parts: np.ndarray) -> np.ndarray:
    """Return the figure that parts, or sums of them, stand for."""
    figure: np.ndarray = np.tensordot(_UNITS, parts, axes=1)
    return figure
