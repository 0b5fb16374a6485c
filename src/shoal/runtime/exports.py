"""Models that were given out: stored to be fetched, and let go once newer ones were. Knows nothing of jobs.

A job that never ends is asked for its model for ever, and every version is another file.
"""

from __future__ import annotations

import threading

from shoal.store.blobs import BlobStore

#: Of each job: those that were given out last may be on their way.
KEPT = 4


class Exports:
    """Safe to call from several threads."""

    def __init__(self, blobs: BlobStore, *, keep: int = KEPT) -> None:
        self._blobs = blobs
        self._keep = keep
        self._given: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def gave(self, job: str, sha256: str) -> None:
        """A model of this job was stored under this hash: the oldest of its job goes, if there are too many."""
        with self._lock:
            given = self._given.setdefault(job, [])
            if sha256 in given:
                given.remove(sha256)
            given.append(sha256)
            for old in given[: -self._keep]:
                self._blobs.remove(old)
            del given[: -self._keep]
