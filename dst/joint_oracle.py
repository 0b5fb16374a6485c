"""What a leader and a few colluding devices could unmask, from everything that left honest devices. Shares no code with
the roles.

The driver reports the randomness of each sealed update, so all seeds and shares are known here. Every byte string that
leaves a device is searched for them at every offset, so it does not matter in which field a secret leaves.

Masks are a graph: an update has its own mask and one for each edge. A combination of masked updates has no mask left
only if it has the same factor at both ends of each unknown edge, and the factor 0 wherever the own seed is unknown or
no words left. So the readable sums are the connected pieces of the graph of unknown edges, which union-find gives. If a
helper opens sums, the readable sums are the sets that it answered for.

Under one label at most one sum may be readable. It must be of enough honest devices, of updates that were trained
alike, and of no update that is in another readable sum. Seeds and shares leave in ``Opened`` only, and all devices that
open one label agreed to the same members.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dst.privacy_oracle import smallest_sum
from shoal.plan import Plan
from shoal.roles.actions import Send, SumMasks, Train
from shoal.roles.events import Prepared, Received, SealKeyMade, Started, Trained, TrainerFailed, UpdateSealed
from shoal.sealing import pair
from shoal.sealing.device import GroupPlace
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.request import SealRequest
from shoal.sealing.shamir import CHANCE_BYTES, split
from shoal.sealing.stream import add_all, stream
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.sim.rng import Rng
from shoal.wire.messages import Agree, Agreed, JobSpec, MaskSum, Opened, Update, UpdateShard, Work

#: Stands for the device's own seed where otherwise an edge's other end is named.
OWN = -1

#: No update counts more than this many times another in a sum.
EXAMPLES_APART = 4

#: Random coalitions that are tried at the end of a run, for each job.
COALITIONS = 3

#: What sealing draws: the own seed first, then the cover's, the rounding, and the shares.
_SEED, _COVER, _ROUNDING, _SHARES = slice(0, 16), slice(16, 32), slice(32, 64), slice(64, None)

#: (node, job).
_Device = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Training:
    """What a device trained on, as it really did."""

    lease: int
    model: bytes
    version: int
    epoch: int
    turn: tuple[int, ...]
    #: How many it was over, once it ended.
    examples: int = 0


@dataclass(slots=True)
class _Sealed:
    """One update under one label."""

    node: str
    term: int
    lease: int
    training: _Training
    request: SealRequest
    near: tuple[int, ...]
    threshold: int

    @property
    def alike(self) -> tuple[object, ...]:
        """Everything that the members of a readable sum must have in common."""
        request, trained = self.request, self.training
        places = request.places.tobytes() if request.places is not None else b""
        label = request.label
        words = (label.bound, label.weight_most, request.word_bits, places)
        return (trained.model, trained.version, trained.epoch, *words)


@dataclass(slots=True)
class _Label:
    """One label, as devices used it for their masks."""

    job: str
    plan: Plan
    names: tuple[str, ...]
    updates: dict[int, _Sealed] = field(default_factory=dict)
    #: Places whose words left.
    seen: set[int] = field(default_factory=set)
    #: (owner, what) -> the holders whose share left; and the secrets that left themselves.
    shares: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    plain: set[tuple[int, int]] = field(default_factory=set)
    #: The sets for which a helper answered, and those for which devices opened, as bits.
    answers: list[frozenset[int]] = field(default_factory=list)
    opened: set[bytes] = field(default_factory=set)

    @property
    def liars(self) -> int:
        """Members that may collude."""
        sealed = self.plan.believes.sealed
        assert sealed is not None
        return math.ceil((sealed.members or len(self.names)) * sealed.colluding - 1e-9)

    @property
    def floor(self) -> int:
        """The fewest members of a sum that may be opened."""
        sealed, size = self.plan.believes.sealed, len(self.names)
        assert sealed is not None
        is_ring = any(0 < len(each.near) < size - 1 for each in self.updates.values())
        on_ring = size - math.floor(size * sealed.lost + 1e-9) if is_ring else 0
        return max(smallest_sum(self.plan), self.liars + 2, on_ring)

    def readable(self, liars: Collection[str] = ()) -> Iterator[frozenset[int]]:
        """Yield the smallest sets of honest members whose sums a leader can read with these members' help."""
        bad = {place for place, name in enumerate(self.names) if name in liars}
        yield from (each - bad for each in self.answers if each - bad <= self.seen)
        honest = [place for place in range(len(self.names)) if place not in bad]
        root = {place: place for place in honest}

        def find(place: int) -> int:
            while root[place] != place:
                root[place] = root[root[place]]
                place = root[place]
            return place

        for one in honest:
            for other in self.updates[one].near if one in self.updates else ():
                if other in root and not (self._is_known(one, other, bad) or self._is_known(other, one, bad)):
                    root[find(one)] = find(other)
        pieces: dict[int, set[int]] = defaultdict(set)
        for place in honest:
            pieces[find(place)].add(place)
        for piece in pieces.values():
            if all(place in self.seen and self._is_known(place, OWN, bad) for place in piece):
                yield frozenset(piece)

    def hiding(self, place: int) -> list[int]:
        """Return the neighbours whose edges to this place are unknown, or all others if it masks with nobody."""
        near = self.updates[place].near
        if not near:
            return [other for other in range(len(self.names)) if other != place]
        return [
            other for other in near if not (self._is_known(place, other, set()) or self._is_known(other, place, set()))
        ]

    def _is_known(self, owner: int, what: int, bad: set[int]) -> bool:
        if (owner, what) in self.plain:
            return True
        sealed = self.updates.get(owner)
        if sealed is None or not sealed.near:
            return False
        held = self.shares.get((owner, what), set())
        return len(held | (bad & set(sealed.near)) if bad else held) >= sealed.threshold


class JointOracle:
    def __init__(
        self, specs: Sequence[JobSpec], *, firsts: Mapping[str, bytes] | None = None, searches_seals: bool = True
    ) -> None:
        """``firsts``: the digest of each job's first model. ``searches_seals``: also search what goes with words, which
        is long."""
        self._plans = {spec.job: spec.plan for spec in specs if spec.plan.believes.sealed is not None}
        self._firsts = dict(firsts or {})
        self._searches_seals = searches_seals
        self.labels: dict[bytes, _Label] = {}
        #: A secret, or a share of one -> its label, its owner, which of the owner's secrets it is, and the holder of
        #: the share, or None for the secret itself.
        self._secrets: dict[bytes, tuple[_Label, int, int, int | None]] = {}
        #: (node, job, term, group) -> its label and place.
        self._places: dict[tuple[str, str, int, int], tuple[_Label, int]] = {}
        #: (node, job, lease, group) -> what is being sealed, and the randomness that it takes.
        self._sealing: dict[tuple[str, str, int, int], tuple[SealRequest, bytes]] = {}
        #: Devices whose process drew a key and randomness of its own.
        self._drew: set[_Device] = set()
        #: The turn that the leader named last, the trainings under way, and the one that ended last.
        self._named: dict[_Device, tuple[int, ...]] = {}
        self._under_way: dict[_Device, list[_Training]] = {}
        self._ended: dict[_Device, _Training] = {}
        #: (node, job, term, group) -> the members that it agreed to, as bits.
        self._agreed: dict[tuple[str, str, int, int], bytes] = {}
        #: (job, term, group) -> the question that a helper works on.
        self._asked: dict[tuple[str, int, int], tuple[bytes, frozenset[int]]] = {}
        #: The updates and the trainings that are in readable sums -> the sum.
        self._summed: dict[tuple[object, ...], tuple[int, frozenset[int]]] = {}
        #: Sums that can be read: a test asks, to know that this oracle is not blind.
        self.sums: set[tuple[int, frozenset[int]]] = set()

    # What is seen ----------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        facts = mark.facts
        if facts.get("job") not in self._plans:
            return
        if mark.kind == "entropy":
            request: SealRequest = facts["request"]
            key = (mark.node, facts["job"], facts["lease"], request.label.group)
            self._sealing[key] = (request, facts["entropy"])
        elif mark.kind == "trains" and (waiting := self._under_way.get((mark.node, facts["job"]))):
            model = facts["model"]
            if waiting[-1].lease == facts["lease"] and model is not None:
                waiting[-1] = dataclasses.replace(waiting[-1], model=hashlib.sha256(model.tobytes()).digest())

    def step(self, step: Step) -> None:
        if step.role != "worker" or step.job not in self._plans:
            return
        self._heard(step)
        changed: list[_Label] = []
        for action in step.actions:
            match action:
                case Train():
                    self._trains(step, action)
                case SumMasks():
                    label = action.request.label
                    asked = (label.digest(), frozenset(action.request.envelopes))
                    self._asked[step.job, label.term, label.group] = asked
                case Send():
                    changed += self._left(step, action.message)
                case _:
                    pass
        for one in {id(each): each for each in changed}.values():
            self._check(step, one)

    def _heard(self, step: Step) -> None:
        device, event = (step.node, step.job), step.event
        match event:
            case SealKeyMade():
                self._drew.add(device)
            case Prepared() | TrainerFailed():
                # The trainer is another one now, and does not answer about older leases.
                self._under_way[device] = []
            case Started():
                self._drew.discard(device)
                self._under_way[device] = []
                self._ended.pop(device, None)
            case Received(message=Work() as work):
                self._named[device] = work.batches
            case Trained():
                waiting = self._under_way.get(device, [])
                # Numbers of leases begin again with each term, and a training that was given up never ends.
                found = [each for each in waiting if each.lease == event.lease]
                done = next(
                    (each for each in reversed(found) if each.model == event.model), found[0] if found else None
                )
                if done is not None:
                    waiting.remove(done)
                    self._ended[device] = dataclasses.replace(done, examples=event.examples)
            case UpdateSealed(kept=kept) if kept is not None:
                self._sealed(step, event, kept._seat)
            case _:
                pass

    def _trains(self, step: Step, action: Train) -> None:
        device, plan = (step.node, step.job), self._plans[step.job]
        if plan.data == "local":
            is_own = action.batches != self._named.get(device)
            self._hold(is_own, step, f"{step.node} trains by a turn that its leader named: {action.batches}")
            self._hold(device in self._drew, step, f"{step.node} trains by a turn, and has drawn nothing yet")
            asked = plan.lease_batches * plan.batch_size
            least, most = (math.ceil(asked / 2), 2 * asked) if plan.work == "sized" else (asked, asked)
            is_usual = least <= action.examples <= most
            self._hold(is_usual, step, f"{step.node} trains {action.examples} examples, not {least} to {most}")
        training = _Training(action.lease, b"", action.version, action.epoch, action.batches)
        self._under_way.setdefault(device, []).append(training)

    def _sealed(self, step: Step, event: UpdateSealed, seat: GroupPlace) -> None:
        """A device has sealed an update: work out all secrets of it."""
        request, entropy = self._sealing.pop((step.node, step.job, event.lease, event.group))
        label, place, training = request.label, seat.place, self._ended[step.node, step.job]
        self._hold(
            training.lease == event.lease, step, f"{step.node} sealed lease {event.lease}, which it did not train"
        )
        view = self.labels.get(seat.label)
        if view is None:
            names = tuple(name for name, _ in label.members)
            view = self.labels[seat.label] = _Label(step.job, self._plans[step.job], names)
        near, needed = seat.group.near[place], seat.group.shape.threshold
        view.updates[place] = _Sealed(step.node, label.term, event.lease, training, request, near, needed)
        self._places[step.node, step.job, label.term, label.group] = (view, place)
        edges = {other: pair.edge_seed(seat.keys[other], seat.label) for other in near}
        own, source = entropy[_SEED], stream(entropy[_SHARES])
        for what, secret in ((OWN, own), *edges.items()):
            self._secrets[secret] = (view, place, what, None)
            if not near:
                continue
            chance = source.update(bytes(CHANCE_BYTES * (needed - 1)))
            parts = split(secret, [other + 1 for other in near], needed=needed, chance=chance)
            for holder, share in zip(near, parts, strict=True):
                self._secrets[share] = (view, place, what, holder)
        self._check_words(step, event, seat, request, entropy, edges)

    def _check_words(
        self,
        step: Step,
        event: UpdateSealed,
        seat: GroupPlace,
        request: SealRequest,
        entropy: bytes,
        edges: Mapping[int, bytes],
    ) -> None:
        """Hold that the words are masked by the secrets that are known here, or this oracle would be blind."""
        point = request.noise or FixedPoint(request.label.bound, seat.group.size, request.word_bits)
        values = request.update if request.places is None else request.update[request.places]
        wanted = point.encode(values, factor=1.0, chance=entropy[_ROUNDING])
        covers = [(entropy[_COVER], False)] if request.is_covered else []
        masks = [(entropy[_SEED], False), *covers, *((seed, other < seat.place) for other, seed in edges.items())]
        add_all(wanted, [(pair.mask_key(seed, seat.label), takes_off) for seed, takes_off in masks])
        is_masked = np.array_equal(wanted, event.tensors["words"])
        self._hold(is_masked, step, f"{step.node} masked its words by other secrets than those it drew and shares")

    # What leaves -----------------------------------------------------------------------------------------

    def _left(self, step: Step, message: object) -> list[_Label]:
        """Search something that leaves a device. Returns the labels of which more is known now."""
        found: list[_Label] = []
        if isinstance(message, Update | UpdateShard) and message.group:
            view, place = self._places[step.node, step.job, message.term, message.group]
            view.seen.add(place)
            found.append(view)
            if isinstance(message, UpdateShard) and view.plan.believes.helper is not None:
                # An aggregator may know what the helper knows.
                is_covered = view.updates[place].request.is_covered
                self._hold(is_covered, step, f"{step.node} sent an aggregator words under the helper's mask only")
        if isinstance(message, Agreed) and isinstance(step.event, Received) and isinstance(step.event.message, Agree):
            self._agreed[step.node, step.job, message.term, message.group] = step.event.message.present
        if isinstance(message, Opened):
            view, _ = self._places[step.node, step.job, message.term, message.group]
            view.opened.add(self._agreed.get((step.node, step.job, message.term, message.group), b""))
            self._hold(len(view.opened) == 1, step, f"{step.node} opened another set under one label than others")
        if isinstance(message, MaskSum):
            digest, places = self._asked[step.job, message.term, message.group]
            if (label := self.labels.get(digest)) is not None:
                self._hold(not label.answers, step, f"{step.node} answered twice under one label")
                label.answers.append(places)
                found.append(label)
        for blob in _blobs(message, seals=self._searches_seals):
            told = list(self._search(blob))
            kind = type(message).__name__
            self._hold(not told or isinstance(message, Opened), step, f"{step.node} gave a secret away in {kind}")
            found += told
        return found

    def _search(self, blob: bytes) -> Iterator[_Label]:
        secrets = self._secrets
        for at in range(len(blob) - 15):
            for size in (16, 17):
                if (found := secrets.get(blob[at : at + size])) is not None:
                    view, owner, what, holder = found
                    if holder is None:
                        view.plain.add((owner, what))
                    else:
                        view.shares[owner, what].add(holder)
                    yield view

    # What must hold --------------------------------------------------------------------------------------

    def _check(self, step: Step, view: _Label) -> None:
        for piece in (pieces := list(view.readable())):
            what = self._problem(view, piece, self._summed)
            self._hold(not what, step, what)
            self.sums.add((id(view), piece))
        self._hold(len(pieces) < 2, step, f"{len(pieces)} sums can be read under one label")

    def finish(self) -> None:
        """Hold everything against coalitions too: random ones, and the neighbours of a victim."""
        for job, plan in self._plans.items():
            views = [view for view in self.labels.values() if view.job == job and view.updates]
            for liars in _coalitions(job, views):
                summed: dict[tuple[object, ...], tuple[int, frozenset[int]]] = {}
                for view in views:
                    bad = sum(name in liars for name in view.names)
                    if bad > view.liars:
                        continue
                    pieces = list(view.readable(liars))
                    problems = [self._problem(view, piece, summed, bad=bad) for piece in pieces]
                    what = next(filter(None, problems), f"{len(pieces)} sums can be read" if len(pieces) > 1 else "")
                    if what:
                        raise Violation(f"{what}, if {sorted(liars)} collude (trust = {plan.trust!r})")

    def _problem(
        self,
        view: _Label,
        piece: frozenset[int],
        summed: dict[tuple[object, ...], tuple[int, frozenset[int]]],
        *,
        bad: int = 0,
    ) -> str:
        """Return why a leader may not read this sum, or an empty text if it may."""
        least = max(2, view.floor - bad)
        updates = [view.updates[place] for place in sorted(piece)]
        names = [each.node for each in updates]
        if len(piece) < least:
            return f"a sum of {len(piece)} honest devices can be read, of at least {least}: {names}"
        if len({each.alike for each in updates}) > 1:
            return f"a sum of updates that were not trained or sealed alike can be read: {names}"
        for each in updates:
            request, trained = each.request, each.training
            most = request.label.weight_most
            if request.noise is None and view.plan.data == "local" and EXAMPLES_APART * trained.examples < most:
                return f"in a sum that can be read {each.node} has {trained.examples} examples beside {most}"
            first = self._firsts.get(view.job)
            if trained.version == 0 and first is not None and trained.model != first:
                return f"a sum can be read of updates of another first model than the signed one: {names}"
            keys: list[tuple[object, ...]] = [("update", view.job, each.node, each.term, each.lease)]
            if view.plan.data == "local":
                keys.append(("training", view.job, each.node, trained.model, trained.epoch, trained.turn))
            for key in keys:
                if summed.setdefault(key, (id(view), piece)) != (id(view), piece):
                    return f"the {key[0]} of {each.node}, lease {each.lease}, is in two sums that can be read"
        return ""

    @staticmethod
    def _hold(holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")


def _coalitions(job: str, views: Sequence[_Label]) -> Iterator[frozenset[str]]:
    """Yield some of the sets of members that the plan says may collude."""
    yield frozenset()
    draws = Rng(len(views)).stream(f"coalitions {job}")
    for _ in range(COALITIONS if views else 0):
        view = draws.pick(views)
        if not view.liars:
            continue
        left = list(view.names)
        yield frozenset(left.pop(draws.below(len(left))) for _ in range(min(view.liars, len(left) - 1)))
        # The neighbours that hide a device: first of the device that has the fewest such neighbours, then of any.
        weakest = min(view.updates, key=lambda place: len(view.hiding(place)))
        for victim in (weakest, draws.pick(sorted(view.updates))):
            yield frozenset(view.names[place] for place in view.hiding(victim)[: view.liars])


def _blobs(message: object, *, seals: bool) -> Iterator[bytes]:
    """Yield every byte string of a message, but not the words of updates."""
    if not dataclasses.is_dataclass(message):
        return
    for each in dataclasses.fields(message):
        value = getattr(message, each.name)
        if isinstance(value, bytes):
            yield value
        elif isinstance(value, str):
            yield value.encode()
        elif isinstance(value, Mapping):
            for name, array in value.items():
                if isinstance(array, np.ndarray) and name != "words" and (seals or name != "seals"):
                    yield array.tobytes()
        elif dataclasses.is_dataclass(value):
            yield from _blobs(value, seals=seals)
