"""Which parts of the next model a worker has from its sub-leaders. Pure; the values themselves, a driver keeps."""

from __future__ import annotations

import numpy as np

from shoal.compress.sparse import add_to
from shoal.roles.actions import Stage
from shoal.wire.messages import Route, Values


class Staging:
    """One version of one formation at a time: the newest of which anything came."""

    def __init__(self) -> None:
        #: (term, formation, version)
        self._of: tuple[int, int, int] = (0, 0, -1)
        self._spent: tuple[int, int, int] = (0, 0, -1)
        #: Where the parts begin that are there, and of which version each is.
        self._parts: dict[int, int] = {}

    def add(self, values: Values) -> bool:
        """A part has come. False: it is of an older version than others that have, and of no use."""
        of = (values.term, values.formation, values.version)
        if of < self._of or of == self._spent:
            return False
        if of[:2] != self._of[:2]:
            self._parts.clear()
        self._of = of
        self._parts[values.start] = values.version
        return True

    def skip(self, values: Values) -> None:
        """A part has come of which nothing can be made: its version will not be whole here."""
        of = (values.term, values.formation, values.version)
        if of >= self._of:
            self._of = self._spent = of
            self._parts.clear()

    def follows(self, values: Values, holds: tuple[int, int]) -> str:
        """On what a part's changes are to be made: ``staged``, the part that came before; ``held``, the model of the
        trainer; or nothing, since what they change is not here."""
        is_same = self._of[:2] == (values.term, values.formation)
        if is_same and self._parts.get(values.start) == values.base:
            return "staged"
        return "held" if holds in ((values.term, values.base), (0, values.base)) else ""

    def has(self, start: int) -> bool:
        """Whether the part that begins there is among those of the newest version."""
        return self._parts.get(start) == self._of[2]

    def is_whole(self, formation: int, version: int, route: Route) -> bool:
        """Whether this version is there in all its parts."""
        if self._of != (route.term, formation, version):
            return False
        return all(self.has(hop.start) for hop in route.hops)

    def spend(self) -> None:
        """The values were taken to train on, and are not here any more."""
        self._spent = self._of
        self._parts.clear()

    def is_spent(self, formation: int, version: int, route: Route) -> bool:
        """Whether this version will not be whole here any more: it was and was taken, or a newer one has come."""
        wanted = (route.term, formation, version)
        return self._spent == wanted or self._of > wanted


def put(stage: Stage, staged: np.ndarray, present: np.ndarray) -> None:
    """Keep a part where the next model is put together; ``present`` is the one that the trainer has."""
    if not stage.changes:
        values = stage.tensors["model"]
        staged[stage.start : stage.start + values.size] = values
        return
    place = slice(stage.start, stage.start + stage.changes[0].size)
    if stage.anew:
        staged[place] = present[place]
    for change in stage.changes:
        add_to(staged[place], change)
