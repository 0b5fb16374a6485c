"""Waits for a moment in the life of a formation and hits a device in it. For finding bugs.

An aggregator is at its most delicate between two words: a piece taken and not counted, a sum sent and not heard, values
given to some and not to all.
"""

from __future__ import annotations

from dataclasses import dataclass

from dst.managers.shared_store import LABELS
from shoal.roles.actions import Action, Record, Send
from shoal.sim.observe import Mark, Step
from shoal.sim.rng import Stream
from shoal.sim.world import AGENT_START_S, HOME, World
from shoal.wire.messages import (
    Agree,
    Agreed,
    Bind,
    ModelShard,
    Open,
    Opened,
    Reduce,
    ReduceResult,
    RelayModel,
    Route,
    SetUpAggregator,
    ShardAck,
    Update,
    UpdateShard,
    Work,
)

#: What is waited for: what a role says about formations, or what a leader notes of them.
MOMENTS = (
    "SetUpAggregator",
    "Route",
    "Reduce",
    "RelayModel",
    "UpdateShard",
    "ShardAck",
    "Update",
    "ReduceResult",
    "ModelShard",
    "Work",
    "topology.planned",
    "topology.changed",
)

#: Where updates are sealed, these too.
SEAL_MOMENTS = ("Bind", "Agree", "Agreed", "Open", "Opened")

#: What happens to the sender of the message, or to its receiver.
BLOWS = ("power", "restart", "dialled", "taken", "freeze", "apart", "slow link", "slow", "leave", "copies")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetedFault:
    """When it strikes, what it does, and to which device."""

    moment: str
    #: How many such moments pass first.
    after: int
    blow: str
    #: It hits the receiver of the message; else the sender.
    at_receiver: bool


def targeted_fault(stream: Stream, *, moments: tuple[str, ...] = MOMENTS) -> TargetedFault:
    return TargetedFault(
        moment=stream.pick(moments),
        after=stream.below(stream.pick((1, 4, 20))),
        blow=stream.pick(BLOWS),
        at_receiver=stream.happens(0.5),
    )


class TargetedFaults:
    """An observer of its world that strikes once."""

    def __init__(self, world: World, targeted_fault: TargetedFault, stream: Stream) -> None:
        self._world = world
        self._targeted = targeted_fault
        self._stream = stream
        self._left = targeted_fault.after
        self._is_over = False

    def step(self, step: Step) -> None:
        if self._is_over or step.role == "manager":
            return
        for action in step.actions:
            if _moment(action) != self._targeted.moment:
                continue
            self._left -= 1
            if self._left < 0:
                self._is_over = True
                to = action.to if isinstance(action, Send) else step.node
                who = to if self._targeted.at_receiver else step.node
                within_s = self._stream.pick((0.0, 0.01, 0.05, 1.0))
                self._world.kernel.after(self._stream.between(0.0, within_s), self._strike, who)
                return

    def mark(self, mark: Mark) -> None:
        pass

    def _strike(self, who: str) -> None:
        if who in LABELS:
            # What befalls home has others to bring it about: here one that it spoke with is struck.
            who = self._stream.pick(list(self._world.agents))
        world, kernel, stream = self._world, self._world.kernel, self._stream
        agent = world.agents[who]
        for_s = stream.between(0.2, stream.pick((1.0, 6.0, 15.0)))
        match self._targeted.blow:
            case "power":
                world.power_off(who)
                kernel.after(for_s, world.start, who)
            case "restart":
                world.kill(who)
                kernel.after(AGENT_START_S, world.start, who)
            case "leave":
                world.leave(who, "stopped by its owner")
                kernel.after(max(2.0, for_s), world.start, who)
            case "apart":
                other = stream.pick([node for node in (*world.agents, HOME) if node != who])
                kernel.after(for_s, world.network.apart([who, other]).heal)
            case "slow link":
                world.network.slow_link(who, stream.pick((3.0, 30.0)))
                kernel.after(for_s, world.network.slow_link, who, 1.0)
            case "slow":
                device = world.machines[who].device
                assert device is not None
                device.slow_factor = stream.pick((3.0, 30.0))
                kernel.after(for_s, setattr, device, "slow_factor", 1.0)
            case "copies":
                world.machines[who].copies = 0.8
                kernel.after(for_s, setattr, world.machines[who], "copies", 0.0)
            case "freeze" if agent is not None:
                agent.process.stop()
                kernel.after(for_s, agent.process.go_on)
            case "dialled" if agent is not None:
                for connection in agent.dialled:
                    connection.cut("the connection broke")
            case "taken" if agent is not None and agent.role_server is not None:
                for taken in list(agent.role_server.connections.values()):
                    taken.cut("the connection broke")
            case _:
                pass


def _moment(action: Action) -> str:
    if isinstance(action, Record):
        return action.kind
    if not isinstance(action, Send):
        return ""
    message = action.message
    if isinstance(message, Work | Update):
        return type(message).__name__ if message.formation else ""
    told = (SetUpAggregator, Route, Reduce, RelayModel, UpdateShard, ShardAck, ReduceResult, ModelShard)
    sealed = (Bind, Agree, Agreed, Open, Opened)
    return type(message).__name__ if isinstance(message, (*told, *sealed)) else ""
