"""The routes of a worker: the aggregators of each formation, and which of them the worker reaches."""

from __future__ import annotations

from shoal.roles.worker.machine import WorkerMachine
from shoal.wire.messages import Route, Routed

#: How long a worker tries to reach every aggregator of a route before it reports the missing ones to the leader.
ROUTE_S = 8.0

#: How many routes a worker remembers besides the one in use: the leader may try several.
ROUTES_KEPT = 3

#: Fires when the time to reach the aggregators is over.
ROUTE_TIMER = "route"


class Routes:
    """The leader announces a route before any lease uses it; the worker reports whether it reaches every aggregator."""

    def __init__(self, worker: WorkerMachine) -> None:
        self._worker = worker
        self._by_formation: dict[int, Route] = {}
        #: The formation that the last lease uses, for its update or for its values.
        self.in_use: int | None = None
        #: Nodes that the worker has a session with.
        self._reached: set[str] = set()
        #: The timer is set.
        self._is_waiting = False

    def get(self, formation: int | None) -> Route | None:
        return self._by_formation.get(formation) if formation is not None else None

    def reaches(self, node: str) -> bool:
        return node in self._reached

    def reaches_all(self, route: Route) -> bool:
        return all(hop.node in self._reached for hop in route.hops)

    def report(self, route: Route) -> None:
        """Tell the leader which aggregators of a route this worker does not reach."""
        away = tuple(hop.node for hop in route.hops if hop.node not in self._reached)
        routed = Routed(job=self._worker.job, term=route.term, formation=route.formation, unreached=away)
        self._worker.send(self._worker.leader, routed)

    def look_later(self) -> None:
        """Report after a while which routes are not whole by then."""
        self._is_waiting = True
        self._worker.timer(ROUTE_TIMER, ROUTE_S)

    # Inputs --------------------------------------------------------------------------------------------

    def on_route(self, route: Route) -> None:
        if route.term < self._worker.term:
            return
        self._by_formation[route.formation] = route
        for old in sorted(self._by_formation)[:-ROUTES_KEPT]:
            # The leader may have tried several in vain since the one that is in use.
            if old != self.in_use:
                del self._by_formation[old]
        if self.reaches_all(route):
            self.report(route)
        else:
            self.look_later()

    def on_connected(self, node: str) -> None:
        """Report the routes that are whole by this session; all of them if it is the leader's: a report that the worker
        sent while the leader was away is lost."""
        is_news = node not in self._reached
        self._reached.add(node)
        routes = self._by_formation.values()
        if all(self.reaches_all(route) for route in routes):
            # An aggregator that is lost from now on gets the whole time again.
            self._is_waiting = False
        for route in routes:
            is_through_node = any(hop.node == node for hop in route.hops)
            if self.reaches_all(route) and (node == self._worker.leader or (is_news and is_through_node)):
                self.report(route)

    def on_disconnected(self, node: str) -> None:
        self._reached.discard(node)

    def on_aggregator_lost(self) -> None:
        """Each failed attempt to connect ends here too: a timer that began again each time would never fire."""
        if not self._is_waiting:
            self.look_later()

    def on_timer(self) -> None:
        """The time is over: report the aggregators that this worker does not reach."""
        self._is_waiting = False
        for route in self._by_formation.values():
            if not self.reaches_all(route):
                self.report(route)

    def on_tear_down(self, formation: int) -> None:
        for old in [number for number in self._by_formation if number <= formation]:
            del self._by_formation[old]

    def on_new_term(self) -> None:
        """Formations belong to a term."""
        self._by_formation.clear()
