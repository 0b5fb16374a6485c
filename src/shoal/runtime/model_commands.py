"""The commands of operators about a job's models: pull one, publish, roll back, list. Runs in threads."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import Refused
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.runtime.exports import Exports
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.publisher import Publisher, put_model
from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import LoadedCheckpoint
from shoal.store.registry import Registry
from shoal.wire.messages import (
    AskModel,
    AskVersions,
    Blob,
    Done,
    JobSpec,
    Message,
    PublishModel,
    RollBackModel,
    clip,
)

#: The commands that are answered here.
ModelCommand = AskModel | PublishModel | RollBackModel | AskVersions


class ModelCommands:
    def __init__(
        self,
        registry: Registry,
        *,
        kept: KeptVersions,
        blobs: BlobStore,
        publisher: Publisher,
        exports: Exports,
        spec: Callable[[str], JobSpec | None],
    ) -> None:
        self._registry = registry
        self._kept = kept
        self._blobs = blobs
        self._publisher = publisher
        self._exports = exports
        self._spec = spec

    def answer(self, command: ModelCommand) -> Message:
        if self._registry.job(command.job) is None:
            raise Refused(f"there is no job {command.job}")
        match command:
            case AskModel():
                return self._export(command)
            case PublishModel():
                return self._publish(command)
            case RollBackModel():
                told = self._publisher.roll_back(
                    command.job, command.version, reason=command.reason, until_accuracy=command.until_accuracy
                )
                return Done(job=command.job, reason=clip(told))
            case AskVersions():
                return self._publisher.versions(command.job)

    def _export(self, ask: AskModel) -> Message:
        """The model that is served; where none is, or where that is asked for, the newest durable one."""
        published = None if ask.newest else self._publisher.model(ask.job, ask.version)
        if published is not None:
            return published
        loaded = self._newest_file(ask.job)
        sha256, size_bytes = put_model(self._blobs, ask.job, loaded.version, loaded.tensors)
        self._exports.gave(ask.job, sha256)
        return Blob(sha256=sha256, size_bytes=size_bytes)

    def _publish(self, asked: PublishModel) -> Message:
        loaded, spec = self._newest_file(asked.job), self._spec(asked.job)
        assert spec is not None, "a command about a job of another manager is answered there"
        version = StoredVersion(version=loaded.version, tensors=loaded.tensors, state=dict(loaded.state))
        told = self._publisher.publish(asked.job, spec.plan, version, reason=asked.reason)
        return Done(job=asked.job, reason=clip(told))

    def _newest_file(self, job: str) -> LoadedCheckpoint:
        loaded = self._kept.load(job)
        if loaded is None:
            row = self._registry.job(job)
            if row is not None and row.state.is_ended:
                raise Refused(
                    f"job {job} has no checkpoint on this disk: it ended before there was one, or the disk quota cost"
                    f" it; `shoal jobs show {job}` says which"
                )
            raise Refused(f"job {job} has no checkpoint yet: try again in a moment")
        return loaded
