"""The workers of a job as its leader records them: which work, wait or are slow, and why. A part of the leader.

Hubs are workers that sum up for others and train nothing. They have a table of their own, so that whatever counts or
lists workers or leases to them cannot meet one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush, nsmallest
from itertools import islice
from statistics import median
from types import MappingProxyType

from shoal.roles.leader.recurring import Recurring
from shoal.roles.machine import Machine
from shoal.scheduling.sampling import drawn
from shoal.states import WorkerState
from shoal.wire.messages import DeviceState, Failed, Wait, WorkerView, clip

#: Workers listed in a progress report, those in trouble first.
VIEWS_MAX = 200

#: Among more workers than that, those to list are chosen this often: it means looking at every worker.
CHOOSE_EVERY_S = 2.0

#: A worker without work for longer than this is told why.
BORED_AFTER_S = 1.0

#: It is told again this much later at the earliest, if the reason is another; and only so many are at one time.
WAIT_EVERY_S = 10.0
TOLD_AGAIN_MAX = 200

#: A worker that broke the contract this often gets no further lease.
VIOLATIONS_MAX = 3

#: A worker that could not prepare the job this often in a row is let go, so that other jobs get it. If the task's code
#: raised, the next attempt will most likely fail too; a connection or a disk may need a minute.
PREPARE_TRIES = 3
FETCH_TRIES = 6

#: No worker is weighed down.
NOBODY: Mapping[str, str] = MappingProxyType({})

#: The shown pace of a worker is the median of so many leases.
LATELY = 3


@dataclass(slots=True)
class WorkerRecord:
    node: str
    #: It sums up for others and holds no lease.
    is_hub: bool = False
    state: WorkerState = WorkerState.READY
    reason: str | None = None
    since_s: float = 0.0
    #: (term, version) of the model it holds.
    holds: tuple[int, int] = (0, -1)
    #: The version its last merged update was made against.
    contributed_to: int = -1
    #: The last reason to wait it was sent.
    told: str | None = None
    batches: int = 0
    failures: int = 0
    #: Its latest lease failed.
    is_failing: bool = False
    #: How often in a row it could not prepare the job.
    unprepared: int = 0
    violations: int = 0
    #: How many of them were unusual updates since the last that was merged: one that is merged makes up for these.
    unusual: int = 0
    #: The last reason for which its update was refused.
    offence: str | None = None
    #: Why it gets no lease of this job, whatever it did; None: it is not set aside.
    set_aside: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    #: It came too late so often in a row that it is waited for this many times as long.
    stretch: float = 1.0
    #: How long its trainer trained for these leases.
    trainings_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    #: The rates of its link as it told them; 0: not known.
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    medium: str = ""
    #: With local data: how the device was when it last said so; and it gets no lease before this.
    device: DeviceState | None = None
    not_before_s: float = 0.0

    @property
    def left_out(self) -> bool:
        return self.violations >= VIOLATIONS_MAX or self.set_aside is not None

    @property
    def why_left_out(self) -> str:
        return self.set_aside or f"left out after {self.violations} refused updates: {self.offence}"

    @property
    def place_in_report(self) -> tuple[int, float, str]:
        """People want to see first the workers that fail, then the slow ones, else in the order of names."""
        lease_s = self.durations_s[-1] if self.durations_s else 0.0
        return -self.failures - self.violations, -lease_s, self.node

    def view(self, *, typical_s: float, weighed_down: str | None = None) -> WorkerView:
        lease_s = lately_s(self.durations_s)
        return WorkerView(
            node=self.node,
            state=self.state.value,
            reason=clip(self.reason if self.left_out and self.reason else weighed_down or self.reason or "", 200),
            batches=self.batches,
            lease_s=lease_s,
            slowness=lease_s / typical_s if typical_s and lease_s else 1.0,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            failures=self.failures + self.violations,
            train_s=lately_s(self.trainings_s),
        )


def lately_s(times_s: Sequence[float]) -> float:
    """How long something takes now: the median of the last few, so that it follows when a device is slowed down."""
    return median(list(times_s)[-LATELY:]) if times_s else 0.0


class _Line:
    """Nodes in the order of their turns. One that steps out and in again stands where it stood."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        #: A heap. Entries of nodes that stepped out are dropped at the front, or when they are most of it.
        self._heap: list[tuple[int, str]] = []

    def add(self, node: str, turn: int) -> None:
        if node in self._turns:
            return
        self._turns[node] = turn
        heappush(self._heap, (turn, node))
        if len(self._heap) > 2 * len(self._turns) + 64:
            self._heap = sorted((turn, node) for node, turn in self._turns.items())

    def remove(self, node: str) -> None:
        turn = self._turns.pop(node, None)
        if self._heap and self._heap[-1] == (turn, node):
            # It came last and goes first, as a node that is given work at once.
            self._heap.pop()

    def nodes(self) -> Iterable[str]:
        return self._turns

    def first(self) -> str | None:
        while self._heap:
            turn, node = self._heap[0]
            if self._turns.get(node) == turn:
                return node
            heappop(self._heap)
        return None


class Workers:
    def __init__(self, machine: Machine, *, job: str) -> None:
        self._machine = machine
        self._job = job
        self._members: dict[str, WorkerRecord] = {}
        self._hubs: dict[str, WorkerRecord] = {}
        #: Workers without a lease, in the order they became so, and their turn: first ready, first served.
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._last_turn = 0
        #: Each idle worker is in the line for work, or rests until the version moves, or is left out. Workers that are
        #: left out are kept until ``take_outcasts``.
        self._line = _Line()
        self._resting: dict[str, None] = {}
        self._outcasts: dict[str, None] = {}
        #: Idle workers that were not told why, the longest first; and those that were, by when.
        self._untold: OrderedDict[str, None] = OrderedDict()
        self._told_s: OrderedDict[str, float] = OrderedDict()
        #: Workers and hubs that are silent, or whose session broke.
        self.suspects: set[str] = set()
        #: Nodes that the manager wants back, and why. They get no further lease.
        self.leaving: dict[str, str] = {}
        #: Those of them that could not prepare the job: why, and whether the task's code raised.
        self.unprepared: dict[str, tuple[str, bool]] = {}
        self.recurring = Recurring()
        self._left_out = 0
        #: The offences of workers that went, and why they were set aside: leaving does not clear a record.
        self._offences: dict[str, tuple[int, str | None, str | None]] = {}
        self._chosen: list[str] = []
        self._chosen_s = -CHOOSE_EVERY_S

    def __len__(self) -> int:
        return len(self._members)

    def get(self, node: str) -> WorkerRecord | None:
        """Return the worker of this name, or None for a hub or a stranger."""
        return self._members.get(node)

    def find(self, node: str) -> WorkerRecord | None:
        """Return the worker or hub of this name, or None for a stranger."""
        return self._members.get(node) or self._hubs.get(node)

    def hubs(self) -> list[WorkerRecord]:
        return [self._hubs[node] for node in sorted(self._hubs)]

    def add(self, node: str, *, is_hub: bool = False) -> WorkerRecord:
        member = WorkerRecord(node=node, is_hub=is_hub, since_s=self._machine.now_s)
        member.violations, member.offence, member.set_aside = self._offences.pop(node, (0, None, None))
        if is_hub:
            self._hubs[node] = member
        else:
            self._members[node] = member
            self._left_out += member.left_out
        return member

    def remove(self, node: str) -> None:
        if (member := self._hubs.pop(node, None)) is not None:
            self.suspects.discard(node)
        else:
            member = self._members.pop(node)
            self.recurring.on_back(node, now_s=self._machine.now_s)
            self._left_out -= member.left_out
            self._not_idle(node)
        if member.violations or member.set_aside is not None:
            self._offences[node] = (member.violations, member.offence, member.set_aside)

    @property
    def trusted(self) -> int:
        """Members that may have leases."""
        return len(self._members) - self._left_out

    def on_violation(self, member: WorkerRecord, reason: str, *, is_unusual: bool = False) -> None:
        """A worker broke the contract. Too often, and it is left out."""
        was_left_out = member.left_out
        member.violations += 1
        member.unusual += is_unusual
        member.reason = member.offence = reason
        self._left_out += member.left_out - was_left_out

    def on_merged(self, member: WorkerRecord) -> None:
        """An update of this worker was merged. A few unusual updates before it were chance."""
        was_left_out = member.left_out
        member.violations, member.unusual = member.violations - member.unusual, 0
        self._left_out += member.left_out - was_left_out

    def set_aside(self, node: str, reason: str) -> None:
        """Lease nothing more to this worker and have it sum up nothing, whether it is here or not."""
        if (hub := self._hubs.get(node)) is not None:
            hub.set_aside = reason
            return
        member = self._members.get(node)
        if member is None:
            violations, offence, _ = self._offences.get(node, (0, None, None))
            self._offences[node] = (violations, offence, reason)
            return
        self._left_out += not member.left_out
        member.reason = member.set_aside = reason
        if node in self._idle:
            self._line.remove(node)
            self._resting.pop(node, None)
            self._outcasts[node] = None

    def any_healthy(self) -> bool:
        """A worker is here that may train and whose latest lease did not fail."""
        return any(not (member.is_failing or member.left_out) for member in self._members.values())

    def at_work(self) -> tuple[str, ...]:
        """Workers that train or are ready to, by name: not those that fail, are late, or never asked for work."""
        return tuple(
            node
            for node, member in sorted(self._members.items())
            if not member.left_out and (node in self._idle or member.state.may_hold_lease)
        )

    def nodes(self) -> list[str]:
        return sorted(self._members)

    def able(self) -> list[WorkerRecord]:
        """Workers that may have leases, by name."""
        return [self._members[node] for node in sorted(self._members) if not self._members[node].left_out]

    # Workers that fail -------------------------------------------------------------------------------------

    def on_preparation_failed(self, member: WorkerRecord, failed: Failed) -> None:
        """A worker could not prepare the job. After some attempts it is let go."""
        self.make_busy(member, WorkerState.FAILING, reason=failed.reason)
        member.unprepared += 1
        by_task = bool(failed.traceback)
        if member.unprepared >= (PREPARE_TRIES if by_task else FETCH_TRIES):
            self.leaving[member.node] = f"could not prepare the job {member.unprepared} times: {failed.reason}"
            self.unprepared[member.node] = (failed.reason, by_task)

    def on_lease_failed(self, member: WorkerRecord, failed: Failed) -> None:
        self.make_busy(member, WorkerState.FAILING, reason=failed.reason)
        by_task, able = bool(failed.traceback), [each.node for each in self.able()]
        self.recurring.on_failed(member.node, failed.reason, by_task=by_task, able=able, now_s=self._machine.now_s)

    def trouble(self) -> str:
        """What is wrong with the training as a whole; empty if nothing is."""
        return self.recurring.told(self._members, now_s=self._machine.now_s)

    def why_hopeless(self) -> str | None:
        """Return why the job has to fail because leases fail on every worker, or None."""
        return self.recurring.fatal(self._members, now_s=self._machine.now_s)

    # Workers without work -----------------------------------------------------------------------------------

    def idle(self) -> Iterator[WorkerRecord]:
        return (self._members[node] for node in self._idle)

    def is_idle(self, node: str) -> bool:
        return node in self._idle

    def set_state(self, member: WorkerRecord, state: WorkerState, *, reason: str | None = None) -> None:
        member.state, member.reason, member.since_s = state, reason, self._machine.now_s

    def make_idle(self, member: WorkerRecord) -> None:
        node = member.node
        member.unprepared = 0
        if self.unprepared.pop(node, None) is not None:
            # It prepared the job before it could be let go.
            self.leaving.pop(node, None)
        self.recurring.on_back(node, now_s=self._machine.now_s)
        self.set_state(member, WorkerState.READY)
        member.told = None
        turn = self._idle.get(node)
        if turn is None:
            turn = self._idle[node] = self._last_turn = self._last_turn + 1
        else:
            self._resting.pop(node, None)
            self._untold.pop(node, None)
            self._told_s.pop(node, None)
        self._untold[node] = None
        if member.left_out:
            self._outcasts[node] = None
        else:
            self._line.add(node, turn)

    def make_busy(self, member: WorkerRecord, state: WorkerState, *, reason: str | None = None) -> None:
        self.set_state(member, state, reason=reason)
        self._not_idle(member.node)

    def _not_idle(self, node: str) -> None:
        if self._idle.pop(node, None) is None:
            return
        self._line.remove(node)
        self._untold.pop(node, None)
        for others in (self._resting, self._outcasts, self._told_s):
            others.pop(node, None)

    def first_in_line(self) -> WorkerRecord | None:
        """The worker that waits for work longest, of those that may have it."""
        node = self._line.first()
        return None if node is None else self._members[node]

    def draw(
        self, count: int, *, seed: int, version: int, share_of: Callable[[WorkerRecord], float]
    ) -> list[WorkerRecord]:
        """Draw workers for a version from those that may have work."""
        chosen = drawn(
            self._line.nodes(), count, seed=seed, version=version, share_of=lambda node: share_of(self._members[node])
        )
        return [self._members[node] for node in chosen]

    @property
    def in_line(self) -> list[WorkerRecord]:
        """The workers that may have work."""
        return [self._members[node] for node in self._line.nodes()]

    def rest(self, member: WorkerRecord) -> None:
        """A worker may not start yet: it is passed over until ``release``."""
        if member.node in self._idle:
            self._line.remove(member.node)
            self._resting[member.node] = None

    def park(self, member: WorkerRecord) -> None:
        """A worker was told when to ask again: it is passed over until it does."""
        if member.node in self._idle:
            self._line.remove(member.node)
            self._untold.pop(member.node, None)
            self._told_s.pop(member.node, None)

    def release(self) -> None:
        """Resting workers may have their turn: the version moved, or other work is lent now."""
        for node in self._resting:
            self._line.add(node, self._idle[node])
        self._resting.clear()

    def take_outcasts(self) -> list[WorkerRecord]:
        """Workers that are left out and became idle since the last call."""
        outcasts = [self._members[node] for node in self._outcasts]
        self._outcasts.clear()
        return outcasts

    def tell(self, member: WorkerRecord, reason: str, *, retry_after_s: float | None = None) -> None:
        """Tell a worker why it gets no work: once a reason; each time, where it is told when to ask again."""
        member.state, member.reason = WorkerState.WAITING, reason
        if member.told == reason and not retry_after_s:
            return
        member.told = reason
        if retry_after_s:
            self._machine.send(member.node, Wait(job=self._job, reason=clip(reason), retry_after_s=retry_after_s))
            return
        self._machine.send(member.node, _wait(self._job, reason))

    def expect_nothing(self, reason: str) -> None:
        """No lease counts any more: what its holder trains is of no use. It says so, or is ready; until then nothing is
        awaited of it."""
        for node in sorted(self._members):
            member = self._members[node]
            if node not in self._idle and member.state.may_hold_lease:
                self.set_state(member, WorkerState.LATE, reason=reason)

    # What people see -----------------------------------------------------------------------------------

    def bored(self) -> list[WorkerRecord]:
        """Workers whose reason to wait is shown. Of many, those that have waited longest."""
        now_s = self._machine.now_s
        first = (self._members[node] for node in islice(self._idle, VIEWS_MAX))
        return [member for member in first if now_s - member.since_s > BORED_AFTER_S and not member.left_out]

    def take_untold(self) -> list[WorkerRecord]:
        """Workers to be told why they wait: soon after they became idle, and then now and then."""
        now_s = self._machine.now_s
        due: list[WorkerRecord] = []
        while self._untold:
            member = self._members[next(iter(self._untold))]
            if now_s - member.since_s <= BORED_AFTER_S:
                break
            del self._untold[member.node]
            if not member.left_out:
                due.append(member)
        again = islice(self._told_s.items(), TOLD_AGAIN_MAX)
        due += [self._members[node] for node, told_s in again if now_s - told_s >= WAIT_EVERY_S]
        for member in due:
            self._told_s[member.node] = now_s
            self._told_s.move_to_end(member.node)
        return due

    def views(self, weighed_down: Mapping[str, str] = NOBODY, *, typical_s: float) -> tuple[WorkerView, ...]:
        """Every worker by name; of many, those in trouble first. ``weighed_down``: why some counted for little."""
        chosen = sorted(self._members) if len(self._members) <= VIEWS_MAX else self._choose()
        members = (self._members.get(node) for node in chosen)
        here = [member for member in members if member is not None]
        return tuple(member.view(typical_s=typical_s, weighed_down=weighed_down.get(member.node)) for member in here)

    def _choose(self) -> list[str]:
        now_s = self._machine.now_s
        if not 0 <= now_s - self._chosen_s < CHOOSE_EVERY_S or not self._chosen:
            # Chosen before they are built: a thousand views would cost more than the leader's work.
            worst = nsmallest(VIEWS_MAX, self._members.values(), key=lambda member: member.place_in_report)
            self._chosen = [member.node for member in worst]
            self._chosen_s = now_s
        return self._chosen


@lru_cache(maxsize=4)
def _wait(job: str, reason: str) -> Wait:
    """The same reason for many workers is one message."""
    return Wait(job=job, reason=clip(reason))
