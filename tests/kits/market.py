"""A client, pools and their executors, all of them real roles, in virtual time: with losses, delays and lies.

Links are as a network's: what is on its way when a session ends is gone. Chance decides how long everything takes, so
that what comes from different peers is in any order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.offload.kinds import compute, measured
from shoal.offload.roles.broker import Broker
from shoal.offload.roles.client import Client
from shoal.offload.roles.executor import Executor, Means
from shoal.offload.roles.product import Policy, cut
from shoal.offload.tiling import product
from shoal.roles.actions import Action, Deliver, Multiply, Record, Role, Send, SetTimer
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    Multiplied,
    MultiplyFailed,
    ProductWanted,
    Received,
    Started,
    TimerFired,
)
from shoal.wire.encoding import decode_envelope, encode_envelope
from shoal.wire.messages import Message, TileResult, with_tensors

MEANS = Means(task_max_bytes=1 << 20, rights_max_bytes=1 << 20)

#: What a liar makes of a result.
Lie = Callable[[np.ndarray], np.ndarray]


def one_entry(result: np.ndarray) -> np.ndarray:
    """The least of lies: one entry, by something that is not rounding."""
    wrong = result.copy()
    wrong[0, 0] += 1000 if wrong.dtype.kind == "u" else np.float32(1.0) + abs(wrong[0, 0])
    return wrong


@dataclass
class Actor:
    """A role, and what its driver keeps for it."""

    role: Role
    name: str
    #: Counts lives: what was for an earlier one is lost.
    life: int = 0
    timers: dict[str, int] = field(default_factory=dict)


@dataclass
class Device:
    pool: str
    name: str
    speed: float
    lie: Lie | None = None
    #: Until then it does nothing, and its sessions stay.
    stuck_until_s: float = 0.0


class Market:
    def __init__(self, policy: Policy, *, pools: dict[str, int], seed: int = 0, wait_s: float = 10.0) -> None:
        self._chance = np.random.default_rng(seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.now_s = 0.0
        self._secret = bytes(self._chance.integers(0, 256, 32, dtype=np.uint8))
        self.client = Client(pools=tuple(pools), policy=policy, secret=self._secret, wait_s=wait_s)
        self.policy = policy
        self.devices: dict[str, Device] = {}
        self._actors: dict[str, Actor] = {"client": Actor(self.client, "client")}
        #: (one end, the other) -> which session it is, while there is one.
        self._sessions: dict[tuple[str, str], int] = {}
        self.delivered: dict[int, np.ndarray] = {}
        self.records: list[tuple[str, Record]] = []
        #: (pool, executor) whose lies the client looked at.
        self.seen_lying: set[str] = set()
        self._lies: dict[int, str] = {}
        #: Pool -> which sides of each mask came to it, by what was sent.
        self.sent: list[tuple[str, Message]] = []
        #: How often a result comes twice, and whether a link keeps the order of what it carries. Ours do.
        self.duplicates = 0.0
        self.reorders = False
        self._last_s: dict[tuple[str, str], float] = {}
        for pool, executors in pools.items():
            self._actors[pool] = Actor(Broker(), pool)
            for number in range(executors):
                name = f"{pool}-{number}"
                self.devices[name] = Device(pool, name, speed=float(self._chance.uniform(0.5, 2.0)) * 1e7)
                self._actors[name] = Actor(Executor(broker=pool, means=MEANS), name)
        self._deliver("client", Started())
        for pool in pools:
            self.dial(pool)
        for name in self.devices:
            self.dial(name)

    # Faults ---------------------------------------------------------------------------------------------

    def at(self, after_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + after_s, next(self._order), act))

    def _ends(self, name: str) -> tuple[str, str]:
        """A pool is dialled by the client, an executor dials its pool."""
        return ("client", name) if name not in self.devices else (name, self.devices[name].pool)

    def dial(self, name: str) -> None:
        ends = self._ends(name)
        if ends in self._sessions:
            return
        self._sessions[ends] = next(self._order)
        if name in self.devices:
            self._deliver(name, Connected(node=ends[1]))
            self._deliver(ends[1], Connected(node=name))
        else:
            self._deliver("client", Connected(node=name))

    def hang_up(self, name: str, reason: str = "cut") -> None:
        ends = self._ends(name)
        if self._sessions.pop(ends, None) is None:
            return
        self._deliver(ends[0], Disconnected(node=ends[1], reason=reason))
        self._deliver(ends[1], Disconnected(node="client/1" if ends[0] == "client" else name, reason=reason))

    def kill_executor(self, name: str, *, back_after_s: float) -> None:
        self.hang_up(name, "killed")
        actor = self._actors[name]
        actor.life += 1
        actor.role, actor.timers = Executor(broker=self.devices[name].pool, means=MEANS), {}
        self.at(back_after_s, lambda: self.dial(name))

    def kill_broker(self, pool: str, *, back_after_s: float) -> None:
        mine = [name for name, device in self.devices.items() if device.pool == pool]
        for name in (pool, *mine):
            self.hang_up(name, "the broker was killed")
        actor = self._actors[pool]
        actor.life += 1
        actor.role, actor.timers = Broker(), {}
        for name in (pool, *mine):
            self.at(back_after_s * float(self._chance.uniform(1, 1.5)), lambda name=name: self.dial(name))

    def freeze(self, name: str, for_s: float) -> None:
        self.devices[name].stuck_until_s = self.now_s + for_s

    # Products -------------------------------------------------------------------------------------------

    def want(self, number: int, left: np.ndarray, right: np.ndarray, *, secret: str = "left") -> None:
        self._deliver("client", ProductWanted(product=number, left=left, right=right, hidden=secret, name="layer"))

    def run(self, *, until: Callable[[], bool], limit_s: float = 600.0) -> None:
        ends_s = self.now_s + limit_s
        while not until():
            assert self._heap, f"nothing is going to happen any more; {self.client._todo} {self.client._asks}"
            self.now_s, _, act = heapq.heappop(self._heap)
            assert self.now_s < ends_s, f"not done within {limit_s} s"
            act()

    def open(self) -> Market:
        """Wait until every executor is measured, and the client knows."""

        def is_open() -> bool:
            advert = self.client.advert
            return advert is not None and advert.executors == len(self.devices)

        self.run(until=is_open)
        return self

    def multiply(self, left: np.ndarray, right: np.ndarray, *, number: int = 1, secret: str = "left") -> np.ndarray:
        self.want(number, left, right, secret=secret)
        self.run(until=lambda: number in self.delivered)
        return self.delivered[number]

    def liars_told(self, pool: str) -> dict[str, int]:
        broker: Any = self._actors[pool].role
        return {view.node: view.caught for view in broker.views() if view.caught}

    def role(self, name: str) -> Any:
        return self._actors[name].role

    # The driver -----------------------------------------------------------------------------------------

    def _deliver(self, name: str, event: Event) -> None:
        actor = self._actors[name]
        for action in actor.role.handle(event, self.now_s):
            self._act(actor, action)

    def _act(self, actor: Actor, action: Action) -> None:
        match action:
            case Send():
                self._send(actor, action.to, action.message)
            case SetTimer():
                self._set(actor, action)
            case Multiply():
                self._multiply(actor, action)
            case Deliver():
                assert action.product not in self.delivered, "a product is delivered once"
                assert action.result is not None, action.reason
                self.delivered[action.product] = action.result
            case Record():
                self.records.append((actor.name, action))
            case _:
                raise AssertionError(f"{actor.name} asks for {action}")

    def _set(self, actor: Actor, timer: SetTimer) -> None:
        actor.timers[timer.name] = which = next(self._order)
        life = actor.life

        def fire() -> None:
            if actor.life == life and actor.timers.get(timer.name) == which:
                self._deliver(actor.name, TimerFired(name=timer.name))

        self.at(timer.after_s, fire)

    def _send(self, actor: Actor, to: str, message: Message) -> None:
        to = "client" if to.startswith("client") else to
        ends = (to, actor.name) if (to, actor.name) in self._sessions else (actor.name, to)
        session = self._sessions.get(ends)
        if session is None:
            return
        # Whatever is said can be said on the wire.
        tensors = getattr(message, "tensors", {})
        read, infos = decode_envelope(encode_envelope(message))
        assert len(infos) == len(tensors)
        carried = {name: np.array(array) for name, array in tensors.items()}
        whole = with_tensors(read, carried) if tensors else read
        kept = {name: np.array(array) for name, array in tensors.items()}
        self.sent.append((to, with_tensors(read, kept) if tensors else read))
        times = 2 if isinstance(message, TileResult) and self._chance.random() < self.duplicates else 1

        def arrive() -> None:
            if self._sessions.get(ends) != session:
                return
            sender = "client/1" if actor.name == "client" else actor.name
            self._note_lie(to, actor.name, whole)
            self._deliver(to, Received(sender=sender, message=whole))
            for array in carried.values():
                if array.size:
                    # Memory that is used again: nobody may have kept it.
                    array.reshape(-1).view(np.uint8)[:] = 0xA5

        for _ in range(times):
            at_s = self.now_s + float(self._chance.exponential(0.003))
            if not self.reorders:
                at_s = self._last_s[actor.name, to] = max(at_s, self._last_s.get((actor.name, to), 0.0))
            self.at(at_s - self.now_s, arrive)

    def _note_lie(self, to: str, pool: str, message: Message) -> None:
        if to != "client" or not isinstance(message, TileResult) or not message.tensors:
            return
        ask = self.client._asks.get(message.task)
        if ask is not None and self.devices[message.executor].lie is not None:
            self.seen_lying.add(f"{pool}/{message.executor}")

    def _multiply(self, actor: Actor, action: Multiply) -> None:
        device = self.devices.get(actor.name)
        life = actor.life
        operations = action.rows * action.inner * action.columns
        tensors = {name: np.array(array) for name, array in action.tensors.items()}
        took_s = operations / (device.speed if device else 1e8) * float(self._chance.uniform(0.9, 1.2))

        def done() -> None:
            if actor.life != life:
                return
            if device is not None and device.stuck_until_s > self.now_s:
                self.at(device.stuck_until_s - self.now_s, done)
                return
            self._deliver(actor.name, self._computed(device, action, tensors, took_s))

        self.at(took_s, done)

    def _computed(
        self, device: Device | None, action: Multiply, tensors: dict[str, np.ndarray], took_s: float
    ) -> Multiplied | MultiplyFailed:
        sides = {"rows": action.rows, "inner": action.inner, "columns": action.columns}
        if action.kind == "measure":
            measured(**sides)
            return Multiplied(number=action.number, seconds=took_s)
        try:
            result = compute(action.kind, tensors, **sides)
        except Exception as error:
            return MultiplyFailed(number=action.number, reason=str(error))
        if device is not None and device.lie is not None:
            result = device.lie(result)
        return Multiplied(number=action.number, seconds=took_s, tensors={"result": result})


def at_home(left: np.ndarray, right: np.ndarray, policy: Policy) -> np.ndarray:
    """What a product in float32 is, bit for bit, whoever computes its tiles."""
    parts = [
        product(left[tile.start : tile.stop], right)
        for tile in cut(left.shape[0], left.shape[1], right.shape[1], operations=policy.tile_operations)
    ]
    return np.concatenate(parts)
