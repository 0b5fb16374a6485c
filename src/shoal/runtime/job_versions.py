"""The versions of jobs at their manager: made durable, read where a job continues, and offered to be served.

A version comes from a leader on this node or from one elsewhere. Methods that are not coroutines block: call them in a
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.learning.algorithm_call import STATE_MODELS
from shoal.roles.actions import Save
from shoal.roles.events import Saved, SaveFailed, Stored, StoreFailed
from shoal.roles.leader.training_state import OURS
from shoal.roles.node.checkpoint_transfer import StoredVersion, unpacked, version_of
from shoal.runtime.journal import Journal
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.publisher import Publisher
from shoal.store.blobs import BlobStore
from shoal.store.registry import Registry
from shoal.wire import tensors as tensor_files
from shoal.wire.messages import Checkpoint, JobSpec

log = logging.getLogger("shoal")

#: A checkpoint holds the model, its momentum, its history and the state: what its first model does not predict.
CHECKPOINT_EXTRA_BYTES = 64 << 20


class JobVersions:
    def __init__(
        self,
        registry: Registry,
        blobs: BlobStore,
        kept: KeptVersions,
        journal: Journal,
        publisher: Publisher,
        memory: ManagerMemory,
        *,
        spec: Callable[[str], JobSpec | None],
        post: Callable[[Stored | StoreFailed], object],
    ) -> None:
        """``spec``: a job as it was submitted, if the manager role has it. ``post`` tells that role."""
        self._registry = registry
        self._blobs = blobs
        self._kept = kept
        self._journal = journal
        self._publisher = publisher
        self._memory = memory
        self._spec = spec
        self._post = post
        #: The size of each first model that was asked for: what a hash names never changes.
        self._first_bytes: dict[str, int] = {}

    def most_bytes(self, job: str) -> int:
        """Return the most bytes that a checkpoint of the job may have, by the size of its first model."""
        spec = self._spec(job)
        if spec is None:
            return 0
        first_bytes = self._first_bytes.get(spec.initial)
        if first_bytes is None:
            facts = self._blobs.facts(spec.initial)
            if facts is None:
                return 0
            first_bytes = self._first_bytes[spec.initial] = facts.size_bytes
        models = 3 + (STATE_MODELS if spec.plan.algorithm else 0)
        return models * first_bytes + CHECKPOINT_EXTRA_BYTES

    async def save(self, job: str, save: Save, *, post: Callable[[Saved | SaveFailed], object]) -> None:
        """Make a version of a leader on this node durable, and tell that leader whether it is."""
        try:
            await asyncio.to_thread(self._save, job, save)
        except (ShoalError, OSError) as error:
            post(SaveFailed(version=save.version, reason=str(error)))
        else:
            post(Saved(version=save.version))

    def _save(self, job: str, save: Save) -> None:
        version = version_of(save)
        with self._kept.kept(job, version) as name:
            self._journal.commit(job, save, checkpoint=name)
        self._memory.on_version(job, name)
        self._weigh(job, version)

    def newest(self, job: str) -> StoredVersion | None:
        """Return where a job continues: its newest good checkpoint, and the history that belongs to it."""
        loaded = self._kept.load(job)
        if loaded is None:
            return None
        for name, reason in loaded.skipped:
            told = f"{name} cannot be used ({reason}): the job goes on from version {loaded.version}, {loaded.which}"
            self._journal.add(job, "checkpoint.damaged", told)
        version = StoredVersion(version=loaded.version, tensors=loaded.tensors, state=dict(loaded.state))
        # A database that went back may list a batch under a version that was given up since.
        self._journal.restore(job, version, is_file_right=self._registry.is_shared)
        self._weigh(job, version)
        return version

    async def keep(self, checkpoint: Checkpoint) -> None:
        """Make a version of a leader elsewhere durable, and tell the manager role whether it is."""
        job, term, at = checkpoint.job, checkpoint.term, checkpoint.version
        try:
            is_last = await asyncio.to_thread(self._keep, checkpoint)
        except Exception as error:
            # The role must learn of any failure: until then no version of this job is kept, and nobody else leads it.
            if isinstance(error, PeerViolation):
                self._journal.add(job, "version.refused", f"version {at} of its leader: {error.reason}")
            elif not isinstance(error, ShoalError | OSError):
                log.exception("version %d of %s could not be kept", at, job)
            self._post(StoreFailed(job=job, term=term, version=at, reason=str(error)))
        else:
            self._post(Stored(job=job, term=term, version=at, is_last=is_last))

    def _keep(self, checkpoint: Checkpoint) -> bool:
        """Return whether it is the job's last version."""
        version = unpacked(checkpoint)
        spec = self._spec(checkpoint.job)
        if version is None or spec is None:
            raise Misuse("an empty checkpoint, or one of no job")
        first, _ = tensor_files.read(self._blobs.path(spec.initial), mmap=True)
        model = {name: array for name, array in version.tensors.items() if not name.startswith(OURS)}
        if {name: array.shape for name, array in model.items()} != {name: a.shape for name, a in first.items()}:
            raise PeerViolation("the checkpoint is of another model than the job's")
        with self._kept.kept(checkpoint.job, version) as name:
            self._journal.restore(checkpoint.job, version, checkpoint=name)
        self._memory.on_version(checkpoint.job, name)
        self._weigh(checkpoint.job, version)
        return bool(version.state.get("ending"))

    def _weigh(self, job: str, version: StoredVersion) -> None:
        """Serve a durable version if it is better than the one that is served. If it cannot be published, training
        continues, and the next version is tried."""
        spec = self._spec(job)
        if spec is None:
            return
        try:
            self._publisher.weigh(job, spec.plan, version)
        except Exception as error:
            # The checkpoint is durable, whatever failed, and its leader waits for that report.
            if not isinstance(error, ShoalError | OSError):
                log.exception("version %d of %s could not be published", version.version, job)
            self._journal.add(job, "publication.failed", f"version {version.version}: {error}; trying again")
