"""What happened, written down: events for people at leisure, history together with the checkpoint it belongs to."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

from shoal.roles.actions import Save
from shoal.roles.custody import Version, gaps_in
from shoal.store.registry import Registry
from shoal.store.rows import Evaluation
from shoal.wire.messages import clip

log = logging.getLogger("shoal.events")

FLUSH_EVERY_S = 0.5

#: Events that wait to be written; beyond it the oldest go. They are for people: decisions do not depend on them.
WAITING_MAX = 10_000

#: Events of no job in particular are kept under this name.
CLUSTER = "cluster"


class Journal:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._waiting: list[tuple[str, float, str, str]] = []
        self._lock = threading.Lock()

    def add(self, job: str, kind: str, reason: str) -> None:
        reason = clip(reason)
        # Set in, so that no peer's words can pass for a line of ours.
        log.info("%s%s: %s", f"[{job}] " if job else "", kind, reason.replace("\n", "\n    "))
        with self._lock:
            self._waiting.append((job or CLUSTER, time.time(), kind, reason))
            del self._waiting[:-WAITING_MAX]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        by_job: dict[str, list[tuple[float, str, str]]] = {}
        for job, at_s, kind, reason in waiting:
            by_job.setdefault(job, []).append((at_s, kind, reason))
        for job, events in by_job.items():
            try:
                self._registry.add_events(job, events)
            except Exception as error:
                log.warning("events of %s could not be written: %s", job, error)

    # History that must agree with the model ----------------------------------------------------------

    def commit(self, job: str, save: Save) -> None:
        """The checkpoint is durable: its rows go to the table too."""
        self._forget_gaps(job, gaps_in(save.state))
        self._registry.record_applied(job, save.applied, [_evaluation(view) for view in save.evaluations])

    def commit_sent(self, job: str, version: Version) -> None:
        """The same for one that a leader elsewhere sent. It may bring rows again of which it never heard that they
        were kept: those of versions that are known are passed over."""
        self._forget_gaps(job, gaps_in(version.state))
        known = self._registry.last_version(job)
        fresh = [row for row in version.applied if row.version > known]
        self._registry.record_applied(job, fresh, [_evaluation(view) for view in version.evaluations])

    def restore(self, job: str, version: Version) -> None:
        """After a crash between file and table: the file knows the rows the table may lack, and lost versions go."""
        self._forget_gaps(job, gaps_in(version.state))
        self._registry.restore_applied(job, version.applied, version.version)
        for view in version.evaluations:
            self._registry.add_evaluation(job, _evaluation(view))

    def _forget_gaps(self, job: str, gaps: tuple[tuple[int, int], ...]) -> None:
        """Where training went back to an earlier version, what came after that one is no history."""
        if gaps:
            self._registry.forget_between(job, gaps)


def _evaluation(view: Any) -> Evaluation:
    return Evaluation(
        version=view.version,
        epoch=view.epoch,
        accuracy=view.accuracy,
        loss=view.loss,
        examples=view.examples,
        at_s=view.seconds,
    )
