"""The disk of the manager's node, and what a crash leaves on it. Writes take time, and may be torn or lost.

Durable data stays durable, unless the disk reports it wrongly. Like the real store, it keeps two checkpoints per job,
so that the older one is left if the newest is torn.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.errors import Misuse
from shoal.roles.actions import GiveJob, Keep, Save
from shoal.roles.events import JobGiven
from shoal.roles.manager.cluster_state import JobRecord, Term, sides_kept
from shoal.roles.manager.reunion import Side
from shoal.scheduling.ledger import Applied
from shoal.sim.kernel import Kernel
from shoal.sim.rng import Stream
from shoal.wire.messages import Tensors

#: The time in which a small SSD or a good SD card makes a small write durable, and its rate for large ones.
SYNC_S = 0.01
BYTES_PER_S = 40e6

#: How often a manager tries again while the disk cannot be reached.
AGAIN_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskCheckpoint:
    version: int
    tensors: Tensors
    state: dict[str, Any]
    is_torn: bool = False


@dataclass(eq=False, slots=True)
class Write:
    """A checkpoint under way."""

    job: str
    save: Save
    #: Whether some of its history may be here already: its leader may not know that its last save was durable.
    may_repeat: bool
    is_void: bool = False


class Disk:
    def __init__(self, kernel: Kernel, flaws: Stream | None = None, *, sync_s: float = SYNC_S) -> None:
        self.kernel = kernel
        self._sync_s = sync_s
        #: Randomness for saves that fail by themselves, or `None` if none does.
        self.flaws = flaws
        self.jobs: dict[str, JobRecord] = {}
        #: Records that are written but not yet durable.
        self._keeps: dict[str, JobRecord] = {}
        self.history: dict[str, list[Applied]] = {}
        self._checkpoints: dict[str, list[DiskCheckpoint]] = {}
        self._writes: list[Write] = []
        self.is_full = False
        self._evaluated: dict[str, set[int]] = {}
        #: Called for each checkpoint that became durable, with the rows of history that it repeated and those that it
        #: replaced.
        self.on_durable: Callable[[str, Save, tuple[Applied, ...], tuple[Applied, ...]], object] = _nobody_hears
        #: Called for each record of a job that became durable.
        self.on_kept: Callable[[JobRecord], object] = lambda record: None

    @property
    def sync_s(self) -> float:
        """The time to make a small write durable."""
        return self._sync_s

    @property
    def has_room(self) -> bool:
        return not self.is_full

    @property
    def is_away(self) -> bool:
        """Whether the disk cannot be reached now."""
        return False

    def jobs_under_way(self) -> list[str]:
        """The jobs that have a write under way."""
        return sorted({*self._keeps, *(write.job for write in self._writes)})

    def records_under_way(self) -> list[JobRecord]:
        return list(self._keeps.values())

    def share_with(self, other: Disk) -> None:
        """Share durable data and callbacks with another disk from now on."""
        self.jobs, self.history = other.jobs, other.history
        self._checkpoints, self._evaluated = other._checkpoints, other._evaluated
        self.on_durable, self.on_kept = other.on_durable, other.on_kept

    # Jobs ----------------------------------------------------------------------------------------------

    def keep(self, keep: Keep, done: Callable[[], object] | None = None) -> float:
        """Write a job's record. Returns how long that takes, or infinity if ``done`` is called at the end. After a
        crash within that time, the record may be durable or not."""
        self.kernel.after(self.sync_s / 2, self._kept, self.recorded(keep))
        return self.sync_s

    def recorded(self, keep: Keep) -> JobRecord:
        """Return the new record of a job, and mark it as not yet durable."""
        known = self._keeps.get(keep.job) or self.jobs.get(keep.job)
        spec = keep.spec or (known.spec if known else None)
        assert spec is not None, f"a record of {keep.job}, which was never submitted"
        terms = known.terms if known else {}
        if keep.terms is not None:
            terms = {
                number: Term(node=node, began=began if began >= 0 else None)
                for number, (node, began) in keep.terms.items()
            }
        reason, leader = keep.reason or None, keep.leader or None
        record = JobRecord(spec=spec, state=keep.state, reason=reason, term=keep.term, leader=leader, terms=terms)
        self._keeps[keep.job] = record
        return record

    def is_under_way(self, record: JobRecord) -> bool:
        return self._keeps.get(record.spec.job) is record

    def _kept(self, record: JobRecord) -> None:
        job = record.spec.job
        if self.is_under_way(record):
            self.jobs[job] = self._keeps.pop(job)
            self.on_kept(record)

    def give(self, give: GiveJob, done: Callable[[JobGiven], object]) -> float:
        """Give a job to another manager. Returns what ``keep`` does."""
        raise Misuse(f"a manager that is alone does not give {give.job} away")

    def stored_jobs(self) -> list[JobRecord]:
        return [self._as_stored(kept) for kept in self.jobs.values()]

    def _as_stored(self, kept: JobRecord) -> JobRecord:
        newest, history = self.newest(kept.spec.job), self.history.get(kept.spec.job, [])
        durable = newest.version if newest is not None else None

        def between(after: int | None, last: int) -> Side:
            nodes = [row.node for row in history if (after is None or after < row.version) and row.version <= last]
            return Side(batches=len(nodes), workers=len(set(nodes)), names=frozenset(nodes))

        # A new object: what a manager only has in memory is lost with its process.
        return JobRecord(
            spec=kept.spec,
            state=kept.state,
            reason=kept.reason,
            term=kept.term,
            leader=kept.leader,
            terms=dict(kept.terms),
            sides=sides_kept(kept.terms, durable=durable, between=between),
            durable=durable,
        )

    # Checkpoints ---------------------------------------------------------------------------------------

    def write(self, job: str, save: Save, done: Callable[[bool], object], *, may_repeat: bool = False) -> None:
        """Make a checkpoint durable, and call ``done`` with the result. History may repeat if ``may_repeat``."""
        if not self.has_room or (self.flaws is not None and self.flaws.happens(0.05)):
            self.kernel.after(self.sync_s, done, False)
            return
        write = Write(job, save, may_repeat)
        self._writes.append(write)
        size_bytes = sum(array.nbytes for array in save.tensors.values())
        self.kernel.after(self.sync_s + size_bytes / BYTES_PER_S, self._finish, write, done)

    def _finish(self, write: Write, done: Callable[[bool], object]) -> None:
        if write.is_void:
            return
        self.give_up(write)
        self._commit(write)
        # Reported a moment later: after a crash in between it is durable, but was never reported.
        self.kernel.after(self.sync_s / 10, done, True)

    def give_up(self, write: Write) -> None:
        """Drop a write that was not finished."""
        self._writes.remove(write)

    def _commit(self, write: Write) -> None:
        save, again, gone = self._new_in(write)
        self._add(
            write.job, DiskCheckpoint(version=save.version, tensors=_copied(save.tensors), state=_plain(save.state))
        )
        history = self.history.setdefault(write.job, [])
        del history[len(history) - len(gone) :]
        history.extend(save.applied)
        self._evaluated.setdefault(write.job, set()).update(view.version for view in save.evaluations)
        self.on_durable(write.job, save, again, gone)

    def _new_in(self, write: Write) -> tuple[Save, tuple[Applied, ...], tuple[Applied, ...]]:
        """Return a save with only its new rows, the rows that the history already has, and the history's rows that this
        leader does not have."""
        save = write.save
        history = self.history.get(write.job, [])
        # Found by bisection: a fleet's history is long, in order of versions, and every save reads its end.
        later = tuple(history[bisect_right(history, save.after, key=lambda row: row.version) :])
        again = save.applied[: len(later)]
        new = save.applied[len(again) :]
        # Two leaders may lease the same batches to the same devices under the same numbers. A version that has more
        # rows than the version on disk replaces it.
        is_whole = not again or not new or again[-1].version < new[0].version
        gone = () if again == later and is_whole else later
        evaluated = self._evaluated.setdefault(write.job, set())
        if gone:
            again = ()
            evaluated.difference_update([version for version in evaluated if version > save.after])
        views = tuple(view for view in save.evaluations if not write.may_repeat or view.version not in evaluated)
        return replace(save, applied=save.applied[len(again) :], evaluations=views), again, gone

    def _add(self, job: str, checkpoint: DiskCheckpoint) -> None:
        files = self._checkpoints.setdefault(job, [])
        # A torn file is overwritten first.
        files[:] = [*[file for file in files if not file.is_torn][-1:], checkpoint]

    def crash(self, fate: str) -> None:
        """Cut the power. Unfinished writes reached the disk (safe), did not (lost), or did in part (torn)."""
        keeps, self._keeps = self._keeps, {}
        if fate == "safe":
            self.jobs.update(keeps)
            for record in keeps.values():
                self.on_kept(record)
        writes, self._writes = self._writes, []
        for write in writes:
            write.is_void = True
            if fate == "safe":
                self._commit(write)
            elif fate == "torn":
                self._add(write.job, DiskCheckpoint(version=write.save.version, tensors={}, state={}, is_torn=True))

    def newest(self, job: str) -> DiskCheckpoint | None:
        """Return the newest complete checkpoint."""
        whole = [file for file in self._checkpoints.get(job, ()) if not file.is_torn]
        return whole[-1] if whole else None


def _nobody_hears(job: str, save: Save, again: tuple[Applied, ...], gone: tuple[Applied, ...]) -> None:
    pass


def _copied(tensors: Tensors) -> dict[str, np.ndarray]:
    """Return copies of the arrays, so that later changes do not reach them, as in a file."""
    return {name: array if not array.flags.writeable else np.array(array) for name, array in tensors.items()}


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(state))
    return plain
