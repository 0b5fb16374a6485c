"""What happened, written down: events for people at leisure, history together with the checkpoint it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.roles.actions import Record, Save
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.runtime.event_kinds import DETAILS
from shoal.runtime.log_lines import log_event, numbers_in
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import EvaluationRow
from shoal.store.usage import is_failure
from shoal.wire.limits import TRACEBACK_MAX_CHARS, TRACEBACKS_KEPT_PER_JOB
from shoal.wire.messages import clip

log = logging.getLogger("shoal.events")

FLUSH_EVERY_S = 0.5

#: Events that wait to be written; beyond it the oldest go. They are for people: decisions do not depend on them.
WAITING_MAX = 10_000

#: Events of no job in particular are kept under this name.
CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEvent:
    """An event at the moment it is recorded."""

    #: Empty: of no job in particular.
    job: str
    seq: int
    at_s: float
    kind: str
    reason: str
    #: The device that it names; empty: none that is known.
    node: str = ""


def _nothing_more(job: str, reason: str) -> Mapping[str, Any]:
    return {}


def _unheard(event: JournalEvent) -> None:
    return


class Journal:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._waiting: list[tuple[str, int, float, str, str]] = []
        #: The number of each job's latest event. Numbers are given out here, so that a log line can tell its own.
        self._numbers: dict[str, int] = {}
        #: What else is known of an event, for the log: by its job and its reason.
        self.context: Callable[[str, str], Mapping[str, Any]] = _nothing_more
        #: Hears of every event. Must not block: the manager's loop waits for it.
        self.on_event: Callable[[JournalEvent], None] = _unheard
        #: Those that would be kept if they were written now; large, so no others wait.
        self._tracebacks: dict[str, deque[tuple[float, str, str]]] = {}
        self._lock = threading.Lock()
        #: One flush at a time: once a flush ends, all events from before it are written.
        self._flushing = threading.Lock()

    def add(self, job: str, kind: str, reason: str, traceback: str = "") -> None:
        reason = clip(reason)
        if kind in DETAILS:
            log_event(log, kind, reason, job=job, **numbers_in(reason))
            return
        at_s = time.time()
        with self._lock:
            seq = self._next_number(job or CLUSTER)
            self._waiting.append((job or CLUSTER, seq, at_s, kind, reason))
            del self._waiting[:-WAITING_MAX]
            if job and traceback:
                latest = self._tracebacks.setdefault(job, deque(maxlen=TRACEBACKS_KEPT_PER_JOB))
                latest.append((time.time(), reason, clip(traceback, TRACEBACK_MAX_CHARS)))

        known = {**self.context(job, reason), **numbers_in(reason)}
        log_event(log, kind, reason, job=job, **known, seq=seq)
        self.on_event(JournalEvent(job=job, seq=seq, at_s=at_s, kind=kind, reason=reason, node=known.get("node", "")))

    def record(self, record: Record) -> None:
        """Add what a role recorded."""
        self.add(record.job, record.kind, record.reason, record.traceback)

    def _next_number(self, job: str) -> int:
        if job not in self._numbers:
            # Most events are told on the manager's loop, which must not wait for a store that is away: a number that is
            # taken is passed over when the event is written.
            self._numbers[job] = 0
            with contextlib.suppress(Away):
                self._numbers[job] = self._registry.last_event(job)
        self._numbers[job] += 1
        return self._numbers[job]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write all events that wait. Those that another thread is writing are written too when this returns."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            tracebacks, self._tracebacks = self._tracebacks, {}
        by_job: dict[str, dict[int, tuple[float, str, str]]] = {}
        for job, seq, at_s, kind, reason in waiting:
            by_job.setdefault(job, {})[seq] = (at_s, kind, reason)
        for job, events in by_job.items():
            try:
                self._registry.add_events(job, list(events.values()), numbers=list(events))
            except Exception as error:
                if not is_failure(error):
                    log.warning("events of %s could not be written: %s", job, error)
                    continue
                # Written when the store is back or its disk has room; the manager says what is wrong with it.
                with self._lock:
                    again = [(job, seq, *event) for seq, event in events.items()]
                    self._waiting = [*again, *self._waiting][-WAITING_MAX:]
        for job, latest in tracebacks.items():
            try:
                self._registry.add_tracebacks(job, tuple(latest))
            except Exception as error:
                log.warning("tracebacks of %s could not be written: %s", job, error)

    # History that must agree with the model ----------------------------------------------------------

    def commit(self, job: str, save: Save, *, checkpoint: str = "") -> None:
        """The checkpoint is durable: its rows go to the table too, and its name where that is told."""
        self._replace(job, save, checkpoint)

    def restore(self, job: str, version: StoredVersion, *, checkpoint: str = "", is_file_right: bool = False) -> None:
        """The same for a checkpoint that a leader elsewhere sent, and for the newest one after a crash between file and
        table. ``is_file_right``: see ``Registry.restore_applied``."""
        self._replace(job, version, checkpoint, is_file_right=is_file_right)

    def _replace(self, job: str, kept: Save | StoredVersion, checkpoint: str, *, is_file_right: bool = False) -> None:
        """A checkpoint knows where its rows begin. The table may have some of them already, if the leader never heard
        that they were kept; or rows of versions that were given up, on one side of a cut or with a model that broke.
        Either way its rows replace all that come after that place."""
        views = [_evaluation(view) for view in kept.evaluations]
        self._registry.restore_applied(
            job,
            kept.applied,
            after=kept.after,
            evaluations=views,
            checkpoint=checkpoint,
            is_file_right=is_file_right,
        )


def _evaluation(view: Any) -> EvaluationRow:
    return EvaluationRow(
        version=view.version,
        epoch=view.epoch,
        accuracy=view.accuracy,
        loss=view.loss,
        examples=view.examples,
        at_s=view.seconds,
        metrics=view.metrics,
    )
