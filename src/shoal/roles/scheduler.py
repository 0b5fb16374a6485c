"""The scheduler: lends out the executors of one cluster, its pool. Knows neither what numbers mean nor who is right.

It measures its executors, says what they can together, gives tasks to whoever should be done with them first, and gives
a task to another as well when it takes too long or its executor is lost. At most one result of a task is passed on.
That one was wrong is for an analyst to find: it says who was caught, and the scheduler asks that one no more.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import PeerViolation
from shoal.offload.kinds import check_inputs, check_result, digest_of, result_bytes, right_bytes
from shoal.roles.actions import Action, Record, Send, SetTimer
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    Liveness,
    MemberHeld,
    PeerChanged,
    Received,
    TimerFired,
)
from shoal.roles.lenders import SLOTS, Issued, Lender
from shoal.wire.limits import (
    RIGHT_MAX_BYTES,
    RIGHTS_HELD_MAX_BYTES,
    TASK_MAX_BYTES,
    TASKS_HELD_MAX_BYTES,
)
from shoal.wire.messages import (
    AskPool,
    Caught,
    Forget,
    Lend,
    LenderView,
    NeedRight,
    Pool,
    Result,
    Right,
    Task,
    clip,
    with_tensors,
)

#: Another is given a task too when it took so many times what it should: the staleness of the thesis (§3.3).
STALE_FACTOR = 4.0
STALE_LEAST_S = 1.0

#: How often an analyst hears at most what the pool can, and how much it must have changed.
ADVERTISE_EVERY_S = 1.0
ADVERTISE_CHANGE = 0.2

#: Tasks an analyst may have here for each executor that would be given them, and beyond.
WINDOW_EACH = SLOTS + 1
WINDOW_MORE = 2

#: Groups whose executors are remembered: the rest of one may come long after its first.
GROUPS_MAX = 4096

#: An analyst that sends more than this many times what it was told is refused.
WINDOW_SLACK = 2


@dataclass(slots=True)
class _Open:
    """A task that is not done."""

    analyst: str
    #: With its tensors, in memory of its own.
    task: Task
    ends_s: float
    #: Executors that were given it, and why not again.
    given: dict[str, str] = field(default_factory=dict)
    #: Issues that may still be answered.
    live: int = 0
    is_queued: bool = True

    @property
    def multiply_adds(self) -> int:
        return self.task.rows * self.task.inner * self.task.columns

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.task.tensors.values())

    @property
    def moved_bytes(self) -> int:
        """There and back."""
        return self.size_bytes + result_bytes(self.task.kind, self.task.rows, self.task.columns)


@dataclass(slots=True)
class _Analyst:
    told: Pool | None = None
    told_s: float = 0.0
    #: Right sides that it was asked for and has not sent.
    asked: set[str] = field(default_factory=set)


class Scheduler:
    def __init__(self, *, held: Mapping[str, str] | None = None) -> None:
        """``held``: members that an operator holds back, and how."""
        self._held = dict(held or {})
        self._lenders: dict[str, Lender] = {}
        self._analysts: dict[str, _Analyst] = {}
        #: Number -> task, in the order they came.
        self._tasks: dict[int, _Open] = {}
        #: (analyst, group) -> who was given a task of it.
        self._groups: dict[tuple[str, int], set[str]] = {}
        self._rights: OrderedDict[str, np.ndarray] = OrderedDict()
        self._numbers = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Received():
                actions = self._received(event, now_s)
            case Connected():
                actions = self._connected(event.node, now_s)
            case Disconnected() if event.node in self._analysts:
                actions = self._analyst_gone(event.node)
            case Disconnected():
                actions = self._lost(event.node, event.reason)
            case PeerChanged(state=Liveness.LOST):
                actions = self._lost(event.node, event.reason)
            case MemberHeld():
                actions = self._on_held(event)
            case TimerFired(name="look"):
                actions = self._look(now_s)
            case TimerFired(name="advertise"):
                actions = []
            case _:
                return []
        return [*actions, *self._dispatch(now_s), *self._advertise(now_s), *self._wake(now_s)]

    def views(self) -> tuple[LenderView, ...]:
        """For ``shoal status``. Read by another thread: it must not change anything."""
        lenders = dict(self._lenders)
        return tuple(lenders[node].view() for node in sorted(lenders))

    def result_limit(self, node: str, issue: int) -> int:
        """The most bytes of tensors that this executor may send for this."""
        lender = self._lenders.get(node)
        issued = lender.issued.get(issue) if lender else None
        if lender is None or not 0 < issue <= self._numbers:
            return 0
        if issued is None:
            # Of an earlier session: it was asked for, and is taken and dropped.
            return TASK_MAX_BYTES
        opened = self._tasks.get(issued.task)
        # The task may be done by now, by another: what comes is taken and dropped, as it was asked for.
        return result_bytes(opened.task.kind, opened.task.rows, opened.task.columns) if opened else TASK_MAX_BYTES

    def awaits_result(self, node: str, issue: int) -> bool:
        """Whether this result is of use. One of an earlier session is not, nor one that another was quicker with."""
        lender = self._lenders.get(node)
        issued = lender.issued.get(issue) if lender else None
        return issued is not None and not issued.is_over and issued.task in self._tasks

    def _received(self, event: Received, now_s: float) -> list[Action]:
        sender, message = event.sender, event.message
        match message:
            case AskPool():
                self._analysts[sender] = _Analyst()
                what_for = f": {clip(message.purpose)}" if message.purpose else ""
                return [Record(kind="borrows", reason=f"{sender} asks for products{what_for}")]
            case Task():
                return self._on_task(sender, message, now_s)
            case Right():
                return self._on_right(sender, message)
            case Caught():
                return self._on_caught(sender, message)
            case Forget():
                over = [n for n, t in self._tasks.items() if t.analyst == sender and t.task.task <= message.upto]
                for number in over:
                    self._close(number)
                return []
            case Lend():
                lender = self._lenders.get(sender)
                measure = lender.lent(message, now_s) if lender else None
                return [Send(to=sender, message=measure)] if measure is not None else []
            case NeedRight():
                return self._needs(sender, message.right)
            case Result():
                return self._on_result(sender, message, now_s)
            case _:
                return []

    # Executors ------------------------------------------------------------------------------------------

    def _connected(self, node: str, now_s: float) -> list[Action]:
        lender = self._lenders.setdefault(node, Lender(node))
        lender.hold = self._held.get(node, "")
        self._give_back(node, lender.disconnected("connected again"))
        return [Send(to=node, message=lender.connected(now_s))]

    def _lost(self, node: str, reason: str) -> list[Action]:
        lender = self._lenders.get(node)
        if lender is None or not lender.is_connected:
            return []
        left = lender.disconnected(reason)
        told: list[Action] = []
        if any(issued.task in self._tasks for issued in left):
            told = [Record(kind="reissued", reason=f"{node} is lost with {len(left)} tasks: {reason}")]
        self._give_back(node, left)
        return told

    def _give_back(self, node: str, left: list[Issued]) -> None:
        for issued in left:
            opened = self._tasks.get(issued.task)
            if opened is not None and not issued.is_over:
                opened.live -= 1
                opened.is_queued = opened.is_queued or not opened.live
                # It did nothing with it that anyone saw: if it comes again it may have it again.
                opened.given.pop(node, None)
                self._groups.get((opened.analyst, opened.task.group), set()).discard(node)
            issued.is_over = True

    def _on_held(self, event: MemberHeld) -> list[Action]:
        was = self._held.pop(event.node, "")
        if event.hold:
            self._held[event.node] = event.hold
        lender = self._lenders.get(event.node)
        if lender is None:
            return []
        lender.hold = event.hold
        if was == "drained" and not event.hold and lender.excluded:
            # An operator took it out and put it back: that is meant.
            lender.excluded = ""
            return [Record(kind="readmitted", reason=f"{event.node} may be given tasks again: undrained")]
        return []

    def _on_caught(self, analyst: str, caught: Caught) -> list[Action]:
        lender = self._lenders.setdefault(caught.executor, Lender(caught.executor))
        if lender.excluded:
            return []
        who = analyst.partition("/")[0]
        lender.caught += 1
        lender.excluded = f"caught by {who}: {caught.reason}"
        told = Record(
            kind="caught", reason=f"{caught.executor} gave a wrong result and is asked no more: {caught.reason}"
        )
        # What it has now is given to others; what it answers to that counts for nothing.
        self._give_back(lender.node, list(lender.issued.values()))
        return [told]

    # Tasks ----------------------------------------------------------------------------------------------

    def _on_task(self, analyst: str, task: Task, now_s: float) -> list[Action]:
        why_not = self._why_not(analyst, task)
        if why_not:
            return [_refusal(analyst, task, why_not)]
        # The memory it came in is used again for the next.
        owned: Task = with_tensors(task, {name: np.array(array) for name, array in task.tensors.items()})
        self._numbers += 1
        self._tasks[self._numbers] = _Open(analyst, owned, now_s + task.deadline_s)
        return []

    def _why_not(self, analyst: str, task: Task) -> str:
        known = self._analysts.get(analyst)
        if known is None:
            return "ask for the pool first"
        sides = {"rows": task.rows, "inner": task.inner, "columns": task.columns}
        try:
            check_inputs(task.kind, task.tensors, **sides, named=bool(task.right))
        except PeerViolation as violation:
            return violation.reason
        size = sum(array.nbytes for array in task.tensors.values())
        if max(size, result_bytes(task.kind, task.rows, task.columns)) > TASK_MAX_BYTES:
            return f"a task and its result have up to {TASK_MAX_BYTES:,} bytes: cut lower tiles"
        if right_bytes(task.kind, task.inner, task.columns) > RIGHT_MAX_BYTES:
            return f"a right side has up to {RIGHT_MAX_BYTES:,} bytes"
        window = (known.told.window if known.told else 0) + WINDOW_MORE
        if sum(opened.analyst == analyst for opened in self._tasks.values()) >= WINDOW_SLACK * window:
            return f"more tasks than the {window} that were offered"
        if sum(opened.size_bytes for opened in self._tasks.values()) + size > TASKS_HELD_MAX_BYTES:
            return "the pool has its hands full: try again in a moment"
        return ""

    def _on_result(self, node: str, result: Result, now_s: float) -> list[Action]:
        lender = self._lenders.get(node)
        if lender is None:
            return []
        issued = lender.answered(result.task, now_s, counts=not result.reason)
        opened = self._tasks.get(issued.task) if issued is not None and not issued.is_over else None
        actions: list[Action] = []
        if opened is not None and issued is not None:
            opened.live -= 1
            actions = self._passed_on(lender, issued.task, opened, result)
        measure = lender.measure_again(now_s)
        return [*actions, Send(to=node, message=measure)] if measure is not None else actions

    def _passed_on(self, lender: Lender, number: int, opened: _Open, result: Result) -> list[Action]:
        task, node = opened.task, lender.node
        reason = result.reason
        if not reason:
            try:
                array = check_result(task.kind, result.tensors, rows=task.rows, columns=task.columns)
            except PeerViolation as violation:
                reason = violation.reason
        if reason:
            lender.refused += 1
            opened.given[node] = reason
            opened.is_queued = True
            return [Record(kind="refused", reason=f"{node} did not do its task: {reason}")]
        lender.tasks += 1
        lender.multiply_adds += opened.multiply_adds
        self._close(number)
        passed = Result(task=task.task, executor=node, seconds=result.seconds, tensors={"result": np.array(array)})
        return [Send(to=opened.analyst, message=passed)]

    def _close(self, number: int) -> None:
        """Done, or wanted no more. What executors have of it still takes up their time."""
        del self._tasks[number]

    def _analyst_gone(self, analyst: str) -> list[Action]:
        del self._analysts[analyst]
        for number in [number for number, opened in self._tasks.items() if opened.analyst == analyst]:
            self._close(number)
        self._groups = {key: nodes for key, nodes in self._groups.items() if key[0] != analyst}
        return []

    # Right sides ----------------------------------------------------------------------------------------

    def _on_right(self, analyst: str, right: Right) -> list[Action]:
        known = self._analysts.get(analyst)
        if known is None or right.right not in known.asked:
            return []
        known.asked.discard(right.right)
        array = right.tensors.get("right")
        if array is None or digest_of(array) != right.right:
            # Kept under this name it would be multiplied by for other analysts, too.
            return self._refuse_named(right.right, "the right side that came is not the one that was named", analyst)
        needed = {opened.task.right for opened in self._tasks.values()}
        room = RIGHTS_HELD_MAX_BYTES - array.nbytes
        for name in list(self._rights):
            if sum(kept.nbytes for kept in self._rights.values()) > room and name not in needed:
                del self._rights[name]
        if sum(kept.nbytes for kept in self._rights.values()) > room:
            return self._refuse_named(right.right, "the pool holds as many right sides as it can", analyst)
        self._rights[right.right] = np.array(array)
        return [
            action
            for lender in self._lenders.values()
            if lender.is_connected and right.right in lender.holds
            for action in self._send_right(lender, right.right)
        ]

    def _refuse_named(self, right: str, reason: str, analyst: str) -> list[Action]:
        of = [n for n, t in self._tasks.items() if t.task.right == right and t.analyst == analyst]
        actions: list[Action] = [_refusal(analyst, self._tasks[number].task, reason) for number in of]
        for number in of:
            self._close(number)
        return actions

    def _needs(self, node: str, right: str) -> list[Action]:
        """An executor let go of a right side that it had."""
        lender = self._lenders.get(node)
        if lender is None or not any(self._names(issued, right) for issued in lender.issued.values()):
            return []
        if right in self._rights:
            return self._send_right(lender, right)
        # It is passed on to this executor when it comes.
        lender.holds.add(right)
        return self._ask_for(right)

    def _names(self, issued: Issued, right: str) -> bool:
        opened = self._tasks.get(issued.task)
        return opened is not None and opened.task.right == right

    def _send_right(self, lender: Lender, right: str) -> list[Action]:
        lender.holds.add(right)
        self._rights.move_to_end(right)
        return [Send(to=lender.node, message=Right(right=right, tensors={"right": self._rights[right]}))]

    def _ask_for(self, right: str) -> list[Action]:
        """Whoever has a task of it has the right side."""
        asking = dict.fromkeys(opened.analyst for opened in self._tasks.values() if opened.task.right == right)
        actions: list[Action] = []
        for analyst in asking:
            known = self._analysts[analyst]
            if right not in known.asked:
                known.asked.add(right)
                actions.append(Send(to=analyst, message=NeedRight(right=right)))
        return actions

    # Who does what --------------------------------------------------------------------------------------

    def _dispatch(self, now_s: float) -> list[Action]:
        """Every waiting task to whoever should be done with it first, counting what each has to do already: for alike
        tasks, ``offload.shares.split``. Here some may not go to everyone.

        One that is busy may be the one to wait for: a slow executor that happens to be free is not given the last task.
        """
        actions: list[Action] = []
        planned_s = {node: lender.busy_s() for node, lender in self._lenders.items() if lender.is_ready}
        for number, opened in list(self._tasks.items()):
            if not opened.is_queued:
                continue
            right = opened.task.right
            if right and right not in self._rights:
                actions += self._ask_for(right)
                continue
            able = self._able(opened)
            if not able:
                if not opened.live:
                    actions.append(_refusal(opened.analyst, opened.task, self._why_nobody(opened)))
                    self._close(number)
                else:
                    # Whoever has it may yet answer.
                    opened.is_queued = False
                continue
            ends_s = {lender.node: planned_s[lender.node] + self._takes_s(opened, lender) for lender in able}
            best = min(able, key=lambda lender: (ends_s[lender.node], lender.node))
            planned_s[best.node] = ends_s[best.node]
            if best.has_room:
                actions += self._issue(number, opened, best, now_s)
        return actions

    def _right_to_send(self, opened: _Open, lender: Lender) -> int:
        right = opened.task.right
        return self._rights[right].nbytes if right and right not in lender.holds else 0

    def _takes_s(self, opened: _Open, lender: Lender) -> float:
        return lender.takes_s(opened.multiply_adds, opened.moved_bytes + self._right_to_send(opened, lender))

    def _able(self, opened: _Open) -> list[Lender]:
        task = opened.task
        size = max(opened.size_bytes, result_bytes(task.kind, task.rows, task.columns))
        right = right_bytes(task.kind, task.inner, task.columns)
        group = self._groups.get((opened.analyst, task.group), set()) if task.group else set()
        return [
            lender
            for node, lender in sorted(self._lenders.items())
            if lender.is_ready
            and node not in opened.given
            and node not in task.avoid
            and node not in group
            and size <= lender.task_max_bytes
            and right <= lender.rights_max_bytes
        ]

    def _why_nobody(self, opened: _Open) -> str:
        ready = [lender for lender in self._lenders.values() if lender.is_ready]
        if not ready:
            return f"nobody lends here now: {self._counted()}"
        refusals = [f"{node}: {reason}" for node, reason in sorted(opened.given.items()) if reason]
        return f"none of {len(ready)} executors may or can do it" + (
            f" ({'; '.join(refusals[:3])})" if refusals else ""
        )

    def _counted(self) -> str:
        states = [lender.state for lender in self._lenders.values()]
        counted = [f"{states.count(state)} {state}" for state in sorted(set(states))]
        return ", ".join(counted) or "none joined with --lend"

    def _issue(self, number: int, opened: _Open, lender: Lender, now_s: float) -> list[Action]:
        task = opened.task
        expected_s = lender.busy_s() + self._takes_s(opened, lender)
        moved = opened.moved_bytes + self._right_to_send(opened, lender)
        self._numbers += 1
        issue = self._numbers
        lender.issued[issue] = Issued(
            task=number,
            at_s=now_s,
            multiply_adds=opened.multiply_adds,
            size_bytes=moved,
            due_s=now_s + max(STALE_LEAST_S, STALE_FACTOR * expected_s),
        )
        opened.given[lender.node] = ""
        opened.live += 1
        opened.is_queued = False
        if task.group:
            self._groups.setdefault((opened.analyst, task.group), set()).add(lender.node)
            if len(self._groups) > GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        first = self._send_right(lender, task.right) if task.right and task.right not in lender.holds else []
        relayed = Task(
            task=issue,
            kind=task.kind,
            right=task.right,
            rows=task.rows,
            inner=task.inner,
            columns=task.columns,
            deadline_s=max(opened.ends_s - now_s, 1e-3),
            tensors=task.tensors,
        )
        return [*first, Send(to=lender.node, message=relayed)]

    # Time -----------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> list[Action]:
        """Who takes too long, and what nobody waits for any more."""
        actions: list[Action] = []
        for lender in self._lenders.values():
            for issued in lender.issued.values():
                opened = self._tasks.get(issued.task)
                if opened is None or issued.due_s > now_s or opened.is_queued:
                    continue
                others = [other for other in self._able(opened) if other is not lender]
                # Whether or not there is another: it is looked at again only after as long.
                issued.due_s = now_s + max(STALE_LEAST_S, 2 * (now_s - issued.at_s))
                if others:
                    lender.is_late()
                    opened.is_queued = True
                    late_s = now_s - issued.at_s
                    actions.append(
                        Record(kind="reissued", reason=f"{lender.node} has a task for {late_s:.1f} s: another gets it")
                    )
        for number, opened in list(self._tasks.items()):
            if opened.ends_s <= now_s:
                waited = f"no result within {opened.task.deadline_s:g} s: {self._counted()}"
                actions.append(_refusal(opened.analyst, opened.task, waited))
                self._close(number)
        return actions

    def _wake(self, now_s: float) -> list[Action]:
        times = [opened.ends_s for opened in self._tasks.values()]
        times += [
            issued.due_s
            for lender in self._lenders.values()
            for issued in lender.issued.values()
            if issued.task in self._tasks
        ]
        return [SetTimer(name="look", after_s=max(min(times) - now_s, 0.01))] if times else []

    def _advertise(self, now_s: float) -> list[Action]:
        """Tell analysts what the pool can, when that is news."""
        ready = [lender for lender in self._lenders.values() if lender.is_ready]
        pool = Pool(
            executors=len(ready),
            multiply_adds_per_s=sum(lender.multiply_adds_per_s for lender in ready),
            latency_s=statistics.median(lender.latency_s for lender in ready) if ready else 0.0,
            window=WINDOW_EACH * len(ready) + WINDOW_MORE if ready else 0,
            # What most can take: one small device does not set the measure for all.
            task_max_bytes=_usual([min(lender.task_max_bytes, TASK_MAX_BYTES) for lender in ready]),
            right_max_bytes=_usual([min(lender.rights_max_bytes, RIGHT_MAX_BYTES) for lender in ready]),
        )
        actions: list[Action] = []
        for name, analyst in self._analysts.items():
            if analyst.told is not None and not _is_news(analyst.told, pool):
                continue
            wait_s = analyst.told_s + ADVERTISE_EVERY_S - now_s
            if analyst.told is not None and wait_s > 0 and analyst.told.executors and pool.executors:
                actions.append(SetTimer(name="advertise", after_s=wait_s))
                continue
            analyst.told, analyst.told_s = pool, now_s
            actions.append(Send(to=name, message=pool))
        return actions


def _usual(sizes: list[int]) -> int:
    return statistics.median_low(sizes) if sizes else 0


def _is_news(told: Pool, pool: Pool) -> bool:
    if told.executors != pool.executors or told.task_max_bytes != pool.task_max_bytes:
        return True
    return abs(pool.multiply_adds_per_s - told.multiply_adds_per_s) > ADVERTISE_CHANGE * told.multiply_adds_per_s


def _refusal(analyst: str, task: Task, reason: str) -> Send:
    return Send(to=analyst, message=Result(task=task.task, reason=clip(reason)))
