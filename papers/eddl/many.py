"""The same function on many arguments, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def spread(function: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> list[_Answer]:
    """Answers in the order of the questions. A fresh interpreter for each core: this one may have threads."""
    cores = min(os.cpu_count() or 1, len(asked))
    if cores < 2:
        return [function(one) for one in asked]
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, asked))
