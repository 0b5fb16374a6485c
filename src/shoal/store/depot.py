"""The depot: where a cluster's files are. A folder holds them, or object storage does and the folder holds copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.store.blobs import BlobStore
from shoal.store.checkpoints import CheckpointStore, version_in
from shoal.store.files import bytes_below

if TYPE_CHECKING:
    from shoal.store.objects import Objects


class Depot(Protocol):
    """Uploaded blobs, published models, and the checkpoints of each job."""

    @property
    def blobs(self) -> BlobStore: ...

    @property
    def models(self) -> BlobStore: ...

    def checkpoints(self, job: str) -> CheckpointStore: ...

    def jobs(self) -> list[str]:
        """Jobs that have checkpoints here."""
        ...

    def newest_checkpoints(self) -> dict[str, str]:
        """Return the name of the newest checkpoint of each job that has one. It is not read."""
        ...

    def checkpoint_bytes(self, job: str) -> int: ...

    def remove_checkpoints(self, job: str) -> None: ...


class FolderDepot:
    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore(folder / "blobs")
        self.models = BlobStore(folder / "published")
        self._checkpoints = folder / "checkpoints"

    def checkpoints(self, job: str) -> CheckpointStore:
        return CheckpointStore(self._checkpoints / job)

    def jobs(self) -> list[str]:
        return sorted(path.name for path in self._checkpoints.iterdir()) if self._checkpoints.is_dir() else []

    def newest_checkpoints(self) -> dict[str, str]:
        found = ((job, self.checkpoints(job).names()) for job in self.jobs())
        return {job: max(names, key=version_in) for job, names in found if names}

    def checkpoint_bytes(self, job: str) -> int:
        return bytes_below(self._checkpoints / job)

    def remove_checkpoints(self, job: str) -> None:
        shutil.rmtree(self._checkpoints / job, ignore_errors=True)


class ObjectDepot:
    def __init__(self, objects: Objects, folder: Path, *, downloads: str = "manager") -> None:
        from shoal.store.object_blobs import ObjectBlobs

        self._objects = objects
        self._folder = folder
        self.blobs = ObjectBlobs(objects, "blobs", folder / "blobs", downloads=downloads)
        self.models = ObjectBlobs(objects, "published", folder / "published")

    def checkpoints(self, job: str) -> CheckpointStore:
        from shoal.store.object_checkpoints import ObjectCheckpoints

        return ObjectCheckpoints(self._objects, f"checkpoints/{job}", self._folder / "checkpoints" / job)

    def jobs(self) -> list[str]:
        return sorted({name.split("/")[1] for name in self._objects.list("checkpoints")})

    def newest_checkpoints(self) -> dict[str, str]:
        newest: dict[str, tuple[int, float, str]] = {}
        for path, facts in self._objects.list("checkpoints").items():
            _, job, name = path.split("/", 2)
            if (version := version_in(name)) >= 0:
                newest[job] = max(newest.get(job, (-1, 0.0, "")), (version, facts.modified_s, name))
        return {job: name for job, (_, _, name) in newest.items()}

    def checkpoint_bytes(self, job: str) -> int:
        return sum(facts.size_bytes for facts in self._objects.list(f"checkpoints/{job}").values())

    def remove_checkpoints(self, job: str) -> None:
        self.checkpoints(job).remove()
