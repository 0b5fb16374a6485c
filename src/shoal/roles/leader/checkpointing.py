"""Which versions are durable and which are at risk: one save at a time, history carried until it is safe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shoal.roles.actions import Save
from shoal.roles.machine import Machine
from shoal.roles.manager.reunion import Side
from shoal.scheduling.ledger import Applied
from shoal.wire.messages import EvaluationView, Tensors

#: A last version that could not be saved is tried again after this time.
RETRY_S = 2.0

#: Batches of history that a leader cut off from its manager goes on for before it waits: work that is not durable may
#: be lost, and its history is held in memory.
AT_RISK_MAX = 100_000

#: How soon it is saved then, and how often that is tried, whatever the plan says.
AT_RISK_SAVE_S = 1.0

Snapshot = Callable[[], tuple[Tensors, dict[str, Any]]]


class Durability:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        #: The newest version that survives a crash; -1 before the first.
        self.version = -1
        self._saving: int | None = None
        self._wanted = False
        self._since_s = 0.0
        self._applied: list[Applied] = []
        self._evaluations: list[EvaluationView] = []
        self._in_flight = (0, 0)
        #: The version that the training went back to, until that is durable; and whether it is being saved.
        self._back_to: int | None = None
        self._saves_back = False
        #: Why the last save failed, and when; None: it did not.
        self._problem: str | None = None
        self._failed_s = -math.inf
        #: How many of the rows at risk were there when the manager was lost; None: it is in reach.
        self._before_cut: int | None = None
        #: Batches of this leader's term, and the workers that trained them.
        self._term_batches = 0
        self._term_workers: set[str] = set()

    def start(self) -> None:
        self._since_s = self._machine.now_s

    def on_applied(self, rows: list[Applied]) -> None:
        self._applied += rows
        self._term_batches += len(rows)
        self._term_workers.update(row.node for row in rows)

    def on_manager_lost(self) -> None:
        """The manager is out of reach: batches applied from here on are this leader's side of a cut."""
        if self._before_cut is None:
            self._before_cut = len(self._applied)

    @property
    def unsaved(self) -> Side:
        """The work that would be lost with this leader. After a cut, the work of its own side of the cut: before,
        workers of the other side took part too."""
        # A leader may be heard again before it knows of the cut: then the workers that trained last are on its side.
        nodes = [row.node for row in self._applied]
        since = nodes[self._before_cut :] if self._before_cut is not None else nodes[-2 * len(set(nodes)) :]
        batches = len(since) if self._before_cut is not None else len(nodes)
        return Side(batches=batches, workers=len(set(since)))

    @property
    def of_term(self) -> Side:
        """The work that this leader applied under its term."""
        return Side(batches=self._term_batches, workers=len(self._term_workers))

    def add_evaluation(self, view: EvaluationView) -> None:
        self._evaluations.append(view)

    def due(self, *, every_s: float) -> bool:
        """Something is at risk, and has been for long enough."""
        if self.held_up() is not None and not self.is_saving:
            # Every worker waits for this save.
            every_s = min(every_s, AT_RISK_SAVE_S)
        return bool(self._applied) and self._machine.now_s - self._since_s >= every_s

    @property
    def at_risk(self) -> int:
        """Batches in the history that a crash would take back."""
        return len(self._applied)

    def held_up(self) -> str | None:
        """Why nothing more may be lent before a version is durable; None: it may."""
        if self.at_risk < AT_RISK_MAX:
            return None
        return f"{self.at_risk} batches are not durable yet: work goes on when they are"

    @property
    def is_behind(self) -> bool:
        """Something is not durable yet."""
        return bool(self._applied or self._evaluations) or self._saving is not None

    @property
    def is_saving(self) -> bool:
        return self._saving is not None

    def save(self, version: int, snapshot: Snapshot) -> None:
        """Ask for a version to be made durable. While another save runs, the wish is remembered."""
        if self._saving is not None:
            self._wanted = True
            return
        self._saving, self._wanted, self._since_s = version, False, self._machine.now_s
        self._in_flight = (len(self._applied), len(self._evaluations))
        after = self.version if self._back_to is None else min(self.version, self._back_to)
        self._saves_back = self._back_to is not None
        tensors, state = snapshot()
        self._machine.act(
            Save(
                version=version,
                tensors=tensors,
                state=state,
                after=after,
                applied=tuple(self._applied),
                evaluations=tuple(self._evaluations),
            )
        )

    def on_saved(self, version: int) -> bool:
        """A save came through. True if another was asked for meanwhile."""
        if version != self._saving:
            return False
        applied, evaluations = self._in_flight
        del self._applied[:applied]
        del self._evaluations[:evaluations]
        self._saving, self._problem = None, None
        self._before_cut = None
        if self._saves_back:
            self._back_to, self._saves_back = None, False
        self.version = max(self.version, version)
        return self._wanted

    def on_went_back(self, version: int) -> None:
        """Unsaved history above this version is dropped. Durable history above it is dropped by the next save, which
        begins at this version."""
        applied, evaluations = self._in_flight
        flying = sum(row.version <= version for row in self._applied[:applied])
        judged = sum(view.version <= version for view in self._evaluations[:evaluations])
        self._in_flight = (flying, judged)
        self._applied = [row for row in self._applied if row.version <= version]
        self._evaluations = [view for view in self._evaluations if view.version <= version]
        self._back_to = version if self._back_to is None else min(version, self._back_to)
        self._saves_back = False
        self._before_cut = None if self._before_cut is None else min(self._before_cut, len(self._applied))

    def on_failed(self, reason: str) -> bool:
        """Nothing was lost; what was at risk still is, and is tried again when due. False: the reason is known."""
        self._saving, self._wanted = None, False
        self._since_s = self._failed_s = self._machine.now_s
        is_new, self._problem = reason != self._problem, reason
        return is_new

    def may_retry(self) -> bool:
        """Nothing is being saved, nor did a save just fail."""
        return self._saving is None and self._machine.now_s - self._failed_s >= RETRY_S
