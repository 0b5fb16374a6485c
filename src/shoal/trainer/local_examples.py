"""A device's own examples as the task's code gives them there. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.data.raw_columns import RawColumn
from shoal.data.raw_values import fitted_rows
from shoal.task import Task
from shoal.trainer.arrays import columns_of, is_read_by_row, rows_of
from shoal.trainer.columns import Rows, length_of, picked
from shoal.trainer.own_examples import FolderExamples, OwnExamples
from shoal.trainer.protocol import TrainerSettings


def examples_here(task: Task, settings: TrainerSettings) -> OwnExamples:
    """Return the device's own examples: rows of its folder if the task declares columns, else what its code gives.

    A device without a folder, such as a worker of ``shoal.fit``, asks the task's code in any case.
    """
    columns = task._declared_columns()
    if columns and settings.local_folder:
        return FolderExamples(settings.local_folder, columns, seen=settings.local_seen)
    return LocalExamples(task, columns, seen=settings.local_seen)


class LocalExamples(OwnExamples):
    """The examples that ``Task.examples("train")`` gives on this device.

    Reads only the rows of a lease from a Dataset, but reads all of an iterable without a length before every lease.
    """

    def __init__(self, task: Task, declared: Mapping[str, RawColumn] | None = None, *, seen: int = 0) -> None:
        super().__init__(seen=seen)
        self._task = task
        self._declared = declared or {}
        #: Examples that the task gave as columns, or `None` if they are read row by row.
        self._columns: Rows | None = None
        self._dataset: Any = None

    def look(self) -> int:
        examples = self._task.examples("train")
        self._columns, self._dataset = columns_of(examples), examples
        if self._columns is not None:
            return self._counted(length_of(self._columns))
        self._dataset = examples if is_read_by_row(examples) else list(examples)
        return self._counted(len(self._dataset))

    def take(self, indices: np.ndarray) -> Rows:
        if self._columns is not None:
            rows = picked(self._columns, indices)
        else:
            rows = rows_of(map(self._dataset.__getitem__, indices.tolist()))
        return dict(fitted_rows(rows, self._declared)) if self._declared else rows
