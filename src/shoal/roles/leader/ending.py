"""How a job ends: by its metrics, its epochs or its time, or as was decided before. A part of the leader.

It decides whether the job is over, and why; the leader then ends what is still under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.roles.leader.goals import UnknownGoals, reached_by
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.until import Until

#: The state and the reason that a job ends with.
JobEnd = tuple[str, str]


class Ending:
    def __init__(self, machine: Machine, until: Until, training: TrainingState) -> None:
        self._machine = machine
        self._until = until
        self._training = training
        self._goals = UnknownGoals(until)
        #: How the job will end, once that is decided. The last evaluation may still run then.
        self.decided: JobEnd | None = None

    def restore(self, kept: Sequence[str] | None) -> None:
        self.decided = (kept[0], kept[1]) if kept else None

    def snapshot(self) -> list[str] | None:
        return list(self.decided) if self.decided else None

    def or_failed(self, reason: str) -> JobEnd:
        """Return how the job ends if it cannot continue, for this reason: as was decided before, or else it failed."""
        return self.decided or ("failed", reason)

    def after_epoch(self) -> JobEnd | None:
        """Return how the job ends between two epochs, or None if it continues."""
        if self.decided is not None:
            return self.decided
        latest = self._training.latest if self._training.is_evaluated else None
        if latest is not None and (reached := reached_by(self._until, self._training.evaluations)) is not None:
            return "finished", reached
        if latest is not None and (unknown := self._goals.unknown(latest)) is not None:
            self._machine.record("goal.unmeasured", unknown)
        if self._until.epochs is not None and self._training.ledger.epoch >= self._until.epochs:
            return "finished", f"{self._until.epochs} of {self._until.epochs} epochs"
        return None

    def by_time(self) -> JobEnd | None:
        """Decide that the job ends if its time is over now. Return how, or None if it is not."""
        limit_s = self._until.seconds
        if limit_s is None or self._training.elapsed_s < limit_s:
            return None
        self.decided = ("finished", f"the time limit of {limit_s:g} s is over")
        return self.decided
