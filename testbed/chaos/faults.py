"""What a soak does to a cluster and how it counts: faults drawn from a seed, and who was alive when. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.sim.rng import Stream

MANAGER = "manager"
#: Whoever leads when the fault strikes, and whoever does so in part.
LEADER = "leader"
SUB_LEADER = "aggregator"

KILL_AGENT = "kill agent"
STOP = "stop"
KILL_TRAINER = "kill trainer"
SEGFAULT = "segfault trainer"
HANG = "hang in task"
LINK_DOWN = "link down"
KILL_MANAGER = "kill manager"
KILL_LEADER = "kill leader"
KILL_SUB_LEADER = "kill aggregator"
FULL_DISK = "full disk"
SLOW_LINK = "slow link"
CHURN = "churn"
#: Of one of two managers, and of the database that both use.
STOP_MANAGER = "stop manager"
CUT_MANAGER = "cut manager from database"
KILL_DATABASE = "kill database"

#: Kind -> how long it lasts, from and to. For one that is killed: until it is started again, as a service would be.
LASTS_S: dict[str, tuple[float, float]] = {
    KILL_AGENT: (2.0, 4.0),
    STOP: (2.0, 15.0),
    KILL_TRAINER: (0.0, 0.0),
    SEGFAULT: (0.0, 0.0),
    HANG: (0.0, 0.0),
    LINK_DOWN: (5.0, 15.0),
    KILL_MANAGER: (1.0, 1.0),
    KILL_LEADER: (2.0, 4.0),
    KILL_SUB_LEADER: (2.0, 4.0),
    FULL_DISK: (4.0, 8.0),
    SLOW_LINK: (5.0, 15.0),
    CHURN: (2.0, 4.0),
    # Longer than a seat lasts: the other manager takes over.
    STOP_MANAGER: (10.0, 15.0),
    CUT_MANAGER: (10.0, 15.0),
    KILL_DATABASE: (2.0, 2.0),
}
ON_WORKERS = (KILL_AGENT, STOP, KILL_TRAINER, SEGFAULT, HANG, LINK_DOWN)
#: Whose victim is a device that is drawn.
ON_DEVICES = (*ON_WORKERS, SLOW_LINK, CHURN)
#: Those after which the agent is another process.
DEADLY = (KILL_AGENT, CHURN)
#: Those in which a device is away.
OUTAGES = (KILL_AGENT, STOP, LINK_DOWN, KILL_SUB_LEADER, CHURN)
#: With a leader on a device, any of those may strike the one that leads; and it is killed as often as the manager.
WITH_LEADER = (KILL_LEADER, *ON_WORKERS[:3], KILL_MANAGER, *ON_WORKERS[3:], FULL_DISK)
#: Where the manager's node leads, killing it is both, and counts twice.
WITH_MANAGER = (KILL_MANAGER, *ON_WORKERS[:3], KILL_MANAGER, *ON_WORKERS[3:], FULL_DISK)
#: All that there is, for one manager; and for two, whose checkpoints are in a bucket and not on a disk.
WITH_ONE_MANAGER = (*WITH_LEADER, SLOW_LINK, CHURN)
WITH_TWO_MANAGERS = (KILL_LEADER, *ON_DEVICES, KILL_MANAGER, STOP_MANAGER, CUT_MANAGER, KILL_DATABASE)

#: After a fault a device has this long to come back before it is struck again.
_SPARED_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    #: After the soak began.
    at_s: float
    kind: str
    victim: str
    for_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A device, or the manager, was down, frozen or cut off."""

    who: str
    from_s: float
    to_s: float


def draw_faults(
    chance: Stream,
    *,
    kinds: Sequence[str],
    devices: Sequence[str],
    every_s: float,
    span_s: float,
    brief: bool = False,
    spared: str = "",
) -> list[Fault]:
    """One every so often. Each kind has its turn before any comes again, and so has each device that is not down.

    ``spared``: a device that is hurt like the others and never killed, so that its agent lives long.
    """
    kind_deck, device_deck = _deck(chance, kinds), _deck(chance, devices)
    spared_until_s = dict.fromkeys(devices, 0.0)
    faults: list[Fault] = []
    for number in range(max(1, int(span_s / every_s + 1e-9))):
        at_s = number * every_s
        kind = next(kind_deck)
        low_s, high_s = LASTS_S[kind]
        for_s = chance.between(low_s, min(high_s, low_s + 2.0) if brief else high_s)
        victim = {KILL_LEADER: LEADER, KILL_SUB_LEADER: SUB_LEADER}.get(kind, MANAGER)
        if kind in ON_DEVICES:
            # Somebody is always free in a cluster of some size; in a small one the next in the deck is struck again.
            tried = [next(device_deck) for _ in devices]
            tried = [device for device in tried if device != spared or kind not in DEADLY] or tried
            victim = next((device for device in tried if spared_until_s[device] <= at_s), tried[0])
            spared_until_s[victim] = at_s + for_s + _SPARED_S
        faults.append(Fault(at_s=at_s, kind=kind, victim=victim, for_s=for_s))
    return faults


def _deck(chance: Stream, cards: Sequence[str]) -> Iterator[str]:
    """All of them in some order, then all of them in another."""
    while True:
        left = list(cards)
        while left:
            yield left.pop(chance.below(len(left)))


# Who was alive ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A time in which nobody's state changed."""

    from_s: float
    to_s: float
    alive: tuple[str, ...]

    @property
    def device_s(self) -> float:
        return len(self.alive) * (self.to_s - self.from_s)


def stretches(
    outages: Sequence[Outage], *, devices: Sequence[str], from_s: float, to_s: float, leads: bool = True
) -> list[Stretch]:
    """Who was alive when. Without a manager that ``leads`` nobody is: there is no work to be had."""
    edges = {from_s, to_s} | {edge for outage in outages for edge in (outage.from_s, outage.to_s)}
    times = sorted(edge for edge in edges if from_s <= edge <= to_s)
    found: list[Stretch] = []
    for low, high in itertools.pairwise(times):
        down = {outage.who for outage in outages if outage.from_s <= low and high <= outage.to_s}
        alive = () if MANAGER in down and leads else tuple(device for device in devices if device not in down)
        found.append(Stretch(from_s=low, to_s=high, alive=alive))
    return found


def alive_device_s(outages: Sequence[Outage], *, devices: Sequence[str], from_s: float, to_s: float) -> float:
    return sum(stretch.device_s for stretch in stretches(outages, devices=devices, from_s=from_s, to_s=to_s))


def at_their_pace(found: Sequence[Stretch], *, paces_s: Mapping[str, float], overhead_s: float) -> float:
    """Batches that a synchronous leader applies in these stretches: rounds last as long as the slowest one alive.

    Stricter than a rate per device: while the slowest is away, the others are expected to be quicker.
    """
    return sum(
        stretch.device_s / (max(paces_s[device] for device in stretch.alive) + overhead_s)
        for stretch in found
        if stretch.alive
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
