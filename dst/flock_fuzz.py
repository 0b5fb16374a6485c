"""A disaster of a flock, drawn from a seed, and the invariants that must hold. A seed that fails replays.

Checked: every version is, on paper, the exact weighted mean of the updates it names, all made from one model; no
peer that was there throughout is missing; all living peers end with the same last version; and it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dst.flock_world import FlockWorld, SimulatedPeer, toy_update
from shoal.flock.peer import Version, digest_of
from shoal.flock.settings import FlockSettings
from shoal.plan import Plan, Until
from shoal.roles.actions import Action
from shoal.roles.events import Condition, Felt
from shoal.sim.invariants import Violation
from shoal.sim.jobs import bare_spec
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady
from shoal.sim.rng import Rng, Stream
from shoal.wire.messages import Command, Message, ModelTransfer, PartialSum, Request

SIZE = 3000
LIMIT_S = 1500.0
EVENTS_MAX = 60_000
#: A mean of float32 values through up to eight hops.
TOLERANCE = 1e-5

FAULTS = ("kill", "partition", "pause", "busy", "fail", "hang", "slow", "ambush")

#: Moments at which a peer is killed in mid-sentence, by the message that is sent then.
MOMENTS: dict[str, type[Message]] = {
    "merging": PartialSum,
    "asking": Request,
    "giving": ModelTransfer,
    "calling": Command,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mishap:
    kind: str
    who: tuple[str, ...]
    at_s: float
    #: How long it lasts; a kill: until it is started again, and 0: never.
    for_s: float = 0.0
    #: An ambush: at which message, at which one of them, and which end of it is killed.
    moment: str = ""
    count: int = 0
    end: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlockFuzzCase:
    seed: int
    peers: tuple[SimulatedPeer, ...]
    settings: FlockSettings
    mishaps: tuple[Mishap, ...]
    #: The peers begin with different models.
    differ: bool


def flock_fuzz_case(seed: int) -> FlockFuzzCase:
    stream = Rng(seed).stream("flock")
    count = 2 + stream.below(6)
    names = [f"m{number}" for number in range(count)]
    peers = tuple(
        SimulatedPeer(
            node=name,
            line=AccessLink(
                up=Steady(stream.lognormal(60_000.0, 0.8)),
                down=Steady(stream.lognormal(60_000.0, 0.8)),
                latency_s=stream.between(0.0005, 0.05),
                jitter_s=stream.between(0.0, 0.02),
                loss=stream.pick((0.0, 0.0, 0.05)),
            ),
            examples=1 + stream.below(500),
            train_s=stream.lognormal(2.0, 0.7),
        )
        for name in names
    )
    settings = FlockSettings(
        rounds=1 + stream.below(4), devices=count, patience_s=stream.pick((6.0, 20.0)), train_max_s=60.0
    )
    mishaps = tuple(_mishap(stream, names) for _ in range(stream.below(4)))
    # A majority stays, so that the flock can end.
    for_good: list[str] = []
    kept: list[Mishap] = []
    for each in mishaps:
        if each.kind in ("kill", "ambush") and not each.for_s:
            if 2 * (len(for_good) + 1) >= count:
                kept.append(replace(each, for_s=3.0))
                continue
            for_good.append(each.who[0])
        kept.append(each)
    return FlockFuzzCase(seed=seed, peers=peers, settings=settings, mishaps=tuple(kept), differ=stream.happens(0.2))


def _mishap(stream: Stream, names: list[str]) -> Mishap:
    kind = stream.pick(FAULTS)
    who = tuple(name for name in names if stream.happens(0.4)) if kind == "partition" else (stream.pick(names),)
    lasts_s = stream.between(0.5, 25.0)
    if kind in ("kill", "ambush") and stream.happens(0.5):
        lasts_s = 0.0
    return Mishap(
        kind=kind,
        who=who or (names[0],),
        at_s=stream.between(3.0, 40.0),
        for_s=lasts_s,
        moment=stream.pick(tuple(MOMENTS)),
        count=1 + stream.below(6),
        end=stream.pick(("sender", "receiver")),
    )


@dataclass(slots=True)
class _Paper:
    """Computes every version again, on paper."""

    examples: dict[str, int]
    #: Versions that were made, by hash.
    known: dict[str, Version] = field(default_factory=dict)
    #: Peers that no fault befalls.
    there: set[str] = field(default_factory=set)

    def handled(self, world: FlockWorld, node: str, before: Version, actions: list[Action]) -> None:
        device = world.devices[node]
        if device.role is None:
            return
        self.known.setdefault(before.digest, before)
        now = device.role.version
        if now is before:
            return
        if digest_of(now.model) != now.digest:
            raise Violation(f"{node} holds version {now.number} under a hash that is not its own")
        if now.digest in self.known:
            return
        of = now.of
        if now.number != before.number + 1 or now.made_of != len(of) or not of:
            raise Violation(f"{node} made version {now.number} of version {before.number} and {of}")
        weights = np.array([self.examples[name] for name in of], np.float64)
        updates = np.stack([toy_update(name, before.digest, before.model.size) for name in of]).astype(np.float64)
        expected = before.model.astype(np.float64) + weights @ updates / weights.sum()
        worst = float(np.abs(expected - now.model).max())
        if not worst <= TOLERANCE:
            raise Violation(
                f"version {now.number} by {node} of {', '.join(of)} is off its weighted mean by {worst:.3g}"
            )
        followed = device.role.coordinator
        coordinator = world.devices[followed].role if followed is not None else None
        left_out = coordinator.left_out if coordinator is not None else frozenset(world.devices)
        missing = [name for name in sorted(self.there) if name not in of and name not in left_out]
        if missing:
            raise Violation(f"version {now.number} by {node} of {', '.join(of)} lacks {', '.join(missing)}")
        self.known[now.digest] = now


class FlockFuzzRun:
    """One disaster, set up and ready to run."""

    def __init__(self, what: FlockFuzzCase) -> None:
        self.what = what
        self.paper = _Paper({each.node: each.examples for each in what.peers})
        firsts = {}
        if what.differ:
            firsts = {each.node: toy_update(each.node, "first", SIZE) for each in what.peers}
        plan = Plan(data="local", until=Until(epochs=what.settings.rounds))
        self.world = FlockWorld(
            list(what.peers),
            spec=bare_spec("flock", plan, examples=0, test_examples=100),
            settings=what.settings,
            size=SIZE,
            seed=what.seed,
            watcher=self.paper,
            firsts=firsts,
        )
        self._unhurt = {each.node for each in what.peers}
        # A partition has two sides, and either may go on: then no peer is expected to be there throughout.
        if any(each.kind in ("partition", "pause", "slow") for each in what.mishaps):
            self._unhurt.clear()
        self.paper.there = self._unhurt
        for mishap in what.mishaps:
            self._arrange(mishap)

    def _arrange(self, mishap: Mishap) -> None:
        if mishap.kind == "ambush":
            self.world.overhear.append(_TargetedFault(self, mishap))
            return
        self.world.kernel.at(mishap.at_s, self._befall, mishap)

    def _befall(self, mishap: Mishap) -> None:
        world, who = self.world, mishap.who[0]
        device = world.devices[who]
        match mishap.kind:
            case "kill":
                self.strike(who, mishap.for_s)
            case "partition":
                cut = world.network.partition(mishap.who)
                world.kernel.after(mishap.for_s, cut.heal)
            case "pause":
                process = device.process
                process.stop()
                world.kernel.after(mishap.for_s, process.go_on)
            case "busy":
                world.post(who, Felt(condition=Condition(in_use=0.9)))
                world.kernel.after(mishap.for_s, world.post, who, Felt(condition=Condition(in_use=0.1)))
            case "fail" | "hang":
                self._unhurt.discard(who)
                device.troubles.append(mishap.kind)
            case "slow":
                world.network.slow_link(who, 20.0)
                world.kernel.after(mishap.for_s, world.network.slow_link, who, 1.0)

    def strike(self, who: str, for_s: float) -> None:
        if self.world.devices[who].ended:
            return
        self._unhurt.discard(who)
        self.world.kill(who)
        if for_s:
            self.world.kernel.after(for_s, self._again, who)

    def _again(self, who: str) -> None:
        device = self.world.devices[who]
        if not device.process.alive and not device.ended:
            self.world.start(who)

    def run(self) -> None:
        world = self.world
        began: Callable[[], bool] = self._is_over
        if not world.kernel.run(began, limit_s=LIMIT_S, events_max=EVENTS_MAX):
            raise Violation(
                f"not over after {world.kernel.now_s:.0f} s and {world.kernel.handled} events: {self._told()}"
            )
        if not any(device.ended for device in world.devices.values()):
            return
        ends = {name: device.saved for name, device in world.devices.items() if device.ended}
        last = {version.digest for version in ends.values() if version is not None and version.number > 0}
        numbers = {version.number for version in ends.values() if version is not None}
        # Two halves that do not hear each other both go on; so does a peer that comes back too late.
        splits = [each for each in self.what.mishaps if each.kind in ("partition", "pause", "kill", "ambush")]
        halves = 2 if any(each.for_s for each in splits) else 1
        if not 1 <= len(last) <= halves or numbers != {self.what.settings.rounds}:
            raise Violation(f"they end with {len(last)} models, of versions {sorted(numbers)}: {self._told()}")

    def _is_over(self) -> bool:
        """All that run have ended, and enough of them that the rest cannot be waited for."""
        devices = self.world.devices
        left = [name for name, each in devices.items() if each.process.alive]
        if not any(each.ended for each in devices.values()):
            return self._never_began(left)
        # A peer that returns after the others ended may find less than half of them, and waits.
        return all(name not in self._unhurt and self._waits(name) for name in left)

    def _never_began(self, left: list[str]) -> bool:
        """A peer was lost for good before the first round, and the others wait for it, as their settings say."""
        is_late = self.world.kernel.now_s > LIMIT_S / 2
        return is_late and len(left) < self.what.settings.devices and not any(self.world.role(n).term for n in left)

    def _waits(self, name: str) -> bool:
        role = self.world.role(name)
        follows = self.world.devices[role.coordinator] if role.coordinator else None
        return (
            not role.coordinator
            or role.is_halted
            or (follows is not None and follows.role is not None and follows.role.is_halted)
        )

    def _told(self) -> str:
        told = []
        for name, device in self.world.devices.items():
            if device.role is None:
                told.append(f"{name} {'ended' if device.ended is not None else 'dead'}")
                continue
            each = device.role.status()
            told.append(
                f"{name} v{each.version} {each.phase} round {each.round} of {len(each.of)} term {each.term}"
                f" {each.coordinator} heard {each.heard} took {each.took}"
            )
        return "; ".join(told)


class _TargetedFault:
    """Kills one of two peers while the n-th message of a kind is on its way between them."""

    def __init__(self, case: FlockFuzzRun, mishap: Mishap) -> None:
        self._case = case
        self._mishap = mishap
        self._seen = 0

    def __call__(self, sender: str, receiver: str, message: Message) -> None:
        if type(message) is not MOMENTS[self._mishap.moment]:
            return
        self._seen += 1
        if self._seen != self._mishap.count:
            return
        struck = sender if self._mishap.end == "sender" else receiver
        # In the midst of it: a large message is on its way for a while.
        self._case.world.kernel.after(0.01, self._case.strike, struck, self._mishap.for_s)


def fuzz_flock(seed: int) -> None:
    """Play one seed."""
    FlockFuzzRun(flock_fuzz_case(seed)).run()
