"""A leader and devices that seal their updates, with nothing in between but what they say; a test says what is heard.

The roles and the protocol are the real ones. What a driver does is done here as plainly as it can be.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dst.helper_oracle import HelperOracle
from dst.joint_oracle import JointOracle
from dst.seal_oracle import SealOracle, sent_values
from shoal.errors import ShoalError
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import (
    Action,
    CheckRoster,
    Evaluate,
    MakeSealKey,
    Participate,
    Record,
    Save,
    Seal,
    Send,
    SumMasks,
    Train,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    Liveness,
    MasksSummed,
    NotParticipated,
    Participated,
    PeerChanged,
    Prepared,
    Reassigned,
    Received,
    RosterChecked,
    Saved,
    SealKeyMade,
    Started,
    TimerFired,
    Trained,
    UpdateSealed,
)
from shoal.roles.helper import Helper
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.leases import TICK_S
from shoal.roles.worker.worker import Worker
from shoal.sealing.request import NOT_THE_SIGNED_MODEL
from shoal.sim.driver.seal_keys import SimSealKeys
from shoal.sim.observe import Mark, Observer, Step
from shoal.wire.coded import sizes_of
from shoal.wire.frames import frames, read_message
from shoal.wire.messages import Dataset, DeviceState, JobSpec, Message

SHA = "0" * 64
HOME = "home"
SIZE = 33

#: The node that opens sums, where a plan names one.
HELPER = "aide"


@dataclass
class SealingDevice:
    worker: Worker | Helper
    keys: SimSealKeys
    model: np.ndarray | None = None
    trained: list[Train] = field(default_factory=list)


def digest_of(model: np.ndarray) -> bytes:
    return hashlib.sha256(model.data).digest()


def a_plan(trust: str = "sealed(4, 0%, 30%)", **changes: object) -> Plan:
    plan: dict[str, object] = {
        "trust": trust,
        "data": "local",
        "workers_min": 4,
        "workers_max": 12,
        "epoch_leases": 40,
        "momentum": 0.0,
        "checkpoint_every_s": 0.0,
        "until": Until(epochs=2),
    }
    return Plan(**{**plan, **changes})  # type: ignore[arg-type]


class SealedTroupe:
    def __init__(self, plan: Plan | None = None) -> None:
        plan = plan or a_plan()
        self.spec = JobSpec(
            **{"job": "job", "name": "job", "entry": "task:Any", "bundle": SHA, "initial": SHA},  # type: ignore[arg-type]
            **{"train": Dataset(manifest=SHA, examples=100), "test": Dataset(), "plan": plan},  # type: ignore[arg-type]
        )
        self.layout = Layout.of([("w", (SIZE,), "parameter")])
        self.first = np.random.default_rng(7).normal(size=SIZE).astype(np.float32)
        self.first.flags.writeable = False
        self.now_s = 100.0
        self.devices: dict[str, SealingDevice] = {}
        self.queue: deque[tuple[str, str, Message]] = deque()
        self.heard: list[tuple[str, str, Message]] = []
        self.records: list[Record] = []
        #: (device, lease) -> its update and examples.
        self.made: dict[tuple[str, int, int], tuple[np.ndarray, int]] = {}
        self.sealed: list[tuple[str, Seal]] = []
        #: (device, term, lease) -> what its words say, where a sum has some places alone.
        self.parts: dict[tuple[str, int, int], np.ndarray] = {}
        #: Where the plan is private too. Device -> its participations, on its disk; (device, group) -> words and noise.
        self.disks: dict[str, list[tuple[int, int]]] = {}
        self.shares: dict[tuple[str, int, int], tuple[np.ndarray, np.ndarray]] = {}
        #: What a device's disk does first; True: it is broken.
        self.counts: Callable[[str, Participate], bool] = lambda node, action: False
        #: What is heard instead of a message; nothing: it is lost.
        self.lies: Callable[[str, str, Message], list[Message]] = lambda sender, to, message: [message]
        #: Changes what the leader says, before anybody sees it.
        self.liar: Observer | None = None
        #: Devices take a while to train: what they are told meanwhile is heard first.
        self.trains_slowly = False
        self.trained: deque[tuple[str, Trained]] = deque()
        #: Devices whose training gives values that are not finite.
        self.diverges: set[str] = set()
        self.oracle = SealOracle([self.spec])
        self.helper_oracle = HelperOracle([self.spec])
        self.joint = JointOracle([self.spec], firsts={"job": hashlib.sha256(self.first.data).digest()})
        self.leader = self._leader(1)
        self.saves: list[Save] = []
        self._leads(Started())

    def _leader(self, term: int) -> Leader:
        return Leader(spec=self.spec, layout=self.layout, model=self.first, term=term, manager=HOME)

    # Who is there ----------------------------------------------------------------------------------------

    def joins(self, *nodes: str) -> None:
        for node in nodes:
            count = len([n for n in self.heard if n[0] == node])
            worker = Worker(spec=self.spec, leader=HOME, term=self.leader.term)
            self.devices[node] = SealingDevice(worker, SimSealKeys(node, str(count), "job"))
            state = DeviceState(kind="toy", memory_total_mb=1024.0, examples=100)
            taken = tuple(self.disks.setdefault(node, []))
            prepared = Prepared(sizes=sizes_of(self.layout), state=state, participations=taken)
            for event in (Started(), prepared, Connected(node=HOME)):
                self._works(node, event)

    def helps(self, node: str = HELPER) -> None:
        """The helper is here, as a process that has just begun."""
        helper = Helper(spec=self.spec, node=node, leader=HOME, term=self.leader.term)
        count = len([n for n in self.heard if n[0] == node])
        self.devices[node] = SealingDevice(helper, SimSealKeys(node, str(count), "job"))
        for event in (Started(), Connected(node=HOME)):
            self._works(node, event)

    def loses(self, *nodes: str) -> None:
        for node in nodes:
            del self.devices[node]
            self.queue = deque(each for each in self.queue if node not in each[:2])
            self._leads(PeerChanged(node=node, state=Liveness.LOST, reason="silent for 8.0 s"))

    def dies(self) -> None:
        """The leader is lost; another one leads under the next term, from the beginning."""
        term = self.leader.term + 1
        self.queue.clear()
        self.leader = self._leader(term)
        self._leads(Started())
        for node in list(self.devices):
            self._works(node, Disconnected(node=HOME, reason="it is gone"))
            self._works(node, Reassigned(term=term, leader=HOME))
            self._works(node, Connected(node=HOME))

    # What is heard ---------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] = lambda: False, *, most: int = 4000) -> None:
        """Deliver in order; where nothing is left to be heard, time passes."""
        quiet = 0
        for _ in range(most):
            if until():
                return
            if self.queue:
                quiet = 0
                self._deliver(*self.queue.popleft())
                continue
            if self.trained:
                # Devices differ in how long they take, and each trains one lease after the other.
                last = self.trained[-1][0]
                at = next(at for at, (node, _) in enumerate(self.trained) if node == last)
                node, trained = self.trained[at]
                del self.trained[at]
                if node in self.devices:
                    self._works(node, trained)
                continue
            quiet += 1
            if quiet > 40:
                return
            self.now_s += TICK_S
            self._leads(TimerFired(name="tick"))

    def run_to(self, kind: type[Message], *, count: int = 1) -> None:
        """Until so many of these were said, and none of them was heard."""
        self.run(lambda: sum(isinstance(message, kind) for *_, message in self.queue) >= count)
        assert any(isinstance(message, kind) for *_, message in self.queue), f"no {kind.__name__} was ever said"

    def said(self, kind: type[Message]) -> list[tuple[str, str, Message]]:
        return [each for each in self.heard if isinstance(each[2], kind)]

    def _deliver(self, sender: str, to: str, message: Message) -> None:
        for told in self.lies(sender, to, message):
            heard = read_message(iter(list(frames(told))))
            self.heard.append((sender, to, heard))
            event = Received(sender=sender, message=heard, size_bytes=100)
            if to == HOME:
                self._leads(event)
            elif to in self.devices:
                self._hears(to, event)

    def _hears(self, node: str, event: Received) -> None:
        self._works(node, event)

    def hears(self, to: str, message: Message) -> None:
        """The leader says this, whatever it is."""
        self.queue.append((HOME, to, message))

    # What drivers do -------------------------------------------------------------------------------------

    def _leads(self, event: Event) -> None:
        actions = self.leader.handle(event, self.now_s)
        self._observe(Step(self.now_s, HOME, "leader", "job", event, actions))
        for action in actions:
            match action:
                case Send() if action.to in self.devices:
                    self.queue.append((HOME, action.to, action.message))
                case Record():
                    self.records.append(action)
                case Save():
                    self.saves.append(action)
                    self._leads(Saved(version=action.version))
                case _:
                    pass

    def _observe(self, step: Step) -> None:
        if self.liar is not None:
            self.liar.step(step)
        self.oracle.step(step)
        self.helper_oracle.step(step)
        self.joint.step(step)

    def _mark(self, node: str, kind: str, **facts: object) -> None:
        mark = Mark(self.now_s, node, kind, {"job": "job", **facts})
        self.helper_oracle.mark(mark)
        self.joint.mark(mark)

    def _works(self, node: str, event: Event) -> None:
        device = self.devices[node]
        actions = device.worker.handle(event, self.now_s)
        self._observe(Step(self.now_s, node, "worker", "job", event, actions))
        for action in actions:
            self._acts(node, device, action)

    def _acts(self, node: str, device: SealingDevice, action: Action) -> None:
        match action:
            case Send() if action.to == HOME:
                self.queue.append((node, HOME, action.message))
            case Record():
                self.records.append(action)
            case MakeSealKey():
                self._works(
                    node, SealKeyMade(term=action.term, key=device.keys.make(action.term), chance=device.keys.chance())
                )
            case CheckRoster():
                bad = device.keys.check(action.roster)
                self._works(node, RosterChecked(roster=action.roster.roster, term=action.roster.term, bad=bad))
            case Seal(request=request) if request.version == 0 and request.model != digest_of(self.first):
                group = action.request.label.group
                self._works(node, UpdateSealed(lease=action.lease, group=group, reason=NOT_THE_SIGNED_MODEL))
            case Seal():
                self.sealed.append((node, action))
                self._notes_share(node, device, action)
                label = action.request.label
                self._mark(node, "seed", term=label.term, group=label.group, seed=device.keys.next_seed())
                entropy = device.keys.next_entropy()
                self._mark(node, "entropy", lease=action.lease, request=action.request, entropy=entropy)
                try:
                    words, seals, kept = device.keys.seal(action.request)
                except ShoalError as error:
                    refused = UpdateSealed(lease=action.lease, group=label.group, reason=str(error))
                    self._works(node, refused)
                    return
                tensors = {"words": words, "seals": np.frombuffer(seals, dtype=np.uint8)}
                group = action.request.label.group
                if kept.places is not None:
                    part = np.zeros(SIZE)
                    part[kept.places] = sent_values(action.request, entropy)
                    self.parts[node, action.request.label.term, action.lease] = part
                self._works(node, UpdateSealed(lease=action.lease, group=group, tensors=tensors, kept=kept))
            case SumMasks():
                label = action.request.label
                try:
                    tensors = {"words": device.keys.sum_masks(action.request)}
                    summed = MasksSummed(term=label.term, group=label.group, tensors=tensors)
                except ShoalError as error:
                    summed = MasksSummed(term=label.term, group=label.group, reason=str(error))
                self._works(node, summed)
            case Participate():
                self._notes(node, action)
            case Train():
                self._trains(node, device, action)
            case Evaluate():
                raise AssertionError("nothing is held out here")
            case _:
                pass

    def _notes(self, node: str, action: Participate) -> None:
        if self.counts(node, action):
            self._works(node, NotParticipated(term=action.term, lease=action.lease, reason="the disk is full"))
            return
        self.disks[node].append((action.term, action.version))
        self._works(
            node, Participated(term=action.term, version=action.version, lease=action.lease, group=action.group)
        )

    def _notes_share(self, node: str, device: SealingDevice, action: Seal) -> None:
        noise, label = action.request.noise, action.request.label
        if noise is not None:
            chance = device.keys.next_rounding()
            words = noise.encode(action.request.update, factor=1.0, chance=chance).view("<i4").astype(np.int64)
            self.shares[node, label.term, label.group] = (words, noise.noise(words.size, chance=chance))

    def _trains(self, node: str, device: SealingDevice, action: Train) -> None:
        if action.tensors:
            device.model = np.array(action.tensors["model"])
        assert device.model is not None
        device.trained.append(action)
        self._mark(node, "trains", lease=action.lease, model=device.model)
        number = int.from_bytes(hashlib.sha256(f"{node} {action.lease}".encode()).digest()[:4], "big")
        delta = np.random.default_rng(number).normal(0, 0.1, SIZE).astype(np.float32)
        # Near the lease's: a device refuses to be drowned by others.
        examples = max(1, action.examples - number % 7)
        self.made[node, self.leader.term, action.lease] = (delta, examples)
        state = DeviceState(kind="toy", memory_total_mb=1024.0, examples=100)
        if node in self.diverges:
            self.made[node, self.leader.term, action.lease] = (np.zeros_like(delta), examples)
        loss = math.nan if node in self.diverges else 1.0
        done = {"lease": action.lease, "examples": examples, "loss_sum": loss, "seconds": 1.0, "state": state}
        trained = Trained(**done, tensors={"delta": delta}, model=digest_of(device.model))  # type: ignore[arg-type]
        if self.trains_slowly:
            self.trained.append((node, trained))
        else:
            self._works(node, trained)

    # What must be ----------------------------------------------------------------------------------------

    def mean_of(self, version: int) -> np.ndarray:
        """What a version must have moved the model by, from the updates in its history."""
        rows = [row for save in self.saves for row in save.applied if row.version == version]
        made = [self.made[row.node, self.leader.term, row.lease] for row in rows]
        if self.parts:
            parts = (self.parts[row.node, self.leader.term, row.lease] for row in rows)
            made = [(part, examples) for part, (_, examples) in zip(parts, made, strict=True)]
        # Devices count alike, whatever the number of their examples.
        return np.asarray(sum(np.float64(1) * delta for delta, _ in made) / len(made))
