"""Equations (4.9) and (4.10): how many orders there are, and what that says of secrecy, which is nothing. Pure.

The thesis multiplies the number of ways to shuffle and to add, and asks how long it would take to try them all. The
numbers it prints do not follow from its equations; and nobody who wants the images tries them all. Trying is needed
where a wrong guess looks like any other. Here a guess that is nearly right looks nearly like a digit, so one gets there
step by step: see ``attack.py``.
"""

from __future__ import annotations

import math

from papers.dcl import paper
from papers.harness.rows import Row

_LN10 = math.log(10)


def log10_factorial(number: int) -> float:
    return math.lgamma(number + 1) / _LN10


def log10_shuffles(samples: int, neurons: int) -> float:
    """S = (a! - 1)(c! - 1), eq. (4.10); the ones do not show in the digits that are kept."""
    return log10_factorial(samples) + log10_factorial(neurons)


def log10_orders(features: int) -> float:
    """P = b!, eq. (4.9)."""
    return log10_factorial(features)


def log10_ages(log10_tries: float) -> float:
    """So many tries, one floating point operation each, in ages of the universe."""
    return log10_tries - math.log10(paper.FLOPS * paper.AGE_OF_UNIVERSE_S)


def run(quick: bool) -> list[Row]:
    shuffles = log10_shuffles(paper.SAMPLES, paper.NEURONS)
    tries = {"shuffles alone": shuffles, "shuffles and order": shuffles + log10_orders(paper.FEATURES)}
    return [
        {
            "what": what,
            "thesis_log10_ages": paper.AGES_LOG10[what],
            "log10_tries": round(log10_tries),
            "log10_ages": round(log10_ages(log10_tries)),
        }
        for what, log10_tries in tries.items()
    ]
