"""Which parts of the next model a worker has from its sub-leaders. Pure; the values themselves, a driver keeps."""

from __future__ import annotations

from shoal.wire.messages import Route, Values


class Staging:
    """One version of one formation at a time: the newest of which anything came."""

    def __init__(self) -> None:
        #: (term, formation, version)
        self._of: tuple[int, int, int] = (0, 0, -1)
        self._spent: tuple[int, int, int] = (0, 0, -1)
        #: Where the parts begin that are there.
        self._parts: set[int] = set()

    def add(self, values: Values) -> bool:
        """A part has come. False: it is of an older version than others that have, and of no use."""
        of = (values.term, values.formation, values.version)
        if of < self._of or of == self._spent:
            return False
        if of > self._of:
            self._of = of
            self._parts.clear()
        self._parts.add(values.start)
        return True

    def has(self, start: int) -> bool:
        """Whether the part that begins there is among those of the newest version."""
        return start in self._parts

    def is_whole(self, formation: int, version: int, route: Route) -> bool:
        """Whether this version is there in all its parts."""
        if self._of != (route.term, formation, version):
            return False
        return all(hop.start in self._parts for hop in route.hops)

    def spend(self) -> None:
        """The values were taken to train on, and are not here any more."""
        self._spent = self._of
        self._parts.clear()

    def is_spent(self, formation: int, version: int, route: Route) -> bool:
        """Whether this version will not be whole here any more: it was and was taken, or a newer one has come."""
        wanted = (route.term, formation, version)
        return self._spent == wanted or self._of > wanted
