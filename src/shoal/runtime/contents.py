"""Which blobs a job is made of: its code, its first model, its frozen base, its data. Knows no devices."""

from __future__ import annotations

from shoal.errors import Corrupt
from shoal.store.blobs import BlobStore
from shoal.trainer.shards import Manifest
from shoal.wire.messages import Dataset, JobSpec

#: Lists of shards that are kept in memory: a device asks for one blob after the other.
LISTS_KEPT = 64


class Contents:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        #: By the hash of a list: its shards. What a hash names never changes.
        self._shards: dict[str, frozenset[str]] = {}

    def include(self, spec: JobSpec, sha256: str) -> bool:
        """Whether a worker or a leader of this job fetches what has this hash."""
        if sha256 and sha256 in (
            spec.bundle,
            spec.initial,
            *spec.base,
            spec.graphs,
            spec.train.manifest,
            spec.test.manifest,
        ):
            return True
        return sha256 in self._listed(spec.train) or sha256 in self._listed(spec.test)

    def all_of(self, spec: JobSpec) -> frozenset[str]:
        """The hashes of everything that this job is made of, as far as its lists are here."""
        own = (spec.bundle, spec.initial, *spec.base, spec.graphs, spec.train.manifest, spec.test.manifest)
        return frozenset(filter(None, own)) | self._listed(spec.train) | self._listed(spec.test)

    def _listed(self, dataset: Dataset) -> frozenset[str]:
        sha256 = dataset.manifest
        if sha256 not in self._shards:
            if not sha256 or not self._blobs.has(sha256):
                return frozenset()
            try:
                manifest = Manifest.from_json(self._blobs.read(sha256))
            except Corrupt:
                # The devices will say so: it is what an operator signed.
                return frozenset()
            while len(self._shards) >= LISTS_KEPT:
                del self._shards[next(iter(self._shards))]
            self._shards[sha256] = frozenset(shard.sha256 for shard in manifest.shards)
        return self._shards[sha256]
