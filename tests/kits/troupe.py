"""A leader, its workers and their aggregators, with nothing in between but what they say; a test says what is heard.

The roles are the real ones. What a driver does is done here as plainly as it can be: a line between two nodes keeps its
order, a node that is lost takes along what it had to say, a session that is cut takes along what was on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.compress.sparse import add_to
from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.staleness import root
from shoal.plan import Plan, Until
from shoal.roles.actions import (
    Action,
    CancelTimer,
    End,
    Evaluate,
    Participate,
    Prepare,
    Record,
    Save,
    Send,
    SetTimer,
    StageModel,
    Train,
)
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    Liveness,
    Participated,
    PeerChanged,
    Prepared,
    Received,
    Saved,
    Started,
    TimerFired,
    Trained,
)
from shoal.roles.leader.gathering.private_sum import Normals, no_chance
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.leases import TICK_S
from shoal.roles.worker.staging import put
from shoal.roles.worker.worker import Worker
from shoal.scheduling.ledger import Applied
from shoal.wire.coded import sizes_of
from shoal.wire.messages import (
    AggregatorReady,
    Dataset,
    DeviceState,
    HandOver,
    JobSpec,
    Message,
    ModelShard,
    Progress,
    Ready,
    Reduce,
    RelayModel,
    Route,
    SetUpAggregator,
    ShardAck,
    TearDown,
    Update,
    UpdateShard,
)

SHA = "0" * 64
HOME = "home"

#: Between two nodes, one way.
Line = tuple[str, str]


@dataclass(frozen=True)
class Dialled:
    """In a line: its hop has answered."""


@dataclass(frozen=True)
class Written:
    """In a device's line to itself: its disk has a participation."""

    event: Participated


@dataclass(frozen=True)
class Made:
    """An update as its worker made it."""

    delta: np.ndarray
    examples: int
    version: int


@dataclass
class Device:
    """A node that works, and what its driver keeps for it."""

    worker: Worker
    model: np.ndarray | None = None
    staged: np.ndarray | None = None
    #: What its trainer is at.
    task: Train | Evaluate | None = None
    timers: dict[str, float] = field(default_factory=dict)
    #: Formation -> the aggregator it hosts, and who its members are.
    subs: dict[int, tuple[Aggregator, SetUpAggregator]] = field(default_factory=dict)
    #: Those it has dialled, as a worker.
    sessions: set[str] = field(default_factory=set)
    hops: dict[int, Route] = field(default_factory=dict)


class Troupe:
    """Versions are durable at once. An update is drawn from its lease's number, so that it is the same in every run."""

    #: How far paper and machine may be apart, for each version.
    rounding = 1e-6

    def __init__(
        self,
        plan: Plan,
        *,
        examples: int,
        parameters: int = 5,
        buffers: int = 2,
        test: int = 0,
        rates: dict[str, float] | None = None,
        normals: Normals = no_chance,
    ) -> None:
        spec = JobSpec(
            **{"job": "job", "name": "job", "entry": "task:Any", "bundle": SHA, "initial": SHA},
            **{"train": Dataset(manifest=SHA, examples=examples), "test": Dataset(examples=test), "plan": plan},
        )
        self.spec = spec
        entries: list[Any] = [("w", (parameters,), "parameter")]
        self.layout = Layout.of([*entries, *([("b", (buffers,), "buffer")] if buffers else [])])
        first = np.random.default_rng(7).normal(size=self.layout.size).astype(np.float32)
        first.flags.writeable = False
        self.leader = Leader(spec=spec, layout=self.layout, model=first, term=1, manager=HOME, normals=normals)
        self.rates = rates or {}
        self.now_s = 100.0
        self.devices: dict[str, Device] = {}
        self.lines: dict[Line, deque[Message | Dialled | Written]] = {}
        #: Device -> the participations on its disk.
        self.disks: dict[str, list[tuple[int, int]]] = {}
        #: (worker, hop) that do not reach each other.
        self.walls: set[tuple[str, str]] = set()
        #: Nodes whose next piece is no number.
        self.spoils: set[str] = set()
        #: What a node that lies says instead.
        self.lies: Callable[[str, str, Message], Message] = lambda sender, to, message: message
        #: What is lost on its way, by whom it is from and to.
        self.drops: Callable[[str, str, Message], bool] = lambda sender, to, message: False
        #: Everything that was heard, in order.
        self.heard: list[tuple[str, str, Message]] = []
        self.records: list[Record] = []
        self.rows: list[Applied] = []
        self.versions: dict[int, np.ndarray] = {0: first}
        self.made: dict[int, Made] = {}
        #: Lease -> the version there was when the leader heard of its update: what that is worth was said then.
        self.told_at: dict[int, int] = {}
        self.ended = ""
        #: Of a device that has its own examples.
        self._state = DeviceState(examples=100) if plan.data == "local" else None
        self._tick_s = self.now_s + TICK_S
        self._leads(Started())

    # Who is there --------------------------------------------------------------------------------------------

    def joins(self, *nodes: str) -> None:
        for node in nodes:
            device = self.devices[node] = Device(Worker(spec=self.spec, leader=HOME, term=1))
            counted = tuple(self.disks.get(node, ()))
            prepared = Prepared(sizes=sizes_of(self.layout), participations=counted, state=self._state)
            for event in (Started(), prepared, Connected(node=HOME)):
                self._works(node, device, event)

    def loses(self, node: str, *, heard: bool = True) -> None:
        """Its process is gone, with all that it had to say; unless that is not heard yet, everyone knows."""
        del self.devices[node]
        for line in [line for line in self.lines if node in line]:
            del self.lines[line]
        for name, device in list(self.devices.items()):
            if node in device.sessions:
                device.sessions.discard(node)
                self._works(name, device, Disconnected(node=node, reason="it is gone"))
        if heard:
            self.is_missed(node)

    def is_missed(self, node: str) -> None:
        self._leads(PeerChanged(node=node, state=Liveness.LOST, reason="silent for 8.0 s"))

    def cuts(self, node: str, peer: str = HOME) -> None:
        """The session it dialled breaks: what was on its way is lost. It is there again, unless a wall is."""
        device = self.devices[node]
        for line in ((node, peer), (peer, node)):
            self.lines.pop(line, None)
        device.sessions.discard(peer)
        self._works(node, device, Disconnected(node=peer, reason="cut"))
        if (node, peer) in self.walls:
            return
        if peer != HOME:
            device.sessions.add(peer)
        self._works(node, device, Connected(node=peer))

    # What is heard -------------------------------------------------------------------------------------------

    def waiting(self) -> list[Line]:
        """The lines in which something waits to be heard."""
        return sorted(line for line, queue in self.lines.items() if queue)

    def hears(self, line: Line) -> None:
        """The next in this line."""
        sender, to = line
        message = self.lines[line].popleft()
        if isinstance(message, Written):
            self.disks.setdefault(to, []).append((message.event.term, message.event.version))
            self._works(to, self.devices[to], message.event)
            return
        if isinstance(message, Dialled):
            self.devices[to].sessions.add(sender)
            self._works(to, self.devices[to], Connected(node=sender))
            return
        self.heard.append((sender, to, message))
        if to == HOME:
            if isinstance(message, Update) and self._is_news(message.lease):
                self.told_at[message.lease] = self.leader.version
            self._leads(Received(sender=sender, message=message))
        else:
            self._node_hears(sender, to, message)

    def _is_news(self, lease: int) -> bool:
        is_lent = self.leader._training.ledger.get(lease) is not None
        return is_lent and not self.leader._formations.has_arrived(lease)

    def _node_hears(self, sender: str, to: str, message: Message) -> None:
        device = self.devices[to]
        event = Received(sender=sender, message=message)
        match message:
            case SetUpAggregator():
                known = device.subs.get(message.formation)
                sub = known[0] if known else Aggregator(message, node=to, leader=HOME)
                device.subs[message.formation] = (sub, message)
                if known:
                    self._sums_up(to, sub, event)
                else:
                    formed = AggregatorReady(job="job", term=1, formation=message.formation, endpoint=f"{to}:7071")
                    self._says(to, HOME, formed)
            case Reduce() | RelayModel() | UpdateShard():
                hosted = device.subs.get(message.formation)
                if hosted and (sender == HOME or sender in hosted[1].members):
                    self._sums_up(to, hosted[0], event)
            case TearDown():
                for number in [number for number in device.subs if number <= message.formation]:
                    del device.subs[number]
                for number in [number for number in device.hops if number <= message.formation]:
                    del device.hops[number]
                self._works(to, device, event)
            case Route():
                device.hops[message.formation] = message
                self._works(to, device, event)
                self._dials(to, device, message)
            case ShardAck() | ModelShard():
                route = device.hops.get(message.formation)
                if route is not None and any(hop.node == sender for hop in route.hops):
                    self._works(to, device, event)
            case _:
                self._works(to, device, event)

    def _dials(self, node: str, device: Device, route: Route) -> None:
        for hop in route.hops:
            if hop.node in device.sessions:
                self._works(node, device, Connected(node=hop.node))
            elif hop.node in self.devices and (node, hop.node) not in self.walls:
                self._queue((hop.node, node), Dialled())

    # What roles do -------------------------------------------------------------------------------------------

    def _leads(self, event: Event) -> None:
        actions = self.leader.handle(event, self.now_s)
        self.leader._training.ledger.check()
        self._knows_version()
        for action in actions:
            self._do(action)

    def _knows_version(self) -> None:
        if self.leader.version not in self.versions:
            assert self.leader.version - 1 in self.versions
            self.versions[self.leader.version] = self.leader.model

    def _do(self, action: Action) -> None:
        match action:
            case Send() if action.to != HOME:
                self._says(HOME, action.to, action.message)
            case Save():
                self.rows += action.applied
                self._leads(Saved(version=action.version))
            case Record():
                self.records.append(action)
            case End():
                self.ended = action.reason
            case _:
                pass

    def _sums_up(self, node: str, sub: Aggregator, event: Event) -> None:
        for action in sub.handle(event, self.now_s):
            if isinstance(action, Send):
                self._says(node, action.to, action.message)

    def _works(self, node: str, device: Device, event: Event) -> None:
        for action in device.worker.handle(event, self.now_s):
            match action:
                case Send():
                    self._says(node, action.to, action.message)
                case SetTimer():
                    device.timers[action.name] = self.now_s + action.after_s
                case CancelTimer():
                    device.timers.pop(action.name, None)
                case StageModel():
                    if device.staged is None:
                        nothing = np.full(self.layout.size, np.nan, dtype=np.float32)
                        device.staged = device.model.copy() if action.changes and device.model is not None else nothing
                    put(action, device.staged, device.staged if device.model is None else device.model)
                case Train() | Evaluate():
                    self._begins(node, device, action)
                case Participate():
                    event = Participated(term=action.term, version=action.version, lease=action.lease)
                    self._queue((node, node), Written(event))
                case End():
                    # Its driver lets go of it, timers and all.
                    device.timers.clear()
                case Prepare() | Record():
                    pass
                case _:
                    raise AssertionError(f"{node} wants {action}")

    def _begins(self, node: str, device: Device, task: Train | Evaluate) -> None:
        if task.tensors:
            device.model = np.array(task.tensors["model"])
        elif task.staged:
            device.model, device.staged = device.staged, None
        assert device.model is not None, f"{node} is to train what it does not have"
        if task.changes:
            device.model = device.model.copy()
        for change in task.changes:
            add_to(device.model, change)
        held = device.worker._held
        assert held is not None
        wanted = self.versions[held.work.version]
        assert device.model.tobytes() == wanted.tobytes(), f"{node} trains what is not version {held.work.version}"
        device.task = task

    def _says(self, sender: str, to: str, message: Message) -> None:
        if isinstance(message, Ready) and sender in self.rates:
            rate = self.rates[sender]
            message = replace(message, up_bytes_per_s=rate, down_bytes_per_s=rate)
        if isinstance(message, UpdateShard) and sender in self.spoils:
            self.spoils.discard(sender)
            message = replace(message, tensors={"delta": message.tensors["delta"] * np.float32(np.nan)})
        message = self.lies(sender, to, message)
        if self.drops(sender, to, message):
            return
        is_dialled = to == HOME or sender == HOME
        if message.rule.to == "aggregator" and sender != HOME:
            is_dialled = to in self.devices[sender].sessions
        elif not is_dialled:
            is_dialled = to in self.devices and sender in self.devices[to].sessions
        if is_dialled:
            self._queue((sender, to), message)

    def _queue(self, line: Line, message: Message | Dialled | Written) -> None:
        if all(node == HOME or node in self.devices for node in line):
            self.lines.setdefault(line, deque()).append(message)

    # Time ------------------------------------------------------------------------------------------------------

    def at_work(self) -> list[str]:
        return sorted(node for node, device in self.devices.items() if device.task is not None)

    def trains(self, node: str) -> None:
        """Its trainer is done."""
        device = self.devices[node]
        task, device.task = device.task, None
        if isinstance(task, Evaluate):
            examples = self.spec.test.examples
            sums = judged_sums(examples=examples, loss_sum=1.0, correct=0)
            event: Event = EvaluationDone(lease=task.lease, examples=examples, metrics=sums)
            self._works(node, device, event)
        if not isinstance(task, Train):
            return
        held = device.worker._held
        if held is not None and held.work.lease == task.lease:
            delta = np.random.default_rng(task.lease).normal(size=self.layout.size).astype(np.float32)
            examples = task.examples or self._examples(task.batches)
            self.made[task.lease] = Made(delta, examples, held.work.version)
            told = {"examples": examples, "loss_sum": 1.0, "seconds": 0.1, "state": self._state}
            self._works(node, device, Trained(lease=task.lease, tensors={"delta": delta}, **told))

    def _examples(self, batches: Sequence[int]) -> int:
        size, examples = self.spec.plan.batch_size, self.spec.train.examples
        return sum(min(size, examples - batch * size) for batch in batches)

    def passes(self, seconds: float) -> None:
        """Time goes by: ticks and timers, and nobody says a word."""
        until_s = self.now_s + seconds
        while True:
            timers = [
                (at_s, node, name) for node, device in self.devices.items() for name, at_s in device.timers.items()
            ]
            at_s, node, name = min([(self._tick_s, HOME, "tick"), *timers])
            if at_s > until_s:
                break
            self.now_s = max(self.now_s, at_s)
            if node == HOME:
                self._tick_s = self.now_s + TICK_S
                self._leads(TimerFired(name="tick"))
            else:
                del self.devices[node].timers[name]
                if name != "lease-deadline":
                    self._works(node, self.devices[node], TimerFired(name=name))
        self.now_s = until_s

    # Whole stretches -------------------------------------------------------------------------------------------

    def talks(self) -> None:
        """All that is said is heard, until nobody has anything to say."""
        for _ in range(5000):
            if not (lines := self.waiting()):
                return
            self.hears(lines[0])
        raise AssertionError(f"they never stop talking: {self.heard[-12:]}")

    def round(self) -> None:
        """Everyone trains what it has, and all is heard."""
        self.talks()
        for node in self.at_work():
            self.now_s += 0.01
            self.trains(node)
        self.talks()

    def forms(self) -> None:
        """Rounds, until a formation holds."""
        for _ in range(60):
            if self.leader._formations.now is not None:
                return
            self.round()
            self.passes(0.6)
        raise AssertionError("no formation holds")

    @property
    def progress(self) -> Progress:
        self.leader.now_s = self.now_s
        return self.leader.progress()

    def finishes(self, *, epochs: int, seconds: float = 2000.0) -> None:
        """Everyone does as is asked of them, to the end of so many epochs."""
        end_s = self.now_s + seconds
        while self.leader.epoch < epochs and not self.ended:
            self.round()
            if not self.waiting() and not self.at_work():
                self.passes(0.6)
            assert self.now_s < end_s, f"stuck: {self.progress}"

    def hands_over(self) -> None:
        self._leads(Received(sender=HOME, message=HandOver(job="job", term=1, reason="another is better placed")))

    # What came of it -------------------------------------------------------------------------------------------

    def told(self, to: str, kind: type[Message]) -> list[Any]:
        return [message for _, hearer, message in self.heard if hearer == to and isinstance(message, kind)]

    def kinds(self) -> list[str]:
        return [type(message).__name__ for _, _, message in self.heard]

    def recorded(self, kind: str) -> list[str]:
        return [record.reason for record in self.records if record.kind == kind]

    def check_batches(self, epochs: int) -> None:
        """Every batch exactly once."""
        batches = -(-self.spec.train.examples // self.spec.plan.batch_size)
        found = sorted((row.epoch, row.batch) for row in self.rows if row.epoch < epochs)
        assert found == [(epoch, batch) for epoch in range(epochs) for batch in range(batches)]

    def check_versions(self) -> None:
        """Each version is the step of the exact weighted mean of the leases that the ledger applied to it."""
        leases: dict[int, dict[int, None]] = {}
        for row in self.rows:
            leases.setdefault(row.version, {})[row.lease] = None
        self._check_numbers(list(leases))
        size, plan = self.layout.parameters_size, self.spec.plan
        model = self.versions[0].astype(np.float64)
        velocity, outer = np.zeros(size), OuterState.zeros(plan.outer_rule, size)
        for version, of in leases.items():
            mean = self._mean(version, list(of))
            if plan.outer_rule.is_adaptive:
                rate, weights = plan.outer_rate_at(version - 1), model[:size].astype(np.float32)
                step = mean.astype(np.float32)
                change, outer = outer_step(plan.outer_rule, outer, step, rate=rate, weights=weights)
                model = model + change
            else:
                velocity = plan.momentum * velocity + mean[:size]
                model = model + np.concatenate([velocity if plan.momentum else mean[:size], mean[size:]])
            np.testing.assert_allclose(self.versions[version], model, rtol=1e-6, atol=self.rounding * (1 + version))

    def _check_numbers(self, versions: Sequence[int]) -> None:
        assert list(versions) == list(range(1, len(versions) + 1))

    def _mean(self, version: int, leases: Sequence[int]) -> np.ndarray:
        """What a version is made of."""
        made = [self.made[lease] for lease in leases]
        total = sum(self._late(lease) * one.examples * one.delta for lease, one in zip(leases, made, strict=True))
        return np.asarray(total / sum(one.examples for one in made))

    def _late(self, lease: int) -> np.float64:
        """What an update was worth when the leader heard of it."""
        return np.float64(root(self.told_at[lease] - self.made[lease].version))


def plan_of(**values: Any) -> Plan:
    usual: dict[str, Any] = {"batch_size": 2, "momentum": 0.5, "lease_s": 20.0, "checkpoint_every_s": 0.0}
    return Plan(**{**usual, "until": Until(epochs=1000), **values})
