"""``shoal.worker``: runs a script's own training loop in leases. Imports no torch.

    with shoal.worker(model, optimizer) as worker:
        for lease in worker:
            for batch in lease.batches(loader, steps=50):
                ...

The loop stays the script's. Started by hand, it trains by itself; under ``shoal run`` each device runs the script, and
a *source* in the trainer's process (``trainer.script``) gives the leases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self, cast

from shoal.errors import Misuse
from shoal.lease_log import LeaseLog

#: Measures the model on the script's own held-out data. Returns named sums, or None for "not now".
Evaluate = Callable[[], Mapping[str, Any] | None]


class Source(Protocol):
    """Where the leases of a script come from."""

    def attach(self, model: Any, optimizer: Any, evaluate: Evaluate | None) -> None:
        """Take the model that the script has built."""
        ...

    def draw_apart(self) -> None:
        """Seed this device's generators differently from other devices'."""
        ...

    def exchange(self, done: LoopLease | None) -> LoopLease | None:
        """Take a trained lease. Return the next lease, or None after the last."""
        ...


_source: Source | None = None
_is_taken = False


def connect(source: Source | None) -> None:
    """Set where the script in this process gets its leases. Called before the script runs."""
    global _source, _is_taken
    _source, _is_taken = source, False


def is_lent() -> bool:
    """Whether the script runs for a cluster, and was not started by hand."""
    return _source is not None


def draw_apart() -> None:
    """Let each device draw its own random numbers: devices with the same data must not train on the same batches.

    ``shoal.worker`` does this. Call it earlier only to read a loader before that.
    """
    if _source is not None:
        _source.draw_apart()


def worker(
    model: Any, optimizer: Any = None, *, evaluate: Evaluate | None = None, leases: int | None = None
) -> LoopWorker:
    """Give the script's loop its leases: iterate over the result, and train one lease each time.

    ``evaluate`` measures the model on data that this device holds out, as ``{"accuracy": shoal.mean(right, count)}``.
    It is called before each lease is trained. ``leases`` counts only if the script is started by hand: it then trains
    this many leases, by default three, each one pass over its loader.
    """
    global _is_taken
    source = _source
    if source is None:
        # Imported by name, since the trainer imports this module.
        source = cast("Source", import_module("shoal.trainer.alone").Alone(leases=leases))
    elif _is_taken:
        raise Misuse("shoal.worker was called a second time: a script trains one model, in one loop")
    else:
        _is_taken = True
    source.attach(model, optimizer, evaluate)
    return LoopWorker(source)


class LoopWorker:
    """The leases of a script, one after the other. Asking for the next one sends the update of the last one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lease: LoopLease | None = None
        self._loaders = Loaders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __iter__(self) -> Iterator[LoopLease]:
        return self

    def __next__(self) -> LoopLease:
        if self._lease is not None:
            self._lease.check()
        done, self._lease = self._lease, None
        lease = self._source.exchange(done)
        if lease is None:
            raise StopIteration
        lease.loaders = self._loaders
        self._lease = lease
        return lease


class LoopLease:
    """A version of the model, to be trained for a while."""

    def __init__(
        self,
        *,
        number: int,
        version: int = 0,
        epoch: int = 0,
        examples: int = 0,
        due_in_s: float = math.inf,
        whole_passes: bool = False,
    ) -> None:
        #: Counts the leases of this process.
        self.number = number
        #: The version of the model, and the epoch of the job.
        self.version = version
        self.epoch = epoch
        #: How many examples were taken, and how many may be (0 for any number).
        self.taken = 0
        self.steps = 0
        self._examples_max = examples
        self._due_s = time.monotonic() + due_in_s
        self._whole_passes = whole_passes
        self.logged = LeaseLog()
        self.loaders = Loaders()
        #: The size of the set behind the last loader, or 0 if not known.
        self.held = 0

    def batches(
        self, loader: Iterable[Any], *, steps: int | None = None, seconds: float | None = None
    ) -> Iterator[Any]:
        """Yield ``steps`` batches of the loader, or those to the end of a pass over it. Stops earlier if the lease is
        due. The next lease continues where this one ends.
        """
        if steps is not None and steps < 1:
            raise Misuse(f"lease.batches(loader, steps={steps}): a lease has at least one step")
        if self._whole_passes and hasattr(loader, "__len__"):
            steps = None
        if seconds is not None:
            self._due_s = min(self._due_s, time.monotonic() + seconds)
        self.held = size_of(loader) or self.held
        before = self.steps
        while (batch := self.loaders.next(loader, may_end=steps is None and self.steps > before)) is not END:
            self.took(count_of(batch))
            yield batch
            if self.is_over(before + steps if steps is not None else None):
                return

    def took(self, examples: int) -> None:
        """Count one more step, with this many examples."""
        self.steps += 1
        self.taken += examples

    def is_over(self, steps: int | None = None) -> bool:
        """Whether the lease has had ``steps`` steps, all its examples, or its time."""
        is_full = bool(self._examples_max) and self.taken >= self._examples_max
        return is_full or (steps is not None and self.steps >= steps) or time.monotonic() >= self._due_s

    def log(self, name: str, total: float, weight: float = 1.0) -> None:
        """Add to a sum: ``lease.log("loss", loss.item() * len(batch), len(batch))``. Shoal reports the mean: the loss
        of training, and each other figure beside the next evaluation as ``train/NAME``."""
        self.logged.add(name, total, weight)

    @property
    def loss(self) -> float | None:
        """The mean of the losses that were logged, or None if none were."""
        return self.logged.loss

    @property
    def examples(self) -> int:
        """The weight of the lease: the examples of its batches, or else the weight that was logged."""
        return self.taken or math.ceil(self.logged.weight)

    def check(self) -> None:
        if not self.examples:
            raise Misuse(
                "the lease trained nothing: iterate over `lease.batches(loader)`, or log what you trained on with "
                "`lease.log('loss', total, weight)`"
            )


#: Ends a pass over a loader.
END = object()


class Loaders:
    """The script's position in each of its loaders, since leases are shorter than passes."""

    def __init__(self) -> None:
        #: By the loader's id. The loader is kept, so that no other object gets the same id.
        self._at: dict[int, tuple[Iterable[Any], Iterator[Any]]] = {}

    def next(self, loader: Iterable[Any], *, may_end: bool) -> Any:
        """Return the next batch. At the end of a pass, return END if ``may_end``, else the first batch of the next."""
        for _ in range(2):
            known = self._at.get(id(loader))
            iterator = known[1] if known else iter(loader)
            self._at[id(loader)] = (loader, iterator)
            batch = next(iterator, END)
            if batch is not END:
                return batch
            del self._at[id(loader)]
            if may_end:
                return END
            if known is None:
                break
        raise Misuse(f"lease.batches: the {type(loader).__name__} has no batches, or cannot be read a second time")


def size_of(loader: Any) -> int:
    """Return how many examples the set behind a loader has, or 0 if that is not known."""
    for each in (getattr(loader, "dataset", None), loader):
        try:
            return len(each)  # type: ignore[arg-type]
        except TypeError:
            continue
    return 0


def count_of(batch: Any) -> int:
    """Return how many examples a batch has: the length of its first tensor or list."""
    if isinstance(batch, Mapping):
        return count_of(next(iter(batch.values()), None))
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        first = batch[0] if batch else None
        return count_of(first) if hasattr(first, "shape") or isinstance(first, Mapping) else max(1, len(batch))
    return 1


class Stepper:
    """Leases for a loop that a framework owns: Lightning's, Hugging Face's."""

    def __init__(self, model: Any, optimizer: Any = None, *, steps: int, evaluate: Evaluate | None = None) -> None:
        if steps < 1:
            raise Misuse(f"steps={steps}: a lease has at least one step")
        self._worker = worker(model, optimizer, evaluate=evaluate)
        self._steps = steps
        self._examples, self._loss = 0, 0.0
        #: The current lease. The first one waits here until the first version is in the model.
        self._lease = next(self._worker)

    def batch(self, examples: int, loss: float | None) -> None:
        """Count a batch that went into the gradient. If several make a step, their losses add up to the step's mean."""
        self._examples += examples
        self._loss += loss or 0.0

    def step(self) -> None:
        """Count a step. At the end of a lease, send the update, wait, and put the next version into the model."""
        lease, examples = self._lease, self._examples
        lease.took(examples)
        lease.log("loss", self._loss * examples, examples)
        self._examples, self._loss = 0, 0.0
        if lease.is_over(self._steps):
            self._lease = next(self._worker)
