"""A device's own examples, counted before every lease, since there may be new ones. No torch.

``FolderExamples`` are rows of the device's folder, by the columns that the task declares. ``RowsOfSet`` are rows of a
stored set, for a simulated device. What a task's code gives on a device is in ``local_examples``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.data.own_rows import OwnRows
from shoal.data.raw_columns import RawColumn
from shoal.scheduling.batches import epoch_order, mix
from shoal.trainer.columns import Rows
from shoal.trainer.shards import Examples

#: Rows of a stored set are copied in spans of this length.
ROWS_AT_ONCE = 1024


class OwnExamples(ABC):
    """Examples of which the newest come last, and how many of them were trained on."""

    def __init__(self, *, seen: int) -> None:
        """Begin with ``seen`` examples that an earlier process has trained on."""
        #: How many there were when a lease was last trained.
        self._seen = seen
        self._count = 0

    @abstractmethod
    def look(self) -> int:
        """Count the examples again. Return how many there are now."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> Rows:
        """Return the rows with these numbers."""

    def take_parts(self, parts: Sequence[np.ndarray]) -> Iterator[Rows]:
        """Yield the rows of each part. A user's own set is read part by part, since it may draw random numbers."""
        return map(self.take, parts)

    def _counted(self, count: int) -> int:
        self._count = count
        # A device may drop old examples: then all that are left were seen.
        self._seen = min(self._seen, count)
        return count

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


class FolderExamples(OwnExamples):
    """The rows in the device's folder."""

    def __init__(self, folder: str, columns: Mapping[str, RawColumn], *, seen: int = 0) -> None:
        super().__init__(seen=seen)
        self._rows = OwnRows(Path(folder), columns)

    def look(self) -> int:
        count = self._rows.look()
        # Otherwise the rows of a file that replaces an old one would pass for seen.
        self._seen -= self._rows.gone_of(self._seen)
        return self._counted(count)

    def take(self, indices: np.ndarray) -> Rows:
        return dict(self._rows.take(indices))


class RowsOfSet(OwnExamples):
    """Some rows of a stored set, as one device's own examples."""

    def __init__(self, stored: Examples, rows: np.ndarray, *, seen: int = 0) -> None:
        super().__init__(seen=seen)
        self._stored = stored
        self._rows = rows

    def look(self) -> int:
        return self._counted(len(self._rows))

    def take(self, indices: np.ndarray) -> Rows:
        return self._stored.take(self._rows[indices])

    def take_parts(self, parts: Sequence[np.ndarray]) -> Iterator[Rows]:
        # Several at once: a look into a set of many shards costs more than the rows of a small batch.
        many = max(1, ROWS_AT_ONCE // max(1, max(map(len, parts), default=1)))
        for first in range(0, len(parts), many):
            some = parts[first : first + many]
            taken, start = self.take(np.concatenate(some)), 0
            for part in some:
                yield {name: column[start : start + len(part)] for name, column in taken.items()}
                start += len(part)
