"""The manager's files by job: how much they take, and the removal of those that nobody names. Decides nothing.

Members' entries in shared sets are named as well, until an operator rejects them.

A file goes after the row that names it, so a crash leaves at most a file that nobody names, which ``collect`` removes.
Blobs that were written a moment ago stay: the job that will name them may be on its way. Methods block: call them in a
thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.roles.events import DiskMeasured
from shoal.runtime.contents import Contents
from shoal.runtime.paths import Paths
from shoal.runtime.stored_jobs import spec_of
from shoal.store.depot import Depot
from shoal.store.files import bytes_below, remove_stale
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.wire.messages import JobSpec

#: An operator uploads a job's parts one after the other and submits it at the end. No upload takes this long.
FRESH_S = 3600.0

#: Checkpoints that a job keeps, and one that is being written.
_CHECKPOINTS = 3
#: The size of a checkpoint in sizes of the first model: the model, its momentum, its history.
_CHECKPOINT_TIMES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """What no job names."""

    blobs: tuple[str, ...]
    #: Jobs whose rows are gone and whose checkpoints are not.
    jobs: tuple[str, ...]
    size_bytes: int


class JobFiles:
    def __init__(self, places: Paths, registry: Registry, depot: Depot) -> None:
        self._places = places
        self._registry = registry
        self._depot = depot
        self._blobs = depot.blobs
        self._models = depot.models
        self._contents = Contents(depot.blobs)

    # How much there is -----------------------------------------------------------------------------------------

    def measure(
        self, *, quota_bytes: int, wanted: Mapping[str, int] | None = None, more_bytes: int = 0
    ) -> DiskMeasured:
        """``more_bytes`` are about to be written."""
        rows = sorted(self._registry.jobs(), key=lambda row: (row.ended_s or 0.0, row.job))
        ended = [row.job for row in rows if row.state.is_ended]
        named = {row.job: self._contents.all_of(spec_of(row)) for row in rows}
        busy = frozenset().union(*(named[row.job] for row in rows if not row.state.is_ended))
        contents: dict[str, int] = {}
        counted = set(busy) | self._registry.contributed()
        # A blob that several ended jobs name goes with the last of them.
        for job in reversed(ended):
            contents[job] = sum(self._old_size(sha256) for sha256 in named[job] - counted)
            counted |= named[job]
        return DiskMeasured(
            quota_bytes=quota_bytes,
            used_bytes=self.used_bytes() + more_bytes,
            checkpoints={job: self._depot.checkpoint_bytes(job) for job in ended},
            contents={job: contents[job] for job in ended},
            wanted=wanted or {},
        )

    def used_bytes(self) -> int:
        return bytes_below(self._places.registry.parent)

    def checkpoints_take(self, spec: JobSpec) -> int:
        """About what the checkpoints of a job will take."""
        first = self._blobs.facts(spec.initial)
        return _CHECKPOINTS * _CHECKPOINT_TIMES * first.size_bytes if first is not None else 0

    # What goes --------------------------------------------------------------------------------------------------

    def remove_checkpoints(self, job: str) -> None:
        self._depot.remove_checkpoints(job)

    def remove_contents(self, job: str) -> None:
        """Remove the files of an ended job that no open job and no job that ended later needs."""
        rows = {row.job: row for row in self._registry.jobs()}
        if job not in rows:
            return
        ended_s = rows[job].ended_s or 0.0
        others = (
            row
            for row in rows.values()
            if row.job != job and (not row.state.is_ended or (row.ended_s or 0.0, row.job) > (ended_s, job))
        )
        named = self._named_by(others)
        self._remove(self._contents.all_of(spec_of(rows[job])) - named)

    def drop_job(self, job: str) -> None:
        """Remove an ended job: its rows first, then its files."""
        spec = self.drop_record(job)
        if spec is not None:
            self.remove_unnamed([spec])

    def drop_record(self, job: str) -> JobSpec | None:
        """Remove an ended job's rows, then its checkpoints and published versions.

        Return its specification, whose files stay, or None if there is no such job.
        """
        row = self._registry.job(job)
        if row is None:
            return None
        published = {each.sha256 for each in self._registry.published(job)}
        self._registry.remove_job(job)
        self.remove_checkpoints(job)
        for sha256 in published - self._registry.published_hashes():
            self._models.remove(sha256)
        return spec_of(row)

    def remove_unnamed(self, specs: Iterable[JobSpec]) -> None:
        """Remove the files of these jobs that no job names any more."""
        named = self._named_by(self._registry.jobs())
        self._remove(frozenset().union(*map(self._contents.all_of, specs)) - named)

    def garbage(self) -> Garbage:
        """Find the files that no job names: blobs, published models, folders of checkpoints."""
        rows = self._registry.jobs()
        named = self._named_by(rows)
        blobs = tuple(sha256 for sha256 in self._blobs.hashes() if sha256 not in named and self._old_size(sha256))
        known = {row.job for row in rows}
        jobs = tuple(job for job in self._depot.jobs() if job not in known)
        size_bytes = sum(map(self._old_size, blobs)) + sum(map(self._depot.checkpoint_bytes, jobs))
        return Garbage(blobs=blobs, jobs=jobs, size_bytes=size_bytes)

    def collect(self) -> Garbage:
        """Remove what no job names, and temporary files of writers that died."""
        found = self.garbage()
        for sha256 in found.blobs:
            self._blobs.remove(sha256)
        for job in found.jobs:
            self._depot.remove_checkpoints(job)
        for folder in (self._places.blobs, self._places.published, *_folders(self._places.checkpoints(""))):
            remove_stale(folder)
        return found

    def _named_by(self, rows: Iterable[JobRow]) -> frozenset[str]:
        """Return the blobs that these jobs are made of, and those of shared sets."""
        return self._registry.contributed().union(*(self._contents.all_of(spec_of(row)) for row in rows))

    def _remove(self, blobs: Iterable[str]) -> None:
        for sha256 in blobs:
            if self._old_size(sha256):
                self._blobs.remove(sha256)

    def _old_size(self, sha256: str) -> int:
        """Return the size of a blob that may be removed, or 0 if it is absent or was just written."""
        found = self._blobs.facts(sha256)
        return found.size_bytes if found is not None and time.time() - found.modified_s > FRESH_S else 0


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
