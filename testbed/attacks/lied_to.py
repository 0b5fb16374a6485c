"""Devices as they are deployed, under a leader that says what it likes: the stage of the attacks on sealed sums.

Every device is the worker role and the sealing code of a real agent, and every message crosses the wire's form. There
are no sockets. What a driver does is done here as the runtime's driver does it: one training at a time, the model and
the update in memory that is used again, and the digest of the model taken when a training begins. The model is one unit
(``max(0, a.x + b)``) with a squared loss, trained by steps of gradient descent on examples of each device's own.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import PeerViolation, ShoalError
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, CheckRoster, MakeSealKey, Record, Seal, Send, SumMasks, Train
from shoal.roles.events import (
    Connected,
    Event,
    MasksSummed,
    Prepared,
    Reassigned,
    Received,
    RosterChecked,
    SealKeyMade,
    Started,
    Trained,
    UpdateSealed,
)
from shoal.roles.helper import Helper
from shoal.roles.worker.worker import Worker
from shoal.scheduling.batches import epoch_order, mix
from shoal.sealing.figures import decode_figures
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.graph import helped_shape, shape_of
from shoal.sealing.group import MaskGraph, OpenedPart, bits_of, members_of
from shoal.sealing.label import Label, trained_on
from shoal.sealing.opening import SumOpening, unmask
from shoal.sim.driver.seal_keys import SimSealKeys
from shoal.wire.coded import places_digest, sizes_of
from shoal.wire.frames import frames, read_message
from shoal.wire.messages import (
    Agree,
    Agreed,
    AskMasks,
    Bind,
    Dataset,
    DeviceState,
    JobSpec,
    MaskSum,
    MemberKey,
    Message,
    Open,
    Opened,
    SealKey,
    SealRefused,
    SealRoster,
    Tensors,
    Update,
    Work,
)

HOME = "home"
HELPER = "aide"

#: Values of the model: 32 factors, and a threshold below which the unit is silent and learns nothing.
SIZE = 33
EXAMPLES = 100
_SHA = "0" * 64

M = TypeVar("M", bound=Message)


def live_model(seed: int = 7) -> np.ndarray:
    """A model that learns from about half of all examples."""
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def dead_model() -> np.ndarray:
    """A model whose unit is silent for every example: no device learns anything from it."""
    model = live_model()
    model[-1] = -1e6
    return model


@dataclass
class StagedDevice:
    role: Worker | Helper
    keys: SimSealKeys
    x: np.ndarray
    y: np.ndarray
    #: The trainer's memory.
    model: np.ndarray = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    update: np.ndarray = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    #: Trainings that are asked for; the first one is under way.
    trains: deque[Train] = field(default_factory=deque)
    #: Of the model, as it was when the training that is under way began.
    digest: bytes = b""
    #: Trainings end when the attacker says so.
    is_slow: bool = False
    #: What each training changed, in order.
    made: list[np.ndarray] = field(default_factory=list)
    #: Whether each of them gave values that are not finite.
    diverged: list[bool] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)


class Stage:
    def __init__(self, trust: str, devices: int, **plan: object) -> None:
        said: dict[str, object] = {
            "trust": trust,
            "data": "local",
            "batch_size": 16,
            "lease_batches": 4,
            "workers_min": devices,
            "workers_max": devices,
            "epoch_leases": 4 * devices,
            "learning_rate": 0.05,
            "until": Until(epochs=2),
        }
        self.plan = Plan(**{**said, **plan})  # type: ignore[arg-type]
        self.spec = JobSpec(
            **{"job": "job", "name": "job", "entry": "task:Any", "bundle": _SHA, "initial": _SHA},  # type: ignore[arg-type]
            **{"train": Dataset(manifest=_SHA, examples=100), "test": Dataset(), "plan": self.plan},  # type: ignore[arg-type]
        )
        self.layout = Layout.of([("w", (SIZE,), "parameter")])
        self.names = [f"d{number:02}" for number in range(devices)]
        self.devices: dict[str, StagedDevice] = {}
        self.records: list[str] = []
        self._queue: deque[tuple[str, Message]] = deque()
        self._roster: tuple[int, tuple[MemberKey, ...]] = (0, ())
        self.term = 1
        self.group = 0
        self.lease = 0
        for name in self.names:
            self.joins(name)
        if self.plan.believes.helper is not None:
            self._add(HELPER, Helper(spec=self.spec, node=HELPER, leader=HOME, term=1), "0")

    # Devices ---------------------------------------------------------------------------------------------

    def joins(self, name: str, *, incarnation: str = "0") -> None:
        """A process of this device begins, with the device's own examples."""
        self._add(name, Worker(spec=self.spec, leader=HOME, term=self.term), incarnation)

    def _add(self, name: str, role: Worker | Helper, incarnation: str) -> None:
        chance = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))
        x, y = chance.normal(size=(EXAMPLES, SIZE - 1)).astype(np.float32), chance.normal(size=EXAMPLES)
        before = self.devices.get(name)
        self.devices[name] = StagedDevice(role, SimSealKeys(name, incarnation, "job"), x, y.astype(np.float32))
        if before is not None:
            self.devices[name].said, self.devices[name].made = before.said, before.made
        events: list[Event] = [Started()]
        if isinstance(role, Worker):
            events.append(Prepared(sizes=sizes_of(self.layout), state=_state(), parameters=SIZE))
        for event in (*events, Connected(node=HOME)):
            self._handle(name, event)

    def fails_over(self) -> None:
        """Another leader leads, under the next term. It counts its groups and leases from the beginning."""
        self.term, self.group, self.lease = self.term + 1, 0, 0
        for name in self.devices:
            for event in (Reassigned(term=self.term, leader=HOME), Connected(node=HOME)):
                self._handle(name, event)

    def _handle(self, name: str, event: Event) -> None:
        device = self.devices[name]
        for action in device.role.handle(event, 100.0):
            self._act(name, device, action)

    def _act(self, name: str, device: StagedDevice, action: Action) -> None:
        match action:
            case Send():
                device.said.append(read_message(iter(list(frames(action.message)))))
            case Record():
                self.records.append(f"{name}: {action.kind}: {action.reason}")
            case MakeSealKey():
                made = SealKeyMade(term=action.term, key=device.keys.make(action.term), chance=device.keys.chance())
                self._handle(name, made)
            case CheckRoster():
                roster = action.roster
                bad = device.keys.check(roster)
                self._handle(name, RosterChecked(roster=roster.roster, term=roster.term, bad=bad))
            case Seal():
                self._handle(name, _sealed(device, action))
            case SumMasks():
                self._handle(name, _summed(device, action))
            case Train():
                device.trains.append(action)
                if len(device.trains) == 1:
                    self._begin(name, device)
            case _:
                pass

    # Training --------------------------------------------------------------------------------------------

    def _begin(self, name: str, device: StagedDevice) -> None:
        action = device.trains[0]
        if action.tensors:
            device.model[:] = action.tensors["model"]
        device.digest = hashlib.sha256(device.model.data).digest()
        if not device.is_slow:
            self.finish(name)

    def finish(self, name: str) -> None:
        """The training that is under way ends, and the next one begins."""
        device = self.devices[name]
        action = device.trains[0]
        chosen = epoch_order(len(device.x), seed=mix(self.plan.seed, action.epoch), epoch=action.batches[0])
        chosen = chosen[: action.examples]
        rate = action.rate or self.plan.learning_rate
        after = device.model.copy()
        loss_sum = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(chosen), self.plan.batch_size):
                part = chosen[start : start + self.plan.batch_size]
                loss, gradient = _learned(after, device.x[part], device.y[part])
                after -= np.float32(rate) * gradient
                loss_sum += loss * len(part)
            np.subtract(after, device.model, out=device.update)
        is_finite = bool(np.isfinite(device.update).all()) and math.isfinite(loss_sum)
        device.made.append(device.update.copy())
        device.diverged.append(not is_finite)
        trained = Trained(
            lease=action.lease,
            examples=len(chosen),
            loss_sum=loss_sum if is_finite else math.nan,
            seconds=1.0,
            tensors={"delta": device.update},
            state=_state(),
            model=device.digest,
        )
        # As in the runtime: what was trained is told before the next training, which waits for the trainer, is begun.
        device.trains.popleft()
        self._handle(name, trained)
        if device.trains:
            self._begin(name, device)

    # The attacker ----------------------------------------------------------------------------------------

    def tell(self, name: str, message: Message) -> None:
        heard = read_message(iter(list(frames(message))))
        self._handle(name, Received(sender=HOME, message=heard, size_bytes=100))

    def said(self, name: str, kind: type[M]) -> list[M]:
        return [message for message in self.devices[name].said if isinstance(message, kind)]

    @property
    def refusals(self) -> str:
        names = (*self.names, HELPER) if HELPER in self.devices else self.names
        return "\n".join(message.reason for name in names for message in self.said(name, SealRefused))

    def work(self, model: np.ndarray | None = None, **changes: object) -> Work:
        """A lease as an honest leader lends it, but for these."""
        version = int(changes.get("version", 1))  # type: ignore[call-overload]
        lent = Work(
            job="job",
            term=self.term,
            lease=self.lease,
            kind="train",
            version=version,
            batches=(0,),
            deadline_s=1e6,
            examples=self.plan.sealed_examples[0],
            rate=self.plan.rate_at(version),
            tensors={"model": live_model() if model is None else model},
        )
        return replace(lent, **changes)  # type: ignore[arg-type]

    def lend(self, names: Iterable[str], model: np.ndarray | None = None, **changes: object) -> None:
        """Give each of these devices a lease under one new number."""
        self.lease += 1
        for name in names:
            self.tell(name, self.work(model, **changes))

    def keys(self) -> dict[str, MemberKey]:
        """The newest key of each."""
        told = {name: self.said(name, SealKey) for name in self.devices}
        return {name: each[-1].key for name, each in told.items() if each}

    def roster(self, names: Iterable[str], keys: Mapping[str, MemberKey] | None = None) -> None:
        known = self.keys() if keys is None else keys
        everyone = sorted(known)
        self._roster = (self._roster[0] + 1, tuple(known[name] for name in everyone))
        told = SealRoster(job="job", term=self.term, roster=self._roster[0], keys=self._roster[1])
        for name in names:
            self.tell(name, told)

    def bind(
        self,
        names: Sequence[str],
        *,
        lease: int | None = None,
        tensors: Tensors | None = None,
        bound: int = 3,
        weight_most: int | None = None,
    ) -> SealGroup:
        """A new group of these."""
        self.group += 1
        helper = [HELPER] if HELPER in self.devices else []
        self.roster([*names, *helper])
        number, keys = self._roster
        places = [at for at, key in enumerate(keys) if key.node in names]
        bind = Bind(
            job="job",
            term=self.term,
            lease=self.lease if lease is None else lease,
            group=self.group,
            roster=number,
            members=bits_of(places, len(keys)),
            bound=bound,
            weight_most=self.plan.sealed_examples[1] if weight_most is None else weight_most,
            tensors=tensors or {},
        )
        for name in names:
            self.tell(name, bind)
        return SealGroup(self, bind, [keys[at] for at in places])


class SealGroup:
    """A group whose members the attacker asks, and whose sum it opens if they let it."""

    def __init__(self, stage: Stage, bind: Bind, members: list[MemberKey]) -> None:
        self.stage, self.bind, self.members = stage, bind, members
        sealed, count = stage.plan.believes.sealed, len(members)
        assert sealed is not None
        liars = sealed.liars_of(count)
        self.is_helped = sealed.helper is not None
        shape = helped_shape(count, liars) if self.is_helped else shape_of(count, liars, sealed.lost)
        self.graph = MaskGraph.of(shape, tuple(one.nonce for one in members), least=stage.plan.opened_least)
        #: The figures in the sum that was opened, added up.
        self.figures: list[float] = []
        self.fixed = FixedPoint(bind.bound, count, Codec.parse(stage.plan.codec).word_bits)

    @property
    def uploads(self) -> dict[int, Update]:
        """By place."""
        found = {}
        for place, member in enumerate(self.members):
            for update in self.stage.said(member.node, Update):
                if update.group == self.bind.group and "words" in update.tensors:
                    found[place] = update
        return found

    def label(self, model: np.ndarray, *, version: int = 1, epoch: int = 0) -> Label:
        base = trained_on(hashlib.sha256(model.data).digest(), version=version, epoch=epoch)
        return Label(
            origin=self.stage.spec.signature,
            job="job",
            term=self.bind.term,
            formation=0,
            group=self.bind.group,
            members=tuple((one.node, one.public) for one in self.members),
            bound=self.bind.bound,
            weight_most=self.bind.weight_most,
            base=base,
            places=places_digest(self.bind.tensors),
        )

    def sum_of(self, model: np.ndarray, present: Iterable[int] | None = None, **trained: int) -> np.ndarray | None:
        """The sum of these members' updates, each times its examples, as the protocol opens it; None if it does not."""
        uploads = self.uploads
        members = frozenset(uploads if present is None else present)
        if not members <= set(uploads) or not members:
            return None
        label = self.label(model, **trained)
        words = [np.concatenate((uploads[at].tensors["words"], self._figure_words(at))) for at in sorted(members)]
        total = np.sum(words, axis=0, dtype=words[0].dtype)
        try:
            if self.is_helped:
                masks = self.ask_helper(label, members, total.size)
                if masks is None:
                    return None
                total -= masks
            else:
                self._open(label, members, total)
        except PeerViolation:
            return None
        times, size = float(self.bind.weight_most), uploads[min(members)].tensors["words"].size
        if total.size > size:
            self.figures = decode_figures(total[size:], self.fixed, times=1.0)
        return np.asarray(self.fixed.decode(total[:size], times=times), dtype=np.float64)

    def _figure_words(self, place: int) -> np.ndarray:
        update = self.uploads[place]
        tail = update.tensors["seals"].tobytes()[self.graph.seals_bytes(place) :]
        return np.frombuffer(tail, dtype=update.tensors["words"].dtype)

    def ask(self, place: int, message: Message, kind: type[M]) -> M | None:
        """Return the answer of this member, or None."""
        name = self.members[place].node
        before = len(self.stage.said(name, kind))
        self.stage.tell(name, message)
        said = self.stage.said(name, kind)[before:]
        return said[-1] if said else None

    @property
    def head(self) -> dict[str, object]:
        return {"job": "job", "term": self.bind.term, "group": self.bind.group}

    def seals_of(self, place: int) -> bytes:
        return bytes(self.uploads[place].tensors["seals"].tobytes()[: self.graph.seals_bytes(place)])

    def _open(self, label: Label, members: frozenset[int], total: np.ndarray) -> None:
        opening = SumOpening(self.graph, {place: self.seals_of(place) for place in members}, label.digest())
        for place in sorted(members):
            agree = Agree(**self.head, present=bits_of(members, self.graph.size))  # type: ignore[arg-type]
            if (agreed := self.ask(place, agree, Agreed)) is not None:
                opening.on_agreed(place, agreed.macs)
        if not opening.may_open:
            raise PeerViolation(f"{len(opening.agreed)} agreed")
        opening.begin()
        for place in sorted(opening.agreed):
            request = opening.request(place)
            question = Open(
                **self.head,  # type: ignore[arg-type]
                macs=request.macs,
                envelopes=request.envelopes,
                vanished=bits_of(request.vanished, self.graph.size),
                vanished_envelopes=request.vanished_envelopes,
            )
            if (opened := self.ask(place, question, Opened)) is not None:
                part = OpenedPart(opened.shares, opened.edges, opened.vanished_edges)
                opening.on_opened(place, part, members_of(opened.vanished, self.graph.size))
        if not opening.is_enough:
            raise PeerViolation(f"{len(opening.opened)} opened")
        unmask(total, opening.masks(), label.digest())

    def ask_helper(
        self, label: Label, members: frozenset[int], words: int, *, number: int | None = None
    ) -> np.ndarray | None:
        """Return the masks that the helper tells of these members under this group number, or None if it refuses."""
        envelopes = [self.seals_of(place) for place in sorted(members)]
        ask = AskMasks(
            job="job",
            term=self.bind.term,
            group=self.bind.group if number is None else number,
            roster=self.bind.roster,
            members=self.bind.members,
            bound=self.bind.bound,
            weight_most=self.bind.weight_most,
            base=label.base,
            places=label.places,
            words=words,
            present=bits_of(members, self.graph.size),
            envelopes=b"".join(envelopes),
        )
        before = len(self.stage.said(HELPER, MaskSum))
        self.stage.tell(HELPER, ask)
        said = self.stage.said(HELPER, MaskSum)[before:]
        return np.asarray(said[-1].tensors["words"]) if said else None


def error_of(found: np.ndarray | None, truth: np.ndarray) -> float:
    """Return the attacker's error as a share of the largest value of the update; infinite if it found none."""
    if found is None:
        return float("inf")
    return float(np.abs(found - truth).max() / np.abs(truth).max())


def _state() -> DeviceState:
    return DeviceState(kind="toy", memory_total_mb=1024.0, examples=EXAMPLES)


def _learned(model: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss of a batch, and its gradient."""
    told = x @ model[:-1] + model[-1]
    off = np.maximum(told, 0) - y
    slope = np.where(told > 0, off, 0).astype(np.float32) / np.float32(len(y))
    return float(np.mean(off * off)) / 2, np.append(x.T @ slope, slope.sum()).astype(np.float32)


def _sealed(device: StagedDevice, action: Seal) -> UpdateSealed:
    lease, group = action.lease, action.request.label.group
    try:
        words, seals, kept = device.keys.seal(action.request)
    except ShoalError as error:
        return UpdateSealed(lease=lease, group=group, reason=str(error))
    tensors = {"words": words, "seals": np.frombuffer(seals, dtype=np.uint8)}
    return UpdateSealed(lease=lease, group=group, tensors=tensors, kept=kept)


def _summed(device: StagedDevice, action: SumMasks) -> MasksSummed:
    label = action.request.label
    try:
        tensors = {"words": device.keys.sum_masks(action.request)}
    except ShoalError as error:
        return MasksSummed(term=label.term, group=label.group, reason=str(error))
    return MasksSummed(term=label.term, group=label.group, tensors=tensors)
