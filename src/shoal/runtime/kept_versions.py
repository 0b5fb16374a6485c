"""The checkpoints of the jobs of a manager: which is the newest, and in which order a file and its rows are written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shoal.roles.manager.going_back import TERMS_PASSED_OVER
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.store.checkpoints import CheckpointStore, LoadedCheckpoint, version_in
from shoal.store.depot import Depot
from shoal.store.registry import Registry
from shoal.store.rows import JobRow


class KeptVersions:
    """``is_shared``: another manager may have written to the depot that was deposed since, so a checkpoint counts only
    if the registry names it."""

    def __init__(self, depot: Depot, registry: Registry, *, is_shared: bool) -> None:
        self._depot = depot
        self._registry = registry
        self._is_shared = is_shared
        self._stores: dict[str, CheckpointStore] = {}

    def _store(self, job: str) -> CheckpointStore:
        store = self._stores.get(job)
        if store is None:
            store = self._stores[job] = self._depot.checkpoints(job)
        return store

    def let_go(self, job: str) -> None:
        """Its files are about to go."""
        self._stores.pop(job, None)

    def newest_version(self, job: JobRow) -> int:
        """Read or not; -1 where there is none."""
        return version_in(job.checkpoint) if self._is_shared else self._store(job.job).newest_version()

    def adopted(self, job: JobRow) -> tuple[JobRow, str]:
        """Return the job as it goes on, and in words why that is another way than its row says, or "".

        A checkpoint that is named and missing while newer ones are there shows that the database went back: files are
        removed once a newer one is named. Then terms were given that the database does not know either."""
        if not self._is_shared or not job.checkpoint or not job.state.is_open:
            return job, ""
        names = self._store(job.job).names()
        newest = max(names, key=version_in, default="")
        if job.checkpoint in names or version_in(newest) <= version_in(job.checkpoint):
            return job, ""
        self._registry.adopt(job.job, newest, terms=TERMS_PASSED_OVER)
        row = self._registry.job(job.job)
        assert row is not None
        return row, (
            f"the database went back in time: it names version {version_in(job.checkpoint)}, which is not there any"
            f" more. The job goes on from version {version_in(newest)}, under a term that jumped ahead"
        )

    def load(self, job: str) -> LoadedCheckpoint | None:
        row = self._registry.job(job) if self._is_shared else None
        return self._store(job).load(named=row.checkpoint if row is not None else None)

    @contextlib.contextmanager
    def kept(self, job: str, version: StoredVersion) -> Iterator[str]:
        """The file first, with the rows inside; then the table, which the file can always mend.

        Where managers share a depot the table is the one that counts: it names the file, in the transaction that proves
        the seat, and only then do older files go. The name to write there; empty: none.
        """
        store = self._store(job)
        saved = store.save(
            version=version.version, tensors=version.tensors, state=version.state, thins=not self._is_shared
        )
        yield saved.path.name if self._is_shared else ""
        if self._is_shared:
            store.thin_out(saved)
