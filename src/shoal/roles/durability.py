"""What is durable and what is not yet: one save at a time, history carried until it is safe. Pure state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.roles.actions import Action, Save
from shoal.wire.messages import EvaluationView, Tensors
from shoal.workload.ledger import Applied

Snapshot = Callable[[], tuple[Tensors, dict[str, Any]]]


class Durability:
    def __init__(self) -> None:
        #: The newest version that survives a crash; -1 before the first.
        self.version = -1
        self._saving: int | None = None
        self._wanted = False
        self._since_s = 0.0
        self._applied: list[Applied] = []
        self._evaluations: list[EvaluationView] = []
        self._in_flight = (0, 0)

    def start(self, now_s: float) -> None:
        self._since_s = now_s

    def applied(self, rows: list[Applied]) -> None:
        self._applied += rows

    def evaluated(self, view: EvaluationView) -> None:
        self._evaluations.append(view)

    def due(self, now_s: float, *, every_s: float) -> bool:
        """Something is at risk, and has been for long enough."""
        return bool(self._applied) and now_s - self._since_s >= every_s

    @property
    def at_risk(self) -> int:
        """Batches in the history that a crash would take back."""
        return len(self._applied)

    @property
    def is_behind(self) -> bool:
        """Something is not durable yet."""
        return bool(self._applied or self._evaluations) or self._saving is not None

    @property
    def is_saving(self) -> bool:
        return self._saving is not None

    def save(self, version: int, snapshot: Snapshot, now_s: float) -> list[Action]:
        """Ask for a version to be made durable. While another save runs, the wish is remembered."""
        if self._saving is not None:
            self._wanted = True
            return []
        self._saving, self._wanted, self._since_s = version, False, now_s
        self._in_flight = (len(self._applied), len(self._evaluations))
        tensors, state = snapshot()
        return [
            Save(
                version=version,
                tensors=tensors,
                state=state,
                applied=tuple(self._applied),
                evaluations=tuple(self._evaluations),
            )
        ]

    def saved(self, version: int) -> bool:
        """A save came through. True if another was asked for meanwhile."""
        if version != self._saving:
            return False
        applied, evaluations = self._in_flight
        del self._applied[:applied]
        del self._evaluations[:evaluations]
        self._saving = None
        self.version = max(self.version, version)
        return self._wanted

    def went_back(self, version: int) -> None:
        """What was at risk above this version is in no history any more. What is being saved of it will be undone by
        the next save."""
        applied, evaluations = self._in_flight
        flying = sum(row.version <= version for row in self._applied[:applied])
        judged = sum(view.version <= version for view in self._evaluations[:evaluations])
        self._in_flight = (flying, judged)
        self._applied = [row for row in self._applied if row.version <= version]
        self._evaluations = [view for view in self._evaluations if view.version <= version]

    def failed(self, now_s: float) -> None:
        """Nothing was lost; what was at risk still is, and is tried again when due."""
        self._saving, self._wanted, self._since_s = None, False, now_s
