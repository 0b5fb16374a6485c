"""Jobs as the registry keeps them, made into what the manager role and people read."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.plan import RETIRED, why_retired
from shoal.roles.actions import Keep
from shoal.roles.manager.cluster_state import JobRecord, Term, sides_kept
from shoal.roles.manager.reunion import Side
from shoal.runtime.kept_versions import KeptVersions
from shoal.states import JobState
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.wire.encoding import from_json, to_json
from shoal.wire.messages import JobSpec, JobView, Progress, clip


class StoredJobs:
    def __init__(self, registry: Registry, kept: KeptVersions, *, note: Callable[[str, str, str], object]) -> None:
        """``note``: records an event of a job, by its kind and its reason."""
        self._registry = registry
        self._kept = kept
        self._note = note

    def records(self) -> list[JobRecord]:
        """The open jobs of this manager. Those that are over are read when somebody asks for one."""
        records = [self.record(row) for row in self._registry.own_jobs()]
        return [record for record in records if record.is_open]

    def ended(self, job: str) -> JobRecord | None:
        """Return a job that is over, or None if there is none of this id, or if it is open."""
        row = self._registry.job(job)
        return self.record(row) if row is not None and row.state.is_ended else None

    def record(self, row: JobRow) -> JobRecord:
        if row.state.is_open and row.manager == self._registry.holder:
            row = self._failed_if_retired(row)
        if row.state.is_open and row.manager == self._registry.holder:
            with contextlib.suppress(Away):
                # Where the bucket does not answer, the one that loads the job finds out.
                row, why = self._kept.adopted(row)
                if why:
                    self._note(row.job, "store.reverted", why)
        terms = {
            int(term): Term(node=node, began=began if began >= 0 else None)
            for term, (node, began) in json.loads(row.terms_json).items()
        }
        is_open = row.state.is_open
        newest = self._kept.newest_version(row) if is_open else -1
        durable = newest if newest >= 0 else None
        between = functools.partial(self._between, row.job)
        return JobRecord(
            spec=spec_of(row),
            state=row.state,
            reason=row.reason or None,
            term=row.term,
            leader=row.leader or None,
            progress=_progress(row),
            terms=terms,
            sides=sides_kept(terms, durable=durable, between=between) if is_open else {},
            durable=durable,
        )

    def write(self, keep: Keep, progress: Progress | None, *, now_s: float) -> None:
        """Write the record of a job. An attempt before this one may have written a part of it, until it found that the
        store was away. ``now_s``: the time of day."""
        if keep.spec is not None and self._registry.job(keep.job) is None:
            spec_json = json.dumps(to_json(keep.spec))
            self._registry.add_job(job=keep.job, name=keep.spec.name, spec_json=spec_json, now_s=now_s)
        stored = self._registry.job(keep.job)
        while stored is not None and stored.term < keep.term:
            self._registry.next_term(keep.job)
            stored = self._registry.job(keep.job)
        if keep.terms is not None:
            self._registry.save_terms(keep.job, json.dumps(keep.terms))
        self._registry.set_job_state(keep.job, keep.state, now_s=now_s, reason=keep.reason, leader=keep.leader)
        if progress is not None:
            self._registry.save_progress(keep.job, json.dumps(to_json(progress)))

    def _failed_if_retired(self, row: JobRow) -> JobRow:
        """End an open job whose plan has an answer that was retired: nobody signed the plan that it would go on by."""
        gone = _retired_in(json.loads(row.spec_json))
        if not gone:
            return row
        reason = f"{why_retired(*gone[0])}, and submit the job again"
        self._registry.set_job_state(row.job, JobState.FAILED, now_s=time.time(), reason=reason)
        self._note(row.job, "job.failed", reason)
        return replace(row, state=JobState.FAILED, reason=reason)

    def _between(self, job: str, after: int | None, last: int) -> Side:
        batches, workers = self._registry.applied_between(job, -1 if after is None else after, last)
        return Side(batches=batches, workers=len(workers), names=workers)


def view_of(row: JobRow, *, now_s: float) -> JobView:
    """Return a job that this manager does not have, for people. ``now_s``: the time of day."""
    spec = spec_of(row)
    # Until its manager says more, it is as it was queued.
    since_s = now_s - (row.created_s if row.ended_s is None else row.ended_s)
    return JobView(
        job=row.job,
        name=row.name,
        state=row.state,
        reason=clip(row.reason),
        leader=row.leader,
        term=row.term,
        plan=spec.plan,
        progress=_progress(row),
        train_examples=spec.train.examples,
        test_examples=spec.test.examples,
        since_s=max(0.0, since_s),
    )


def spec_of(row: JobRow) -> JobSpec:
    return spec_from(row.spec_json)


def spec_from(spec_json: str) -> JobSpec:
    """Return a job as it was submitted. An answer that was retired is read as the one to set instead: jobs that are
    over are still listed, and their files found."""
    submitted = json.loads(spec_json)
    submitted["plan"] |= {name: RETIRED[name, answer] for name, answer in _retired_in(submitted)}
    spec: JobSpec = from_json(JobSpec, submitted)
    return spec


def _retired_in(submitted: dict[str, Any]) -> list[tuple[str, str]]:
    plan = submitted["plan"]
    return [(name, answer) for name, answer in RETIRED if plan.get(name) == answer]


def _progress(row: JobRow) -> Progress | None:
    return from_json(Progress, json.loads(row.progress_json)) if len(row.progress_json) > 2 else None
