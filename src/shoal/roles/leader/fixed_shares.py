"""Fixed shares: when a leader divides an epoch again, among which workers, and why. Pure; holds no batches."""

from __future__ import annotations

from collections.abc import Callable

from shoal.roles.leader.workers import Workers
from shoal.scheduling.ledger import Ledger

#: Kinds of records that say: the workers changed, or batches that a worker held are free again.
_CHANGES = frozenset(
    (
        "epoch.done",
        "job.resumed",
        "device.joined",
        "worker.lost",
        "device.released",
        "lease.failed",
        "preparation.failed",
        "update.rejected",
        "lease.expired",
        "lease.returned",
    )
)


class FixedShares:
    def __init__(self, *, work: str) -> None:
        self._is_fixed = work == "fixed"
        #: A worker may have come or gone since the last look.
        self._is_due = self._is_fixed

    def on_record(self, kind: str) -> None:
        """The leader recorded a decision of this kind."""
        if kind in _CHANGES:
            self.on_changed()

    def on_changed(self) -> None:
        self._is_due = self._is_fixed

    def on_idle(self, node: str, ledger: Ledger) -> None:
        """A worker that has a share left cannot train it now."""
        if ledger.left_for(node):
            self.on_changed()

    def cut(
        self, ledger: Ledger, records: Workers, *, is_left_out: Callable[[str], bool] = lambda node: False
    ) -> str | None:
        """Divide the free batches among the workers, if they are others than before. Returns why it was done.

        A worker that could train none of them (``is_left_out``) must not hold batches.
        """
        if not self._is_due:
            return None
        workers = tuple(node for node in records.at_work() if not is_left_out(node))
        if not workers:
            # The first worker to come is a change.
            return None
        self._is_due = False
        before = ledger.sharers
        if workers == before and not ledger.has_orphans:
            return None
        ledger.divide(workers)
        return _reason(ledger, before=before, workers=workers)

    def why_idle(self, node: str, ledger: Ledger, reason: str) -> str:
        """Why a worker waits whose share is done; else the reason that all have."""
        if not ledger.sharers or ledger.left_for(node):
            return reason
        return f"its share of epoch {ledger.epoch + 1} is done; {reason}"


def _reason(ledger: Ledger, *, before: tuple[str, ...], workers: tuple[str, ...]) -> str:
    most = max(ledger.left_for(node) for node in workers)
    shares = f"{len(workers)} {'share' if len(workers) == 1 else 'shares'}"
    told = f"epoch {ledger.epoch + 1}: {shares} of at most {most} {'batch' if most == 1 else 'batches'}"
    if not before:
        return told
    came = [f"{node} has one now" for node in workers if node not in before]
    gone = [f"{node} has none any more" for node in before if node not in workers]
    why = ", ".join([*came, *gone]) or "what was left by someone is given to others"
    return f"{told}, divided again: {why}"
