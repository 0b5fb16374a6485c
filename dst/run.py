"""Play a fuzz case: the world that a seed stands for, with its faults. Checks nothing: `fuzz` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dst.case import FuzzCase
from dst.encoded import Encoded
from dst.managers.several import SeveralManagers
from dst.managers.shared_store import LABELS
from dst.outage import Outage
from dst.targeted_faults import TargetedFaults
from shoal.roles.actions import Action, End, Record, Save, Send, Store
from shoal.roles.events import Received
from shoal.sim.faults import (
    PartitionFault,
    Stop,
    resolve,
)
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Violation
from shoal.sim.managers import OneManager
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Observer, Step
from shoal.sim.rates import Steady
from shoal.sim.world import HOME, Settings, World
from shoal.wire.messages import AskMasks, Assign

#: By then every job is over: the faults, the longest lease, and many rounds.
LIMIT_S = 4000.0

#: So many events within this time are a storm: somebody says the same again and again, and time hardly passes. The
#: busiest cases have half as many. How many a case has in all says nothing: one that is long and calm has more.
STORM_EVENTS = 10_000
STORM_S = 20.0

#: Once a job is over its workers are free within this time.
FREE_WITHIN_S = 90.0

#: The same of the manager: it begins to store a leader's version, and it tells a worker where its job is led.
_OF_THE_MANAGER = ("store", "told")

#: What a power cut does to what was not yet durable.
FATES = ("safe", "lost", "torn")


class _Strike:
    """Waits for a leader's decision, or one of the manager about it, and cuts the power of a node just then: the worst
    moment is between two steps."""

    def __init__(self, world: World, kind: str, whom: str) -> None:
        self._world = world
        self._kind = kind
        self._whom = whom
        self._stream = world.rng.stream("ambush")

    def step(self, step: Step) -> None:
        if not self._kind or step.role != ("manager" if self._kind in _OF_THE_MANAGER else "leader"):
            return
        due = next((action for action in step.actions if _kind_of(action) == self._kind), None)
        if due is not None:
            self._kind = ""
            # At once, or when what was said has been heard and a slow disk is at it.
            within_s = self._stream.pick((0.01, 0.05, 1.0))
            # A version that is stored came from the leader.
            leader = step.event.sender if isinstance(step.event, Received) and step.role == "manager" else step.node
            leader = HOME if leader in LABELS else leader
            if isinstance(due, Send) and isinstance(due.message, AskMasks):
                # The helper is in the place of the leader that asks it.
                leader = due.to
            self._world.kernel.after(self._stream.between(0.0, within_s), self._strike, leader)

    def mark(self, mark: Mark) -> None:
        pass

    def _strike(self, leader: str) -> None:
        if self._whom == "disk":
            disk = self._world.disk
            disk.is_full = True
            self._world.kernel.after(self._stream.between(0.5, 6.0), setattr, disk, "is_full", False)
            return
        if self._whom in ("line", "lines"):
            agents = self._world.agents
            struck = [agents.get(leader)] if self._whom == "line" else list(agents.values())
            for agent in struck:
                if agent is not None and agent.connection is not None:
                    agent.connection.cut("the connection broke")
            return
        for node in {"home": [HOME], "leader": [leader], "both": sorted({HOME, leader})}[self._whom]:
            self._world.power_off(node, disk=self._stream.pick(FATES))
            again_s = self._stream.between(0.2, self._stream.pick((0.5, 3.0)))
            self._world.kernel.after(again_s, self._world.start, node)


def _kind_of(action: Action) -> str:
    if isinstance(action, Record):
        return action.kind
    if isinstance(action, Send) and isinstance(action.message, Assign):
        return "told" if action.message.role == "worker" else ""
    if isinstance(action, Send) and isinstance(action.message, AskMasks):
        return "masks"
    return {Save: "save", Store: "store", End: "end"}.get(type(action), "")


class FuzzRun:
    """A case under way."""

    def __init__(self, what: FuzzCase, *, observers: Sequence[Observer] = ()) -> None:
        self.what = what
        rate = Steady(1e7)
        settings = Settings(
            seed=what.seed,
            builds=what.builds,
            home_line=AccessLink(up=rate, down=rate, latency_s=0.001),
            jobs=what.jobs,
            arrive_within_s=5.0,
            has_flaws=what.has_flaws,
            upload_budget_bytes=what.upload_budget_bytes,
            prefers_devices=what.prefers_devices,
            disk_sync_s=what.disk_sync_s,
            check_in_s=what.check_in_s,
        )
        self.world = World(settings, sizer=Encoded(), managers=SeveralManagers if what.has_two_managers else OneManager)
        self.inflicter = Inflicter(self.world, what.faults)
        self._gone = _gone_for_good(what)
        strike = _Strike(self.world, what.strike_at, what.struck)
        targeted = [
            TargetedFaults(self.world, each, self.world.rng.stream(f"plot {number}"))
            for number, each in enumerate(what.targeted)
        ]
        # A trace is written before a check raises on what it shows last.
        self.world.observers += [*observers, self.inflicter, strike, *targeted]

    def run(self) -> None:
        """To the end; raises a Violation if there is none."""
        world = self.world
        self.begin()
        for name, at_s in self.what.stops.items():
            world.kernel.at(at_s, world.stop_job, name)
        self._run_to_the_end()
        self.on_end()
        # A device behind a cut hears of the end when the cut is over. Faults may still come.
        limit_s, quiet_s = 0.0, max(world.kernel.now_s, self.inflicter.quiet_since_s)
        while limit_s < quiet_s + FREE_WITHIN_S:
            limit_s = quiet_s + FREE_WITHIN_S
            if world.kernel.run(self._all_free, limit_s=limit_s):
                return
            quiet_s = max(quiet_s, self.inflicter.quiet_since_s)
        raise Violation(f"a worker was left behind in a job that is over: {self._occupied()}")

    def begin(self) -> None:
        for outage in self.what.outages:
            if outage.back_s:
                self.world.kernel.at(outage.at_s - outage.back_s, self._forget_later, outage)
            else:
                self.world.kernel.at(outage.at_s, self._inflict, outage)
        self.inflicter.begin()
        self.world.begin()

    def _inflict(self, outage: Outage) -> None:
        managers, kernel = self.world.managers, self.world.kernel
        assert isinstance(managers, SeveralManagers), "a manager that is alone has a disk of its own"
        if outage.is_drain:
            over = managers.drain()
        elif outage.is_read_only:
            over = managers.store.read_only()
        elif outage.slow_factor:
            over = managers.store.slow(outage.slow_factor)
        else:
            over = managers.store.cut(managers.holding() if outage.is_cut else LABELS)
        self.inflicter.quiet_since_s = max(self.inflicter.quiet_since_s, kernel.now_s + outage.for_s)
        kernel.after(outage.for_s, over)

    def _forget_later(self, outage: Outage) -> None:
        """What happens to the store from now on is lost in a failover."""
        managers, kernel = self.world.managers, self.world.kernel
        assert isinstance(managers, SeveralManagers), "a manager that is alone has a disk of its own"
        past = managers.store.past()

        def end(over: Callable[[], None]) -> None:
            # A cluster whose jobs are all over has nothing to go on with.
            if not self.world.is_over:
                managers.go_back(past)
            over()

        def begin() -> None:
            self.inflicter.quiet_since_s = max(self.inflicter.quiet_since_s, kernel.now_s + outage.for_s)
            kernel.after(outage.for_s, end, managers.store.cut(LABELS))

        kernel.after(outage.back_s, begin)

    def on_end(self) -> None:
        """Every job is over."""

    def _run_to_the_end(self) -> None:
        world, until_s = self.world, 0.0
        while until_s < LIMIT_S:
            until_s, before = until_s + STORM_S, world.kernel.handled
            if world.run(limit_s=until_s, events_max=STORM_EVENTS):
                return
            if world.kernel.handled - before == STORM_EVENTS:
                raise Violation(f"a storm of {STORM_EVENTS} events, {self._not_over()}")
        raise Violation(self._not_over())

    def _not_over(self) -> str:
        states = {name: f"{record.state}: {record.reason}" for name, record in self.world.disk.jobs.items()}
        return f"not over after {self.world.kernel.now_s:.0f} s: {states}"

    def _occupied(self) -> dict[str, tuple[str, ...]]:
        agents = self.world.agents.items()
        busy = {
            name: (*agent.jobs, *agent.led, *agent.aggregating)
            for name, agent in agents
            if agent and name not in self._gone
        }
        return {name: jobs for name, jobs in busy.items() if jobs}

    def _all_free(self) -> bool:
        return not self._occupied()


def _gone_for_good(what: FuzzCase) -> set[str]:
    """Devices that will never hear that their job is over."""
    lasting = [fault for fault in what.faults if isinstance(fault, PartitionFault | Stop) and math.isinf(fault.for_s)]
    return {name for fault in lasting for name in resolve(fault.who, workers=len(what.builds))}
