"""The workers of a job as its leader knows them: who has work, who waits, who is slow and why. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from statistics import median

from shoal.wire.messages import WorkerView, clip

#: Workers listed in a progress report, those in trouble first.
VIEWS_MAX = 200

#: A worker that broke the contract this often gets no more leases.
VIOLATIONS_MAX = 3


@dataclass(slots=True)
class Member:
    node: str
    state: str = "ready"
    reason: str = ""
    since_s: float = 0.0
    #: (term, version) of the model it holds.
    holds: tuple[int, int] = (0, -1)
    #: The version its last merged update was made against.
    contributed_to: int = -1
    #: The last reason to wait it was sent.
    told: str = ""
    batches: int = 0
    failures: int = 0
    #: Its latest lease failed.
    is_failing: bool = False
    violations: int = 0
    #: What it was last refused for.
    offence: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))

    @property
    def left_out(self) -> bool:
        return self.violations >= VIOLATIONS_MAX

    @property
    def trouble(self) -> tuple[int, float]:
        """What people want to see first: those that fail, then those that are slow."""
        return self.failures + self.violations, self.durations_s[-1] if self.durations_s else 0.0

    def now(self, state: str, now_s: float, *, reason: str = "") -> None:
        self.state, self.reason, self.since_s = state, reason, now_s

    def view(self, *, typical_s: float) -> WorkerView:
        lease_s = median(self.durations_s) if self.durations_s else 0.0
        return WorkerView(
            node=self.node,
            state=self.state,
            reason=clip(self.reason, 200),
            batches=self.batches,
            lease_s=lease_s,
            slowness=lease_s / typical_s if typical_s and lease_s else 1.0,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            failures=self.failures + self.violations,
        )


class Crew:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        #: Those without a lease, in the order they became so: first ready, first served.
        self._idle: dict[str, None] = {}
        self._left_out = 0
        #: What those who went had done: leaving does not clear a record.
        self._offences: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def get(self, node: str) -> Member | None:
        return self._members.get(node)

    def add(self, node: str, now_s: float) -> Member:
        member = self._members[node] = Member(node=node, since_s=now_s)
        member.violations, member.offence = self._offences.pop(node, (0, ""))
        self._left_out += member.left_out
        return member

    def remove(self, node: str) -> None:
        member = self._members.pop(node)
        self._left_out -= member.left_out
        if member.violations:
            self._offences[node] = (member.violations, member.offence)
        self._idle.pop(node, None)

    @property
    def trusted(self) -> int:
        """Members that may have leases."""
        return len(self._members) - self._left_out

    def offended(self, member: Member, reason: str) -> None:
        """It broke the contract. Too often, and it is left out."""
        was_left_out = member.left_out
        member.violations += 1
        member.reason = member.offence = reason
        self._left_out += member.left_out - was_left_out

    def any_healthy(self) -> bool:
        """Someone is here who may train and whose latest lease did not fail."""
        return any(not (member.is_failing or member.left_out) for member in self._members.values())

    def nodes(self) -> list[str]:
        return sorted(self._members)

    def idle(self) -> Iterator[Member]:
        return (self._members[node] for node in list(self._idle))

    def is_idle(self, node: str) -> bool:
        return node in self._idle

    def make_idle(self, member: Member, now_s: float) -> None:
        member.now("ready", now_s)
        member.told = ""
        self._idle[member.node] = None

    def make_busy(self, member: Member, state: str, now_s: float, *, reason: str = "") -> None:
        member.now(state, now_s, reason=reason)
        self._idle.pop(member.node, None)

    def views(self, *, typical_s: float) -> tuple[WorkerView, ...]:
        members = [self._members[node] for node in sorted(self._members)]
        if len(members) > VIEWS_MAX:
            # Chosen before they are built: a thousand views would cost more than the leader's work.
            members = nlargest(VIEWS_MAX, members, key=lambda member: member.trouble)
        return tuple(member.view(typical_s=typical_s) for member in members)
