"""Which of a device's own examples a lease evaluates and trains on, and what it reports of their labels. No torch.

Both engines go by it, and so does a tab: the rows of a lease depend only on the seed, the epoch, the lease, and how
many examples the device has and had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse, ShoalError
from shoal.learning.similarity import capped_counts, noisy_counts
from shoal.scheduling.batches import Indices, epoch_order, mix
from shoal.trainer.columns import Array, Rows, labels_of
from shoal.trainer.own_examples import OwnExamples
from shoal.trainer.protocol import TrainerSettings
from shoal.wire.limits import LABELS_MAX

#: New examples are evaluated in spans of this number of batches: without gradients more of them fit into memory.
JUDGED_BATCHES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenRows:
    """The rows of one lease."""

    #: How many examples the device has.
    held: int
    #: The new examples that are evaluated before the training, in spans.
    judged: Sequence[Array]
    #: How many examples are trained on.
    examples: int
    #: The rows of each batch, over all passes, and the number of batches in the first.
    parts: Sequence[Array]
    first_pass: int


def choose_rows(
    own: OwnExamples, settings: TrainerSettings, *, epoch: int, lease: int, examples: int
) -> ChosenRows | None:
    """Count the device's examples and choose those of a lease of at most ``examples``. Return None if there are no
    examples."""
    held = own.look()
    if not held:
        return None
    fresh = own.fresh()
    newest, span = fresh[::-1][:examples], JUDGED_BATCHES * settings.batch_size
    chosen = own.chosen(examples, fresh, seed=settings.seed, epoch=epoch, lease=lease)
    passes = list(passes_over(chosen, settings.passes, settings.batch_size, seeds=(settings.seed, epoch, lease)))
    return ChosenRows(
        held=held,
        judged=[newest[start : start + span] for start in range(0, len(newest), span)],
        examples=len(chosen),
        parts=[part for batches in passes for part in batches],
        first_pass=len(passes[0]),
    )


def passes_over(chosen: Array, passes: int, size: int, *, seeds: tuple[int, ...]) -> Iterator[list[Array]]:
    """Yield the batches of each pass over a lease's examples: the first in their order, the others mixed anew."""
    for number in range(passes):
        order: Indices = chosen[epoch_order(len(chosen), seed=mix(*seeds), epoch=number)] if number else chosen
        yield [order[start : start + size] for start in range(0, len(order), size)]


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Replace the text of an engine's or a task's error on rows of a device's folder: it may hold a value of one, and
    it is reported. Its type and its place stay."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or "alloc" in str(error).lower():
            # Too little memory has its own text.
            raise
        told = Misuse(
            f"the job's step does not take these rows ({type(error).__name__}): look for a whole number outside the"
            " task's classes"
        )
        raise told.with_traceback(error.__traceback__) from None


class LabelCounts:
    """How many examples of each label a lease trained on, if the plan reports it. Passes after the first count
    nothing."""

    def __init__(self, settings: TrainerSettings, *, first_pass: int) -> None:
        self._settings = settings
        self._first_pass = first_pass
        self._step = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, rows: Rows) -> None:
        """Count the labels of the next batch."""
        if self._settings.share_labels and self._step < self._first_pass:
            self._counts = _added(self._counts, labels_of(rows))
        self._step += 1

    def told(self, noise: Callable[[], np.random.Generator], *, most: int) -> tuple[int, ...]:
        """Return the counts, with noise if the plan says so. ``most``: the examples of the lease."""
        counts: Array = self._counts
        if self._settings.labels_epsilon and counts.size:
            counts = noisy_counts(counts, epsilon=self._settings.labels_epsilon, generator=noise())
            counts = capped_counts(counts, most=most)
        return tuple(max(0, round(float(count))) for count in counts)


def _added(counts: Array, y: Array | None) -> Array:
    """Add the labels of some more examples to the counts. Ignores values that are not classes."""
    if y is None or not len(y) or not 0 <= y.min() <= y.max() < LABELS_MAX:
        return counts
    more = np.bincount(y.astype(np.int64), minlength=counts.size)
    more[: counts.size] += counts
    return more
