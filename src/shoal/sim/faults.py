"""Faults as values: a kind, the nodes that it hits and when.

A fault is valid once built. Whether its nodes exist depends on the number of workers: ``resolve`` checks that.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Literal

from shoal.errors import Misuse

#: As the length of a fault, and as the time until a node returns. In text: forever, never.
FOREVER = NEVER = math.inf

_WORKER = re.compile(r"w([1-9][0-9]{0,6})")


def _require(holds: bool, told: str) -> None:
    if not holds:
        raise Misuse(told)


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


# When --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtSecond:
    """A number of seconds after the run begins."""

    s: float

    def __post_init__(self) -> None:
        _require(0 <= self.s < math.inf, f"at is a number of seconds from 0, not {self.s:g}")


@dataclass(frozen=True, slots=True)
class AtRound:
    """When this version is made."""

    n: int

    def __post_init__(self) -> None:
        _require(self.n >= 1, f"the first version that is made is round(1): there is no round({self.n})")


@dataclass(frozen=True, slots=True)
class AtEpoch:
    """When this epoch begins; the first is 1."""

    n: int

    def __post_init__(self) -> None:
        _require(self.n >= 1, f"the first epoch is epoch(1): there is no epoch({self.n})")


When = AtSecond | AtRound | AtEpoch

START = AtSecond(0.0)


# Who ---------------------------------------------------------------------------------------------------


class NodeKind(StrEnum):
    """Nodes that are named by their role."""

    HOME = "home"
    #: Whichever node leads when the fault strikes: home, or a device. With several jobs, the first that is led.
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class AllWorkers:
    """From one number to another, both included: w3 is 3 to 3."""

    first: int
    last: int

    def __post_init__(self) -> None:
        _require(self.first >= 1, "workers are numbered from w1")
        _require(self.first <= self.last, f"a range counts up: w{self.last}..w{self.first}")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The first workers that make up this share. 1 means all of them."""

    share: float

    def __post_init__(self) -> None:
        _require(
            0 < self.share <= 1, f"a share of the workers is above 0% and at most 100%, not {_percent(self.share)}"
        )


Part = NodeKind | AllWorkers | WorkerShare


@dataclass(frozen=True, slots=True)
class Who:
    """Nodes, by name, range or share. A node that is named twice is hit once."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        _require(bool(self.parts), "a set names at least one node, like {w1, w2}")

    @property
    def has_home(self) -> bool:
        """Whether this includes home, or the leader, which may be there."""
        return any(isinstance(part, NodeKind) for part in self.parts)

    @property
    def has_workers(self) -> bool:
        return not all(isinstance(part, NodeKind) for part in self.parts)

    @property
    def has_all_workers(self) -> bool:
        return WorkerShare(1.0) in self.parts


HOME = Who((NodeKind.HOME,))
LEADER = Who((NodeKind.LEADER,))
ALL = Who((WorkerShare(1.0),))


def worker(number: int) -> Who:
    return Who((AllWorkers(number, number),))


def worker_number(name: str) -> int | None:
    """Return 3 for w3, or None for a name that is not a worker's."""
    found = _WORKER.fullmatch(name)
    return int(found[1]) if found else None


def resolve(who: Who, *, workers: int, leader: str = "home") -> tuple[str, ...]:
    """Return the names of these nodes in a run with this many workers: home first, then workers by number."""
    _require(workers >= 1, f"a run has at least one worker, not {workers}")
    has_home, numbers = False, set[int]()
    for part in who.parts:
        match part:
            case AllWorkers(first, last):
                _require(last <= workers, f"there is no w{last}: this run has {_count(workers)}")
                numbers.update(range(first, last + 1))
            case WorkerShare(share):
                # An exact fraction: 7% of 100 is 7, but floats make it a little more, and the ceiling 8.
                numbers.update(range(1, math.ceil(Fraction(str(share)) * workers) + 1))
            case NodeKind.LEADER if leader != NodeKind.HOME:
                number = worker_number(leader)
                if number is None or number > workers:
                    raise Misuse(f"{leader!r} cannot lead: this run has home and {_count(workers)}")
                numbers.add(number)
            case NodeKind():
                has_home = True
    return (*([str(NodeKind.HOME)] if has_home else []), *(f"w{number}" for number in sorted(numbers)))


def _count(workers: int) -> str:
    return "one worker, w1" if workers == 1 else f"{workers} workers, w1 to w{workers}"


# What --------------------------------------------------------------------------------------------------


class SaveFate(StrEnum):
    """What happens to an unfinished save when the power fails."""

    #: It is on the disk, though that was not reported.
    SAFE = "safe"
    #: It is lost, and the save before it is complete.
    LOST = "lost"
    #: A part of it is on the disk, under its final name.
    TORN = "torn"


@dataclass(frozen=True, kw_only=True, slots=True)
class _OneFault:
    """What every fault has: the nodes that it hits, and when."""

    who: Who
    at: When = START

    def __post_init__(self) -> None:
        kind = _KIND_OF[type(self)]
        why_not = NOT_OF_HOME.get(kind)
        _require(why_not is None or not self.who.has_home, f"{kind} is not for home or the leader: {why_not}")
        self._check()

    def _check(self) -> None:
        """Check the values of this kind of fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _LastingFault(_OneFault):
    """A fault that ends after a while, or never."""

    for_s: float = FOREVER

    def __post_init__(self) -> None:
        # Written so that a NaN, which compares with nothing, is refused too.
        _require(self.for_s > 0, f"for_s is a number of seconds above 0, or forever, not {self.for_s:g}")
        _OneFault.__post_init__(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crash(_OneFault):
    """The power fails without notice, and comes back after a while."""

    restart_s: float = 2.0
    disk: SaveFate = SaveFate.SAFE

    def _check(self) -> None:
        _returns("restart_s", self.restart_s)
        # For a worker the option would change nothing, and the author of the fault expects a change.
        _require(
            self.disk is SaveFate.SAFE or self.who.has_home,
            f"disk={self.disk} is what becomes of a save under way, and only home saves; crash home, or leave disk out",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart(_OneFault):
    """A node that is down starts; one that runs is killed and started again at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveFault(_OneFault):
    """A node says goodbye and leaves, and comes back after a while or never."""

    back_s: float = NEVER

    def _check(self) -> None:
        _returns("back_s", self.back_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop(_LastingFault):
    """The process freezes and then continues, as after SIGSTOP and SIGCONT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutFault(_OneFault):
    """The connection breaks once; both ends notice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionFault(_LastingFault):
    """These nodes reach one another but none of the others, without notice."""

    def _check(self) -> None:
        # Home may be on either side: {home, w1} cuts off all other workers.
        _require(
            not (self.who.has_home and self.who.has_all_workers),
            "partition of home and all workers has nobody on the other side; name one side only, like partition(all)",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow(_LastingFault):
    """Computing takes this many times as long."""

    factor: float

    def _check(self) -> None:
        _slows(self.factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowLink(_LastingFault):
    """Bytes take this many times as long, both ways."""

    factor: float

    def _check(self) -> None:
        _slows(self.factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delay(_LastingFault):
    """Every message takes this much longer."""

    extra_s: float

    def _check(self) -> None:
        _require(0 <= self.extra_s < math.inf, f"a delay is a number of seconds from 0, not {self.extra_s:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lose(_LastingFault):
    """This share of packets is lost; TCP sends them again, so that messages see it as delay."""

    share: float

    def _check(self) -> None:
        # If every packet is lost, sending again does not help.
        _require(
            0 <= self.share < 1,
            f"packet loss is from 0% to below 100%, not {_percent(self.share)}; for all of it say partition",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicate(_LastingFault):
    """This share of a worker's messages to its leader arrives a second time, late."""

    share: float

    def _check(self) -> None:
        _require(0 <= self.share <= 1, f"a share of messages is from 0% to 100%, not {_percent(self.share)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Skew(_OneFault):
    """The clock is ahead by this much from then on. It has no end, since the clock would have to go back."""

    ahead_s: float

    def _check(self) -> None:
        _require(math.isfinite(self.ahead_s), f"a clock is ahead by a number of seconds, not {self.ahead_s:g}")
        # Before the run nobody has read the clock, so there it may be behind.
        _require(
            self.ahead_s >= 0 or self.at == START,
            f"a monotonic clock does not go back, so skew {self.ahead_s:g} needs at=0; later it may only jump ahead",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail(_OneFault):
    """User code raises in the worker's current lease."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang(_OneFault):
    """User code hangs in the worker's current lease."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullDisk(_LastingFault):
    """Saves fail."""

    def _check(self) -> None:
        _require(not self.who.has_workers, "full_disk is for home: workers save nothing; say full_disk(home)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart(_LastingFault):
    """No two of these nodes reach each other, without notice; everyone else reaches them."""

    def _check(self) -> None:
        one = len(self.who.parts) == 1 and (isinstance(self.who.parts[0], NodeKind) or _is_one(self.who.parts[0]))
        _require(not one, "apart keeps nodes from one another: name at least two, like apart({w1, leader})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mute(_LastingFault):
    """Nothing that these nodes send arrives, without notice; what is sent to them does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deaf(_LastingFault):
    """Nothing that is sent to these nodes arrives, without notice; what they send does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferFault(_OneFault):
    """An operator asks that this node lead every job, or the best placed one if it is ``leader``."""

    def _check(self) -> None:
        part = self.who.parts[0]
        one = len(self.who.parts) == 1 and (isinstance(part, NodeKind) or _is_one(part))
        _require(one, "transfer is to one node: a worker, home, or leader for the node that is placed best")


def _is_one(part: Part) -> bool:
    return isinstance(part, AllWorkers) and part.first == part.last


Fault = (
    Crash
    | Restart
    | LeaveFault
    | Stop
    | CutFault
    | PartitionFault
    | Slow
    | SlowLink
    | Delay
    | Lose
    | Duplicate
    | Skew
    | Fail
    | Hang
    | FullDisk
    | Apart
    | TransferFault
    | Mute
    | Deaf
)

Kind = Literal[
    "crash",
    "restart",
    "leave",
    "stop",
    "cut",
    "partition",
    "slow",
    "slow_link",
    "delay",
    "lose",
    "duplicate",
    "skew",
    "fail",
    "hang",
    "full_disk",
    "apart",
    "transfer",
    "mute",
    "deaf",
]

#: What people call a fault -> what it is.
KINDS: dict[Kind, type[Fault]] = {
    "crash": Crash,
    "restart": Restart,
    "leave": LeaveFault,
    "stop": Stop,
    "cut": CutFault,
    "partition": PartitionFault,
    "slow": Slow,
    "slow_link": SlowLink,
    "delay": Delay,
    "lose": Lose,
    "duplicate": Duplicate,
    "skew": Skew,
    "fail": Fail,
    "hang": Hang,
    "full_disk": FullDisk,
    "apart": Apart,
    "transfer": TransferFault,
    "mute": Mute,
    "deaf": Deaf,
}

#: Faults that home, and therefore the leader, cannot have, and why.
NOT_OF_HOME: dict[Kind, str] = {
    "leave": "it is always on, and there is nobody it could say goodbye to; say crash or stop",
    "cut": "it has a connection to every worker; say whose breaks, like cut(w1) or cut(all)",
    "duplicate": "what is copied is what workers send to it; name workers",
    "fail": "no user code runs there; name workers",
    "hang": "no user code runs there; name workers",
}

_KIND_OF: dict[type, Kind] = {made: kind for kind, made in KINDS.items()}


def kind_of(fault: Fault) -> Kind:
    return _KIND_OF[type(fault)]


def known_kind(name: str) -> Kind:
    """Return the kind of this name. Raises Misuse with the closest one if there is none."""
    for kind in KINDS:
        if kind == name:
            return kind
    close = difflib.get_close_matches(name.lower(), KINDS, n=1)
    instead = f"did you mean {close[0]}?" if close else f"there is: {', '.join(KINDS)}"
    raise Misuse(f"there is no fault {name!r}; {instead}")


# Written so that a NaN, which compares with nothing, is refused too.


def _returns(name: str, after_s: float) -> None:
    _require(after_s >= 0, f"{name} is a number of seconds from 0, or never, not {after_s:g}")


def _slows(factor: float) -> None:
    _require(1 <= factor < math.inf, f"slower is 1x or more, not {factor:g}x")
