"""What happened, written down: events for people at leisure, history together with the checkpoint it belongs to."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import numpy as np

from shoal.roles.actions import Save
from shoal.roles.course import OURS
from shoal.store.registry import Registry
from shoal.store.rows import Evaluation
from shoal.wire.messages import Tensors, clip
from shoal.workload.ledger import Applied

log = logging.getLogger("shoal.events")

FLUSH_EVERY_S = 0.5

#: Events that wait to be written; beyond it the oldest go. They are for people: decisions do not depend on them.
WAITING_MAX = 10_000

#: Events of no job in particular are kept under this name.
CLUSTER = "cluster"

_ROWS, _NAMES = f"{OURS}applied", "nodes"


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

    @staticmethod
    def pack(save: Save) -> tuple[Tensors, dict[str, list[str]]]:
        """The rows of a save as they travel inside its checkpoint: numbers as a tensor, names beside the state."""
        names = sorted({row.node for row in save.applied})
        places = {name: place for place, name in enumerate(names)}
        rows = [[r.epoch, r.batch, r.version, places[r.node], r.lease] for r in save.applied]
        return {_ROWS: np.array(rows, dtype=np.int64).reshape(-1, 5)}, {_NAMES: names}

    def commit(self, job: str, save: Save) -> None:
        """The checkpoint is durable: its rows go to the table too."""
        self._registry.record_applied(job, save.applied, [_evaluation(view) for view in save.evaluations])

    def restore(self, job: str, tensors: Tensors, state: dict[str, Any], version: int) -> None:
        """After a crash between file and table: the file knows the rows the table may lack, and lost versions go."""
        names = state[_NAMES]
        rows = [
            Applied(epoch=epoch, batch=batch, version=at, node=names[place], lease=lease)
            for epoch, batch, at, place, lease in tensors[_ROWS].tolist()
        ]
        self._registry.restore_applied(job, rows, version)
        for row in state["evaluations"]:
            self._registry.add_evaluation(job, _evaluation_row(row))


def _evaluation(view: Any) -> Evaluation:
    return Evaluation(
        version=view.version,
        epoch=view.epoch,
        accuracy=view.accuracy,
        loss=view.loss,
        examples=view.examples,
        at_s=view.seconds,
    )


def _evaluation_row(row: dict[str, Any]) -> Evaluation:
    values = dict(row)
    return Evaluation(at_s=values.pop("seconds"), **values)
