"""Random schedules of faults, the same for the same stream. Knows nothing of the world they will strike.

Everything drawn ends by itself, so that a job can finish: who crashes or leaves comes back, what lasts is over within
ENDS_WITHIN_S. A clock that jumped stays ahead; that is no hindrance.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import Misuse
from shoal.sim.faults import (
    ALL,
    HOME,
    KINDS,
    LEADER,
    NOT_OF_HOME,
    START,
    AllWorkers,
    Apart,
    AtEpoch,
    AtRound,
    AtSecond,
    Crash,
    CutFault,
    Deaf,
    Delay,
    Duplicate,
    Fail,
    Fault,
    FullDisk,
    Hang,
    Kind,
    LeaveFault,
    Lose,
    Mute,
    PartitionFault,
    Restart,
    SaveFate,
    Skew,
    Slow,
    SlowLink,
    Stop,
    TransferFault,
    When,
    Who,
    WorkerShare,
    known_kind,
    worker,
)
from shoal.sim.rng import Stream

#: No fault lasts longer, and nobody stays away longer.
ENDS_WITHIN_S = 20.0

#: Faults of a cluster lie this close: a second one meets the recovery from the first.
CLUSTER_S = 2.0
_CLUSTER_MAX = 4

#: A batch that fails four times fails the job, rightly. A schedule stays below, whichever batches it meets.
_FAILURES_MAX = 3
_FAILURES: tuple[Kind, ...] = ("fail", "hang")

#: Later rounds and epochs than these are not reached by every run.
_ROUND_MAX = 30
_EPOCH_MAX = 3


#: What is drawn for one node or another. Cables that carry one way only are drawn as cuts, with what follows them.
_DRAWN: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in ("mute", "deaf"))


def draw(
    stream: Stream, *, workers: int, until_s: float, count: int, kinds: Sequence[str] | None = None
) -> tuple[Fault, ...]:
    """So many faults: those at seconds, by ``until_s``, in order; then those at early rounds; then at early epochs.

    Without ``kinds``, some schedules are of all kinds, others of one or two. At most three faults are of fail and hang,
    unless ``kinds`` has nothing else: then a job may rightly fail.
    """
    if workers < 1 or count < 0 or not 0 <= until_s < float("inf"):
        raise Misuse(f"no faults can be drawn for {workers} workers, {count} faults, until {until_s} s")
    chosen = _chosen(stream) if kinds is None else [known_kind(kind) for kind in kinds]
    if not chosen:
        raise Misuse("kinds names at least one kind of fault; leave it out for any")
    others = [kind for kind in chosen if kind not in _FAILURES]
    is_clustered = stream.happens(0.5)
    faults: list[Fault] = []
    failures = 0
    while len(faults) < count:
        size = min(2 + stream.below(_CLUSTER_MAX - 1) if is_clustered else 1, count - len(faults))
        target = _one(stream, workers)
        for at in _times(stream, size, until_s):
            kind = stream.pick(chosen if failures < _FAILURES_MAX or not others else others)
            failures += kind in _FAILURES
            faults.append(_fault(stream, kind, target, at, workers))
            target = target if is_clustered and stream.happens(0.6) else _one(stream, workers)
    return tuple(sorted(faults, key=_order))


def _chosen(stream: Stream) -> list[Kind]:
    """All kinds see how faults meet; one or two, again and again, see what wears out."""
    if stream.happens(0.5):
        return list(_DRAWN)
    few = [stream.pick(list(_DRAWN)) for _ in range(1 + stream.below(2))]
    if all(kind in _FAILURES for kind in few):
        # Of these there are three at most, and the others have to be of some kind.
        few[1:] = [stream.pick([kind for kind in _DRAWN if kind not in _FAILURES])]
    return few


def _order(fault: Fault) -> tuple[int, float]:
    match fault.at:
        case AtSecond(s):
            return 0, s
        case AtRound(n):
            return 1, n
        case AtEpoch(n):
            return 2, n


# When --------------------------------------------------------------------------------------------------


def _times(stream: Stream, size: int, until_s: float) -> list[When]:
    """Times close to one another."""
    rng = stream.random()
    if rng < 0.05:
        return [AtEpoch(1 + stream.below(_EPOCH_MAX))] * size
    if rng < 0.3:
        # The same round, or the next: how long a round takes is not known here.
        first = 1 + stream.below(_ROUND_MAX - 1)
        return [AtRound(first + stream.below(2)) for _ in range(size)]
    within_s = min(CLUSTER_S, until_s)
    first_s = stream.between(0.0, until_s - within_s)
    # Rounding must not carry one past the end.
    return [AtSecond(min(until_s, _hundredths(first_s + stream.between(0.0, within_s)))) for _ in range(size)]


def _hundredths(seconds: float) -> float:
    """A schedule that found something is read by people."""
    return round(seconds, 2)


def _span_s(stream: Stream) -> float:
    """Mostly a few seconds, on either side of what membership bears."""
    longest_s = stream.pick((1.0, 5.0, 10.0, ENDS_WITHIN_S))
    return _hundredths(stream.between(0.1, longest_s))


# Who ---------------------------------------------------------------------------------------------------


def _one(stream: Stream, workers: int) -> Who:
    """One node: home often, since most is lost with it."""
    return stream.pick((HOME, LEADER)) if stream.happens(0.35) else _worker(stream, workers)


def _worker(stream: Stream, workers: int) -> Who:
    return worker(1 + stream.below(workers))


def _some_workers(stream: Stream, workers: int) -> Who:
    first, second = sorted((1 + stream.below(workers), 1 + stream.below(workers)))
    choices = (
        Who((AllWorkers(first, first), AllWorkers(second, second))),
        Who((AllWorkers(first, second),)),
        Who((WorkerShare(stream.pick((0.1, 0.3, 0.5, 0.9))),)),
        ALL,
    )
    return stream.pick(choices)


def _whom(stream: Stream, kind: Kind, target: Who, workers: int) -> Who:
    """The target if it can have this fault, or else a node that can; at times several at once."""
    if kind == "full_disk":
        return target if target.has_home else stream.pick((HOME, LEADER))
    # One by one: several failures at once would count against one batch.
    if kind not in _FAILURES and stream.happens(0.2):
        return _some_workers(stream, workers)
    if kind in NOT_OF_HOME and target.has_home:
        return _worker(stream, workers)
    return target


# What --------------------------------------------------------------------------------------------------


def _fault(stream: Stream, kind: Kind, target: Who, at: When, workers: int) -> Fault:
    who = _whom(stream, kind, target, workers)
    match kind:
        case "crash":
            disk = stream.pick(list(SaveFate)) if who.has_home else SaveFate.SAFE
            return Crash(who=who, at=at, restart_s=_span_s(stream), disk=disk)
        case "restart":
            return Restart(who=who, at=at)
        case "leave":
            return LeaveFault(who=who, at=at, back_s=_span_s(stream))
        case "stop":
            return Stop(who=who, at=at, for_s=_span_s(stream))
        case "cut":
            return CutFault(who=who, at=at)
        case "partition":
            return _partition(stream, who, at, workers)
        case "slow":
            return Slow(who=who, factor=_factor(stream), at=at, for_s=_span_s(stream))
        case "slow_link":
            return SlowLink(who=who, factor=_factor(stream), at=at, for_s=_span_s(stream))
        case "delay":
            return Delay(who=who, extra_s=_hundredths(stream.between(0.01, 2.0)), at=at, for_s=_span_s(stream))
        case "lose":
            return Lose(who=who, share=_hundredths(stream.between(0.01, 0.3)), at=at, for_s=_span_s(stream))
        case "duplicate":
            return Duplicate(who=who, share=_hundredths(stream.between(0.01, 1.0)), at=at, for_s=_span_s(stream))
        case "skew":
            return _skew(stream, who, at)
        case "fail":
            return Fail(who=who, at=at)
        case "hang":
            return Hang(who=who, at=at)
        case "full_disk":
            return FullDisk(who=who, at=at, for_s=_span_s(stream))
        case "apart":
            return Apart(who=_some_apart(stream, workers), at=at, for_s=_span_s(stream))
        case "transfer":
            return TransferFault(who=target, at=at)
        case "mute":
            return Mute(who=who, at=at, for_s=_span_s(stream))
        case "deaf":
            return Deaf(who=who, at=at, for_s=_span_s(stream))


def _partition(stream: Stream, who: Who, at: When, workers: int) -> Fault:
    """Home alone cuts off everyone; home with a worker leaves that one its way."""
    if who.has_home and workers > 1 and stream.happens(0.5):
        who = Who((*who.parts, *_worker(stream, workers).parts))
    return PartitionFault(who=who, at=at, for_s=_span_s(stream))


def _some_apart(stream: Stream, workers: int) -> Who:
    """A worker and its leader, the leader and home, or devices that reach home alone."""
    leader, home = LEADER.parts, HOME.parts
    choices = (
        Who((*_worker(stream, workers).parts, *leader)),
        Who((*home, *leader)),
        Who((*_worker(stream, workers).parts, *_worker(stream, workers).parts, *leader)),
        ALL,
    )
    return stream.pick(choices)


def _skew(stream: Stream, who: Who, at: When) -> Fault:
    ahead_s = _hundredths(stream.between(0.1, stream.pick((2.0, 90.0))))
    if stream.happens(0.5):
        return Skew(who=who, ahead_s=ahead_s, at=at)
    return Skew(who=who, ahead_s=ahead_s if stream.happens(0.5) else -ahead_s, at=START)


def _factor(stream: Stream) -> float:
    return float(2 + stream.below(stream.pick((3, 15))))
