"""DCL's shuffles of a layer, static and dynamic, as its thesis has them (DCL §3.4). Shoal shuffles by product."""

from __future__ import annotations

import numpy as np

from shoal.offload.shuffle import Shuffle, permutation


def static_layer_shuffle(
    seed: bytes, *, layer: int, rows: int, inner: int, columns: int, task: int | None = None
) -> Shuffle:
    """SLS: one shuffle a layer, used whenever it is computed. With a ``task``, one for each of them. (DCL §3.4)"""
    return _shuffle(seed, f"layer {layer}", rows, inner, columns, task)


def dynamic_layer_shuffle(
    seed: bytes, *, layer: int, computation: int, rows: int, inner: int, columns: int, task: int | None = None
) -> Shuffle:
    """DLS: another shuffle each time a layer is computed, from the same seed. (DCL §3.4)"""
    return _shuffle(seed, f"layer {layer} computation {computation}", rows, inner, columns, task)


def shuffle_task(column: np.ndarray, row: np.ndarray, shuffle: Shuffle) -> tuple[np.ndarray, np.ndarray]:
    """One feature's task: its values in all examples, its weights to all neurons. (DCL Figure 3.7)"""
    return column[shuffle.rows], row[shuffle.columns]


def _shuffle(seed: bytes, purpose: str, rows: int, inner: int, columns: int, task: int | None) -> Shuffle:
    each = purpose if task is None else f"{purpose} task {task}"
    return Shuffle(
        rows=permutation(seed, f"rows of {each}", rows),
        # Which task is which feature's is one secret for all of them.
        inner=permutation(seed, f"inner of {purpose}", inner),
        columns=permutation(seed, f"columns of {each}", columns),
    )
