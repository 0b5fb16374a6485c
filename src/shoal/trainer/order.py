"""Which stored examples a trainer reads for a batch: from the whole set, or window by window. No torch."""

from __future__ import annotations

from shoal.scheduling.batches import Indices, WindowShuffle, batch_indices, epoch_order
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shards import Examples


def training_set(settings: TrainerSettings) -> Examples:
    """Return the examples to train on. If the set is mixed in windows, its shards are opened later."""
    return Examples.to_come(settings.train_rows) if settings.window else Examples(settings.train)


class BatchOrder:
    """A lease names batches by number; every device must find the same examples in them."""

    def __init__(self, settings: TrainerSettings, examples: int) -> None:
        self._batch_size = settings.batch_size
        self._seed = settings.seed
        self._examples = examples
        self._whole: tuple[int, Indices] | None = None
        self._windows: WindowShuffle | None = None
        if settings.window:
            self._windows = WindowShuffle(settings.train_rows, seed=settings.seed, window=settings.window)

    def indices(self, epoch: int, batch: int) -> Indices:
        """Return the indices of the examples of one batch."""
        if self._windows is not None:
            return self._windows.batch(epoch, batch, self._batch_size)
        if self._whole is None or self._whole[0] != epoch:
            self._whole = (epoch, epoch_order(self._examples, seed=self._seed, epoch=epoch))
        return batch_indices(self._whole[1], batch, self._batch_size)
