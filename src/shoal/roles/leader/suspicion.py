"""Whether devices are bad, their data, or the model: from failures of batches, contributions and bad results.

A part of the leader, and pure. One device whose updates are unusual or not finite is at fault itself. When most devices
send such updates, the model is at fault: it is all they have in common. Then the devices that moved it since it was
last found good are set aside, honest or not: the leader cannot tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from shoal.roles.leader.workers import WorkerRecord, Workers
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import EvaluationView

#: One device alone is no witness against the model.
WITNESSES_LEAST = 2

#: An evaluation is sound unless it is both this much worse than the best: a loss so many times as high, and less than
#: this share of its accuracy. Where there is no accuracy, a loss alone tells less, and has to be worse.
LOSS_TIMES = 2.0
ACCURACY_SHARE = 0.5
LOSS_ALONE_TIMES = 10.0


#: A batch that failed this often, and not on one broken device among good ones, fails the job: its code or data is
#: broken, not the devices.
BATCH_FAILURES_MAX = 4


class BatchFailures:
    """Which batches failed on which workers, in this epoch or evaluation."""

    def __init__(self) -> None:
        self.by_batch: dict[int, Counter[str]] = {}

    def clear(self) -> None:
        self.by_batch.clear()

    def on_failed(self, worker: WorkerRecord, lease: Lease, reason: str, workers: Workers) -> str | None:
        """The lease of a worker failed. Returns why the job has to fail; None: the batches are lent again."""
        for batch in lease.batches:
            self.by_batch.setdefault(batch, Counter())[worker.node] += 1
        worker.is_failing = True
        if (why := workers.why_hopeless()) is not None:
            return why
        worst = max(lease.batches, key=lambda batch: self.by_batch[batch].total())
        times = self.by_batch[worst].total()
        if times < BATCH_FAILURES_MAX:
            return None
        if len(self.by_batch[worst]) == 1 and workers.any_healthy():
            return None
        return f"batch {worst} of epoch {lease.epoch + 1} failed {times} times, last on {worker.node}: {reason}"


class Suspicion:
    def __init__(self) -> None:
        #: Devices whose updates are in the model since it was last found good.
        self._contributed: set[str] = set()
        #: Devices whose latest results were bad: the batches of the last one, and how many in a row.
        self._bad: dict[str, tuple[tuple[int, ...], int]] = {}
        #: Batches that were bad when the model last went back.
        self._tried: set[tuple[int, ...]] = set()
        self._best_loss = float("inf")
        self._best_accuracy = 0.0

    def on_merged(self, nodes: Collection[str]) -> None:
        """Updates of these devices are in the next version."""
        self._contributed.update(nodes)
        for node in nodes:
            self._bad.pop(node, None)

    def on_bad(self, node: str, batches: tuple[int, ...]) -> None:
        """A result of this device was not finite, or larger than is usual."""
        _, times = self._bad.get(node, ((), 0))
        self._bad[node] = (batches, times + 1)

    @property
    def accused(self) -> list[str]:
        """Devices whose latest results were bad."""
        return sorted(self._bad)

    @property
    def has_contributors(self) -> bool:
        return bool(self._contributed)

    def is_sound(self, view: EvaluationView) -> bool:
        """Whether an evaluation says that the model is as good as one can expect."""
        loss, accuracy = view.loss, view.accuracy
        if accuracy is None:
            # Below 0 no factor says what is worse.
            is_worse = loss is not None and 0 < LOSS_ALONE_TIMES * self._best_loss < loss
        else:
            is_lossy = loss is None or loss > LOSS_TIMES * self._best_loss
            is_worse = is_lossy and accuracy < ACCURACY_SHARE * self._best_accuracy
            self._best_accuracy = max(self._best_accuracy, accuracy)
        self._best_loss = min(self._best_loss, self._best_loss if loss is None else loss)
        return not is_worse

    def on_found_good(self) -> None:
        """The present model is good: no device is held to account for it."""
        self._contributed.clear()

    def witnesses(self, able: Collection[str]) -> list[str]:
        """Devices whose results are bad now, if they are most of those that may train: then the model is at fault.
        Unless all of them had the same batches: then it may be the data.

        Devices that have returned nothing meanwhile are not waited for once the witnesses were bad twice each, or as
        often together.
        """
        bad = sorted(node for node in able if node in self._bad)
        if len(bad) < WITNESSES_LEAST:
            return []
        heard = [node for node in able if node in self._bad or node in self._contributed]
        is_repeated = sum(self._bad[node][1] for node in bad) >= 2 * len(bad)
        batches = {self._bad[node][0] for node in bad}
        if len(batches) == 1 and (not is_repeated or batches <= self._tried):
            # At the end of an epoch there may be no other batch. If another model fails on it too, it is the data.
            return []
        return bad if 2 * len(bad) > len(heard if is_repeated else able) else []

    def take_contributors(self) -> list[str]:
        """The devices that moved the model since it was last found good. It goes back, and all of them begin again."""
        contributed = sorted(self._contributed)
        self._tried = {batches for batches, _ in self._bad.values()}
        self._contributed.clear()
        self._bad.clear()
        return contributed
