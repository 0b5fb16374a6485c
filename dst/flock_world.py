"""A flock in virtual time: the deployed peers on simulated machines and links. There is no manager.

Training is replaced by a sum of numbers that can be computed again, so that every version can be checked on paper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dst.encoded import Encoded
from shoal.errors import Misuse
from shoal.flock.peer import Peer, Version
from shoal.flock.settings import FlockSettings
from shoal.learning.metrics import judged_sums
from shoal.roles.actions import (
    Action,
    CancelTimer,
    End,
    Evaluate,
    Interrupt,
    Prepare,
    Record,
    Save,
    Send,
    SetTimer,
    Train,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    Prepared,
    Received,
    Saved,
    Started,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.sim.kernel import Kernel
from shoal.sim.network import AccessLink, Flow, Network
from shoal.sim.process import Process, SimMachine
from shoal.sim.rng import Rng
from shoal.wire.messages import JobSpec, Lane, Message

#: How long a peer takes to be found and dialled, and until it is dialled again.
DIAL_S = 0.05
DIAL_AGAIN_S = 1.0
#: How long a process and its trainer take to start.
PREPARE_S = 0.5

PLAN = hashlib.sha256(b"a flock").hexdigest()


def toy_update(node: str, base: str, size: int) -> np.ndarray:
    """The update of one peer, trained from one model: the two names decide it."""
    seed = int.from_bytes(hashlib.blake2b(f"{node}\0{base}".encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


#: How every test of a model ends here.
_HALF_RIGHT = judged_sums(examples=100, loss_sum=0.0, correct=50)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedPeer:
    """A device, its link, and how fast it trains."""

    node: str
    line: AccessLink
    examples: int
    train_s: float


class Watcher(Protocol):
    """An observer of every event."""

    def handled(self, world: FlockWorld, node: str, before: Version, actions: list[Action]) -> None:
        """A peer handled an event: the version it held before, and the actions it decided on."""
        ...


class _Wire:
    """The line from one peer to another, a flow for each lane."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self._flows: dict[Lane, Flow] = {lane: network.flow(sender, receiver) for lane in Lane}
        self.is_cut = False

    def send(self, message: Message, size_bytes: int, arrived: Callable[..., object], *args: object) -> None:
        self._flows[message.rule.lane].send(size_bytes, arrived, *args)

    def cut(self) -> None:
        self.is_cut = True
        for flow in self._flows.values():
            flow.cut()


@dataclass(slots=True)
class _Device:
    what: SimulatedPeer
    machine: SimMachine
    process: Process
    role: Peer | None = None
    timers: dict[str, int] = field(default_factory=dict)
    number: int = 0
    #: The newest version on its disk.
    saved: Version | None = None
    #: How its next trainings fail, the first one first.
    troubles: list[str] = field(default_factory=list)
    #: Why its role ended.
    ended: str | None = None


class FlockWorld:
    def __init__(
        self,
        devices: list[SimulatedPeer],
        *,
        spec: JobSpec,
        settings: FlockSettings,
        size: int,
        seed: int,
        watcher: Watcher | None = None,
        firsts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, Rng(seed))
        self.settings = settings
        self._spec = spec
        self._size = size
        self._parcels = Encoded()
        self._watcher = watcher
        self._firsts = dict(firsts or {})
        self.devices: dict[str, _Device] = {}
        #: Called with the sender, the receiver and the message of each send.
        self.overhear: list[Callable[[str, str, Message], None]] = []
        self.records: list[tuple[float, str, str, str]] = []
        self._wires: dict[tuple[str, str], _Wire] = {}
        for what in devices:
            self.network.attach(what.node, what.line)
            machine = SimMachine(what.node)
            self.devices[what.node] = _Device(what, machine, Process(machine, self.kernel, ()))
        for what in devices:
            self.start(what.node)

    # Processes -------------------------------------------------------------------------------------------

    def start(self, node: str) -> None:
        device = self.devices[node]
        device.process = Process(device.machine, self.kernel, ())
        device.timers.clear()
        first = device.saved or Version(number=0, model=self._firsts.get(node, np.zeros(self._size, np.float32)).copy())
        device.role = Peer(node=node, spec=self._spec, plan_sha256=PLAN, settings=self.settings, first=first)
        device.process.later(0.0, self._handle, device, Started())
        for other in self.devices:
            if other != node:
                self._dial(device.process, node, other)
                if self.devices[other].process.alive:
                    self._dial(self.devices[other].process, other, node)

    def kill(self, node: str) -> None:
        """As kill -9 does: the peer keeps its disk only, and its machine refuses every dialler."""
        device = self.devices[node]
        if not device.process.alive:
            return
        device.process.alive = False
        device.role = None
        for (sender, receiver), wire in list(self._wires.items()):
            if node in (sender, receiver):
                wire.cut()
                del self._wires[sender, receiver]
                if receiver == node and self.network.reachable(sender, node):
                    self._hung_up(sender, node)
                elif receiver == node:
                    self._dial(self.devices[sender].process, sender, node)

    def _hung_up(self, sender: str, receiver: str) -> None:
        other = self.devices[sender]
        other.process.later(0.002, self._handle, other, Disconnected(node=receiver, reason="the connection was reset"))
        self._dial(other.process, sender, receiver)

    def _dial(self, process: Process, sender: str, receiver: str) -> None:
        process.later(DIAL_S, self._dialled, process, sender, receiver)

    def _dialled(self, process: Process, sender: str, receiver: str) -> None:
        if (sender, receiver) in self._wires or self.devices[sender].process is not process:
            return
        if not self.devices[receiver].process.alive or not self.network.reachable(sender, receiver):
            process.later(DIAL_AGAIN_S, self._dialled, process, sender, receiver)
            return
        self._wires[sender, receiver] = _Wire(self.network, sender, receiver)
        self._handle(self.devices[sender], Connected(node=receiver))

    @property
    def alive(self) -> list[str]:
        return [name for name, device in self.devices.items() if device.process.alive]

    def role(self, node: str) -> Peer:
        role = self.devices[node].role
        if role is None:
            raise Misuse(f"{node} does not run")
        return role

    # Events and actions ------------------------------------------------------------------------------------

    def post(self, node: str, event: Event) -> None:
        device = self.devices[node]
        device.process.now(self._handle, device, event)

    def _handle(self, device: _Device, event: Event) -> None:
        role = device.role
        if role is None or device.ended is not None:
            return
        before = role.version
        actions = role.handle(event, self.kernel.now_s)
        if self._watcher is not None:
            self._watcher.handled(self, device.what.node, before, actions)
        for action in actions:
            self._act(device, action)

    def _act(self, device: _Device, action: Action) -> None:
        process, node = device.process, device.what.node
        match action:
            case Send():
                self._send(node, action.to, action.message)
            case SetTimer():
                device.number += 1
                device.timers[action.name] = device.number
                process.later(action.after_s, self._fire, device, action.name, device.number)
            case CancelTimer():
                device.timers.pop(action.name, None)
            case Record():
                self.records.append((self.kernel.now_s, node, action.kind, action.reason))
            case Prepare():
                process.later(PREPARE_S, self._handle, device, Prepared())
            case Evaluate():
                done = EvaluationDone(lease=action.lease, examples=100, metrics=_HALF_RIGHT)
                process.later(0.01, self._handle, device, done)
            case Interrupt():
                process.later(0.1, self._handle, device, TrainerFailed(lease=action.lease, reason=action.reason))
            case Train():
                self._train(device, action)
            case Save():
                state = action.state
                device.saved = Version(
                    number=action.version,
                    model=action.tensors["model"],
                    digest=state["digest"],
                    made_of=state["made_of"],
                )
                process.later(0.0, self._handle, device, Saved(version=action.version))
            case End():
                device.ended = action.reason
                self.kill(node)
            case _:
                raise Misuse(f"a peer does not ask for {type(action).__name__}")

    def _fire(self, device: _Device, name: str, number: int) -> None:
        if device.timers.get(name) == number:
            self._handle(device, TimerFired(name=name))

    def _train(self, device: _Device, action: Train) -> None:
        trouble = device.troubles.pop(0) if device.troubles else None
        if trouble == "hang":
            return
        base = device.role.version.digest if device.role is not None else ""
        event: Event = Trained(
            lease=action.lease,
            examples=device.what.examples,
            loss_sum=1.0,
            seconds=device.what.train_s,
            tensors={"delta": toy_update(device.what.node, base, self._size)},
        )
        if trouble == "fail":
            event = TrainerFailed(lease=action.lease, reason="drawn")
        device.process.later(device.what.train_s, self._handle, device, event)

    def _send(self, sender: str, receiver: str, message: Message) -> None:
        wire = self._wires.get((sender, receiver))
        if wire is None:
            return
        read, size_bytes = self._parcels.pack(message)
        wire.send(message, size_bytes, self._arrived, wire, sender, receiver, read, size_bytes)
        for ear in list(self.overhear):
            ear(sender, receiver, message)

    def _arrived(self, wire: _Wire, sender: str, receiver: str, message: Message, size_bytes: int) -> None:
        device = self.devices[receiver]
        if not wire.is_cut:
            device.process.now(self._handle, device, Received(sender=sender, message=message, size_bytes=size_bytes))
