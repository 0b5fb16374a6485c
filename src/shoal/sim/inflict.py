"""Applies a schedule of faults to a world. Observes it, because some faults wait for a round or an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shoal.sim import faults as fault
from shoal.sim.faults import AtEpoch, AtRound, AtSecond, Fault
from shoal.sim.observe import Mark, Step
from shoal.sim.world import AGENT_START_S, HOME, HOME_START_S, World


class Inflicter:
    """An observer of its world. Its ``begin`` must be called before the world's."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self._world = world
        self._faults = faults
        self._waiting: list[tuple[AtRound | AtEpoch, Fault]] = []
        #: (node, what is slowed) -> the factors in force.
        self._factors: dict[tuple[str, str], list[float]] = {}
        #: The latest time at which a fault began or ended, or infinity while one is active that never ends.
        self.quiet_since_s = 0.0

    def begin(self) -> None:
        for one in self._faults:
            match one.at:
                case AtSecond(0.0):
                    self._strike(one)
                case AtSecond(s):
                    self._world.kernel.at(s, self._strike, one)
                case _:
                    self._waiting.append((one.at, one))

    # Rounds and epochs ---------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        if step.role != "leader" or not self._waiting:
            return
        leader = self._world.leader(step.job)
        if leader is None:
            return
        # Every leader has these attributes, but not every role.
        version, epoch = int(getattr(leader, "version", 0)), int(getattr(leader, "epoch", 0))
        for when, one in list(self._waiting):
            reached = version >= when.n if isinstance(when, AtRound) else epoch >= when.n - 1
            if reached:
                self._waiting.remove((when, one))
                # Not within the event that caused it: a crash comes between two events.
                self._world.kernel.after(0.0, self._strike, one)

    def mark(self, mark: Mark) -> None:
        pass

    # Faults --------------------------------------------------------------------------------------------

    def _strike(self, one: Fault) -> None:
        world = self._world
        nodes = fault.resolve(one.who, workers=world.devices, leader=world.leader_node())
        self.quiet_since_s = max(self.quiet_since_s, world.kernel.now_s)
        for node in nodes:
            world.mark(node, "fault", fault=one)
            world.touch(node, "a fault strikes it")
        match one:
            case fault.PartitionFault():
                cut = world.network.partition(nodes)
                self._later(one.for_s, cut.heal)
            case fault.Apart():
                cut = world.network.apart(nodes)
                self._later(one.for_s, cut.heal)
            case fault.Mute() | fault.Deaf():
                cut = world.network.one_way(nodes, is_mute=isinstance(one, fault.Mute))
                self._later(one.for_s, cut.heal)
            case fault.TransferFault():
                # The leader itself hands over: to the best placed node.
                to = "" if one.who == fault.LEADER else nodes[0]
                for job in world.job_names():
                    world.transfer(job, to)
            case _:
                for node in nodes:
                    self._strike_one(one, node)

    def _strike_one(self, one: Fault, node: str) -> None:
        world = self._world
        machine = world.machines[node]
        match one:
            case fault.Crash():
                world.power_off(node, disk=str(one.disk))
                self._later(one.restart_s, lambda: world.start(node))
            case fault.Restart():
                world.kill(node)
                start_s = HOME_START_S if node == HOME else AGENT_START_S
                self._later(start_s, lambda: world.start(node))
            case fault.LeaveFault():
                world.leave(node, "stopped by its owner")
                # Not before its goodbye was answered, or timed out.
                self._later(max(one.back_s, 2.0), lambda: world.start(node))
            case fault.Stop():
                self._stop(node, one.for_s)
            case fault.CutFault():
                agent = world.agents[node]
                for connection in agent.dialled if agent is not None else ():
                    connection.cut("the connection broke")
            case fault.Slow():
                self._slow(node, "compute", one.factor, one.for_s)
            case fault.SlowLink():
                self._slow(node, "link", one.factor, one.for_s)
            case fault.Delay():
                world.network.delay(node, one.extra_s)
                self._later(one.for_s, lambda: world.network.delay(node, 0.0))
            case fault.Lose():
                world.network.lose(node, one.share)
                self._later(one.for_s, lambda: world.network.lose(node, None))
            case fault.Duplicate():
                machine.copies = one.share
                self._later(one.for_s, lambda: setattr(machine, "copies", 0.0))
            case fault.Skew():
                machine.skew_s += one.ahead_s
                machine.jumped_s += max(0.0, one.ahead_s)
            case fault.Fail() | fault.Hang():
                agent = world.agents[node]
                if agent is not None:
                    agent.process.now(agent.strike, "fail" if isinstance(one, fault.Fail) else "hang")
            case fault.FullDisk():
                world.disk.is_full = True
                self._later(one.for_s, lambda: setattr(world.disk, "is_full", False))

    def _later(self, after_s: float, do: Callable[[], object]) -> None:
        """End a fault after this time, if it ever ends."""
        if math.isinf(after_s):
            return
        self.quiet_since_s = max(self.quiet_since_s, self._world.kernel.now_s + after_s)
        self._world.kernel.after(after_s, do)

    def _stop(self, node: str, for_s: float) -> None:
        world = self._world
        inhabitant = world.home if node == HOME else world.agents[node]
        if inhabitant is not None:
            inhabitant.process.stop()
            self._later(for_s, inhabitant.process.go_on)

    def _slow(self, node: str, what: str, factor: float, for_s: float) -> None:
        factors = self._factors.setdefault((node, what), [])
        factors.append(factor)
        self._set_slowness(node, what)

        def over() -> None:
            factors.remove(factor)
            self._set_slowness(node, what)

        self._later(for_s, over)

    def _set_slowness(self, node: str, what: str) -> None:
        world, slowness = self._world, math.prod(self._factors[node, what])
        device = world.machines[node].device
        if what == "link":
            world.network.slow_link(node, slowness)
        elif device is not None:
            device.slow_factor = slowness
        else:
            world.home_slow_factor = slowness
            if world.home is not None:
                world.home.slow_factor = slowness
