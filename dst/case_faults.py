"""The faults of a seed, in schedules that meet what the deployed roles find hard: dying leaders, cut cables, two
managers, aggregators, helpers, hubs. ``fault_draw`` draws the others."""

from __future__ import annotations

from dst.outage import Outage
from shoal.sim.faults import (
    ALL,
    LEADER,
    NEVER,
    AllWorkers,
    Apart,
    AtRound,
    AtSecond,
    Crash,
    CutFault,
    Deaf,
    Duplicate,
    Fault,
    LeaveFault,
    Mute,
    PartitionFault,
    Restart,
    SaveFate,
    Slow,
    SlowLink,
    Stop,
    TransferFault,
    When,
    Who,
    worker,
)
from shoal.sim.faults import (
    HOME as MANAGER,
)
from shoal.sim.rng import Stream

#: Faults begin within this time; then everyone is left in peace.
FAULTS_UNTIL_S = 30.0

#: Decisions of a leader after which a strike is worth a try.
_MOMENTS = (
    "job.started",
    "job.resumed",
    "device.joined",
    "epoch.done",
    "job.evaluated",
    "end.decided",
    "lease.expired",
    "worker.lost",
    "update.rejected",
    "lease.failed",
    "leader.resigned",
    # No records: a version is to be kept, and that it is done.
    "save",
    "end",
)


def of_managers(stream: Stream) -> tuple[Fault, ...]:
    """The manager with the most jobs dies or freezes, for about as long as it takes to lose its seat, or longer."""
    faults: list[Fault] = []
    for _ in range(stream.below(4)):
        at, for_s = AtSecond(stream.between(1.0, FAULTS_UNTIL_S)), stream.between(1.0, stream.pick((5.0, 15.0)))
        if stream.happens(0.5):
            faults.append(Stop(who=MANAGER, at=at, for_s=for_s))
        else:
            fate = stream.pick((SaveFate.SAFE, SaveFate.LOST))
            faults.append(Crash(who=MANAGER, at=at, restart_s=for_s, disk=fate))
    return tuple(faults)


def outages(stream: Stream) -> tuple[Outage, ...]:
    return tuple(
        Outage(
            at_s=stream.between(0.0, FAULTS_UNTIL_S),
            for_s=stream.between(0.2, stream.pick((2.0, 15.0))),
            slow_factor=stream.pick((0.0, 0.0, 5.0, 20.0)),
            is_cut=stream.happens(0.5),
        )
        for _ in range(stream.below(4))
    )


def read_only_spells(stream: Stream) -> tuple[Outage, ...]:
    """A database that is failed over, or whose disk is full, answers and takes no write: for less time than a silence
    lasts, or for more."""
    if not stream.happens(0.5):
        return ()
    return tuple(
        Outage(
            at_s=stream.between(2.0, FAULTS_UNTIL_S),
            for_s=stream.pick((1.0, 3.0, 7.0, 20.0)) * stream.between(0.8, 1.2),
            is_read_only=True,
        )
        for _ in range(1 + stream.below(2))
    )


def drains(stream: Stream) -> tuple[Outage, ...]:
    """An operator takes a manager out of service, and brings it back; at times the other one after it."""
    if not stream.happens(0.4):
        return ()
    return tuple(
        Outage(
            at_s=stream.between(2.0, FAULTS_UNTIL_S), for_s=stream.between(0.5, stream.pick((4.0, 25.0))), is_drain=True
        )
        for _ in range(1 + stream.below(3))
    )


def failovers(stream: Stream) -> tuple[Outage, ...]:
    """A failover to a replica that lags: by less than a renewal of a seat, by seconds, or by most of the story."""
    if not stream.happens(0.35):
        return ()
    at_s = stream.between(4.0, FAULTS_UNTIL_S)
    back_s = min(stream.pick((0.3, 2.0, 6.0, 15.0)) * stream.between(0.7, 1.3), at_s - 1.0)
    return (Outage(at_s=at_s, for_s=stream.between(0.1, 4.0), back_s=back_s),)


def draw_strike(stream: Stream, *, prefers_devices: bool) -> tuple[str, str]:
    """What is waited for, and who is struck then. What a leader elsewhere says to the manager is often what is lost:
    a version, or its last word."""
    if prefers_devices and stream.happens(0.3):
        if stream.happens(0.4):
            return "store", stream.pick(("line", "leader"))
        return stream.pick(("end", "leader.resigned")), stream.pick(("line", "lines", "home"))
    if stream.happens(0.1):
        return "told", "lines"
    if stream.happens(0.1):
        # What is lost with a failed save counts most when it is one of the last.
        return stream.pick(("save", "job.evaluated", "end.decided")), "disk"
    if not stream.happens(0.35):
        return "", ""
    return stream.pick(_MOMENTS), stream.pick(("home", "leader", "both", "line")) if prefers_devices else "home"


def of_leaders(stream: Stream, workers: int, *, prefers_devices: bool) -> tuple[Fault, ...]:
    """What befalls a leader that is not at home: it is moved, lost, cut off from the manager or from a worker."""
    if not stream.happens(0.6 if prefers_devices else 0.15):
        return ()
    faults: list[Fault] = []
    for _ in range(1 + stream.below(3)):
        at: When = AtRound(1 + stream.below(12)) if stream.happens(0.6) else AtSecond(stream.between(2.0, 25.0))
        faults += of_a_leader(stream, workers, at)
    return tuple(faults)


def of_a_leader(stream: Stream, workers: int, at: When) -> tuple[Fault, ...]:
    anyone, for_s = worker(1 + stream.below(workers)), stream.between(0.5, stream.pick((4.0, 12.0, 20.0)))
    fate, restart_s = stream.pick(list(SaveFate)), stream.between(0.2, 4.0)
    choices: tuple[tuple[Fault, ...], ...] = (
        (TransferFault(who=anyone, at=at),),
        (TransferFault(who=MANAGER, at=at),),
        (TransferFault(who=LEADER, at=at),),
        # There and back again, the second while the first is under way.
        (TransferFault(who=anyone, at=at), TransferFault(who=LEADER, at=at)),
        (Crash(who=LEADER, at=at, restart_s=for_s),),
        (Restart(who=LEADER, at=at),),
        (Stop(who=LEADER, at=at, for_s=for_s),),
        (PartitionFault(who=LEADER, at=at, for_s=for_s),),
        # Its workers reach it and the manager does not, or hears others only.
        (Apart(who=Who((*MANAGER.parts, *LEADER.parts)), at=at, for_s=for_s),),
        (PartitionFault(who=MANAGER, at=at, for_s=for_s),),
        (Apart(who=Who((*LEADER.parts, *anyone.parts)), at=at, for_s=for_s),),
        (Apart(who=ALL, at=at, for_s=for_s),),
        # The manager restarts while a device leads, alone or with its leader.
        (Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate),),
        (Crash(who=LEADER, at=at, restart_s=for_s), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (TransferFault(who=anyone, at=at), Crash(who=MANAGER, at=at, restart_s=restart_s, disk=fate)),
        (TransferFault(who=anyone, at=at), Crash(who=anyone, at=at, restart_s=for_s)),
    )
    return stream.pick(choices)


def cuts(stream: Stream, workers: int, *, prefers_devices: bool) -> tuple[Fault, ...]:
    """The manager's cable: cut from everyone, from some, or carrying one way only; for seconds, minutes or an hour."""
    if not stream.happens(0.3 if prefers_devices else 0.08):
        return ()
    at: When = AtRound(1 + stream.below(8)) if stream.happens(0.7) else AtSecond(stream.between(3.0, 20.0))
    for_s = 3600.0 if stream.happens(0.04) else stream.pick((5.0, 12.0, 90.0, 90.0))
    # Home, and the workers that still reach it: none, a few, most.
    with_home = [worker(1 + stream.below(workers)) for _ in range(stream.pick((0, 1, 1, 2, workers - 1)))]
    some = Who((*MANAGER.parts, *(part for who in with_home for part in who.parts)))
    choices: tuple[Fault, ...] = (
        PartitionFault(who=MANAGER, at=at, for_s=for_s),
        PartitionFault(who=some, at=at, for_s=for_s),
        PartitionFault(who=some, at=at, for_s=for_s),
        Mute(who=MANAGER, at=at, for_s=for_s),
        Deaf(who=MANAGER, at=at, for_s=for_s),
    )
    cut = stream.pick(choices)
    if not stream.happens(0.25):
        return (cut,)
    # What is known of the two sides does not survive a restart by itself.
    again = Crash(who=MANAGER, at=at, restart_s=stream.between(0.2, min(for_s, 20.0)), disk=stream.pick(list(SaveFate)))
    return cut, again


def of_formations(stream: Stream, workers: int) -> tuple[Fault, ...]:
    """What befalls devices that speak to one another: two that do not reach each other, one that is slow or gone while
    the others wait for it, words that come twice."""
    faults: list[Fault] = []
    for _ in range(stream.below(4)):
        at: When = AtRound(1 + stream.below(10)) if stream.happens(0.5) else AtSecond(stream.between(3.0, 25.0))
        one, other = (worker(1 + stream.below(workers)) for _ in range(2))
        for_s = stream.between(0.5, stream.pick((3.0, 12.0, 20.0)))
        choices: tuple[Fault, ...] = (
            Apart(who=Who((*one.parts, *other.parts)), at=at, for_s=for_s),
            Apart(who=Who((*one.parts, *other.parts, *LEADER.parts)), at=at, for_s=for_s),
            Crash(who=one, at=at, restart_s=for_s),
            Restart(who=one, at=at),
            Stop(who=one, at=at, for_s=for_s),
            SlowLink(who=one, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            Slow(who=one, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            LeaveFault(who=one, at=at, back_s=for_s),
            CutFault(who=one, at=at),
            Duplicate(who=ALL, share=stream.pick((0.2, 0.8)), at=at, for_s=for_s),
        )
        chosen = stream.pick(choices)
        if not isinstance(chosen, Apart) or one != other:
            faults.append(chosen)
    return tuple(faults)


def copies_across_terms(stream: Stream) -> tuple[Fault, ...]:
    """Sometimes a leader dies early, and what it was told comes again while its successor lends the same numbers."""
    if not stream.happens(0.1):
        return ()
    copies = Duplicate(who=ALL, share=0.7, for_s=25.0)
    return copies, Crash(who=LEADER, at=AtRound(1 + stream.below(3)), restart_s=stream.between(0.2, 2.0))


def for_long(stream: Stream, workers: int) -> tuple[Fault, ...]:
    """Sometimes a device is away for so long that its place is taken, and knows nothing of it when it is back."""
    if not stream.happens(0.25):
        return ()
    # The first workers are the ones that have work.
    who, at = worker(1 + stream.below(min(3, workers))), AtSecond(stream.between(4.0, 12.0))
    for_s = stream.between(9.0, 20.0)
    fates: tuple[Fault, ...] = PartitionFault(who=who, at=at, for_s=for_s), Stop(who=who, at=at, for_s=for_s)
    return (stream.pick(fates),)


def for_good(stream: Stream, workers: int, *, spare: int) -> tuple[Fault, ...]:
    """Sometimes a device that can be spared does not come back: by power, by its owner, behind a wall, or frozen."""
    if spare < 1 or not stream.happens(0.35):
        return ()
    who, at = worker(1 + stream.below(workers)), AtSecond(stream.between(1.0, FAULTS_UNTIL_S))
    fates: tuple[Fault, ...] = (
        Crash(who=who, at=at, restart_s=NEVER),
        LeaveFault(who=who, at=at),
        PartitionFault(who=who, at=at),
        Stop(who=who, at=at),
    )
    if stream.happens(0.6):
        return (stream.pick(fates),)
    # It leads, and at times the manager that knows it goes with it.
    start_s = stream.between(3.0, 12.0)
    last = AtSecond(start_s + stream.between(1.0, 6.0))
    lost: tuple[Fault, ...] = TransferFault(who=who, at=AtSecond(start_s)), Crash(who=who, at=last, restart_s=NEVER)
    return lost if stream.happens(0.5) else (*lost, Crash(who=MANAGER, at=last, restart_s=stream.between(0.2, 3.0)))


def of_a_helper(stream: Stream, number: int) -> tuple[Fault, ...]:
    """What befalls the node that opens sums: it dies, freezes, is cut off from its leader or from everyone, or slow."""
    faults: list[Fault] = []
    who = worker(number)
    for _ in range(stream.below(6)):
        at: When = AtRound(1 + stream.below(6)) if stream.happens(0.6) else AtSecond(stream.between(2.0, 15.0))
        for_s = stream.between(0.2, stream.pick((2.0, 12.0)))
        choices: tuple[Fault, ...] = (
            Crash(who=who, at=at, restart_s=for_s),
            Restart(who=who, at=at),
            Stop(who=who, at=at, for_s=for_s),
            PartitionFault(who=who, at=at, for_s=for_s),
            Apart(who=Who((*who.parts, *LEADER.parts)), at=at, for_s=for_s),
            CutFault(who=who, at=at),
            LeaveFault(who=who, at=at, back_s=for_s),
            Slow(who=who, factor=stream.pick((4.0, 400.0)), at=at, for_s=for_s),
            TransferFault(who=who, at=at),
            Duplicate(who=who, share=0.7, at=at, for_s=for_s),
        )
        faults.append(stream.pick(choices))
    return tuple(faults)


def of_hubs(stream: Stream, workers: int, hubs: int) -> tuple[Fault, ...]:
    """What befalls hubs: they come late, die at a delicate moment, are silent or slow, or are not reached by a worker
    or by the leader; at times all of them at once, for good."""
    faults: list[Fault] = []
    for number in range(workers + 1, workers + hubs + 1):
        if stream.happens(0.3):
            faults.append(Crash(who=worker(number), at=AtSecond(0.01), restart_s=stream.between(3.0, 20.0)))
    for _ in range(stream.below(5)):
        at: When = AtRound(1 + stream.below(12)) if stream.happens(0.6) else AtSecond(stream.between(3.0, 25.0))
        hub, other = worker(workers + 1 + stream.below(hubs)), worker(1 + stream.below(workers))
        every = Who((AllWorkers(workers + 1, workers + hubs),))
        for_s = stream.between(0.5, stream.pick((3.0, 12.0, 20.0)))
        choices: tuple[Fault, ...] = (
            Crash(who=hub, at=at, restart_s=stream.pick((for_s, for_s, NEVER))),
            Crash(who=every, at=at, restart_s=stream.pick((for_s, NEVER))),
            Restart(who=hub, at=at),
            Stop(who=hub, at=at, for_s=for_s),
            PartitionFault(who=hub, at=at, for_s=for_s),
            Apart(who=Who((*hub.parts, *other.parts)), at=at, for_s=for_s),
            Apart(who=Who((*hub.parts, *LEADER.parts)), at=at, for_s=for_s),
            SlowLink(who=hub, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            Slow(who=hub, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            LeaveFault(who=hub, at=at, back_s=stream.pick((for_s, NEVER))),
            CutFault(who=hub, at=at),
            TransferFault(who=hub, at=at),
        )
        faults.append(stream.pick(choices))
    return tuple(faults)


def of_browsers(stream: Stream, before: int, tabs: int) -> tuple[Fault, ...]:
    """What befalls tabs: a person closes one and comes back, or not; the browser freezes one in the background; the
    phone changes its network."""
    faults: list[Fault] = []
    for number in range(before + 1, before + tabs + 1):
        who = worker(number)
        for _ in range(stream.below(4)):
            at, for_s = AtSecond(stream.between(2.0, FAULTS_UNTIL_S)), stream.between(0.5, stream.pick((3.0, 15.0)))
            choices: tuple[Fault, ...] = (
                Crash(who=who, at=at, restart_s=stream.pick((for_s, for_s, NEVER))),
                LeaveFault(who=who, at=at, back_s=stream.pick((for_s, NEVER))),
                Stop(who=who, at=at, for_s=for_s),
                CutFault(who=who, at=at),
                PartitionFault(who=who, at=at, for_s=for_s),
                Slow(who=who, factor=stream.pick((4.0, 40.0)), at=at, for_s=for_s),
            )
            faults.append(stream.pick(choices))
    return tuple(faults)
