"""A device's own examples, counted before every lease, since there may be new ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.scheduling.batches import epoch_order, mix
from shoal.task import Task
from shoal.trainer.arrays import columns_of, is_read_by_row, rows_of
from shoal.trainer.columns import Rows, length_of, picked


class LocalExamples:
    """The examples that ``Task.examples("train")`` gives on this device.

    Reads only the rows of a lease from a Dataset, but reads all of an iterable without a length before every lease.
    """

    def __init__(self, task: Task, *, seen: int = 0) -> None:
        """Begin with ``seen`` examples that an earlier process has trained on."""
        self._task = task
        #: Examples that the task gave as columns, or `None` if they are read row by row.
        self._columns: Rows | None = None
        self._dataset: Any = None
        #: How many there were when a lease was last trained.
        self._seen = seen
        self._count = 0

    def look(self) -> int:
        """Count the examples again. Return how many there are now."""
        examples = self._task.examples("train")
        self._columns, self._dataset = columns_of(examples), examples
        if self._columns is not None:
            self._count = length_of(self._columns)
        else:
            self._dataset = examples if is_read_by_row(examples) else list(examples)
            self._count = len(self._dataset)
        # A device may drop old examples: then all that are left were seen.
        self._seen = min(self._seen, self._count)
        return self._count

    def fresh(self) -> np.ndarray:
        """Return the examples that came since the last lease, the newest last, and mark them as seen."""
        since, self._seen = self._seen, self._count
        return np.arange(since, self._count)

    def chosen(self, count: int, fresh: np.ndarray, *, seed: int, epoch: int, lease: int) -> np.ndarray:
        """Return ``count`` examples, or all there are: first the fresh ones from the newest on, then others in an order
        that the seed sets."""
        count = min(count, self._count)
        newest = fresh[::-1][:count]
        order = epoch_order(self._count, seed=mix(seed, epoch), epoch=lease)
        others = order[~np.isin(order, newest)][: count - len(newest)]
        return np.concatenate((newest, others)).astype(np.int64)

    def take(self, indices: np.ndarray) -> Rows:
        """Return the rows with these numbers."""
        if self._columns is not None:
            return picked(self._columns, indices)
        return rows_of(map(self._dataset.__getitem__, indices.tolist()))
