"""The cluster as all its managers see it: each writes what it has to the store, and reads what the others have.

``ClusterView.node`` and ``ClusterView.job`` return what other managers have. What this manager has, its role knows.

A manager writes only what changed, at a calm pace, under its seat: one that was ended writes nothing. No clock of
another machine is compared with one's own: a manager says with its seat when it last wrote, by its own clock, and a
reader counts from when it saw that change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from shoal.errors import ShoalError
from shoal.roles.manager.cluster_state import NodeMark
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.other_managers import COMES_WITHIN_S
from shoal.runtime.stored_jobs import view_of
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.view_rows import JOB, NODE, ViewRow
from shoal.wire.encoding import from_json, to_json
from shoal.wire.messages import JobView, NodeView, Progress

log = logging.getLogger("shoal")

#: How often a manager writes what changed, and reads what others wrote.
VIEW_EVERY_S = 2.0
#: While more waits to be written than goes into one transaction.
BACKLOG_EVERY_S = 0.5

#: Devices that one transaction writes: the manager's seat waits for it.
ROWS_MAX = 500

#: The load and free memory of a device are written again within this many times, if they changed.
TURNS = 30

#: The most that the progress of one job writes, in bytes per second: a job may have a thousand workers.
JOB_BYTES_PER_S = 32 << 10

#: A leader that was heard within this is heard all the time: that it was heard again is not written.
FRESH_S = 5.0

#: A manager that has not written for this long may have devices that are lost by now.
OLD_S = 30.0

#: Rows that one question to the store returns.
READ_MAX = 2000


class OwnView:
    """What this manager has, from its role. Read in a thread."""

    def __init__(self, manager: Manager, heard_ago_s: Callable[[str, float], float | None]) -> None:
        """``heard_ago_s``: returns how long ago a node was heard, or None if it never was."""
        self._manager = manager
        self._heard_ago_s = heard_ago_s

    def marks(self, now_s: float) -> Mapping[str, NodeMark]:
        return self._manager.node_marks(now_s=now_s)

    def nodes(self, names: Iterable[str], now_s: float) -> tuple[NodeView, ...]:
        """Return those of these nodes that the manager knows, with how long ago each was heard."""
        return tuple(self._with_silence(view, now_s) for view in self._manager.node_views(names, now_s=now_s))

    def _with_silence(self, view: NodeView, now_s: float) -> NodeView:
        ago_s = self._heard_ago_s(view.node, now_s)
        return replace(view, heard_s=-1.0 if ago_s is None else ago_s)

    def open_jobs(self, now_s: float) -> tuple[JobView, ...]:
        return tuple(view for view in self._manager.job_views(now_s=now_s) if view.state.is_open)


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerSeen:
    """Another manager as a reader sees it."""

    #: When it last wrote what it has, by its own clock, and when that was first seen, by the reader's.
    viewed_s: float
    seen_s: float
    #: Where it is dialled. Empty if that is not known.
    address: str = ""
    #: When its seat was found to have ended. None if it is alive.
    ended_s: float | None = None


def node_as_of(view: NodeView, manager: ManagerSeen, *, clock_s: float, now_s: float) -> NodeView:
    """Return a device of another manager as it is by now. ``clock_s``: when its view was written, by that manager's
    clock."""
    silent_s = now_s - manager.seen_s
    is_fresh = view.state == "alive"
    heard_s = _later(view.heard_s, silent_s if is_fresh else manager.viewed_s - clock_s + silent_s)
    told = replace(view, manager=view.manager or manager.address, heard_s=heard_s)
    if manager.ended_s is not None:
        return _without_manager(told, now_s - manager.ended_s)
    if is_fresh and silent_s > OLD_S:
        reason = f"{manager.address} has not said how it is for {silent_s:.0f} s"
        return replace(told, state="suspect", reason=reason)
    return told


def _without_manager(view: NodeView, ended_ago_s: float) -> NodeView:
    if view.state in ("lost", "dormant"):
        # One that sleeps comes to whichever manager there is.
        return view
    if ended_ago_s < COMES_WITHIN_S:
        return replace(view, state="elsewhere", job="", reason="its manager ended: it is on its way to another one")
    return replace(view, state="lost", job="", reason="its manager ended, and it came to no other one")


def job_as_of(view: JobView, manager: ManagerSeen, *, clock_s: float, now_s: float) -> JobView:
    """Return a job of another manager as it is by now."""
    silent_s = now_s - manager.seen_s
    past_s = manager.viewed_s - clock_s + silent_s
    is_fresh = 0 <= view.heard_s < FRESH_S
    return replace(
        view,
        manager=manager.address if manager.ended_s is None else "",
        since_s=_later(view.since_s, past_s),
        heard_s=_later(view.heard_s, silent_s if is_fresh else past_s),
    )


def _later(age_s: float, past_s: float) -> float:
    return age_s if age_s < 0 else age_s + max(0.0, past_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A row of another manager."""

    manager: str
    clock_s: float
    view: NodeView | JobView


@dataclass(frozen=True, slots=True)
class _WrittenJob:
    """A job as this manager last wrote it."""

    mark: Hashable
    progress: Progress | None
    clock_s: float
    view_json: str


class ClusterView:
    def __init__(self, registry: Registry, own: OwnView, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._own = own
        self._clock = clock
        #: Where this manager is dialled, as its seat says.
        self.address = ""
        self._epoch = 0
        self._seen: dict[str, dict[str, _Seen]] = {JOB: {}, NODE: {}}
        self._managers: dict[str, ManagerSeen] = {}
        #: What was written of devices and jobs here.
        self._marks: dict[str, NodeMark] = {}
        self._written: dict[str, _WrittenJob] = {}
        self._turn = 0

    # What others have ------------------------------------------------------------------------------------

    @property
    def node_names(self) -> tuple[str, ...]:
        """The devices that other managers have, or had last."""
        return tuple(self._seen[NODE])

    def node(self, name: str) -> NodeView | None:
        """Return a device that another manager has, or had last. None if there is none."""
        seen = self._seen[NODE].get(name)
        if seen is None or not isinstance(seen.view, NodeView):
            return None
        return node_as_of(seen.view, self._managers[seen.manager], clock_s=seen.clock_s, now_s=self._clock())

    def with_others(self, own: Iterable[NodeView], names: Iterable[str]) -> tuple[NodeView, ...]:
        """Return the devices of these names as the cluster has them. ``own``: those that this manager knows."""
        here = {view.node: replace(view, manager=view.manager or self.address) for view in own}
        found = []
        for name in names:
            view = here.get(name)
            if view is None or view.state != "alive":
                # If another manager wrote over its row, the device has been there since.
                view = self.node(name) or view
            if view is not None:
                found.append(view)
        return tuple(found)

    def named(self, own: Iterable[JobView]) -> tuple[JobView, ...]:
        """Return jobs of this manager's role with its address. Those that ended before it started may be another's."""
        return tuple(
            replace(view, manager=self.address) if view.state.is_open or view.since_s >= 0 else view for view in own
        )

    def job(self, row: JobRow) -> JobView:
        """Return a job that this manager does not have: as its manager last wrote it, or else as the store has it."""
        seen = self._seen[JOB].get(row.job) if row.state.is_open else None
        if seen is None or not isinstance(seen.view, JobView):
            manager = self._managers.get(row.manager)
            return replace(view_of(row, now_s=time.time()), manager=manager.address if manager is not None else "")
        view = job_as_of(seen.view, self._managers[seen.manager], clock_s=seen.clock_s, now_s=self._clock())
        # What was decided is durable before it is told.
        return replace(view, state=row.state)

    # Writing and reading -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write and read, until cancelled."""
        while True:
            has_more = False
            try:
                has_more = await asyncio.to_thread(self.step)
            except ShoalError as error:
                # What is known grows old, and readers see that. That the store is away is told elsewhere.
                log.debug("the view of the cluster is not up to date: %s", error)
            except Exception:
                log.exception("the view of the cluster is not up to date")
            await asyncio.sleep(BACKLOG_EVERY_S if has_more else VIEW_EVERY_S)

    def step(self) -> bool:
        """Write what changed here, and read what changed elsewhere. Return whether there is more to write."""
        has_more = self._write()
        self._read()
        return has_more

    def _write(self) -> bool:
        clock_s = self._clock()
        marks = self._own.marks(clock_s)
        changed = self._changed(marks)
        now = changed[:ROWS_MAX]
        jobs, over = self._changed_jobs(clock_s)
        here = [ViewRow(kind=JOB, name=job, view_json=written.view_json) for job, written in jobs.items()]
        gone: list[ViewRow] = []
        for view in self._own.nodes(now, clock_s):
            row = ViewRow(kind=NODE, name=view.node, view_json=json.dumps(to_json(view)))
            (here if marks[view.node].is_here else gone).append(row)
        self._registry.write_views(here, gone=gone, over=over, clock_s=clock_s)
        # Only now: what was not written is tried again.
        self._marks = {name: mark for name, mark in self._marks.items() if name in marks}
        self._marks |= {name: marks[name] for name in now}
        self._written |= jobs
        for job in over:
            del self._written[job]
        self._turn += 1
        return len(changed) > len(now)

    def _changed(self, marks: Mapping[str, NodeMark]) -> list[str]:
        """Return the devices whose rows are to be written, those whose figures changed last."""
        before = self._marks
        changed = dict.fromkeys(n for n, mark in marks.items() if n not in before or before[n].view != mark.view)
        for name, seen in self._seen[NODE].items():
            # Another manager wrote over its row and has lost it since, or has ended.
            if name in marks and marks[name].is_here and not self._is_there(seen):
                changed[name] = None
        turn = sorted(marks)[self._turn % TURNS :: TURNS]
        return list(changed | dict.fromkeys(n for n in turn if n in before and before[n].figures != marks[n].figures))

    def _is_there(self, seen: _Seen) -> bool:
        is_alive = isinstance(seen.view, NodeView) and seen.view.state == "alive"
        return is_alive and self._managers[seen.manager].ended_s is None

    def _changed_jobs(self, clock_s: float) -> tuple[dict[str, _WrittenJob], list[str]]:
        """Return the jobs whose rows are to be written, and those that are over."""
        changed, here = {}, set()
        for view in self._own.open_jobs(clock_s):
            here.add(view.job)
            was, mark = self._written.get(view.job), _job_mark(view)
            if was is not None and was.mark == mark:
                wait_s = len(was.view_json) / JOB_BYTES_PER_S
                if clock_s - was.clock_s < wait_s or was.progress == view.progress:
                    continue
            changed[view.job] = _WrittenJob(mark, view.progress, clock_s, json.dumps(to_json(view)))
        return changed, [job for job in self._written if job not in here]

    def _read(self) -> None:
        self._look_at_managers()
        own = self._registry.holder
        while rows := self._registry.views_since(self._epoch, limit=READ_MAX):
            for row in rows:
                if row.manager == own:
                    self._seen[row.kind].pop(row.name, None)
                    continue
                view = from_json(NodeView if row.kind == NODE else JobView, json.loads(row.view_json))
                self._seen[row.kind][row.name] = _Seen(row.manager, row.clock_s, view)
                if row.manager not in self._managers:
                    # It ended before this manager started.
                    now_s = self._clock()
                    self._managers[row.manager] = ManagerSeen(viewed_s=row.clock_s, seen_s=now_s, ended_s=now_s)
            self._epoch = rows[-1].epoch
        self._forget()

    def _look_at_managers(self) -> None:
        """See which managers live, and when each last wrote."""
        now_s = self._clock()
        living = {viewer.holder: viewer for viewer in self._registry.viewers()}
        own = living.pop(self._registry.holder, None)
        self.address = own.address if own is not None else self.address
        for holder, viewer in living.items():
            known = self._managers.get(holder)
            if known is None or known.viewed_s != viewer.viewed_s:
                known = ManagerSeen(viewed_s=viewer.viewed_s, seen_s=now_s)
            self._managers[holder] = replace(known, address=viewer.address, ended_s=None)
        for holder in self._managers.keys() - living.keys():
            known = self._managers[holder]
            self._managers[holder] = known if known.ended_s is not None else replace(known, ended_s=now_s)

    def _forget(self) -> None:
        """Drop jobs that are over, and managers that ended and of which nothing is shown."""
        if self._seen[JOB]:
            still_open = self._registry.managers_of_open_jobs()
            for job in self._seen[JOB].keys() - still_open.keys():
                del self._seen[JOB][job]
        shown = {seen.manager for kind in self._seen.values() for seen in kind.values()}
        for holder in [h for h, m in self._managers.items() if m.ended_s is not None and h not in shown]:
            del self._managers[holder]


def _job_mark(view: JobView) -> Hashable:
    """What other managers are told at once; the progress of a job can wait if it is large."""
    progress = view.progress
    is_fresh = view.heard_s < FRESH_S if view.heard_s >= 0 else None
    decided = (view.state, view.reason, view.leader, view.term, view.discarded)
    trouble = (view.trouble, view.failing, view.stalled)
    led = (progress.term, progress.state, progress.reason, len(progress.workers)) if progress is not None else None
    return decided, trouble, led, is_fresh
