"""A device's own examples: read again for every lease, since they may have grown. Knows no model and no leader."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.scheduling.batches import epoch_order, mix
from shoal.task import Task
from shoal.trainer.arrays import materialise
from shoal.trainer.shards import Array


class LocalExamples:
    """What ``Task.examples("train")`` gives here: a pair of arrays, or a Dataset of pairs, which is read row by row."""

    def __init__(self, task: Task, *, seen: int = 0) -> None:
        """``seen``: how many an earlier process was done with."""
        self._task = task
        self._x: Any = None
        self._y: Any = None
        self._rows: Any = None
        #: How many there were when a lease was last trained.
        self._seen = seen
        self._count = 0

    def look(self) -> int:
        """How many there are now."""
        examples = self._task.examples("train")
        if isinstance(examples, tuple | list):
            self._x, self._y = materialise(examples)
            self._rows, self._count = None, len(self._x)
        else:
            self._rows, self._count = examples, len(examples)
        # A device may drop old ones: then all that is left was seen.
        self._seen = min(self._seen, self._count)
        return self._count

    def fresh(self) -> np.ndarray:
        """Those that came since the last lease, the newest last. After this they are not fresh any more."""
        since, self._seen = self._seen, self._count
        return np.arange(since, self._count)

    def chosen(self, count: int, fresh: np.ndarray, *, seed: int, epoch: int, lease: int) -> np.ndarray:
        """So many, or all there are: fresh ones first, the newest of them, then others in an order of its own."""
        count = min(count, self._count)
        newest = fresh[::-1][:count]
        order = epoch_order(self._count, seed=mix(seed, epoch), epoch=lease)
        others = order[~np.isin(order, newest)][: count - len(newest)]
        return np.concatenate((newest, others)).astype(np.int64)

    def take(self, indices: np.ndarray) -> tuple[Array, Array]:
        """The rows with these numbers."""
        if self._rows is None:
            return self._x[indices], self._y[indices]
        return materialise([[row[part] for row in map(self._rows.__getitem__, indices.tolist())] for part in (0, 1)])
