"""Figure 1 (c): what it takes to add up N models that are in memory, and N that are in files, one after another.

With the paper's 46 MB. Processor seconds, since the clock of a crowded machine tells nothing; the files were just
written, so that no disk is waited for. The paper's files are DL4J's, on a phone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from papers.harness.rows import Row
from papers.mdldroid.setting import LARGE_PARAMETERS
from testbed.results import say

#: The paper goes up to twenty; eight is the size of which its text has figures.
SIZES = (2, 4, 8, 20)
RUNS = 3
QUICK_VALUES = 100_000


def run(quick: bool) -> list[Row]:
    return rows_of(SIZES[:1], values=QUICK_VALUES, runs=1) if quick else rows_of(SIZES, values=LARGE_PARAMETERS)


def rows_of(sizes: Sequence[int], *, values: int, runs: int = RUNS) -> list[Row]:
    generator = np.random.default_rng(1)
    models = [generator.random(values, dtype=np.float32) for _ in range(max(sizes))]
    with tempfile.TemporaryDirectory(prefix="shoal-models-") as folder:
        files = [Path(folder) / f"{number}.npy" for number in range(len(models))]
        for file, model in zip(files, models, strict=True):
            np.save(file, model)
        return [row_of(models[:size], files[:size], runs=runs) for size in sizes]


def row_of(models: Sequence[np.ndarray], files: Sequence[Path], *, runs: int) -> Row:
    held_s = median(took_s(lambda: held_mean(models)) for _ in range(runs))
    in_turn_s = median(took_s(lambda: mean_in_turn(files)) for _ in range(runs))
    say(f"   {len(models)} models: held {held_s:.3f} s, in turn {in_turn_s:.3f} s")
    return {"devices": len(models), "held_s": held_s, "in_turn_s": in_turn_s, "runs": runs}


def held_mean(models: Sequence[np.ndarray]) -> np.ndarray:
    """The paper's master: every model is in memory."""
    whole = models[0].copy()
    for model in models[1:]:
        whole += model
    return whole / np.float32(len(models))


def mean_in_turn(files: Sequence[Path]) -> np.ndarray:
    """One file after another, so that two models are in memory."""
    whole: np.ndarray = np.load(files[0])
    for file in files[1:]:
        whole += np.load(file)
    return whole / np.float32(len(files))


def took_s(make: Callable[[], np.ndarray]) -> float:
    began_s = time.process_time()
    make()
    return time.process_time() - began_s
