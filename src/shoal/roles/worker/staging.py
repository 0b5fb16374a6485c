"""The parts of the next model that a worker has from its aggregators. Pure state: a driver keeps the values."""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.compress.sparse import add_to
from shoal.roles.actions import StageModel
from shoal.wire.messages import ModelShard, Route

#: (term, formation, version) before all others.
_OLDEST = (0, 0, -1)


class Staging:
    """One version of one formation at a time: the newest that a part came of."""

    def __init__(self) -> None:
        #: (term, formation, version) of the newest part, and of the last version that was trained on or skipped.
        self._of = _OLDEST
        self._spent = _OLDEST
        #: Where a part begins -> its version.
        self._parts: dict[int, int] = {}

    def add(self, values: ModelShard) -> bool:
        """Add a part. False: a part of a newer version came before, and this one is of no use."""
        of = (values.term, values.formation, values.version)
        if of < self._of or of == self._spent:
            return False
        if of[:2] != self._of[:2]:
            self._parts.clear()
        self._of = of
        self._parts[values.start] = values.version
        return True

    def skip(self, values: ModelShard) -> None:
        """Skip a version: a part came that changes a model which is not here."""
        of = (values.term, values.formation, values.version)
        if of >= self._of:
            self._of = self._spent = of
            self._parts.clear()

    def follows(self, values: ModelShard, holds: tuple[int, int]) -> Literal["staged", "held"] | None:
        """What the changes of a part apply to: ``staged``, the part that came before; ``held``, the trainer's model;
        None: neither is the version that they change."""
        is_same = self._of[:2] == (values.term, values.formation)
        if is_same and self._parts.get(values.start) == values.base:
            return "staged"
        return "held" if holds in ((values.term, values.base), (0, values.base)) else None

    def has(self, start: int) -> bool:
        """Whether the part that begins there is of the newest version."""
        return self._parts.get(start) == self._of[2]

    def is_whole(self, formation: int, version: int, route: Route) -> bool:
        """Whether every part of this version is here."""
        if self._of != (route.term, formation, version):
            return False
        return all(self.has(hop.start) for hop in route.hops)

    def spend(self) -> None:
        """The trainer takes the values: they are not here any longer."""
        self._spent = self._of
        self._parts.clear()

    def is_spent(self, formation: int, version: int, route: Route) -> bool:
        """Whether this version will never be whole here (again): it was trained on or skipped, or a newer one came."""
        wanted = (route.term, formation, version)
        return self._spent == wanted or self._of > wanted


def put(stage: StageModel, staged: np.ndarray, present: np.ndarray) -> None:
    """Write a part into the next model, ``staged``. ``present`` is the model that the trainer has."""
    if not stage.changes:
        values = stage.tensors["model"]
        staged[stage.start : stage.start + values.size] = values
        return
    place = slice(stage.start, stage.start + stage.changes[0].size)
    if stage.anew:
        staged[place] = present[place]
    for change in stage.changes:
        add_to(staged[place], change)
