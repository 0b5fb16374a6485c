"""The status that operators ask for: one page of nodes, the jobs, the latest events. Reads the role and the store.

Methods block: call them in a thread.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import replace

from shoal.roles.evaluation_rows import latest_within
from shoal.roles.manager.manager import Manager
from shoal.runtime.cluster_view import ClusterView, OwnView
from shoal.runtime.ended_jobs import CALLED_SHOWN, EndedJobs
from shoal.runtime.event_kinds import FAULTS
from shoal.runtime.journal import CLUSTER
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.publisher import Publisher
from shoal.runtime.shared_jobs import SharedJobs
from shoal.runtime.stored_jobs import view_of
from shoal.store.registry import Registry
from shoal.store.rows import Event, JobRow
from shoal.wire.messages import AskStatus, EvaluationView, EventView, ExecutorView, JobView, NodeView, Status

#: The nodes of one status: a reply does not grow with the fleet. An operator asks for the next ones.
NODES_SHOWN = 4000

#: The latest events of a job that one status holds.
EVENTS_SHOWN = 50

#: How many faults before those.
FAULTS_SHOWN = 10

#: The latest evaluations that one status holds: a job without an end has ever more.
EVALUATIONS_SHOWN = 1000


class StatusPages:
    def __init__(
        self,
        registry: Registry,
        manager: Manager,
        register: MemberRegister,
        *,
        empty: Status,
        own: OwnView,
        ended: EndedJobs,
        publisher: Publisher,
        executors: Callable[[], tuple[ExecutorView, ...]],
        shared: SharedJobs | None = None,
        others: ClusterView | None = None,
    ) -> None:
        """``empty``: names the cluster and the manager. ``shared`` and ``others``: jobs and nodes of other managers, or
        None if this one is the only manager."""
        self._registry = registry
        self._manager = manager
        self._register = register
        self._empty = empty
        self._own = own
        self._ended = ended
        self._publisher = publisher
        self._executors = executors
        self._shared = shared
        self._others = others

    def answer(self, ask: AskStatus) -> Status:
        now_s = time.monotonic()
        if ask.called:
            return self._ended.counted(replace(self._empty, jobs=self._jobs_called(ask.called, now_s)))
        if ask.ended_page:
            jobs, next_page = self._ended.page(ask.ended_page, now_s=time.time())
            return self._ended.counted(replace(self._empty, jobs=jobs, next_ended_page=next_page))
        nodes, next_node = self._node_page(ask.after_node, now_s)
        if ask.after_node:
            return replace(self._empty, nodes=nodes, next_node=next_node)
        return replace(
            self._empty if ask.job else self._ended.counted(self._empty),
            nodes=nodes,
            next_node=next_node,
            jobs=tuple(
                replace(view, served=self._publisher.served(view.job)) if ask.job else view
                for view in self._jobs(ask.job, now_s)
            ),
            events=self._events(ask),
            executors=self._executors(),
            evaluations=self._evaluations(ask.job) if ask.job else (),
        )

    def _node_page(self, after: str, now_s: float) -> tuple[tuple[NodeView, ...], str]:
        """Return the nodes of one status, by name, and the name of the last one if there are more."""
        elsewhere = self._others.node_names if self._others is not None else ()
        listed = self._register.listed((*self._manager.node_names, *elsewhere))
        names = heapq.nsmallest(NODES_SHOWN + 1, (name for name in listed if name > after))
        page = names[:NODES_SHOWN]
        views = self._own.nodes(page, now_s)
        if self._others is not None:
            views = self._others.with_others(views, page)
        return self._register.shown(views, page), page[-1] if len(names) > len(page) else ""

    def _events(self, ask: AskStatus) -> tuple[EventView, ...]:
        if ask.tracebacks:
            events = self._registry.tracebacks(ask.job)
        else:
            events = self._latest_events(ask.job or CLUSTER, ask.after_event)
        return tuple(
            EventView(seq=e.seq, at_s=e.at_s, kind=e.kind, reason=e.text, traceback=e.traceback) for e in events
        )

    def _latest_events(self, journal: str, after: int) -> list[Event]:
        """Return the latest events that a caller has not seen, and the faults before them that these leave no room
        for: a job has an evaluation every few seconds."""
        latest = self._registry.events_after(journal, after, limit=EVENTS_SHOWN)
        if len(latest) < EVENTS_SHOWN:
            return latest
        faults = self._registry.events_of(journal, FAULTS, after=after, before=latest[0].seq, limit=FAULTS_SHOWN)
        return [*faults, *latest]

    def _evaluations(self, job: str) -> tuple[EvaluationView, ...]:
        rows = self._registry.evaluations(job, latest=EVALUATIONS_SHOWN)
        return tuple(
            EvaluationView(
                version=row.version,
                epoch=row.epoch,
                accuracy=row.accuracy,
                loss=row.loss,
                examples=row.examples,
                seconds=row.at_s,
                metrics=row.metrics,
            )
            for row in rows[len(rows) - latest_within(rows, most=EVALUATIONS_SHOWN) :]
        )

    def _jobs(self, job: str, now_s: float) -> tuple[JobView, ...]:
        own = self._manager.job_views(job or None, now_s=now_s)
        if self._others is not None:
            own = self._others.named(own)
        if job:
            row = self._registry.job(job) if not own else None
            return own if row is None else (self._stored_view(row),)
        others = self._shared.rows(here={view.job for view in own}) if self._shared is not None else ()
        return (*self._ended.listed(own, now_s=time.time()), *map(self._stored_view, others))

    def _stored_view(self, row: JobRow) -> JobView:
        """Return a job that the manager role does not have."""
        return self._others.job(row) if self._others is not None else view_of(row, now_s=time.time())

    def _jobs_called(self, text: str, now_s: float) -> tuple[JobView, ...]:
        """Return the jobs that an operator may mean, or those that a status lists if no job has such a name."""
        called = self._registry.called(text, limit=CALLED_SHOWN)
        found = [view for row in called for view in self._jobs(row.job, now_s)]
        return tuple(found) or self._jobs("", now_s)
