"""Invariants of sealed sums that aggregators make, seen from outside. Shares no code with the roles.

A sum of words is that of the pieces that its aggregator took, of the leases that it names, to the last bit. A leader
asks devices to agree to a set of members only once it has the words of each of them in every part, by itself or in the
sums of all aggregators that they went to; and no sum that it has used is also of somebody else.
"""

from __future__ import annotations

import numpy as np

from shoal.roles.actions import Send
from shoal.roles.events import Received
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import Agree, Bind, Reduce, ReduceResult, Route, ShardAck, Update, UpdateShard

#: Job, term, group.
_Group = tuple[str, int, int]


class SealedShapeOracle:
    """An observer that raises at the first step that breaks one."""

    def __init__(self) -> None:
        #: (job, term, formation, aggregator) -> (group, lease) -> its piece; and (group, lease) that it was to sum up.
        self._pieces: dict[tuple[str, int, int, str], dict[tuple[int, int], np.ndarray]] = {}
        self._asked: dict[tuple[str, int, int, str], set[tuple[int, int]]] = {}
        #: (job, term, formation, worker) -> the aggregators of its route.
        self._routes: dict[tuple[str, int, int, str], tuple[str, ...]] = {}
        #: Group -> member -> its lease, and the aggregators that its words go to.
        self._bound: dict[_Group, dict[str, tuple[int, tuple[str, ...]]]] = {}
        #: Group -> members whose words the leader had itself; aggregator -> the leases of the sum that it heard.
        self._straight: dict[_Group, set[str]] = {}
        self._sums: dict[_Group, dict[str, frozenset[int]]] = {}
        #: Sums of aggregators that devices agreed to: what a test asks, to know that there were some.
        self.agreed = 0

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        if step.role == "leader":
            self._leader(step)
        elif step.role == "aggregator":
            self._aggregator(step)

    # Aggregators -----------------------------------------------------------------------------------------

    def _aggregator(self, step: Step) -> None:
        heard = step.event.message if isinstance(step.event, Received) else None
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case ShardAck(group=group) as taken if group:
                    assert isinstance(heard, UpdateShard)
                    key = (step.job, taken.term, taken.formation, step.node)
                    words = np.array(heard.tensors["words"])
                    self._pieces.setdefault(key, {}).setdefault((group, taken.lease), words)
                case ReduceResult(group=group) as told if group and told.leases:
                    assert isinstance(heard, Reduce)
                    self._summed(step, told, heard)
                case _:
                    pass

    def _summed(self, step: Step, told: ReduceResult, asked: Reduce) -> None:
        pieces = self._pieces.get((step.job, told.term, told.formation, step.node), {})
        what = f"{step.node}'s sum of group {told.group}, leases {told.leases},"
        self._hold(set(told.leases) <= set(asked.leases), step, f"{what} where {asked.leases} were to be counted")
        self._hold(all((told.group, lease) in pieces for lease in told.leases), step, f"{what} has pieces of nobody")
        total = sum(pieces[told.group, lease].astype(object) for lease in told.leases)
        words = told.tensors["words"]
        is_exact = np.array_equal(np.array(total) % (1 << 8 * words.itemsize), words.astype(object))
        self._hold(is_exact, step, f"{what} is not the sum of these pieces")

    # Leaders ---------------------------------------------------------------------------------------------

    def _leader(self, step: Step) -> None:
        if isinstance(step.event, Received):
            self._heard(step, step.event)
        agreed: dict[_Group, Agree] = {}
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case Route() as route:
                    key = (step.job, route.term, route.formation, action.to)
                    self._routes[key] = tuple(hop.node for hop in route.hops)
                case Bind() as bind:
                    hops = self._routes.get((step.job, bind.term, bind.formation, action.to), ())
                    bound = self._bound.setdefault((step.job, bind.term, bind.group), {})
                    bound[action.to] = (bind.lease, hops if bind.formation else ())
                case Agree() as agree:
                    agreed[step.job, agree.term, agree.group] = agree
                case _:
                    pass
        for group, agree in agreed.items():
            self._check(step, group, agree)

    def _heard(self, step: Step, event: Received) -> None:
        match event.message:
            case Update(group=group, formation=0) as update if group and "words" in update.tensors:
                self._straight.setdefault((step.job, update.term, group), set()).add(event.sender)
            case ReduceResult(group=group) as told if group:
                sums = self._sums.setdefault((step.job, told.term, group), {})
                sums.setdefault(event.sender, frozenset(told.leases))
            case _:
                pass

    def _check(self, step: Step, group: _Group, agree: Agree) -> None:
        bound, sums = self._bound[group], self._sums.get(group, {})
        names = sorted(bound)
        present = [name for at, name in enumerate(names) if agree.present[at // 8] >> at % 8 & 1]
        leases = {bound[name][0] for name in present}
        used: set[str] = set()
        for name in present:
            lease, hops = bound[name]
            used.update(hops)
            lacking = [hop for hop in hops if lease not in sums.get(hop, ())]
            is_here = not lacking if hops else name in self._straight.get(group, ())
            self._hold(is_here, step, f"group {group[2]} is to be opened with {name}, whose words {lacking} had not")
        for node in sorted(used):
            strange = sorted(sums[node] - leases)
            self._hold(not strange, step, f"group {group[2]} is to be opened with {node}'s sum, also of {strange}")
        self.agreed += bool(used)

    @staticmethod
    def _hold(holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
