"""The broker: gives the tasks of clients to the executors of one cluster, its pool. Knows neither numbers nor liars.

The broker measures its executors, tells clients their speed together, gives each task to the executor that should end
it first, and gives it to a second one when it takes too long or its executor is lost. It passes at most one result of a
task on. Clients check results: a client names an executor that it caught, and the broker gives it no further tasks.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import PeerViolation
from shoal.offload.kinds import check_inputs, check_result, digest_of, result_bytes, right_bytes
from shoal.offload.roles.executors import SLOTS, ExecutorRecord, Issued
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
from shoal.roles.machine import Machine
from shoal.wire.limits import (
    RIGHT_MAX_BYTES,
    RIGHTS_HELD_MAX_BYTES,
    TASK_MAX_BYTES,
    TASKS_HELD_MAX_BYTES,
)
from shoal.wire.messages import (
    AskPool,
    Caught,
    ExecutorView,
    Forget,
    Lend,
    NeedOperand,
    Pool,
    RightOperand,
    TileResult,
    TileTask,
    clip,
    with_tensors,
)

LOOK = "look"
ADVERTISE = "advertise"

#: A second executor gets a task after this multiple of its expected duration: the staleness of the thesis (§3.3).
STALE_FACTOR = 4.0
STALE_LEAST_S = 1.0

#: How often a client hears the pool's speed at most, and how much it must have changed.
ADVERTISE_EVERY_S = 1.0
ADVERTISE_CHANGE = 0.2

#: Tasks a client may have here for each ready executor, and beyond.
WINDOW_EACH = SLOTS + 1
WINDOW_MORE = 2

#: Groups whose executors are remembered: the last task of one may come long after its first.
GROUPS_MAX = 4096

#: The broker refuses a client that sends more than this many times the window it was told.
WINDOW_SLACK = 2


@dataclass(slots=True)
class _Open:
    """A task that is not done."""

    client: str
    #: With its tensors, in memory of its own.
    task: TileTask
    ends_s: float
    #: Executors that got it -> why they must not get it again, or None if they may.
    given: dict[str, str | None] = field(default_factory=dict)
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
class _Client:
    told: Pool | None = None
    told_s: float = 0.0
    #: Right sides that it was asked for and has not sent.
    asked: set[str] = field(default_factory=set)


class Broker(Machine):
    def __init__(self, *, held: Mapping[str, str] | None = None) -> None:
        """``held``: members that an operator holds back, and how."""
        super().__init__()
        self._held = dict(held or {})
        self._executors: dict[str, ExecutorRecord] = {}
        self._clients: dict[str, _Client] = {}
        #: Number -> task, in the order they came.
        self._tasks: dict[int, _Open] = {}
        #: (client, group) -> executors that were given a task of it.
        self._groups: dict[tuple[str, int], set[str]] = {}
        self._rights: OrderedDict[str, np.ndarray] = OrderedDict()
        self._numbers = 0

    def on_event(self, event: Event) -> None:
        match event:
            case Received():
                self._on_message(event)
            case Connected():
                self._on_connected(event.node)
            case Disconnected() if event.node in self._clients:
                self._on_client_gone(event.node)
            case Disconnected():
                self._on_lost(event.node, event.reason)
            case PeerChanged(state=Liveness.LOST):
                self._on_lost(event.node, event.reason)
            case MemberHeld():
                self._on_held(event)
            case TimerFired(name=name) if name == LOOK:
                self._on_look()
            case TimerFired(name=name) if name == ADVERTISE:
                pass
            case _:
                return
        self._dispatch()
        self._advertise()
        self._set_look_timer()

    def views(self) -> tuple[ExecutorView, ...]:
        """For ``shoal status``. Read by another thread: it must not change anything."""
        executors = dict(self._executors)
        return tuple(executors[node].view() for node in sorted(executors))

    def result_limit(self, node: str, issue: int) -> int:
        """The most bytes of tensors that this executor may send for this issue."""
        executor = self._executors.get(node)
        issued = executor.issued.get(issue) if executor else None
        if executor is None or not 0 < issue <= self._numbers:
            return 0
        if issued is None:
            # The task is of an earlier session: its result was asked for, and is received and dropped.
            return TASK_MAX_BYTES
        opened = self._tasks.get(issued.task)
        # Another executor may have done the task by now: the result is received and dropped, as it was asked for.
        return result_bytes(opened.task.kind, opened.task.rows, opened.task.columns) if opened else TASK_MAX_BYTES

    def awaits_result(self, node: str, issue: int) -> bool:
        """Whether this result is of use: not if it is of an earlier session, nor if another executor was quicker."""
        executor = self._executors.get(node)
        issued = executor.issued.get(issue) if executor else None
        return issued is not None and not issued.is_over and issued.task in self._tasks

    def _on_message(self, event: Received) -> None:
        sender, message = event.sender, event.message
        match message:
            case AskPool():
                self._clients[sender] = _Client()
                what_for = f": {clip(message.purpose)}" if message.purpose else ""
                self.record("client.connected", f"{sender} asks for products{what_for}")
            case TileTask():
                self._on_task(sender, message)
            case RightOperand():
                self._on_right(sender, message)
            case Caught():
                self._on_caught(sender, message)
            case Forget():
                over = [n for n, t in self._tasks.items() if t.client == sender and t.task.task <= message.upto]
                for number in over:
                    self._close(number)
            case Lend():
                executor = self._executors.get(sender)
                measure = executor.on_lend(message, self.now_s) if executor else None
                if measure is not None:
                    self.send(sender, measure)
            case NeedOperand():
                self._on_need_right(sender, message.right)
            case TileResult():
                self._on_result(sender, message)
            case _:
                pass

    # Executors ------------------------------------------------------------------------------------------

    def _on_connected(self, node: str) -> None:
        executor = self._executors.setdefault(node, ExecutorRecord(node))
        executor.hold = self._held.get(node)
        self._take_back(node, executor.on_disconnected("connected again"))
        self.send(node, executor.on_connected(self.now_s))

    def _on_lost(self, node: str, reason: str) -> None:
        executor = self._executors.get(node)
        if executor is None or not executor.is_connected:
            return
        left = executor.on_disconnected(reason)
        if any(issued.task in self._tasks for issued in left):
            self.record("task.reissued", f"{node} is lost with {len(left)} tasks: {reason}")
        self._take_back(node, left)

    def _take_back(self, node: str, left: list[Issued]) -> None:
        for issued in left:
            opened = self._tasks.get(issued.task)
            if opened is not None and not issued.is_over:
                opened.live -= 1
                opened.is_queued = opened.is_queued or not opened.live
                # Nobody saw a result of it: the executor may have the task again when it returns.
                opened.given.pop(node, None)
                self._groups.get((opened.client, opened.task.group), set()).discard(node)
            issued.is_over = True

    def _on_held(self, event: MemberHeld) -> None:
        was, hold = self._held.pop(event.node, None), event.hold or None
        if hold is not None:
            self._held[event.node] = hold
        executor = self._executors.get(event.node)
        if executor is None:
            return
        executor.hold = hold
        if was == "drained" and hold is None and executor.excluded is not None:
            # An operator drained it and let it back: that is deliberate.
            executor.excluded = None
            self.record("executor.readmitted", f"{event.node}: an operator undrained it")

    def _on_caught(self, client: str, caught: Caught) -> None:
        executor = self._executors.setdefault(caught.executor, ExecutorRecord(caught.executor))
        if executor.excluded is not None:
            return
        who = client.partition("/")[0]
        executor.caught += 1
        executor.excluded = f"caught by {who}: {caught.reason}"
        self.record("executor.excluded", f"{caught.executor} gave a wrong result: {caught.reason}")
        # Its tasks go to others; its own results for them do not count.
        self._take_back(executor.node, list(executor.issued.values()))

    # Tasks ----------------------------------------------------------------------------------------------

    def _on_task(self, client: str, task: TileTask) -> None:
        why_not = self._why_not(client, task)
        if why_not is not None:
            self._refuse(client, task, why_not)
            return
        # The transport reuses the memory of a message for the next one.
        owned: TileTask = with_tensors(task, {name: np.array(array) for name, array in task.tensors.items()})
        self._numbers += 1
        self._tasks[self._numbers] = _Open(client, owned, self.now_s + task.deadline_s)

    def _why_not(self, client: str, task: TileTask) -> str | None:
        """Why the pool does not take a task; None if it does."""
        known = self._clients.get(client)
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
        if sum(opened.client == client for opened in self._tasks.values()) >= WINDOW_SLACK * window:
            return f"more tasks than the {window} that were offered"
        if sum(opened.size_bytes for opened in self._tasks.values()) + size > TASKS_HELD_MAX_BYTES:
            return "the pool has its hands full: try again in a moment"
        return None

    def _refuse(self, client: str, task: TileTask, reason: str) -> None:
        self.send(client, TileResult(task=task.task, reason=clip(reason)))

    def _on_result(self, node: str, result: TileResult) -> None:
        executor = self._executors.get(node)
        if executor is None:
            return
        issued = executor.on_answer(result.task, self.now_s, counts=not result.reason)
        opened = self._tasks.get(issued.task) if issued is not None and not issued.is_over else None
        if opened is not None and issued is not None:
            opened.live -= 1
            self._pass_on(executor, issued.task, opened, result)
        measure = executor.measure_again(self.now_s)
        if measure is not None:
            self.send(node, measure)

    def _pass_on(self, executor: ExecutorRecord, number: int, opened: _Open, result: TileResult) -> None:
        """Send a result to its client, or queue the task for another executor."""
        task, node = opened.task, executor.node
        reason = result.reason or None
        if reason is None:
            try:
                array = check_result(task.kind, result.tensors, rows=task.rows, columns=task.columns)
            except PeerViolation as violation:
                reason = violation.reason
        if reason is not None:
            executor.refused += 1
            opened.given[node] = reason
            opened.is_queued = True
            self.record("task.refused", f"{node}: {reason}")
            return
        executor.tasks += 1
        executor.multiply_adds += opened.multiply_adds
        self._close(number)
        passed = TileResult(task=task.task, executor=node, seconds=result.seconds, tensors={"result": np.array(array)})
        self.send(opened.client, passed)

    def _close(self, number: int) -> None:
        """A task is done, or no longer wanted. Executors that have it still spend time on it."""
        del self._tasks[number]

    def _on_client_gone(self, client: str) -> None:
        del self._clients[client]
        for number in [number for number, opened in self._tasks.items() if opened.client == client]:
            self._close(number)
        self._groups = {key: nodes for key, nodes in self._groups.items() if key[0] != client}

    # Right sides ----------------------------------------------------------------------------------------

    def _on_right(self, client: str, right: RightOperand) -> None:
        known = self._clients.get(client)
        if known is None or right.right not in known.asked:
            return
        known.asked.discard(right.right)
        array = right.tensors.get("right")
        if array is None or digest_of(array) != right.right:
            # Kept under this name it would be used for other clients, too.
            self._refuse_named(right.right, "the right side that came is not the one that was named", client)
            return
        needed = {opened.task.right for opened in self._tasks.values()}
        room = RIGHTS_HELD_MAX_BYTES - array.nbytes
        for name in list(self._rights):
            if sum(kept.nbytes for kept in self._rights.values()) > room and name not in needed:
                del self._rights[name]
        if sum(kept.nbytes for kept in self._rights.values()) > room:
            self._refuse_named(right.right, "the pool holds as many right sides as it can", client)
            return
        self._rights[right.right] = np.array(array)
        for executor in self._executors.values():
            if executor.is_connected and right.right in executor.holds:
                self._send_right(executor, right.right)

    def _refuse_named(self, right: str, reason: str, client: str) -> None:
        """Refuse all tasks of a client that name this right side."""
        of = [n for n, t in self._tasks.items() if t.task.right == right and t.client == client]
        for number in of:
            self._refuse(client, self._tasks[number].task, reason)
            self._close(number)

    def _on_need_right(self, node: str, right: str) -> None:
        """An executor let go of a right side that it had."""
        executor = self._executors.get(node)
        if executor is None or not any(self._names(issued, right) for issued in executor.issued.values()):
            return
        if right in self._rights:
            self._send_right(executor, right)
            return
        # The broker passes it on to this executor when it comes.
        executor.holds.add(right)
        self._ask_for(right)

    def _names(self, issued: Issued, right: str) -> bool:
        opened = self._tasks.get(issued.task)
        return opened is not None and opened.task.right == right

    def _send_right(self, executor: ExecutorRecord, right: str) -> None:
        executor.holds.add(right)
        self._rights.move_to_end(right)
        self.send(executor.node, RightOperand(right=right, tensors={"right": self._rights[right]}))

    def _ask_for(self, right: str) -> None:
        """Ask every client with a task that names this right side."""
        for client in dict.fromkeys(opened.client for opened in self._tasks.values() if opened.task.right == right):
            known = self._clients[client]
            if right not in known.asked:
                known.asked.add(right)
                self.send(client, NeedOperand(right=right))

    # Placement ------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give every waiting task to the executor that should end it first, counting the tasks each has already: for
        equal tasks, ``offload.shares.split``. Here some executors may not have some tasks.

        A busy executor may be worth waiting for: a slow one that happens to be free does not get the last task.
        """
        planned_s = {node: executor.busy_s() for node, executor in self._executors.items() if executor.is_ready}
        for number, opened in list(self._tasks.items()):
            if not opened.is_queued:
                continue
            right = opened.task.right
            if right and right not in self._rights:
                self._ask_for(right)
                continue
            able = self._able(opened)
            if not able:
                if not opened.live:
                    self._refuse(opened.client, opened.task, self._why_nobody(opened))
                    self._close(number)
                else:
                    # An executor that has it may yet answer.
                    opened.is_queued = False
                continue
            ends_s = {each.node: planned_s[each.node] + self._takes_s(opened, each) for each in able}
            best = min(able, key=lambda each: (ends_s[each.node], each.node))
            planned_s[best.node] = ends_s[best.node]
            if best.has_room:
                self._issue(number, opened, best)

    def _right_to_send(self, opened: _Open, executor: ExecutorRecord) -> int:
        right = opened.task.right
        return self._rights[right].nbytes if right and right not in executor.holds else 0

    def _takes_s(self, opened: _Open, executor: ExecutorRecord) -> float:
        return executor.takes_s(opened.multiply_adds, opened.moved_bytes + self._right_to_send(opened, executor))

    def _able(self, opened: _Open) -> list[ExecutorRecord]:
        """The executors that may have a task and can do it."""
        task = opened.task
        size = max(opened.size_bytes, result_bytes(task.kind, task.rows, task.columns))
        right = right_bytes(task.kind, task.inner, task.columns)
        group = self._groups.get((opened.client, task.group), set()) if task.group else set()
        return [
            executor
            for node, executor in sorted(self._executors.items())
            if executor.is_ready
            and node not in opened.given
            and node not in task.avoid
            and node not in group
            and size <= executor.task_max_bytes
            and right <= executor.rights_max_bytes
        ]

    def _why_nobody(self, opened: _Open) -> str:
        ready = [executor for executor in self._executors.values() if executor.is_ready]
        if not ready:
            return f"no executor is available now: {self._counted()}"
        refusals = [f"{node}: {reason}" for node, reason in sorted(opened.given.items()) if reason is not None]
        return f"none of {len(ready)} executors may or can do it" + (
            f" ({'; '.join(refusals[:3])})" if refusals else ""
        )

    def _counted(self) -> str:
        states = [executor.state for executor in self._executors.values()]
        counted = [f"{states.count(state)} {state}" for state in sorted(set(states))]
        return ", ".join(counted) or "none joined with --lend"

    def _issue(self, number: int, opened: _Open, executor: ExecutorRecord) -> None:
        task = opened.task
        expected_s = executor.busy_s() + self._takes_s(opened, executor)
        moved = opened.moved_bytes + self._right_to_send(opened, executor)
        self._numbers += 1
        issue = self._numbers
        executor.issued[issue] = Issued(
            task=number,
            at_s=self.now_s,
            multiply_adds=opened.multiply_adds,
            size_bytes=moved,
            due_s=self.now_s + max(STALE_LEAST_S, STALE_FACTOR * expected_s),
        )
        opened.given[executor.node] = None
        opened.live += 1
        opened.is_queued = False
        if task.group:
            self._groups.setdefault((opened.client, task.group), set()).add(executor.node)
            if len(self._groups) > GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
        if task.right and task.right not in executor.holds:
            self._send_right(executor, task.right)
        relayed = TileTask(
            task=issue,
            kind=task.kind,
            right=task.right,
            rows=task.rows,
            inner=task.inner,
            columns=task.columns,
            deadline_s=max(opened.ends_s - self.now_s, 1e-3),
            tensors=task.tensors,
        )
        self.send(executor.node, relayed)

    # Time -----------------------------------------------------------------------------------------------

    def _on_look(self) -> None:
        """Queue tasks that take too long for a second executor, and refuse those past their deadline."""
        for executor in self._executors.values():
            for issued in executor.issued.values():
                opened = self._tasks.get(issued.task)
                if opened is None or issued.due_s > self.now_s or opened.is_queued:
                    continue
                others = [other for other in self._able(opened) if other is not executor]
                # Whether or not there is another: it is looked at again only after as long.
                issued.due_s = self.now_s + max(STALE_LEAST_S, 2 * (self.now_s - issued.at_s))
                if others:
                    executor.on_late()
                    opened.is_queued = True
                    late_s = self.now_s - issued.at_s
                    self.record("task.reissued", f"{executor.node} has a task for {late_s:.1f} s: another gets it")
        for number, opened in list(self._tasks.items()):
            if opened.ends_s <= self.now_s:
                waited = f"no result within {opened.task.deadline_s:g} s: {self._counted()}"
                self._refuse(opened.client, opened.task, waited)
                self._close(number)

    def _set_look_timer(self) -> None:
        times = [opened.ends_s for opened in self._tasks.values()]
        times += [
            issued.due_s
            for executor in self._executors.values()
            for issued in executor.issued.values()
            if issued.task in self._tasks
        ]
        if times:
            self.timer(LOOK, max(min(times) - self.now_s, 0.01))

    def _advertise(self) -> None:
        """Tell clients the pool's speed and limits, when they changed."""
        ready = [executor for executor in self._executors.values() if executor.is_ready]
        pool = Pool(
            executors=len(ready),
            multiply_adds_per_s=sum(executor.multiply_adds_per_s for executor in ready),
            latency_s=statistics.median(executor.latency_s for executor in ready) if ready else 0.0,
            window=WINDOW_EACH * len(ready) + WINDOW_MORE if ready else 0,
            # The size that most can take: one small device does not limit all.
            task_max_bytes=_usual([min(executor.task_max_bytes, TASK_MAX_BYTES) for executor in ready]),
            right_max_bytes=_usual([min(executor.rights_max_bytes, RIGHT_MAX_BYTES) for executor in ready]),
        )
        for name, client in self._clients.items():
            if client.told is not None and not _is_news(client.told, pool):
                continue
            wait_s = client.told_s + ADVERTISE_EVERY_S - self.now_s
            if client.told is not None and wait_s > 0 and client.told.executors and pool.executors:
                self.timer(ADVERTISE, wait_s)
                continue
            client.told, client.told_s = pool, self.now_s
            self.send(name, pool)


def _usual(sizes: list[int]) -> int:
    return statistics.median_low(sizes) if sizes else 0


def _is_news(told: Pool, pool: Pool) -> bool:
    if told.executors != pool.executors or told.task_max_bytes != pool.task_max_bytes:
        return True
    return abs(pool.multiply_adds_per_s - told.multiply_adds_per_s) > ADVERTISE_CHANGE * told.multiply_adds_per_s
